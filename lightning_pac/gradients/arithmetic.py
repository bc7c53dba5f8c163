"""Arithmetic that clipping relies on: products as precise as their type, and norms that are never too small."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

__all__ = ["CANCELLATION", "ieee_float32", "squared_norm_of_sum"]

CANCELLATION = 2.0**-19
r"""Share $\gamma$ of $(\sum_t \lVert x_t \rVert)^2$ that is added to $\lVert \sum_t x_t \rVert^2$ where that is formed
from the terms: the largest rounding that was seen on terms chosen for it is a quarter of it."""

_cudnn: Any = torch.backends.cudnn
_mkldnn: Any = torch.backends.mkldnn
_FLOAT32_OPERATIONS = (torch.backends.cuda.matmul, _cudnn.conv, _mkldnn.matmul, _mkldnn.conv)


@contextmanager
def ieee_float32() -> Iterator[None]:
    """Full float32 products inside, whatever `torch.set_float32_matmul_precision` allows for speed.

    TensorFloat-32 and bfloat16 products have 11 and 8 bits, and a record would be clipped to as many only.
    """
    chosen = [operation.fp32_precision for operation in _FLOAT32_OPERATIONS]
    try:
        for operation in _FLOAT32_OPERATIONS:
            operation.fp32_precision = "ieee"
        yield
    finally:
        for operation, precision in zip(_FLOAT32_OPERATIONS, chosen, strict=True):
            operation.fp32_precision = precision


def squared_norm_of_sum(squares: Tensor, sizes: Tensor) -> Tensor:
    r"""Squared norms of sums of terms, raised by what rounding may have taken from them.

    Terms that cancel leave a norm that is smaller than the rounding of what they were, in the norm and again where they
    are added up with those of other records. With $\gamma (\sum_t \lVert x_t \rVert)^2$ added, no norm was seen to be
    too small ($\gamma$ is measured, with a margin of four, and not derived), and no clipped term is longer than
    $C / \sqrt{\gamma}$, about 724 C. Terms without cancellation gain next to nothing: T of equal length in random
    directions $\gamma T$ of their square. Ours.

    Args:
        squares: As computed, shape (n,).
        sizes: Sum of the lengths of the terms of each, shape (n,).
    """
    return squares.clamp(min=0.0) + CANCELLATION * sizes.square()
