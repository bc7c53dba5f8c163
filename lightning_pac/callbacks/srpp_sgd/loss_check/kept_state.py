"""What a model, and its checkpoints, keep of the records of a batch."""

import copy
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe, copied
from lightning_pac.callbacks.srpp_sgd.loss_check.state_watch import StateWatch
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP

__all__ = ["remembers", "taking_up_records"]

TOLERANCE = 1e-4  # of the gradient's norm; float32 leaves about 1e-6


def taking_up_records(probe: Probe, records: list[Any]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Names of the saved state that ends up different after different records, and of all that a step writes to."""
    model, callbacks, outcomes = probe.model, probe.callbacks, []
    written: set[str] = set()
    try:
        for part in (records[: 2 * GROUP], records[: 2 * GROUP], records[2 * GROUP :]):
            probe.model, probe.callbacks = copied(model), copy.deepcopy(callbacks)
            watch = StateWatch(probe.model)
            probe.round(part)
            written |= watch.changed()
            outcomes.append(_saved_state(probe))
    finally:
        probe.model, probe.callbacks = model, callbacks
    same, again, other = outcomes
    names = same.keys() | again.keys() | other.keys()
    equal = [name for name in names if _is_equal(same.get(name), again.get(name))]  # not so is the time of day
    return tuple(sorted(name for name in equal if not _is_equal(same.get(name), other.get(name)))), frozenset(written)


def remembers(probe: Probe, records: list[Any]) -> bool:
    """Whether the gradient of a batch depends on the records of the batch before, through what the model keeps."""
    model, gradients = probe.model, []
    try:
        for start in (0, 0, 2 * GROUP):
            probe.model = copied(model)
            probe.gradient(records[start : start + 2 * GROUP])
            gradients.append(probe.gradient(records[GROUP : 3 * GROUP]))
    except Exception:  # a second batch, or a copy that has seen one, may not work here
        return False
    finally:
        probe.model = model
    same, again, other = gradients
    size = float(same.norm())
    return float((again - same).norm()) <= TOLERANCE * size < float((other - same).norm())


def _saved_state(probe: Probe) -> dict[str, Any]:
    """What a checkpoint would hold, buffers that it would not, and how the optimizer was set, by name."""
    model = probe.model
    found: dict[str, Any] = {}
    checkpoint: dict[str, Any] = {"state_dict": {}, "hyper_parameters": dict(model.hparams)}
    for callback in probe.callbacks:
        with suppress(Exception):  # a hook may need a Trainer
            callback.on_save_checkpoint(model._trainer, model, checkpoint)  # type: ignore[arg-type]
        with suppress(Exception):
            found[type(callback).__name__] = callback.state_dict()
    with suppress(Exception):
        model.on_save_checkpoint(checkpoint)
    settings = [
        {name: value for name, value in group.items() if name != "params"} for group in probe.optimizer.param_groups
    ]
    found["settings of the optimizer"] = settings
    return {**checkpoint, **found, **model.state_dict(), **dict(model.named_buffers())}


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
