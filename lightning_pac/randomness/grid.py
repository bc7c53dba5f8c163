"""The public grid that a release is rounded to, and what finite bits and precision leave of the noise's law."""

import math
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import validated

if TYPE_CHECKING:
    import torch

__all__ = ["finite_precision", "missing_tail", "release_grid", "round_to_grid", "round_up"]

Value = TypeVar("Value", float, npt.NDArray[np.floating[Any]], "torch.Tensor")


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
    # sigma = m 2^e with m in [1/2, 1): the largest power of two up to sigma is 2^(e - 1), times 2^-10.
    return float(math.ldexp(1.0, math.frexp(sigma)[1] - 11))


def check_step(step: float) -> None:
    """Raise a `ValueError` unless the step is a positive power of two."""
    # A power of two is 1/2 times another, as `frexp` writes it.
    if not (0.0 < step < math.inf) or math.frexp(step)[0] != 0.5:
        raise ValueError(f"step must be a power of two, got {step!r}; take release_grid(sigma).")


@validated
def finite_precision(num_draws: float, order: float = 2.0) -> float:
    r"""Nats, to be added to every epsilon, by which normal values from finite bits in float64 differ from the Gaussian.

    A draw lands within $e = 2^{-50} R$ of its place in exact arithmetic, R its distance from zero in steps of the grid
    ($2^{-53} s^2 / R$ within a thousandth of the deviation, which is s of at most $2^{11}$ steps, and up to $2^{-31}$
    between 5 and 5.8 deviations). So a pair of cells has the Gaussian's probability up to a factor within $1 \pm 4 e$:
    in mean square $\rho^2 = 16 \cdot 2^{-100} \cdot 2 s^2 \le 2^{-73}$, at most $b = 2^{-27}$ (at zero), whatever value
    the noise is added to. Over the n/2 pairs of a run the logarithms of these factors are a martingale but for their
    mean, so that (Freedman 1975) they sum to more than $c = \rho \sqrt{n L} + n \rho^2 / 4 + b L / 3$ with probability
    $e^{-L}$ only; $L = 100 \ln 2$, and `missing_tail` pays for it. Both worlds move by c, a Rényi divergence of order
    a by $(2 a - 1) c / (a - 1)$, which is 3 c or less from order two on, and a chance of success by less. Ours.

    Args:
        num_draws: Normal values drawn in the whole run: coordinates times steps.
        order: Rényi order that the nats are added at; two covers all above, and every other figure.

    Raises:
        ValueError: If the number is negative, or the order not above 1.

    Example:
        >>> finite_precision(270_000 * 4_000) < 2e-5
        True
    """
    _check_draws(num_draws)
    if not order > 1:
        raise ValueError(f"order is {order}, but must be above 1.")
    # 3 c: 3 rho sqrt(L) is below 2^-31.8, b L below 2^-20.8, and n rho^2 fits into the rest up to 2^80 draws.
    three = math.sqrt(num_draws) * 2.0**-31 + 2.0**-20 if num_draws else 0.0
    return three if order >= 2 else three * (2 * order - 1) / (3 * (order - 1))


@validated
def missing_tail(num_draws: float) -> float:
    r"""Probability, to be added to delta, of what finite random bits do not reach and `finite_precision` leaves out.

    From $t = \sqrt{180 \ln 2}$, 11.2 deviations, on radii are less fine than elsewhere, and they end at 13.3; a pair
    exceeds t with probability $2^{-90}$. With the $2^{-100}$ of `finite_precision`, in two worlds and weighted by up to
    $e^{16}$ as an epsilon may demand, each draw costs less than $2^{-64}$. Ours, by a union bound.

    Args:
        num_draws: Normal values drawn in the whole run: coordinates times steps.

    Raises:
        ValueError: If the number is negative.

    Example:
        >>> missing_tail(270_000 * 4_000) < 1e-9
        True
    """
    _check_draws(num_draws)
    return min(1.0, num_draws * 2.0**-64)


def _check_draws(num_draws: float) -> None:
    if not num_draws >= 0:
        raise ValueError(f"num_draws must not be negative, got {num_draws!r}.")
