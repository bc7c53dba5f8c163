"""Standard normals by Box and Muller (1958) from 64-bit words, for arrays and, where they live, for tensors.

Radius and angle are computed in float64 whatever type the values go to: a logarithm in float32 has a hole around zero
and steps of the size of a release's grid, by which an attacker who knows two candidate sums tells them apart.
"""

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_pac.randomness.grid import check_step

if TYPE_CHECKING:
    import torch

__all__ = ["WordSource", "fill_array", "fill_normal_", "place_of_float64", "release_", "release_with_"]

WordSource = Callable[[int], Callable[[int], Any]]
"""From the most words wanted at a time, a function from a number to so many random int64, in a buffer used again."""

# Long enough to make the cost of the calls small, short enough for the working arrays (56 bytes a pair) to stay cached.
_PAIRS_PER_BLOCK = 1 << 15
_PAIRS_PER_DEVICE_BLOCK = 1 << 21
# Up to here the calls cost more than the numbers, and those of numpy cost less.
_FEW = 1 << 11

# Below this uniform a word of 63 bits has too few left that count, and gets another one.
_SHORT_OF_BITS = 2.0**-24
_SMALLEST = 2.0**-127


def fill_array(values: Any, words: WordSource, xp: Any) -> None:
    """Fill a flat array of numpy, or tensor of torch, with standard normal values in place.

    Args:
        values: Of any floating-point type, shape (n,).
        words: Where the randomness comes from, on the same device.
        xp: The module `numpy` or `torch`, whichever the values belong to.
    """
    for block, noise, _ in _normals(values, words, 1.0, xp):
        block[:] = noise


def fill_normal_(tensor: "torch.Tensor", words_on: Callable[["torch.device"], WordSource]) -> "torch.Tensor":
    """Fill a floating-point tensor with standard normal values in place; see `SecureGenerator.fill_normal_`."""
    import torch

    if not tensor.is_floating_point():
        raise TypeError(f"Normal noise needs a floating-point tensor, got one of {tensor.dtype}.")
    with torch.no_grad():
        place = place_of_float64(tensor.device)
        in_place = tensor.is_contiguous() and tensor.device == place
        filled = tensor if in_place else torch.empty(tensor.shape, dtype=tensor.dtype, device=place)
        fill_array(filled.view(-1), words_on(place), torch)
        return tensor if in_place else tensor.copy_(filled)


def release_(
    total: "torch.Tensor", words_on: Callable[["torch.device"], WordSource], deviation: float, step: float
) -> "torch.Tensor":
    """Add noise and round to the grid in place; see `SecureGenerator.release_`."""
    import torch

    check_step(step)
    if total.dtype not in (torch.float32, torch.float64) or not total.is_contiguous():
        raise TypeError(f"A release is made in a contiguous float32 or float64 tensor, got one of {total.dtype}.")
    if not 0.0 < deviation < math.inf:
        raise ValueError(f"deviation must be positive and finite, got {deviation!r}.")
    with torch.no_grad():
        place = place_of_float64(total.device)
        flat = total.to(place).view(-1)
        if place.type == "cpu" and len(flat) <= _FEW:
            _round_with_noise(flat.numpy(), _host_words(words_on(place)), deviation, step, np)
        else:
            _round_with_noise(flat, words_on(place), deviation, step, torch)
        return total if total.device == place else total.copy_(flat.view(total.shape))


def _round_with_noise(flat: Any, words: WordSource, deviation: float, step: float, xp: Any) -> None:
    # Counting in steps of the grid is exact. The sum is formed in float64 and rounded after, so that the release is
    # a function of value plus noise however large the value is: a float32 draw would show its own low bits.
    for block, noise, spare in _normals(flat, words, deviation / step, xp):
        # What is float64 already is read and written where it is, anything else through a copy.
        wide = block if block.dtype == noise.dtype else spare
        if wide is spare:
            spare[:] = block
        xp.multiply(wide, 1.0 / step, out=spare)
        noise += spare
        xp.round(noise, out=noise)
        xp.multiply(noise, step, out=wide)
        if wide is spare:
            block[:] = spare


def _host_words(words: WordSource) -> WordSource:
    def host(most: int) -> Callable[[int], Any]:
        draw = words(most)
        return lambda count: draw(count).numpy()

    return host


def release_with_(total: "torch.Tensor", noise: "torch.Tensor", deviation: float, step: float) -> "torch.Tensor":
    r"""Make a tensor public in place with noise that was drawn already: $h \, \mathrm{round}((x + \sigma Z) / h)$.

    Args:
        total: x, contiguous, float32 or float64.
        noise: Z in float64, of the same shape, never shown to anyone.
        deviation: What the noise is multiplied by.
        step: h, a power of two.
    """
    check_step(step)
    # As in `release_`: in steps of the grid, formed in float64 and rounded after.
    noised = total if total.dtype == noise.dtype else total.to(noise.device, noise.dtype)
    noised.mul_(1.0 / step).add_(noise, alpha=deviation / step).round_().mul_(step)
    return total if noised is total else total.copy_(noised)


def place_of_float64(device: "torch.device") -> "torch.device":
    """The device itself, or the host for one of Apple's, which have no float64."""
    import torch

    return torch.device("cpu") if device.type == "mps" else device


def _normals(flat: Any, words: WordSource, deviation: float, xp: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Blocks of a flat array, for each as many normal values times the deviation, in float64, and scratch as long."""
    longest = _PAIRS_PER_BLOCK if getattr(flat, "is_cpu", True) else _PAIRS_PER_DEVICE_BLOCK
    pairs = min(longest, max(1, -(-len(flat) // 2)))
    one = xp.ones_like(flat[:1], dtype=xp.float64)
    values, scratch = one.repeat(2 * pairs), one.repeat(2 * pairs)
    draw = words(2 * pairs)
    for start in range(0, len(flat), 2 * pairs):
        block = flat[start : start + 2 * pairs]
        size = len(block)
        half = -(-size // 2)
        values[: 2 * half] = draw(2 * half)
        radius, angle, spare = values[:half], values[half : 2 * half], scratch[:half]
        # pi word / 2^63 is uniform on [-pi, pi), for a signed word of 64 bits.
        angle *= math.pi * 2.0**-63
        # |word| is uniform on 0..2**63. Near one a uniform is 2**-53 apart from the next: radii of 1e-8 deviations.
        xp.abs(radius, out=radius)
        radius *= 2.0**-63
        if float(xp.amin(radius)) < _SHORT_OF_BITS:
            _refine(radius, words, xp)
        # Radius sigma sqrt(-2 ln U), the deviation taken into the root.
        xp.log(radius, out=radius)
        radius *= -2.0 * deviation * deviation
        xp.sqrt(radius, out=radius)
        # The first half of the values are R cos, the second R sin, of which an odd block takes one less.
        xp.cos(angle, out=spare)
        xp.sin(angle, out=angle)
        angle *= radius
        radius *= spare
        yield block, values[:size], scratch[:size]


def _refine(uniform: Any, words: WordSource, xp: Any) -> None:
    """Extend small uniforms, multiples of 2**-63 so far, by a word each: the far tail becomes as fine as the rest."""
    short = uniform < _SHORT_OF_BITS
    fine = uniform[short]
    below = xp.empty_like(fine)
    below[:] = words(len(fine))(len(fine))
    # A multiple stands for the interval of length 2**-63 around it.
    fine += below * 2.0**-127
    uniform[short] = abs(fine).clip(_SMALLEST)
