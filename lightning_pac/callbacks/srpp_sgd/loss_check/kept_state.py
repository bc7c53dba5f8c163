"""State of a model and of its checkpoints that keeps records of a batch."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.state_watch import (
    OPTIMIZER_STATE,
    SETTINGS,
    StateWatch,
    settings_of,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP

__all__ = ["remembers", "taking_up_records"]

TOLERANCE = 1e-4  # of the gradient's norm; float32 leaves about 1e-6


def taking_up_records(probe: Probe, records: list[Any]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Names of the saved state that ends up different after different records, and of all that a step writes to."""
    outcomes = []
    written: set[str] = set()
    for part in (records[: 2 * GROUP], records[: 2 * GROUP], records[2 * GROUP :]):
        with probe.copied() as replica:
            _move_settings(replica.optimizer)
            before, watch = _saved_state(probe), StateWatch(replica.model, replica.optimizer)
            probe.round(part, after_hook=watch.changed)
            written |= watch.changed()
            outcomes.append(_saved_state(probe))
            written |= {name for name, value in outcomes[-1].items() if not _is_equal(before.get(name), value)}
    same, again, other = outcomes
    names = same.keys() | again.keys() | other.keys()
    equal = [name for name in names if _is_equal(same.get(name), again.get(name))]  # not so is the time of day
    return tuple(sorted(name for name in equal if not _is_equal(same.get(name), other.get(name)))), frozenset(written)


def _move_settings(optimizer: torch.optim.Optimizer) -> None:
    """Away from what a hook may have set them to, and would set them to again without a trace."""
    for group in optimizer.param_groups:
        moved = {name: 1.001 * value + 1e-6 for name, value in group.items() if type(value) is float}
        group.update(moved)


def remembers(probe: Probe, records: list[Any]) -> bool:
    """Whether the gradient of a batch depends on the records of the batch before, through what the model keeps."""
    gradients = []
    try:
        for start in (0, 0, 2 * GROUP):
            with probe.copied():
                probe.gradient(records[start : start + 2 * GROUP])
                gradients.append(probe.gradient(records[GROUP : 3 * GROUP]))
    except Exception:  # a second batch, or a copy that has seen one, may not work here
        return False
    same, again, other = gradients
    size = float(same.norm())
    return float((again - same).norm()) <= TOLERANCE * size < float((other - same).norm())


def _saved_state(probe: Probe) -> dict[str, Any]:
    """The contents of a checkpoint, buffers that it would not hold, the optimizer and whether to stop, by name."""
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
    with suppress(Exception):
        found["state of the schedules"] = [
            copy.deepcopy(config.scheduler.state_dict()) for config in replica.schedules if not config.reduce_on_plateau
        ]
    if replica.view is not None:
        found["trainer.should_stop"] = bool(replica.view.should_stop)
    found[SETTINGS] = copy.deepcopy(settings_of(replica.optimizer))
    found[OPTIMIZER_STATE] = copy.deepcopy([dict(state) for state in replica.optimizer.state.values()])
    buffers = {name: buffer.detach() for name, buffer in model.named_buffers()}
    return {**checkpoint, **found, **copy.deepcopy({**model.state_dict(), **buffers})}


@contextmanager
def _failures_of(hook: str, probe: Probe) -> Iterator[None]:
    try:
        yield
    except Exception:
        probe.failed.add(hook)


def _is_equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.array_equal(first, second)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_is_equal(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_is_equal, first, second))
    try:
        return bool(first == second)
    except Exception:  # an object that does not compare; it is not equal to a copy of itself, either
        return False
