"""What a model keeps of the records that are evaluated, in what its checkpoints hold."""

import torch
from torch import Tensor, nn

__all__ = ["changed_values", "small_values"]

# Numbers in a tensor that is looked at: a temperature, thresholds, means of features.
_LARGEST = 2**16


def small_values(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the small parameters and buffers of a module, by name."""
    return {name: value.detach().clone() for name, value in _small(module).items()}


def changed_values(module: nn.Module, before: dict[str, Tensor]) -> set[str]:
    """Names of parameters and buffers that are other than in `before`; none where an average took all their places."""
    now = _small(module)
    changed = {
        name
        for name, value in before.items()
        if name in now and not torch.equal(now[name].nan_to_num(), value.to(now[name]).nan_to_num())
    }
    parameters = {name for name, _ in module.named_parameters()} & before.keys()
    return changed - parameters if len(parameters) > 1 and parameters <= changed else changed


def _small(module: nn.Module) -> dict[str, Tensor]:
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: value
        for name, value in named.items()
        if not nn.parameter.is_lazy(value) and type(value.data) is Tensor and value.numel() <= _LARGEST
    }
