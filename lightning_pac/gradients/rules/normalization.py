"""Normalizations with a scale and a shift: their gradients are small enough to be instantiated."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from lightning_pac.gradients.calls import Call
from lightning_pac.gradients.contributions import Contribution, Dense, Found, OwnRows
from lightning_pac.gradients.rules.elementwise import sum_by_record

__all__ = ["group_norm", "instance_norm", "layer_norm", "rms_norm"]


def layer_norm(call: Call) -> Found | None:
    """Contributions of `F.layer_norm`; inputs (n, ..., *normalized_shape)."""
    inputs, shape, eps = call.args[0], call.argument(1, "normalized_shape"), call.argument(4, "eps", 1e-5)
    parameters = call.argument(2, "weight"), call.argument(3, "bias")
    return _trailing(call, parameters, len(shape), lambda x: functional.layer_norm(x, shape, eps=eps), inputs)


def rms_norm(call: Call) -> Found | None:
    """Contributions of `F.rms_norm`; inputs (n, ..., *normalized_shape)."""
    inputs, shape, eps = call.args[0], call.argument(1, "normalized_shape"), call.argument(3, "eps")
    if isinstance(inputs, Tensor) and eps is None:
        eps = torch.finfo(torch.promote_types(inputs.dtype, torch.float32)).eps  # torch computes halves in float32
    parameters = call.argument(2, "weight"), None
    return _trailing(call, parameters, len(shape), lambda x: functional.rms_norm(x, shape, eps=eps), inputs)


def group_norm(call: Call) -> Found | None:
    """Contributions of `F.group_norm`; inputs (n, channels, ...)."""
    inputs, groups, eps = call.args[0], call.argument(1, "num_groups"), call.argument(4, "eps", 1e-5)
    parameters = call.argument(2, "weight"), call.argument(3, "bias")
    return _channels(call, parameters, lambda x: functional.group_norm(x, groups, eps=eps), inputs)


def instance_norm(call: Call) -> Found | None:
    """Contributions of `F.instance_norm`; inputs (n, channels, ...)."""
    inputs, eps = call.args[0], call.argument(7, "eps", 1e-5)
    if call.argument(1, "running_mean") is not None or not call.argument(5, "use_input_stats", True):
        return None
    parameters = call.argument(3, "weight"), call.argument(4, "bias")
    return _channels(call, parameters, lambda x: functional.instance_norm(x, eps=eps), inputs)


def _trailing(
    call: Call,
    parameters: tuple[Tensor | None, Tensor | None],
    depth: int,
    normalize: Callable[[Tensor], Tensor],
    inputs: Tensor,
) -> Found | None:
    """Scale and shift lie along the last dimensions; those between the first and them are summed over."""
    if not call.is_batched(inputs):
        return None
    gradient = call.gradient_by_record().float()
    between = list(range(1, gradient.dim() - depth))

    def total(values: Tensor) -> Dense:
        return Dense(values.sum(between) if between else values)

    # y = w x_hat + b: dw = sum g x_hat and db = sum g; x_hat is computed again, in float32, and not kept.
    weight, bias = parameters
    found = [
        (weight, lambda: total(normalize(call.by_record(inputs).float()).mul_(gradient))),
        (bias, lambda: total(gradient)),
    ]
    return [(parameter, build) for parameter, build in found if parameter is not None]


def _channels(
    call: Call,
    parameters: tuple[Tensor | None, Tensor | None],
    normalize: Callable[[Tensor], Tensor],
    inputs: Tensor,
) -> Found | None:
    """Scale and shift lie along dimension 1; those after it are summed over, and so are a record's rows."""
    if not call.is_batched(inputs) or call.output_axis != 0:
        return None
    gradient = call.gradient.float()

    def total(values: Tensor) -> Contribution | OwnRows:
        values = values.flatten(2).sum(2) if values.dim() > 2 else values
        return sum_by_record(values, values.shape[1:], 0, call.count, call.output[0].rows)

    # The same for each channel.
    weight, bias = parameters
    found = [
        (weight, lambda: total(normalize(inputs.float()).mul_(gradient))),
        (bias, lambda: total(gradient)),
    ]
    return [(parameter, build) for parameter, build in found if parameter is not None]
