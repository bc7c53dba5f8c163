"""The public grid that a release is rounded to, and the tail that finite random bits do not reach."""

import math
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

__all__ = ["missing_tail", "release_grid", "round_to_grid", "round_up"]

Value = TypeVar("Value", float, npt.NDArray[np.floating[Any]], "torch.Tensor")

# Below a uniform of 2**-55 neighbouring radii of 63-bit integers lie further apart than the grid of a release.
_RESOLVED_BITS = 55


def round_to_grid(value: Value, step: float) -> Value:
    r"""Round a release to the grid $h \mathbb{Z}$: $h \, \mathrm{round}(x / h)$, exact because h is a power of two.

    Dividing by a power of two loses nothing, and floats of at least $2^{24} h$ (float32) are multiples of h already, so
    the result is a multiple of h in the value's own dtype, also after a later cast to a shorter one.

    Args:
        value: A float, an array or a tensor: the value *with* its noise.
        step: h, a power of two (see `release_grid`).

    Example:
        >>> round_to_grid(0.30, 0.25)
        0.25
    """
    check_step(step)
    if isinstance(value, float | int):
        return step * round(value / step) if math.isfinite(value) else value
    if isinstance(value, np.ndarray | np.generic):
        rounded: npt.NDArray[np.floating[Any]] = np.rint(value / step) * step
        return rounded
    return (value / step).round_().mul_(step)


def round_up(value: float, step: float) -> float:
    r"""The least multiple of h that is not below a value with its one-sided noise: $h \lceil x / h \rceil$.

    Args:
        value: The value *with* its noise.
        step: h, a power of two (see `release_grid`).

    Example:
        >>> round_up(0.30, 0.25)
        0.5
    """
    check_step(step)
    return step * math.ceil(value / step)


def release_grid(sigma: float) -> float:
    """Largest power of two that is at most `2**-10 * sigma`, the step of the grid a release is rounded to.

    Args:
        sigma: Standard deviation of the noise.

    Raises:
        ValueError: If sigma is not positive and finite.

    Example:
        >>> release_grid(1.5) == 2.0**-10
        True
    """
    if not 0.0 < sigma < math.inf:
        raise ValueError(f"sigma must be positive and finite, got {sigma!r}.")
    return float(math.ldexp(1.0, math.frexp(sigma)[1] - 11))


def check_step(step: float) -> None:
    """Raise a `ValueError` unless the step is a positive power of two."""
    if not (0.0 < step < math.inf) or math.frexp(step)[0] != 0.5:
        raise ValueError(f"step must be a power of two, got {step!r}; take release_grid(sigma).")


def missing_tail(num_draws: float) -> float:
    r"""Probability, to be added to delta, of the tail that finite random bits do not reach.

    Box–Muller on integers gives radii up to a largest t only. A pair has more than t with probability
    $e^{-t^2/2}$, which is more than the $2 \cdot 2\Phi(-t)$ of two coordinates taken alone, and each draw is charged a
    whole pair. t = 8.7 is where neighbouring radii come to lie further apart than the grid of a release (the largest
    radius is 9.3), so each draw costs $2^{-55}$. Ours, by a union bound.

    Args:
        num_draws: Normal values drawn in the whole run: coordinates times steps.

    Raises:
        ValueError: If the number is negative.

    Example:
        >>> missing_tail(270_000 * 4_000) < 1e-7
        True
    """
    if not num_draws >= 0:
        raise ValueError(f"num_draws must not be negative, got {num_draws!r}.")
    return min(1.0, num_draws * 2.0**-_RESOLVED_BITS)
