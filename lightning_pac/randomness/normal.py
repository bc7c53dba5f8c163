"""Standard normal tensors by Box and Muller (1958), computed where the tensor lives."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lightning_pac.randomness.grid import check_step

if TYPE_CHECKING:
    import torch

    from lightning_pac.randomness.generator import SecureGenerator

__all__ = ["fill_normal_", "release_"]

# Long enough to make the cost of the calls small, short enough for the working arrays (28 bytes a pair) to stay cached.
_PAIRS_PER_BLOCK = 1 << 17
_PAIRS_PER_DEVICE_BLOCK = 1 << 22


def fill_normal_(tensor: "torch.Tensor", generator: "SecureGenerator") -> "torch.Tensor":
    """Fill a floating-point tensor with standard normal values in place; see `SecureGenerator.fill_normal_`."""
    import torch

    if not tensor.is_floating_point():
        raise TypeError(f"Normal noise needs a floating-point tensor, got one of {tensor.dtype}.")
    work = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    with torch.no_grad():
        in_place = tensor.dtype == work and tensor.is_contiguous()
        flat = tensor.view(-1) if in_place else torch.empty(tensor.numel(), dtype=work, device=tensor.device)
        for first, second, radius, direction in _pairs(flat, flat.dtype, generator, 1.0):
            rest = slice(0, second.numel())
            torch.mul(direction.cos(), radius, out=first)
            torch.mul(direction.sin_()[rest], radius[rest], out=second)
        if not in_place:
            tensor.copy_(flat.view(tensor.shape))
    return tensor


def release_(total: "torch.Tensor", generator: "SecureGenerator", deviation: float, step: float) -> "torch.Tensor":
    """Add noise and round to the grid in place; see `SecureGenerator.release_`."""
    import torch

    check_step(step)
    if total.dtype not in (torch.float32, torch.float64) or not total.is_contiguous():
        raise TypeError(f"A release is made in a contiguous float32 or float64 tensor, got one of {total.dtype}.")
    if not 0.0 < deviation < math.inf:
        raise ValueError(f"deviation must be positive and finite, got {deviation!r}.")
    with torch.no_grad():
        # Float32 draws are far finer than the grid, also when what they are added to is float64. Counting in steps of
        # the grid is exact and saves a pass.
        in_steps = deviation / step
        for first, second, radius, direction in _pairs(total.view(-1), torch.float32, generator, in_steps):
            rest = slice(0, second.numel())
            first.mul_(1.0 / step).addcmul_(direction.cos(), radius).round_().mul_(step)
            second.mul_(1.0 / step).addcmul_(direction.sin_()[rest], radius[rest]).round_().mul_(step)
    return total


def _pairs(
    flat: "torch.Tensor", dtype: "torch.dtype", generator: "SecureGenerator", deviation: float
) -> Iterator[tuple["torch.Tensor", "torch.Tensor", "torch.Tensor", "torch.Tensor"]]:
    """Two halves of each block of a flat tensor, with the radius (times the deviation) and angle of its k pairs.

    The second half is one shorter than the first where the block is odd.
    """
    import torch

    on_host = flat.device.type == "cpu"
    pairs = min(_PAIRS_PER_BLOCK if on_host else _PAIRS_PER_DEVICE_BLOCK, max(1, -(-flat.numel() // 2)))
    radii, angles = (torch.empty(pairs, dtype=dtype, device=flat.device) for _ in range(2))
    words = generator.words_for(flat.device, 2 * pairs)
    for start in range(0, flat.numel(), 2 * pairs):
        block = flat[start : start + 2 * pairs]
        half = -(-block.numel() // 2)
        bits, radius, angle = words(2 * half), radii[:half], angles[:half]
        # |word| is uniform on 0..2**63. A float keeps the relative precision of small uniforms, hence the tail.
        radius.copy_(bits[:half]).abs_().mul_(2.0**-63).clamp_min_(2.0**-63)
        radius.log_().mul_(-2.0 * deviation * deviation).sqrt_()
        angle.copy_(bits[half:]).mul_(math.pi * 2.0**-63)
        yield block[:half], block[half:], radius, angle
