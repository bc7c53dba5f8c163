"""Ranges and vocabularies from noised counts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lightning_pac.accountants import Allowance, SRPPAccountant, ledger_order, promise_of, share_terms
from lightning_pac.data.columns.cells import Column, as_range, is_range, numbers_in, places_in
from lightning_pac.ledger import LedgerArgument, LedgerHandle
from lightning_pac.randomness import finite_precision, missing_tail, secure_generator
from lightning_pac.scenarios import Poisson, TwoWorldScenario

__all__ = ["choose_columns"]

_CERTAIN = 3.0  # deviations of the noise above which a count is no accident


def choose_columns(
    generous: Mapping[str, Any],
    counted: Mapping[str, Sequence[Any]],
    scenario: TwoWorldScenario,
    promise: Mapping[str, Any],
    ledger: LedgerArgument,
    coverage: float,
    bins: int,
    account: str,
) -> dict[str, Column]:
    """The columns narrowed to what the records need; see `TableTransform.private`."""
    wanted = promise_of(**promise)
    if wanted is None:
        raise ValueError("epsilon and delta, or world_success_bound, must be given: the promise that is kept.")
    sizes = {name: bins if is_range(generous[name]) else len(generous[name]) for name in counted}
    draws = sum(sizes.values())
    # One step of a sampler that draws every record.
    everything = Poisson(rate=1.0, batch_size=1, secret_draws=False)
    noise = SRPPAccountant(scenario, everything).noise_for(wanted.less(finite_precision(draws), missing_tail(draws)), 1)
    deviation = noise * math.sqrt(len(sizes)) * (1 + 2.0**-50)  # both roundings, and that of this product, upwards
    counts = np.concatenate([_count(counted[name], generous[name], bins) for name in sizes])
    with LedgerHandle(ledger) as opened:
        accountant = SRPPAccountant(scenario, everything, ledger_order(opened) or 16.0)
        (event,) = accountant.events(noise, 1)
        cost = accountant.epsilon(noise, 1) + finite_precision(draws, accountant.renyi_order)
        declaration = {
            "coupling": {"scenario": scenario.coupling(), "renyi_order": accountant.renyi_order},
            "epsilon_of_each": cost,
            "columns": dict(generous),
            **share_terms(opened, [event], LedgerHandle(ledger).share),
        }
        paying = opened.account(account, "rpp", declaration)
        number = paying.num_charges + 1
        Allowance(opened, paying, [event]).check(number, number * draws)
        paying.charge(cost, event={"release": "table", "mu_squared": event.mu_squared, "draws": draws})
        noised = secure_generator().release_(torch.from_numpy(counts), deviation).numpy()
    found = dict(generous)
    for name, part in zip(sizes, np.split(noised, np.cumsum([*sizes.values()])[:-1]), strict=True):
        column = generous[name]
        if is_range(column):
            _, low, high = numbers_in([], column)
            found[name] = as_range(*_range(part, low, high, coverage, deviation), like=column)
        else:
            kept = [str(text) for text, count in zip(column, part, strict=True) if count > _CERTAIN * deviation]
            found[name] = kept or column
    return found


def _count(cells: Sequence[Any], column: Any, bins: int) -> npt.NDArray[np.float64]:
    """How many cells fall into each bin or are each text; each into one at most, missing ones into none."""
    if is_range(column):
        numbers, low, high = numbers_in(cells, column)
        inside = np.clip(numbers[~np.isnan(numbers)], low, high)
        return np.histogram(inside, bins, (low, high))[0].astype(np.float64)
    return np.bincount(places_in(cells, column), minlength=len(column) + 1)[:-1].astype(np.float64)


def _range(
    counts: npt.NDArray[np.float64], low: float, high: float, coverage: float, deviation: float
) -> tuple[float, float]:
    """The bins that hold the share of the records, from where sums from either end exceed the rest beyond the noise."""
    edges = np.linspace(low, high, len(counts) + 1)
    beyond = (1 - coverage) / 2 * max(0.0, counts.sum()) + _CERTAIN * deviation * np.sqrt(np.arange(len(counts)) + 1)
    from_below = np.flatnonzero(np.cumsum(counts) > beyond)
    from_above = np.flatnonzero(np.cumsum(counts[::-1]) > beyond)
    if not len(from_below) or not len(from_above) or from_below[0] + from_above[0] >= len(counts):
        return low, high  # the noise leaves nothing to be seen
    return float(edges[from_below[0]]), float(edges[len(counts) - from_above[0]])
