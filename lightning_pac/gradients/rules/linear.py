"""Linear maps, with any number of leading dimensions."""

import torch
from torch import Tensor, nn

from lightning_pac.gradients.contributions import (
    Contribution,
    Contributions,
    Dense,
    OuterProduct,
    PositionOuterProducts,
)
from lightning_pac.gradients.measured_choice import build_fastest

__all__ = ["linear_bias", "linear_layer", "linear_weight"]


def linear_layer(name: str, layer: nn.Linear, inputs: Tensor, gradient: Tensor) -> Contributions:
    """Contributions of `nn.Linear`; inputs (n, ..., in), gradient of the output (n, ..., out)."""
    return {"weight": lambda: linear_weight(name, inputs, gradient), "bias": lambda: linear_bias(gradient)}


def linear_weight(name: str, inputs: Tensor, gradient: Tensor) -> Contribution:
    """Contribution to a weight of shape (out, in)."""
    inputs, gradient = inputs.detach(), gradient.detach()
    if inputs.dim() > 2:
        inputs, gradient = inputs.flatten(1, -2), gradient.flatten(1, -2)
        if inputs.shape[1] == 1:
            inputs, gradient = inputs.squeeze(1), gradient.squeeze(1)
    if inputs.dim() == 2:
        return OuterProduct(inputs, gradient)
    inputs, gradient = inputs.float(), gradient.float()
    positions, width_in, width_out = inputs.shape[1], inputs.shape[2], gradient.shape[2]
    if not inputs.shape[0] or positions * positions > 4 * width_in * width_out:
        return Dense(gradient.mT @ inputs)
    if width_in * width_out > 4 * positions * (positions + width_in + width_out):
        return PositionOuterProducts(inputs, gradient)
    return build_fastest(
        name,
        ("linear", inputs.shape[1:], width_out, inputs.device),
        inputs.shape[0],
        {
            "instantiation": lambda: Dense(gradient.mT @ inputs),
            "Gram matrices": lambda: PositionOuterProducts(inputs, gradient),
        },
        torch.Size((width_out, width_in)),
        {
            "instantiation": 4 * inputs.shape[0] * width_in * width_out,
            "Gram matrices": 4 * (inputs.numel() + gradient.numel()),
        },
    )


def linear_bias(gradient: Tensor) -> Contribution:
    """Contribution to a bias of shape (out,)."""
    gradient = gradient.detach().float()
    return Dense(gradient.flatten(1, -2).sum(1) if gradient.dim() > 2 else gradient)
