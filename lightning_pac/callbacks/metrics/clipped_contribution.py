"""What a record adds to the sums of a metric, clipped so that sums move by exactly that."""

import math

import torch
from torch import Tensor

__all__ = ["clipped_contribution"]


def clipped_contribution(added: Tensor, bound: float) -> Tensor:
    """A record's contribution of norm at most `bound`, in multiples of a power of two, at most 2^-26 of it.

    Sums of up to 2^25 such contributions are exact in float64, so that one record moves them by its own alone.

    Args:
        added: What it adds, float64, shape (states,).
        bound: C.
    """
    grid = 2.0 ** (math.frexp(bound)[1] - 27)
    # Rounding to the grid adds at most half a step a coordinate; the last factor is for the roundings of the norm
    # of up to 2^20 values, which are 2^-53 for each of them.
    within = max(0.0, bound - grid * math.sqrt(len(added)) / 2) * (1 - 2.0**-32)
    factor = (within / added.norm().clamp(min=1e-300)).clamp(max=1.0)
    # A factor among the subnormal numbers has few bits, and may be nearly twice too large.
    factor = torch.where(factor < 2.0**-900, 0.0, factor)
    rounded: Tensor = (added * factor / grid).round() * grid
    return rounded
