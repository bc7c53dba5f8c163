"""Standard normals by Box and Muller (1958) from 64-bit words, for arrays and, where they live, for tensors.

Radius and angle are computed in float64 whatever type the values go to: a logarithm in float32 has a hole around zero
and steps of the size of a release's grid, by which an attacker who knows two candidate sums tells them apart.
"""

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lightning_pac.randomness.grid import check_step

if TYPE_CHECKING:
    import torch

__all__ = ["WordSource", "fill_array", "fill_normal_", "place_of_float64", "release_", "release_with_"]

WordSource = Callable[[int], Callable[[int], Any]]
"""From the most words wanted at a time, a function from a number to so many random int64, in a buffer used again."""

# Long enough to make the cost of the calls small, short enough for the working arrays (40 bytes a pair) to stay cached.
_PAIRS_PER_BLOCK = 1 << 16
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
    for first, second, radius, angle, spare in _polar(values, words, 1.0, xp):
        k = len(second)
        xp.multiply(xp.cos(angle, out=spare), radius, out=first)
        xp.multiply(xp.sin(angle, out=angle)[:k], radius[:k], out=second)


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
            _release_few(flat.numpy(), words_on(place), deviation, step)
            return total if total.device == place else total.copy_(flat.view(total.shape))
        # Counting in steps of the grid is exact. The sum is formed in float64 and rounded after, so that the release is
        # a function of value plus noise however large the value is: a float32 draw would show its own low bits.
        for first, second, radius, angle, spare in _polar(flat, words_on(place), deviation / step, torch):
            for part, direction in ((first, torch.cos(angle, out=spare)), (second, angle.sin_())):
                noised, k = part.double(), len(part)
                noised.mul_(1.0 / step).addcmul_(direction[:k], radius[:k]).round_().mul_(step)
                part.copy_(noised)  # itself, in float64
        return total if total.device == place else total.copy_(flat.view(total.shape))


def _release_few(flat: npt.NDArray[Any], words: WordSource, deviation: float, step: float) -> None:
    def host_words(most: int) -> Callable[[int], Any]:
        draw = words(most)
        return lambda count: draw(count).numpy()

    for first, second, radius, angle, _ in _polar(flat, host_words, deviation / step, np):
        for part, direction in ((first, np.cos(angle)), (second, np.sin(angle))):
            k = len(part)
            part[:] = np.rint(part.astype(np.float64) * (1.0 / step) + direction[:k] * radius[:k]) * step


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


def _polar(flat: Any, words: WordSource, deviation: float, xp: Any) -> Iterator[tuple[Any, Any, Any, Any, Any]]:
    """Two halves of each block of a flat array, radius (times the deviation) and angle of its k pairs, and scratch.

    The second half is one shorter than the first where the block is odd.
    """
    longest = _PAIRS_PER_BLOCK if getattr(flat, "is_cpu", True) else _PAIRS_PER_DEVICE_BLOCK
    pairs = min(longest, max(1, -(-len(flat) // 2)))
    radii, angles, scratch = (xp.empty_like(flat[:pairs], dtype=xp.float64) for _ in range(3))
    draw = words(2 * pairs)
    for start in range(0, len(flat), 2 * pairs):
        block = flat[start : start + 2 * pairs]
        half = -(-len(block) // 2)
        bits, radius, angle = draw(2 * half), radii[:half], angles[:half]
        # pi word / 2^63 is uniform on [-pi, pi), for a signed word of 64 bits.
        angle[:] = bits[half:]
        xp.multiply(angle, math.pi * 2.0**-63, out=angle)
        # |word| is uniform on 0..2**63. Near one a uniform is 2**-53 apart from the next: radii of 1e-8 deviations.
        radius[:] = bits[:half]
        xp.multiply(xp.abs(radius, out=radius), 2.0**-63, out=radius)
        if float(radius.min()) < _SHORT_OF_BITS:
            _refine(radius, words, xp)
        # Radius sigma sqrt(-2 ln U), the deviation taken into the root.
        xp.sqrt(xp.multiply(xp.log(radius, out=radius), -2.0 * deviation * deviation, out=radius), out=radius)
        yield block[:half], block[half:], radius, angle, scratch[:half]


def _refine(uniform: Any, words: WordSource, xp: Any) -> None:
    """Extend small uniforms, multiples of 2**-63 so far, by a word each: the far tail becomes as fine as the rest."""
    short = uniform < _SHORT_OF_BITS
    fine = uniform[short]
    below = xp.empty_like(fine)
    below[:] = words(len(fine))(len(fine))
    # A multiple stands for the interval of length 2**-63 around it.
    fine += below * 2.0**-127
    uniform[short] = abs(fine).clip(_SMALLEST)
