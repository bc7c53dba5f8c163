"""Linear maps, with any number of leading dimensions."""

import torch
from torch import Tensor

from lightning_pac.gradients.calls import Call
from lightning_pac.gradients.contributions import Contribution, Dense, Found, OuterProduct, PositionOuterProducts
from lightning_pac.gradients.rules.elementwise import reduced_to
from lightning_pac.gradients.rules.measured_choice import build_fastest

__all__ = ["addmm", "linear", "linear_bias", "linear_weight", "matmul"]


def linear(call: Call) -> Found | None:
    """Contributions of `F.linear(x, weight, bias)`; x (..., in) holds records, the weight does not."""
    inputs, weight, bias = call.args[0], call.argument(1, "weight"), call.argument(2, "bias")
    if not call.is_batched(inputs) or call.is_batched(weight) or call.is_batched(bias) or weight.dim() != 2:
        return None
    if inputs.dim() < 2:
        raise RuntimeError(
            f"{call.describe()} was given an input of shape {tuple(inputs.shape)} without a batch dimension; add one."
        )
    gradient = call.gradient_by_record()
    found: Found = [
        (weight, lambda: linear_weight(call.describe, call.by_record(inputs), gradient)),
        (bias, lambda: linear_bias(gradient)),
    ]
    return found


def matmul(call: Call) -> Found | None:
    """Contributions of x @ w and w @ x for a free matrix w; x holds records."""
    if call.kwargs or len(call.args) != 2:
        return None
    left, right = call.args
    if call.is_batched(left) and call.is_free(right) and right.dim() == 2 and left.dim() >= 2:
        gradient = call.gradient_by_record()
        # Y = X W: dW = X^T G, so input and output gradient change places.
        return [(right, lambda: linear_weight(call.describe, gradient, call.by_record(left)))]
    if call.is_free(left) and call.is_batched(right) and left.dim() == 2 and right.dim() >= 3:
        gradient = call.gradient_by_record()
        # Y = W X: dW = G X^T, as of a linear map of X^T with output gradient G^T.
        return [(left, lambda: linear_weight(call.describe, call.by_record(right).mT, gradient.mT))]
    return None


def addmm(call: Call) -> Found | None:
    """Contributions of `addmm(b, x, w)`; x (rows, in) holds records."""
    if call.kwargs or len(call.args) != 3:
        return None
    bias, inputs, weight = call.args
    if not call.is_batched(inputs) or call.is_batched(weight) or call.is_batched(bias):
        return None
    gradient = call.gradient_by_record()
    return [
        (weight, lambda: linear_weight(call.describe, gradient, call.by_record(inputs))),
        (bias, lambda: reduced_to(call.gradient.float(), call, bias)),
    ]


def linear_weight(name: object, inputs: Tensor, gradient: Tensor) -> Contribution:
    """Contribution to a weight of shape (out, in)."""
    inputs, gradient = inputs.detach(), gradient.detach()
    if inputs.dim() > 2:
        # (n, T, in) and (n, T, out): all dimensions between are positions.
        inputs, gradient = inputs.flatten(1, -2), gradient.flatten(1, -2)
        if inputs.shape[1] == 1:
            inputs, gradient = inputs.squeeze(1), gradient.squeeze(1)
    if inputs.dim() == 2:
        return OuterProduct(inputs, gradient)
    inputs, gradient = inputs.float(), gradient.float()
    positions, width_in, width_out = inputs.shape[1], inputs.shape[2], gradient.shape[2]
    # A record's Gram matrices hold T^2 numbers each and their factors T (in + out), its gradient in * out: a factor of
    # four settles the choice, anything nearer is measured.
    if not inputs.numel() or positions * positions > 4 * width_in * width_out:
        return Dense(gradient.mT @ inputs)
    if width_in * width_out > 4 * positions * (positions + width_in + width_out):
        return PositionOuterProducts(inputs, gradient)
    return build_fastest(
        name,
        ("linear", inputs.shape[1:], width_out, inputs.device),
        (inputs, gradient),
        {
            "instantiation": lambda inputs, gradient: Dense(gradient.mT @ inputs),
            "Gram matrices": PositionOuterProducts,
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
    # sum_t g_it, shape (n, out).
    return Dense(gradient.flatten(1, -2).sum(1) if gradient.dim() > 2 else gradient)
