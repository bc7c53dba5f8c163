"""State of a model and of its checkpoints that keeps records of a batch."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_pac.callbacks.srpp_sgd.loss_check.copied_optimizer import (
    is_own,
    move_weights,
    weights_after_a_step,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.coupling import is_small
from lightning_pac.callbacks.srpp_sgd.loss_check.fixed_draws import SEEDS, seeded
from lightning_pac.callbacks.srpp_sgd.loss_check.passing_state import OF_DATASET, attributes_of, is_equal
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.readings import LEVELS, set_numbers_kept
from lightning_pac.callbacks.srpp_sgd.loss_check.replica import MOST_BYTES, Replica
from lightning_pac.callbacks.srpp_sgd.loss_check.state.own_counters import OwnCounters, set_counters
from lightning_pac.callbacks.srpp_sgd.loss_check.state.state_watch import (
    OPTIMIZER_STATE,
    SETTINGS,
    StateWatch,
    settings_of,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP
from lightning_pac.data.records import DataMemo
from lightning_pac.data.tables import datasets_below, repeat_rows, tables_of

__all__ = ["STEPPED", "looks_through", "remembers", "taking_up_records"]

MODES = "modes of the layers"
STOPS = "trainer.should_stop"
STEPPED = "weights after a step of the optimizer"

_COPIED = (Tensor, np.ndarray, list, dict)  # attributes of datasets that may be written to in place
_SMALL = 2**20  # bytes of these; what is larger is not copied
_LAGS = 4  # batches between one that is kept and one that it enters
_MANY = 16  # draws of records, where a few have not all classes


def taking_up_records(
    probe: Probe, records: list[Any], later: Sequence[int] = ()
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Names of the saved state that ends up different after different records, and of all that a step writes to.

    What a step writes may be decided by a number that is read off the records, and that both times lies on the same
    side of a threshold; so it must not change if extreme numbers are read. Both are asked in shorter rounds, too, and
    of an optimizer of the user's own that has counted so many steps.
    """
    state, written = _taking_up_records(probe, records)
    for number in later if is_own(probe.replica.optimizer) and not state else ():
        with suppress(Exception):  # it may not run out of its time
            state = _taking_up_records(probe, records, number)[0]
            if state:
                break
    for left_out in probe.shorter_rounds:
        if state:
            break
        with probe.without(left_out):
            found, more = _taking_up_records(probe, records)
        passing = dict(probe.model.named_buffers()).keys() - probe.model.state_dict().keys()
        state, written = tuple(name for name in found if name not in passing), written | more
    return state, written


def _taking_up_records(
    probe: Probe, records: list[Any], later: int | None = None
) -> tuple[tuple[str, ...], frozenset[str]]:
    outcomes, num_read = [], 0
    written: set[str] = set()
    resting = probe.replica
    for part in (records[: 2 * GROUP], records[: 2 * GROUP], records[2 * GROUP :]):
        errors = probe.num_errors
        with probe.copied() as replica:
            if later is not None:
                counters = OwnCounters([replica.optimizer])
                probe.run_round(records[: 2 * GROUP])
                weights_after_a_step(replica.optimizer)
                set_counters(counters.found(), later)
            _move(replica, probe.ends)
            before, watch = _saved_state(probe, resting), StateWatch(replica.model, replica.optimizer)
            num_read += probe.round(part, after_hook=watch.changed)
            written |= watch.changed()
            outcomes.append(_saved_state(probe, resting))
            written |= {name for name, value in outcomes[-1].items() if not is_equal(before.get(name), value)}
            outcomes[-1] |= _stepped(probe)
        errors = probe.num_errors - errors
    same, again, other = outcomes
    names = same.keys() | again.keys() | other.keys()
    equal = [name for name in names if is_equal(same.get(name), again.get(name))]  # not so is the time of day
    decided = {name for name in equal if not is_equal(same.get(name), other.get(name))}
    if (written or is_own(resting.optimizer)) and num_read and not decided:
        beyond = _after_extremes(probe, records[: 2 * GROUP], errors)
        decided = {name for name in equal for found in beyond if not is_equal(found.get(name), beyond[0].get(name))}
        decided -= {STOPS}  # which the card says
    return tuple(sorted(decided)), frozenset(written)


def _after_extremes(probe: Probe, records: list[Any], errors: int) -> list[dict[str, Any]]:
    """The state saved after rounds in which extreme numbers are read, and after others that find some kept already.

    Args:
        probe: Runs the rounds.
        records: Those of a batch.
        errors: Hooks that cannot be run here; a round with more of them shows nothing.
    """
    found: list[dict[str, Any]] = []
    kept: list[list[Any]] = []
    resting = probe.replica
    for number, level in enumerate((*LEVELS, *LEVELS)):
        before = probe.num_errors
        with probe.copied() as replica:
            _move(replica, probe.ends)
            try:
                if number >= len(LEVELS) and len(kept) > 1:
                    set_numbers_kept(_holders(replica), kept[0], kept[1], level)
                probe.round(records, lambda: None, level)
            except Exception:  # the model refuses such numbers, or a hook has added layers
                continue
            if probe.num_errors - before == errors:
                found.append({**_saved_state(probe, resting), **_stepped(probe)})
                kept.append(_holders(replica))
    return found


def _stepped(probe: Probe) -> dict[str, Any]:
    found = {}
    with _failures_of("the step of the optimizer", probe), seeded(SEEDS[0]):
        found[STEPPED] = weights_after_a_step(probe.replica.optimizer)
    return found


def _holders(replica: Replica) -> list[Any]:
    return [*replica.model.modules(), *replica.callbacks, *(config.scheduler for config in replica.schedules)]


def _move(replica: Replica, ends: bool) -> None:
    """Settings away from what a hook may have set them to, and would set them to again without a trace.

    At the end of a run so is the smallest weight: a hook may have chosen among earlier ones by the records.
    """
    for group in replica.optimizer.param_groups:
        moved = {name: 1.001 * value + 1e-6 for name, value in group.items() if type(value) is float}
        group.update(moved)
    weights = sorted((one for one in replica.model.parameters() if one.is_floating_point()), key=Tensor.numel)
    with torch.no_grad():
        for weight in weights[:ends]:
            weight.mul_(1.001).add_(1e-6)


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
        if found is False:
            with probe.without(left_out):
                found = _remembers(probe, draw, wide)
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
                state = [value for name, value in _saved_state(probe, resting).items() if OF_DATASET not in name]
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


def _saved_state(probe: Probe, resting: Replica) -> dict[str, Any]:
    """The contents of a checkpoint, buffers that it would not hold, the optimizer and whether to stop, by name.

    Args:
        probe: Runs the replica that is asked.
        resting: Another one, which does not run meanwhile; tensors that it has, too, are not copied.
    """
    replica, model = probe.replica, probe.model
    found: dict[str, Any] = {}
    checkpoint: dict[str, Any] = {"state_dict": {}, "hyper_parameters": dict(model.hparams)}
    for callback in replica.callbacks:
        name = type(callback).__name__
        with _failures_of(f"on_save_checkpoint of {name}", probe):
            callback.on_save_checkpoint(replica.view, model, checkpoint)
        with _failures_of(f"state_dict of {name}", probe):
            found[name] = copy.deepcopy(callback.state_dict())
    with _failures_of(f"on_save_checkpoint of {type(model).__name__}", probe):
        model.on_save_checkpoint(checkpoint)
    for holder in probe.hooks:  # the datamodule, if there is one
        with _failures_of(f"state_dict of {type(holder).__name__}", probe):
            found[f"state of {type(holder).__name__}"] = [copy.deepcopy(holder.state_dict()), dict(holder.hparams)]
    with suppress(Exception):
        found["state of the schedules"] = [
            copy.deepcopy(config.scheduler.state_dict()) for config in replica.schedules if not config.reduce_on_plateau
        ]
    if replica.view is not None:
        found[STOPS] = bool(replica.view.should_stop)
    found[MODES] = {name: layer.training for name, layer in model.named_modules()}
    found[SETTINGS] = copy.deepcopy(settings_of(replica.optimizer))
    for name, value in _of_datasets(replica).items():
        found[name] = copy.deepcopy(value) if isinstance(value, _COPIED) and _size(value) < _SMALL else value
    states = (list(each.optimizer.state.values()) for each in (replica, resting))
    found[OPTIMIZER_STATE] = [_kept(state, other) for state, other in zip_longest(*states, fillvalue={})]
    return {**checkpoint, **found, **_kept(_tensors(model), _tensors(resting.model))}


def _of_datasets(replica: Replica) -> dict[str, Any]:
    """Attributes of datasets that hooks have looked at, and of those that the model and its callbacks hold."""
    held = [value for holder in (replica.model, *replica.callbacks) for value in vars(holder).values()]
    datasets = [getattr(replica.view, "dataset", None), *(value for value in held if isinstance(value, Dataset))]
    return {name: value for dataset in datasets for name, value in attributes_of(dataset).items()}


def _size(value: Any) -> int:
    return value.nbytes if isinstance(value, Tensor | np.ndarray) else 64 * len(value)


def _tensors(model: pl.LightningModule) -> dict[str, Any]:
    return {**model.state_dict(), **{name: buffer.detach() for name, buffer in model.named_buffers()}}


def _kept(values: dict[str, Any], resting: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of what may be written to yet, and the other's own where the two are equal."""
    others = {name: other for name, other in resting.items() if isinstance(other, Tensor)}
    return {
        name: others[name] if name in others and is_equal(value, others[name]) else copy.deepcopy(value)
        for name, value in values.items()
    }


@contextmanager
def _failures_of(hook: str, probe: Probe) -> Iterator[None]:
    try:
        yield
    except Exception:
        probe.failed.add(hook)
