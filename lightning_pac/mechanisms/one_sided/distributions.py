"""Noise on {0..R}: an additive, never negative amount, drawn securely."""

import math

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import PrivateInteger, validated
from lightning_pac.information import Array
from lightning_pac.randomness import SecureGenerator, round_up, secure_generator

__all__ = ["DiscreteNoise", "UnresolvedDeltaError", "draw_units", "in_units", "kept_delta", "pad_up", "stretch"]

# Probabilities are held as multiples of 2**-62, so that what is drawn is what was accounted for.
_UNITS = 2**62


class UnresolvedDeltaError(ValueError):
    """A delta so small that rounding the probabilities would spoil it."""


class DiscreteNoise:
    """Independent noise on the integers {0..R}, in the manner of `torch.distributions`.

    Args:
        probabilities: Probability of each value, shape (R + 1,), not negative with sum one. They are rounded to
            multiples of 2**-62, and what is drawn has exactly the rounded probabilities.
        generator: Source of the draws; None takes the process's secure generator.

    Raises:
        ValueError: If the probabilities are not a distribution.

    Example:
        >>> noise = DiscreteNoise([0.25, 0.5, 0.25])
        >>> noise.mean, noise.second_moment, noise.max_value
        (1.0, 1.5, 2)
        >>> sorted(set(noise.sample(1000).tolist()))
        [0, 1, 2]
    """

    @validated
    def __init__(self, probabilities: npt.ArrayLike, generator: SecureGenerator | None = None) -> None:
        p = np.asarray(probabilities, dtype=np.float64)
        if p.ndim != 1 or p.size == 0 or not np.isfinite(p).all() or (p < 0).any() or abs(p.sum() - 1.0) > 1e-6:
            raise ValueError(
                "probabilities must be one row of non-negative numbers with sum 1, the chances of 0, 1, ..., R; noise "
                "below zero is not one-sided."
            )
        units = in_units(p)
        self._cumulative = np.cumsum(units)
        self._probabilities: Array = np.asarray(units / _UNITS, dtype=np.float64)
        self._probabilities.flags.writeable = False
        self._generator = generator

    @property
    def probabilities(self) -> Array:
        """Probability of each value, shape (R + 1,)."""
        return self._probabilities

    @property
    def max_value(self) -> int:
        """The largest possible value R."""
        return int(self._probabilities.size) - 1

    @property
    def mean(self) -> float:
        """Expected value, the mean overhead."""
        return float(self._probabilities @ np.arange(self._probabilities.size))

    @property
    def second_moment(self) -> float:
        """Expected square."""
        return float(self._probabilities @ np.arange(self._probabilities.size, dtype=np.float64) ** 2)

    @property
    def variance(self) -> float:
        """Second moment less the square of the mean."""
        return self.second_moment - self.mean**2

    def log_prob(self, value: npt.ArrayLike) -> Array:
        """Natural logarithm of the probability of each value; minus infinity off the support."""
        values = np.asarray(value)
        inside = (values >= 0) & (values <= self.max_value) & (values == np.floor(values))
        with np.errstate(divide="ignore"):
            logs: Array = np.log(self._probabilities[np.where(inside, values, 0).astype(np.int64)])
        return np.where(inside, logs, -np.inf)

    def sample(self, size: int | tuple[int, ...] = ()) -> npt.NDArray[np.int64]:
        """Draw values of that shape from the secure generator."""
        return draw_units(self._cumulative, self._generator or secure_generator(), size)

    @validated
    def pad(self, value: PrivateInteger) -> int:
        """The value plus one draw: what an observer may see in its place."""
        return int(value) + int(self.sample())

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_value={self.max_value}, mean={self.mean:.6g})"


def in_units(probabilities: Array) -> npt.NDArray[np.int64]:
    """A distribution in multiples of 2**-62 whose sum is exactly one."""
    units: npt.NDArray[np.int64] = np.rint(probabilities / probabilities.sum() * _UNITS).astype(np.int64)
    # What rounding leaves goes to the largest probability, where it changes least in proportion.
    units[np.argmax(units)] += _UNITS - int(units.sum())
    return units


def draw_units(
    cumulative: npt.NDArray[np.int64], generator: SecureGenerator, size: int | tuple[int, ...] = ()
) -> npt.NDArray[np.int64]:
    """Draw values with exactly the probabilities whose running sums, in units, are given."""
    draws = np.asarray(generator.integers(_UNITS, size))
    # Of the 2^62 equally likely draws, units[k] fall between the running sums before and after k.
    return np.asarray(np.searchsorted(cumulative, draws, side="right"), dtype=np.int64)


def pad_up(value: float, draw: float, step: float) -> float:
    """The value plus a draw, rounded up to a public grid; the value's own size takes no digits from the draw.

    Args:
        value: What is padded.
        draw: One-sided noise.
        step: A power of two.

    Raises:
        ValueError: If the value is not finite, or so large that numbers beside it are coarser than the grid.
    """
    if not (math.isfinite(value) and abs(value) + draw < step * 2.0**52):
        raise ValueError(f"value is too large for noise on a grid of {step:.3g}: pad it in larger units.")
    # The draw joins a remainder below one step, so that a large value does not round it away.
    whole = math.floor(value / step)
    return step * whole + round_up(value - step * whole + draw, step)


def kept_delta(epsilon: float, delta: float, compositions: int, size: int) -> float:
    r"""The delta to design noise for, so that rounding its probabilities does not break the promise.

    Rounding R probabilities to multiples of $2^{-62}$, after arithmetic in float64 with a dozen roundings each, moves a
    mass of at most $\tau = R / 2^{62} + 2^{-50}$, and that of T draws by T times as much. Laws that close to an
    (epsilon, delta)-DP pair are so with $\delta + (1 + e^\epsilon) T \tau$. Ours.

    Args:
        epsilon: Privacy parameter of all releases together.
        delta: Failure probability of all releases together.
        compositions: T.
        size: R.

    Raises:
        UnresolvedDeltaError: If rounding takes more than half of delta.
    """
    # e^700 is still a float64.
    lost = (math.exp(min(epsilon, 700.0)) + 1.0) * compositions * (size / _UNITS + 2.0**-50)
    if lost > 0.5 * delta:
        raise UnresolvedDeltaError(
            f"delta={delta:g} is too small for probabilities that are rounded to 2**-50: with "
            f"epsilon={epsilon:g}, {compositions} releases and {size} values it must be at least {2 * lost:.2g}."
        )
    return delta - lost


@validated
def stretch(probabilities: npt.ArrayLike, sensitivity: int) -> Array:
    """Noise for queries of integer sensitivity s from noise for sensitivity one, at the same price (ours).

    `s e + U` with U uniform on {0..s-1}. Moved by k <= s it equals, with probability `1 - k/s`, noise that was not
    moved at all, and else the original noise moved by one: every pair of neighbours is a garbled version of the
    original pair, under any composition. Group privacy would pay s epsilon and more than s delta instead; the mass on
    multiples of s alone, as the bounds on half-lines would have it, gives a move by one away with certainty.

    Args:
        probabilities: Noise for sensitivity one, shape (R + 1,).
        sensitivity: Largest difference s between neighbouring queries.

    Example:
        >>> stretch([0.5, 0.5], sensitivity=2).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    return np.repeat(np.asarray(probabilities, dtype=np.float64), sensitivity) / sensitivity
