"""What a checkpoint of a copy would hold."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import Any

import lightning.pytorch as pl
import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from lightning_pac.callbacks.srpp_sgd.loss_check.passing_state import attributes_of, is_equal
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.replica import Replica
from lightning_pac.callbacks.srpp_sgd.loss_check.state.state_watch import OPTIMIZER_STATE, SETTINGS, settings_of

__all__ = ["STOPS", "failures_of", "saved_state"]

STOPS = "trainer.should_stop"
_MODES = "modes of the layers"

_COPIED = (Tensor, np.ndarray, list, dict)  # attributes of datasets that may be written to in place
_SMALL = 2**20  # bytes of these; what is larger is not copied


def saved_state(probe: Probe, resting: Replica) -> dict[str, Any]:
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
        with failures_of(f"on_save_checkpoint of {name}", probe):
            callback.on_save_checkpoint(replica.view, model, checkpoint)
        with failures_of(f"state_dict of {name}", probe):
            found[name] = copy.deepcopy(callback.state_dict())
    with failures_of(f"on_save_checkpoint of {type(model).__name__}", probe):
        model.on_save_checkpoint(checkpoint)
    for holder in probe.hooks:  # the datamodule, if there is one
        with failures_of(f"state_dict of {type(holder).__name__}", probe):
            found[f"state of {type(holder).__name__}"] = [copy.deepcopy(holder.state_dict()), dict(holder.hparams)]
    with suppress(Exception):
        found["state of the schedules"] = [
            copy.deepcopy(config.scheduler.state_dict()) for config in replica.schedules if not config.reduce_on_plateau
        ]
    if replica.view is not None:
        found[STOPS] = bool(replica.view.should_stop)
    found[_MODES] = {name: layer.training for name, layer in model.named_modules()}
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
def failures_of(hook: str, probe: Probe) -> Iterator[None]:
    """Note for the probe that a hook has failed, and go on."""
    try:
        yield
    except Exception:
        probe.failed.add(hook)
