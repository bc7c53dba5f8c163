"""Records of a batch, or rows of the dataset, that a model keeps and that a later gradient depends on."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_pac.callbacks.srpp_sgd.loss_check.copied_optimizer import move_weights
from lightning_pac.callbacks.srpp_sgd.loss_check.coupling import is_small
from lightning_pac.callbacks.srpp_sgd.loss_check.passing_state import OF_DATASET, is_equal
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.readings import LEVELS
from lightning_pac.callbacks.srpp_sgd.loss_check.replica import MOST_BYTES
from lightning_pac.callbacks.srpp_sgd.loss_check.state.saved_state import saved_state
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP
from lightning_pac.data.records import DataMemo
from lightning_pac.data.tables import datasets_below, repeat_rows, tables_of

__all__ = ["looks_through", "remembers"]

_LAGS = 4  # batches between one that is kept and one that it enters
_MANY = 16  # draws of records, where a few have not all classes


def remembers(probe: Probe, draw: Callable[[int], list[Any]], wide: Sequence[list[Any]] = ()) -> bool | None:
    """Whether the gradient of a batch depends on the records of the batch before, through what the model keeps.

    Args:
        probe: Runs the model.
        draw: Gives four groups of records, by the number of a draw.
        wide: Batches of large numbers, which pass the largest so far; a model may refuse them.

    Returns:
        None where it is not finite after another batch, so that nothing was shown.
    """
    found = _remembers(probe, draw, wide)
    for left_out in probe.shorter_rounds:
        if not found:
            with probe.without(left_out):
                shown = _remembers(probe, draw, wide)
            found = shown if shown or found is False else None
    return found


def _remembers(probe: Probe, draw: Callable[[int], list[Any]], wide: Sequence[list[Any]]) -> bool | None:
    records = draw(0)
    first, second, other = (records[start : start + 2 * GROUP] for start in (0, GROUP, 2 * GROUP))
    same: list[bool] = []
    try:
        gradient, _ = _gradient_after(probe, first, second)
        if not gradient.isfinite().all():  # a mean over each class, of which a few records have some only
            several = [record for number in range(_MANY) for record in draw(number)]
            first, other = several[: len(several) // 2], several[len(several) // 2 :]
            gradient, _ = _gradient_after(probe, first, second)
            if not gradient.isfinite().all():
                return None
        plain, size = gradient.to(probe.dtype), float(gradient.norm())
        del gradient

        def changes(before: list[Any], level: float | None = None) -> tuple[bool, int]:
            gradient, num_read = _gradient_after(probe, before, second, level)
            return not is_small(gradient.sub_(plain), size), num_read

        # In reverse, another name may come first, and get the first code.
        same += [not changes(part)[0] for part in (first, other, first[::-1], other[::-1])]
        if (probe.keeps_after_steps or _keeps(probe, first)) and _hands_on(probe, first, second, other):
            return True
        if not same[0]:
            return False
        for part in wide:
            with suppress(Exception):
                same.append(not changes(part)[0])
        changed, num_read = changes(first, LEVELS[0])
        if num_read:  # perhaps for a threshold that both are above
            same += [not changed, not changes(first, LEVELS[1])[0]]
    except Exception:  # a second batch, a copy that has seen one, or extreme numbers may not work here
        pass
    return not all(same)


def looks_through(probe: Probe, records: list[Any], copies: Mapping[int, Any]) -> bool:
    """Whether hooks make something of several rows of the training data, such as prototypes of classes.

    Every second row becomes a copy of the first, wherever the data are held: in the Trainer, the model, callbacks,
    loaders, closures or global variables. What hooks leave in all others, and elsewhere, must stay.

    Args:
        probe: Runs the hooks.
        records: Those of a batch.
        copies: What the probe's objects are copies of, as in `copy.deepcopy`.
    """
    found: list[tuple[list[Any], Tensor]] = []
    resting = probe.replica
    if resting.view is None:
        return False
    for repeats in (False, False, True):
        memo = _data_elsewhere(resting.view, copies, repeats)
        with probe.copied(memo) as replica:
            replica.view.repeats_rows = repeats
            data = [] if memo.taken is None else [memo.taken[0]]
            try:
                probe.run_round(records)
                data += [] if replica.view.dataset is None else [replica.view.dataset]
                if not data:  # no hook has looked at it
                    return False
                state = [value for name, value in saved_state(probe, resting).items() if OF_DATASET not in name]
                kept = [_every_second(value) for dataset in data for value in tables_of(dataset)]
                found.append(([*state, *copy.deepcopy(kept)], probe.gradient(records)))
            except Exception:  # the model refuses such rows
                return False
    (same, gradient), (again, repeated), (other, changed) = found
    size = float(gradient.norm())
    moves = is_small(repeated.sub_(gradient), size) and not is_small(changed.sub_(gradient), size)
    return moves or any(
        is_equal(one, two) and not is_equal(one, three) for one, two, three in zip(same, again, other, strict=True)
    )


def _data_elsewhere(view: Any, copies: Mapping[int, Any], repeats: bool) -> DataMemo:
    """Copies of the training data, of the datasets below and of their tables, wherever these are held."""
    original = getattr(view.original_loader, "dataset", None)

    def parts(dataset: Any) -> list[Any]:
        return [*datasets_below(dataset), *tables_of(dataset)]

    def make() -> list[Any]:
        held = copy.deepcopy(original)
        taken = parts(held)
        if repeats:
            repeat_rows(held)
        return taken

    given = [] if original is None else parts(original)
    if sum(value.nbytes for value in given if isinstance(value, Tensor | np.ndarray)) >= MOST_BYTES:
        given = []
    places = {id(part): number for number, part in enumerate(given)}
    return DataMemo({**{id(copies[one]): number for one, number in places.items() if one in copies}, **places}, make)


def _every_second(table: Any) -> Any:
    if hasattr(table, "iloc"):
        return table.iloc[::2].to_numpy()
    return list(table.values())[::2] if isinstance(table, dict) else table[::2]


def _keeps(probe: Probe, records: list[Any]) -> bool:
    """Whether a step sets an attribute, or makes a list there longer."""

    def attributes() -> list[Any]:
        values = [value for layer in probe.model.modules() for value in vars(layer).values()]
        return [
            (value, len(value) if isinstance(value, Sized) and not isinstance(value, Tensor) else 0) for value in values
        ]

    with probe.copied():
        before = attributes()
        probe.loss(records)
        after = attributes()
    return len(before) != len(after) or any(
        one is not other or size != new for (one, size), (other, new) in zip(before, after, strict=True)
    )


def _hands_on(probe: Probe, first: list[Any], second: list[Any], other: list[Any]) -> bool:
    """Whether the gradient of a batch depends on the records of one that was several batches before."""

    def later(before: list[Any], compare: Callable[[int, Tensor], Tensor]) -> list[Tensor]:
        with probe.copied():
            probe.round(before, lambda: None)
            found = []
            for lag in range(_LAGS):
                probe.round(second, lambda: None)
                move_weights(probe.model)
                found.append(compare(lag, probe.gradient(second)))
            return found

    expected = later(first, lambda _, gradient: gradient.to(probe.dtype))
    size = math.hypot(*(float(gradient.double().norm()) for gradient in expected))
    again, changed = (
        torch.stack(later(part, lambda lag, gradient: gradient.sub_(expected[lag]).norm())).norm()
        for part in (first, other)
    )
    return is_small(again, size) and not is_small(changed, size)


def _gradient_after(
    probe: Probe, before: list[Any], records: list[Any], level: float | None = None
) -> tuple[Tensor, int]:
    with probe.copied():
        with probe.reading(level) as readings:
            probe.run_round(before)
        move_weights(probe.model)
        with readings:  # what is kept of the batch before may be read in this one
            return probe.gradient(records), readings.count
