"""Standard normal tensors by Box and Muller (1958), computed where the tensor lives."""

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

    from lightning_pac.randomness.generator import SecureGenerator

__all__ = ["fill_normal_"]

# The working arrays of one block (28 bytes a pair) stay in a second-level cache.
_PAIRS_PER_BLOCK = 1 << 16
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
        _fill_flat(flat, generator)
        if not in_place:
            tensor.copy_(flat.view(tensor.shape))
    return tensor


def _fill_flat(flat: "torch.Tensor", generator: "SecureGenerator") -> None:
    import torch

    on_host = flat.device.type == "cpu"
    pairs = min(_PAIRS_PER_BLOCK if on_host else _PAIRS_PER_DEVICE_BLOCK, -(-flat.numel() // 2))
    radius, angle, direction = (torch.empty(pairs, dtype=flat.dtype, device=flat.device) for _ in range(3))
    host_words = np.empty(2 * pairs, dtype=np.int64)
    words = torch.from_numpy(host_words)
    for start in range(0, flat.numel(), 2 * pairs):
        block = flat[start : start + 2 * pairs]
        half = -(-block.numel() // 2)
        generator.fill_words(host_words[: 2 * half])
        bits = words[: 2 * half].to(flat.device)
        _box_muller(block, bits, radius[:half], angle[:half], direction[:half])


def _box_muller(
    block: "torch.Tensor",
    bits: "torch.Tensor",
    radius: "torch.Tensor",
    angle: "torch.Tensor",
    direction: "torch.Tensor",
) -> None:
    """Turn 2 k random 64-bit words into 2 k (or 2 k - 1) normals, with three working arrays of length k."""
    import torch

    half = radius.numel()
    # |word| is uniform on 0..2**63. A float keeps the relative precision of small uniforms, hence the tail.
    radius.copy_(bits[:half]).abs_().mul_(2.0**-63).clamp_min_(2.0**-63)
    radius.log_().mul_(-2.0).sqrt_()
    angle.copy_(bits[half:]).mul_(math.pi * 2.0**-63)
    torch.cos(angle, out=direction)
    torch.mul(direction, radius, out=block[:half])
    torch.sin(angle, out=direction)
    rest = block.numel() - half
    torch.mul(direction[:rest], radius[:rest], out=block[half:])
