"""Steps of a copy of a model that come now and then, such as every tenth, or the last of an epoch."""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

from lightning_pac.callbacks.srpp_sgd.loss_check.probe import AFTER_A_BATCH, AT_THE_END, Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.state.beginning import Beginning
from lightning_pac.callbacks.srpp_sgd.loss_check.state.kept_places import Place
from lightning_pac.callbacks.srpp_sgd.loss_check.state.own_counters import OwnCounters, set_counters

__all__ = ["LATER", "begin_anew", "trained"]

# Of the records: the one class with another weight may be missing in a draw, of three classes in one draw of ten. Each
# but the first is made at a step of its own, since a term may be added in every tenth step, from the hundredth on, or
# in the last batch and epoch. The number after the last is one that 1 to 16, 20, 30, 50, 60 and 100 divide.
LATER = (1, 10, 99, 999, 3603599)

_MOST_STEPS = 32  # that are taken anew

_TRAINS = {"training": True, "validating": False, "testing": False, "evaluating": False}
# Among these each remainder of numbers up to ten, and the first and the last of those that up to 12, 20, ... divide.
_LATER = range(LATER[-1] - 4, LATER[-1] + 6)


def begin_anew(probe: Probe, beginning: Beginning, changed: Collection[Place], batches: Sequence[list[Any]]) -> None:
    """Take the steps up to now, or the first of them, with what was kept when the training began; weights stay.

    Args:
        probe: Runs the steps, within `Probe.copied`.
        beginning: What was kept then.
        changed: Where that is another by now.
        batches: The records of each; they take turns.
    """
    view, number, broken = probe.replica.view, probe.batch_idx, set(probe.broken)
    moved, per_epoch, steps = dict(view.moved), view.num_training_batches, min(view.global_step, _MOST_STEPS)
    beginning.restore(probe, changed)
    view.moved |= {"current_epoch": 0, "global_step": 0}
    probe.begin_training()
    for step, records in zip(range(steps - 1), itertools.cycle(batches), strict=False):
        epoch, probe.batch_idx = divmod(step, int(per_epoch)) if 0 < per_epoch < math.inf else (0, step)
        view.moved |= {"current_epoch": epoch, "global_step": step}
        with suppress(Exception):  # it may not run out of its time
            probe.run_round(records)
    probe.batch_idx, view.moved = number, moved
    probe.broken |= broken


def trained(probe: Probe, batches: Sequence[list[Any]], later: bool, epochs: int = 0) -> Iterator[None]:
    """Take a step with the end of an epoch, or of the run, and one within an epoch; weights stay.

    Args:
        probe: Runs the steps.
        batches: The records of each; they take turns.
        later: Whether to go on to steps that come now and then, by their number, to the one in the middle of an epoch,
            and to the last.
        epochs: Of how many epochs before this one to go on to the first and the last step, and past errors in a step.
    """
    view, turns = probe.replica.view, itertools.cycle(batches)

    def step(left_out: tuple[str, ...]) -> None:
        view.moved |= _TRAINS
        try:
            with probe.without(left_out), suppress(*[Exception] * (epochs > 0)):
                probe.run_round(next(turns))
        finally:
            for name in _TRAINS:
                del view.moved[name]

    counters = OwnCounters([*probe.model.modules(), *probe.replica.callbacks])
    last, at_the_end = probe.last_number, ("on_train_epoch_start",) * probe.ends  # a round goes on to the next epoch
    step(at_the_end)
    counted = counters.found()
    if not probe.ends:
        step(AFTER_A_BATCH)
    yield
    if later:
        for number in _LATER:
            with probe.at(number):
                set_counters(counted, number)
                step((*AFTER_A_BATCH, *AT_THE_END))
        with probe.at((last + 1) // 2):
            step((*AFTER_A_BATCH, *AT_THE_END))
        yield
        probe.batch_idx = 0  # before which the last is
        with probe.at(last):
            step(at_the_end)
            yield  # an evaluation may use what was kept in the last epochs only
    for epoch in range(max(0, view.current_epoch - epochs), view.current_epoch):
        for number in (0, last):
            with probe.at(number):
                view.moved |= {"current_epoch": epoch, "global_step": epoch * (last + 1) + number}
                step(AT_THE_END)
        yield
    if epochs:  # what they gathered may be used from now on
        step(at_the_end)
        yield
