"""Normalization layers with a scale and a shift: their gradients are small enough to be instantiated."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_pac.gradients.contributions import Contributions, Dense

__all__ = ["group_norm_layer", "instance_norm_layer", "layer_norm_layer", "rms_norm_layer"]


def layer_norm_layer(name: str, layer: nn.LayerNorm, inputs: Tensor, gradient: Tensor) -> Contributions:
    """Contributions of `nn.LayerNorm`; inputs (n, ..., *normalized_shape)."""
    shape = layer.normalized_shape
    return _trailing(layer, lambda: functional.layer_norm(inputs.float(), shape, eps=layer.eps), gradient)


def rms_norm_layer(name: str, layer: nn.RMSNorm, inputs: Tensor, gradient: Tensor) -> Contributions:
    """Contributions of `nn.RMSNorm`; inputs (n, ..., *normalized_shape)."""
    eps = layer.eps if layer.eps is not None else torch.finfo(inputs.dtype).eps
    shape = list(layer.normalized_shape)
    return _trailing(layer, lambda: functional.rms_norm(inputs.float(), shape, eps=eps), gradient)


def group_norm_layer(name: str, layer: nn.GroupNorm, inputs: Tensor, gradient: Tensor) -> Contributions:
    """Contributions of `nn.GroupNorm`; inputs (n, channels, ...)."""
    return _channels(lambda: functional.group_norm(inputs.float(), layer.num_groups, eps=layer.eps), gradient)


def instance_norm_layer(name: str, layer: nn.InstanceNorm1d, inputs: Tensor, gradient: Tensor) -> Contributions:
    """Contributions of the instance normalizations; inputs (n, channels, ...)."""
    return _channels(lambda: functional.instance_norm(inputs.float(), eps=layer.eps), gradient)


def _trailing(layer: nn.LayerNorm | nn.RMSNorm, normalize: Callable[[], Tensor], gradient: Tensor) -> Contributions:
    """Scale and shift lie along the last dimensions; those between the first and them are summed over."""
    gradient = gradient.float()
    between = list(range(1, gradient.dim() - len(layer.normalized_shape)))

    def total(values: Tensor) -> Tensor:
        return values.sum(between) if between else values

    return {"weight": lambda: Dense(total(normalize().mul_(gradient))), "bias": lambda: Dense(total(gradient))}


def _channels(normalize: Callable[[], Tensor], gradient: Tensor) -> Contributions:
    """Scale and shift lie along dimension 1; those after it are summed over."""
    gradient = gradient.float()

    def total(values: Tensor) -> Tensor:
        return values.flatten(2).sum(2) if values.dim() > 2 else values

    return {"weight": lambda: Dense(total(normalize().mul_(gradient))), "bias": lambda: Dense(total(gradient))}
