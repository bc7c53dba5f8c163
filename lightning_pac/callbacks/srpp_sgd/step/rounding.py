"""What floating-point arithmetic adds to the sensitivity of a step's sum: one number, in every account."""

import math
from typing import Any

import torch
from torch import nn

from lightning_pac.gradients import ROUNDING
from lightning_pac.scenarios import Sampling, TwoWorldScenario

__all__ = ["computes_in_short_floats", "most_records", "rounding_allowance"]

# Between batches of n and n + 1 records, gradients of the same record differed by at most 5e-7 of their norm in five
# networks: products choose the order of their sums by the size of the batch, and 1/n is rounded.
_SIZES = 2.0**-20
# What the clipped fraction adds to that: its channel moves by 1.5 times as much, relative to its share of the noise.
_SLOPE = 1.5


def rounding_allowance(scenario: TwoWorldScenario, sampling: Sampling) -> float:
    r"""Share $\eta$ by which the noise is raised, so that the noise multiplier is one of $(1 + \eta) C$, not of C.

    Under `replace` and `zero_out` both worlds compute all other records at the same places of batches of the same size,
    hence alike to the bit, and $\eta$ is the engine's `ROUNDING`, which is proven. Under `add_remove` sizes differ, and
    every record's gradient may move by a rounding of its own: $1.5 \cdot 2^{-20}$ of C is added for each of the most
    records that a batch may hold. That share is measured, with a margin of two: no bound holds for every network.

    Args:
        scenario: The two worlds.
        sampling: How batches are drawn, with a stated batch size where the number of records is the secret.

    Example:
        >>> from lightning_pac.scenarios import Poisson
        >>> print(f"{rounding_allowance(TwoWorldScenario(num_differing=1), Poisson(0.01, 512)):.4f}")
        0.0078
        >>> print(f"{rounding_allowance(TwoWorldScenario.differential_privacy(), Poisson(0.01, 512)):.4f}")
        0.0088
    """
    if scenario.adjacency != "add_remove":
        return ROUNDING
    return ROUNDING + _SLOPE * _SIZES * most_records(sampling.expected_batch_size(None))


def most_records(expected: float) -> int:
    r"""Records that a Poisson batch of that expected size does not pass: $\lceil b + 8 \sqrt b + 16 \rceil$.

    By Bernstein's inequality the probability is at most $e^{-24}$ for any b, and below $10^{-13}$ from b = 1 on.

    Example:
        >>> most_records(400.0)
        576
    """
    return math.ceil(expected + 8 * math.sqrt(expected) + 16)


def computes_in_short_floats(module: nn.Module, precision: str) -> bool:
    """Whether gradients may be rounded to fewer bits than float32 has, where 1/n of a mean over n records shows.

    By the Trainer's precision, the parameters' types, or products in TensorFloat-32 or bfloat16
    (`torch.set_float32_matmul_precision`; convolutions on a GPU, unless they are told otherwise).
    """
    backends: Any = torch.backends
    parameters = list(module.parameters())
    on_gpu = any(parameter.is_cuda for parameter in parameters)
    products = [backends.cuda.matmul if on_gpu else backends.mkldnn.matmul]
    if any(isinstance(layer, nn.modules.conv._ConvNd) for layer in module.modules()):
        products.append(backends.cudnn.conv if on_gpu else backends.mkldnn.conv)
    return (
        precision.startswith(("bf16", "16"))
        or any(parameter.dtype in (torch.bfloat16, torch.float16) for parameter in parameters)
        or any(product.fp32_precision not in ("none", "ieee") for product in products)
    )
