"""What a model keeps of the records that are evaluated: in what its checkpoints hold, and beside that."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from lightning_pac.callbacks.metrics.metric_memory import remembered
from lightning_pac.callbacks.srpp_sgd import digests_of, own_attributes

__all__ = ["attribute_digests", "changed_values", "small_values"]

# Numbers in a tensor that is looked at: a temperature, thresholds, means of features.
_LARGEST = 2**16


def small_values(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the small parameters and buffers of a module, and of what checkpoints hold of its metrics, by name."""
    return {name: value.detach().clone() for name, value in _small(module).items()}


def changed_values(module: nn.Module, before: dict[str, Tensor]) -> set[str]:
    """Names of what is other than in `before`, but for parameters where an average took the place of all."""
    now = _small(module)
    changed = {
        name
        for name, value in before.items()
        if name in now and not torch.equal(now[name].nan_to_num(), value.to(now[name]).nan_to_num())
    }
    parameters = {name for name, _ in module.named_parameters()} & before.keys()
    return changed - parameters if len(parameters) > 1 and parameters <= changed else changed


def attribute_digests(module: nn.Module, callbacks: Iterable[Any]) -> dict[tuple[str, str], bytes]:
    """Digests of what a model and callbacks keep in plain attributes, and of the settings of its metrics.

    Args:
        module: The model.
        callbacks: Those that may keep something for it.

    Returns:
        By the name of each, and of a part of it.
    """
    named = [(f"{name}." if name else "", part) for name, part in module.named_modules()]
    named += [(f"{type(callback).__name__}.", callback) for callback in callbacks]
    held = [_settings(part) if isinstance(part, Metric) else own_attributes(part) for _, part in named]
    return {(f"{named[number][0]}{name}", "".join(way)): kept for (number, name, way), kept in digests_of(held).items()}


def _settings(metric: Metric) -> dict[str, Any]:
    try:
        return {"settings": remembered(metric)}
    except TypeError:
        return {}


def _small(module: nn.Module) -> dict[str, Tensor]:
    named = {**dict(module.named_parameters()), **dict(module.named_buffers()), **_saved_states(module)}
    return {
        name: value
        for name, value in named.items()
        if not nn.parameter.is_lazy(value) and type(value.data) is Tensor and value.numel() <= _LARGEST
    }


def _saved_states(module: nn.Module) -> dict[str, Tensor]:
    """States of metrics that are persistent; of a list, how many updates it has."""
    found = {}
    for prefix, part in module.named_modules():
        for name in [name for name, saved in getattr(part, "_persistent", {}).items() if saved]:
            value = getattr(part, name)
            found[f"{prefix}.{name}"] = value if isinstance(value, Tensor) else torch.tensor(len(value))
    return found
