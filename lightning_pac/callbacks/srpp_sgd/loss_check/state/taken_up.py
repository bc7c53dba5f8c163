"""State of a model and of its checkpoints that takes up records of a batch."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_pac.callbacks.srpp_sgd.loss_check.copied_optimizer import is_own, weights_after_a_step
from lightning_pac.callbacks.srpp_sgd.loss_check.fixed_draws import SEEDS, seeded
from lightning_pac.callbacks.srpp_sgd.loss_check.passing_state import is_equal
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.readings import LEVELS, set_numbers_kept
from lightning_pac.callbacks.srpp_sgd.loss_check.replica import Replica
from lightning_pac.callbacks.srpp_sgd.loss_check.state.beginning import Beginning
from lightning_pac.callbacks.srpp_sgd.loss_check.state.kept_places import Place
from lightning_pac.callbacks.srpp_sgd.loss_check.state.later_steps import begin_anew
from lightning_pac.callbacks.srpp_sgd.loss_check.state.own_counters import OwnCounters, set_counters
from lightning_pac.callbacks.srpp_sgd.loss_check.state.saved_state import STOPS, failures_of, saved_state
from lightning_pac.callbacks.srpp_sgd.loss_check.state.state_watch import StateWatch
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP

__all__ = ["STEPPED", "taking_up_records"]

STEPPED = "weights after a step of the optimizer"

_Move = Callable[[Probe, list[Any]], object]


def _stay(probe: Probe, records: list[Any]) -> None:
    """Before a round from the state as it is."""


def _fill(probe: Probe, records: list[Any]) -> None:
    """Let an optimizer of torch have some state, as it had before a hook emptied it."""
    optimizer = probe.replica.optimizer
    if not is_own(optimizer) and not optimizer.state:
        optimizer.state.update({weight: {"before": torch.zeros(())} for weight in probe.model.parameters()})


def taking_up_records(
    probe: Probe,
    records: list[Any],
    later: Sequence[int] = (),
    earlier: bool = False,
    beginning: Beginning | None = None,
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Names of the saved state that ends up different after different records, and of all that a step writes to.

    What a step writes may be decided by a number that is read off the records, and that both times lies on the same
    side of a threshold; so it must not change if extreme numbers are read. Both are asked in shorter rounds, too.

    Args:
        probe: Runs the rounds.
        records: Those of a batch, and others.
        later: Ask also of an optimizer of the user's own that has counted so many steps.
        earlier: Ask also of the step before this one, after which the user's code may have written by a count of its
            own, or at the end of an epoch.
        beginning: What was kept when the training began, from which the steps up to now are taken anew, since records
            of a real epoch outvote those of a round, and what they decided once is written again.
    """
    state, written = _taking_up_records(probe, records, _fill if earlier else _stay)
    moves: list[_Move] = [partial(_count_steps, number=number) for number in later if is_own(probe.replica.optimizer)]
    moves += [_go_back] * earlier
    anew: list[_Move] = []
    if beginning is not None and (changed := beginning.changed()):
        anew += [partial(_begin_anew, beginning=beginning, changed=changed, then=then) for then in (_stay, _go_back)]
    for number, move in enumerate((*moves, *anew)):
        if state or (number >= len(moves) and not written):  # which takes many steps
            break
        with suppress(Exception):  # it may not run out of its time
            state, more = _taking_up_records(probe, records, move, extremes=number < len(moves))
            written |= more
    for left_out in probe.shorter_rounds:
        if state:
            break
        with probe.without(left_out):
            found, more = _taking_up_records(probe, records)
        passing = dict(probe.model.named_buffers()).keys() - probe.model.state_dict().keys()
        state, written = tuple(name for name in found if name not in passing), written | more
    return state, written


def _taking_up_records(
    probe: Probe, records: list[Any], move: _Move = _stay, extremes: bool = True
) -> tuple[tuple[str, ...], frozenset[str]]:
    outcomes, num_read = [], 0
    written: set[str] = set()
    resting = probe.replica
    for part in (records[: 2 * GROUP], records[: 2 * GROUP], records[2 * GROUP :]):
        with probe.copied() as replica:
            move(probe, part)
            errors = probe.num_errors
            _move_settings(replica)
            before, watch = saved_state(probe, resting), StateWatch(replica.model, replica.optimizer)
            num_read += probe.round(part, after_hook=watch.changed)
            written |= watch.changed()
            outcomes.append(saved_state(probe, resting))
            written |= {name for name, value in outcomes[-1].items() if not is_equal(before.get(name), value)}
            outcomes[-1] |= _stepped(probe)
        errors = probe.num_errors - errors
    same, again, other = outcomes
    names = same.keys() | again.keys() | other.keys()
    equal = [name for name in names if is_equal(same.get(name), again.get(name))]  # not so is the time of day
    decided = {name for name in equal if not is_equal(same.get(name), other.get(name))}
    if extremes and (written or is_own(resting.optimizer)) and num_read and not decided:
        beyond = _after_extremes(probe, records[: 2 * GROUP], errors, move)
        decided = {name for name in equal for found in beyond if not is_equal(found.get(name), beyond[0].get(name))}
        decided -= {STOPS}  # which the card says
    return tuple(sorted(decided)), frozenset(written)


def _count_steps(probe: Probe, records: list[Any], number: int) -> None:
    """Let the optimizer have counted so many steps."""
    counters = OwnCounters([probe.replica.optimizer])
    probe.run_round(records)
    weights_after_a_step(probe.replica.optimizer)
    set_counters(counters.found(), number)


def _go_back(probe: Probe, records: list[Any]) -> None:
    """Let the step to come be the one before this one, also by what the user's code counts."""
    number, view = probe.last_number, probe.replica.view
    epoch, step = view.current_epoch - (probe.batch_idx == 0), view.global_step - 1
    counters = OwnCounters([*probe.model.modules(), *probe.replica.callbacks])
    probe.run_round(records)
    counters.set_back()
    probe.batch_idx = number
    view.moved |= {"current_epoch": max(0, epoch), "global_step": max(0, step)}
    _fill(probe, records)


def _begin_anew(probe: Probe, records: list[Any], beginning: Beginning, changed: set[Place], then: _Move) -> None:
    begin_anew(probe, beginning, changed, [records])
    then(probe, records)


def _after_extremes(probe: Probe, records: list[Any], errors: int, move: _Move) -> list[dict[str, Any]]:
    """The state saved after rounds in which extreme numbers are read, and after others that find some kept already.

    Args:
        probe: Runs the rounds.
        records: Those of a batch.
        errors: Hooks that cannot be run here; a round with more of them shows nothing.
        move: Done before each round.
    """
    found: list[dict[str, Any]] = []
    kept: list[list[Any]] = []
    resting = probe.replica
    for number, level in enumerate((*LEVELS, *LEVELS)):
        with probe.copied() as replica:
            move(probe, records)
            before = probe.num_errors
            _move_settings(replica)
            try:
                if number >= len(LEVELS) and len(kept) > 1:
                    set_numbers_kept(_holders(replica), kept[0], kept[1], level)
                probe.round(records, lambda: None, level)
            except Exception:  # the model refuses such numbers, or a hook has added layers
                continue
            if probe.num_errors - before == errors:
                found.append({**saved_state(probe, resting), **_stepped(probe)})
                kept.append(_holders(replica))
    return found


def _stepped(probe: Probe) -> dict[str, Any]:
    found = {}
    with failures_of("the step of the optimizer", probe), seeded(SEEDS[0]):
        found[STEPPED] = weights_after_a_step(probe.replica.optimizer)
    return found


def _holders(replica: Replica) -> list[Any]:
    return [*replica.model.modules(), *replica.callbacks, *(config.scheduler for config in replica.schedules)]


def _move_settings(replica: Replica) -> None:
    """Settings away from what a hook may have set them to, and would set them to again without a trace.

    So is the smallest weight: a hook may have chosen among earlier ones by the records, or gone back to them after a
    large loss.
    """
    for group in replica.optimizer.param_groups:
        moved = {name: 1.001 * value + 1e-6 for name, value in group.items() if type(value) is float}
        group.update(moved)
    weights = sorted((one for one in replica.model.parameters() if one.is_floating_point()), key=Tensor.numel)
    with torch.no_grad():
        for weight in weights[:1]:
            weight.mul_(1.001).add_(1e-6)
