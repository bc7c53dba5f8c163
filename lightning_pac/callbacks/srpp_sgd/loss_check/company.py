"""Couplings that ordinary records do not show: through extreme, missing and marked numbers of others in a batch."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_pac.callbacks.srpp_sgd.loss_check.coupling import woven
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP, LAWS, SyntheticRecords
from lightning_pac.gradients import GradientEngine, flat_sum

__all__ = ["coupled_in_company"]

TOLERANCE = 1e-4
FACTORS = {"wide": (1.0, -1e2, 1e4, -1e6), "missing": (1.0, math.nan, 1.0, 1.0)}
"""Of what the integers of a group's records are turned into."""

_Outcome = tuple[Tensor, Tensor]
_FLOOR = 1e-4  # of the largest norm: what is smaller may be rounding alone


def coupled_in_company(
    probe: Probe,
    engine: GradientEngine,
    synthetic: SyntheticRecords,
    laws: Sequence[str],
    keeps_order: bool,
    number: int,
) -> str | None:
    r"""Whether clipped gradients of records depend on others that hold numbers of another law.

    With groups A and B of uniform numbers and A' and B' of another law, the clipped sums S of four batches must have
    S(A' + B') - S(A + B') = S(A' + B) - S(A + B), and so must sums of logarithms of norms. Clipping to the smallest
    norm makes both independent of scale, and bounds what an extreme record hides. All batches have one shape, so
    rounding is the same in each. A function of the mean of losses (`nan_to_num`, `clamp`), a scale that the batch's
    largest number decides, and means over what is not missing fail.

    Args:
        probe: Runs the model, without randomness.
        engine: Attached to it.
        synthetic: Draws the records.
        laws: Those that are tried.
        keeps_order: Whether row i of what the layers see is record i of the batch. If so, and records hold integers
            only, what these are turned into is made large or not finite.
        number: Of the arrangement of the groups, see `woven`.

    Returns:
        The law, in words, or None.
    """
    first, second = (synthetic.draw(0)[start : start + GROUP] for start in (0, GROUP))
    batch = woven(first, second, number)
    plain = _norms(probe, engine, batch)
    positive = plain[plain > 0]
    if not positive.numel():
        return None
    smallest = max(float(positive.min()), _FLOOR * float(positive.max()))
    corner = _outcome(probe, engine, batch, smallest)
    for law in laws:
        trials = [
            functools.partial(_with_others, probe, engine, first, second, records, number)
            for records in synthetic.drawn_by(law)
        ]
        if not trials and keeps_order and law in FACTORS:
            trials = [functools.partial(_with_scaled, probe, engine, batch, FACTORS[law], number)]
        for trial in trials:
            try:
                # S(A' + B), S(A + B') and S(A' + B'), beside S(A + B).
                beside = trial(smallest)
            except Exception:  # these records are no input for the model
                continue
            if not _is_small(_changes(corner, *beside), smallest):
                again = _outcome(probe, engine, batch, smallest)
                # A model that changes by itself (an average of its weights) shows nothing.
                return LAWS[law] if _is_small(_changes(again, corner), smallest) else None
            break
    return None


def _changes(whole: _Outcome, *others: _Outcome) -> list[Tensor]:
    """The difference of one outcome to another, or to the one that follows from three."""
    signs = (-1, -1, 1)[: len(others)]
    changes = [part.to(torch.float64, copy=True) for part in whole]
    for sign, other in zip(signs, others, strict=True):
        for change, part in zip(changes, other, strict=True):
            change.add_(part, alpha=sign)
    return changes


def _is_small(changes: list[Tensor], smallest: float) -> bool:
    return all(bool(change.norm() <= TOLERANCE * smallest) for change in changes)


def _with_others(
    probe: Probe,
    engine: GradientEngine,
    first: list[Any],
    second: list[Any],
    records: list[Any],
    number: int,
    smallest: float,
) -> list[_Outcome]:
    others = records[:GROUP], records[GROUP : 2 * GROUP]
    pairs = (others[0], second), (first, others[1]), (others[0], others[1])
    return [_outcome(probe, engine, woven(*pair, number), smallest) for pair in pairs]


def _with_scaled(
    probe: Probe, engine: GradientEngine, records: list[Any], factors: Sequence[float], number: int, smallest: float
) -> list[_Outcome]:
    found, made, plain = [], list(factors), [1.0] * GROUP
    for of_groups in ((made, plain), (plain, made), (made, made)):
        with probe.scaling(woven(*of_groups, number)):
            found.append(_outcome(probe, engine, records, smallest))
    return found


def _norms(probe: Probe, engine: GradientEngine, records: list[Any]) -> Tensor:
    return _clipped(probe, engine, records, 1.0)[1]


def _outcome(probe: Probe, engine: GradientEngine, records: list[Any], smallest: float) -> _Outcome:
    """The clipped sum, and the sum of the logarithms of norms, in units of the norm that is clipped to."""
    total, norms = _clipped(probe, engine, records, smallest)
    return total, (norms.clamp(min=smallest) / smallest).log().sum() * smallest


def _clipped(probe: Probe, engine: GradientEngine, records: list[Any], norm: float) -> _Outcome:
    probe.loss(records).backward()  # type: ignore[no-untyped-call]
    sums, norms = engine.clipped_sum(norm)
    return flat_sum(sums).clone(), norms[:, 0].double()
