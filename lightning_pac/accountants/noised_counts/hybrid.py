"""Hybrid Rényi accounting of bounded noise: a Rényi divergence on the common support, a failure probability off it."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from lightning_pac._validation import validated

__all__ = ["HybridRDP", "hybrid_rdp", "hybrid_rdp_epsilon"]

_ROUNDINGS = 2.0**-50


@validated
@dataclass(frozen=True)
class HybridRDP:
    """The price of one release of an integer query plus noise p at one order, in each direction (Definition 7).

    The query of a neighbour is one higher or one lower; each direction has its own divergence and its own unreachable
    end, and the two must not be mixed.

    Attributes:
        order: Rényi order a.
        divergence_up: `1/(a-1) ln sum_{i>=1} p_i^a p_{i-1}^{1-a}`, the neighbour one higher.
        tail_up: `p_0`, which that neighbour cannot produce.
        divergence_down: `1/(a-1) ln sum_{i>=1} p_{i-1}^a p_i^{1-a}`, the neighbour one lower.
        tail_down: `p_R`.
    """

    order: float
    divergence_up: float
    tail_up: float
    divergence_down: float
    tail_down: float

    def epsilon(self, delta: float, compositions: int = 1) -> float:
        """Epsilon after `compositions` releases: the larger of the two directions, each with its own tail (Theorem 2).

        A neighbour may move some queries up and others down. With n of T up the bound is
        `n D_up + (T - n) D_down - ln(delta - n p_0 - (T - n) p_R) / (a - 1)`, convex in n: no mixture is worse than the
        worse end.

        Args:
            delta: Failure probability of all releases together, in (0, 1).
            compositions: Number of releases T, at least 1.

        Returns:
            Epsilon in nats, never rounded down.

        Raises:
            ValueError: If an argument is out of range.
        """
        _check_promise(delta, compositions)
        costs = []
        for divergence, tail in ((self.divergence_up, self.tail_up), (self.divergence_down, self.tail_down)):
            # The tails spend delta first, and the conversion from a Rényi divergence gets the rest. What is left may be
            # far smaller than a rounding of either, so it is exact.
            room = Fraction(delta) - compositions * Fraction(tail)
            if room <= 0:
                return float("inf")
            excess = self.order - 1.0
            paid, converted = compositions * divergence, -math.log(room) / excess
            # Each operation is off by an ulp of its result, and the logarithm by one of what it is taken of.
            costs.append(paid + converted + _ROUNDINGS * (abs(paid) + abs(converted) + 1.0 / excess))
        return float(max(0.0, *costs))


@validated
def hybrid_rdp(probabilities: npt.ArrayLike, order: float) -> HybridRDP:
    """The hybrid Rényi price of one release of a sensitivity-1 integer query with noise p on {0..R}.

    Args:
        probabilities: The noise, shape (R + 1,), positive with sum one.
        order: Rényi order a > 1.

    Raises:
        ValueError: If the order is at most one, or the noise is not a distribution without holes.

    Example:
        >>> price = hybrid_rdp([0.1, 0.3, 0.4, 0.2], order=2.0)
        >>> round(price.divergence_up, 6), round(price.tail_up, 9)
        (0.427444, 0.1)
    """
    if not 1.0 < order < math.inf:
        raise ValueError(f"order is {order!r}, but must be finite and above 1.")
    p = _check_noise(probabilities)
    # Up compares p_i with p_(i-1) over i = 1, ..., R, where both are positive; down exchanges their roles.
    logs = np.log(p)
    margin = len(p) * _ROUNDINGS  # of the sum of the noise, by which it was divided
    return HybridRDP(
        float(order),
        _log_sum(order, logs[1:], logs[:-1]) / (order - 1.0),
        float(p[0]) * (1.0 + margin),
        _log_sum(order, logs[:-1], logs[1:]) / (order - 1.0),
        float(p[-1]) * (1.0 + margin),
    )


@validated
def hybrid_rdp_epsilon(
    probabilities: npt.ArrayLike, delta: float, compositions: int = 1, order: float | None = None
) -> float:
    """Epsilon of the T-fold release by hybrid RDP (one-sided noise, Theorem 2); infinite if the tails spend delta.

    Args:
        probabilities: The noise, shape (R + 1,), positive with sum one.
        delta: Failure probability of the composition, tails included.
        compositions: Number T of releases.
        order: Rényi order; None takes the best.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> p = np.exp(-0.05 * (np.arange(41) - 20.0) ** 2)
        >>> round(hybrid_rdp_epsilon(p / p.sum(), delta=1e-5), 3)
        1.561
    """
    _check_promise(delta, compositions)
    if order is not None:
        return hybrid_rdp(probabilities, order).epsilon(delta, compositions)
    p = _check_noise(probabilities)
    if hybrid_rdp(p, 2.0).epsilon(delta, compositions) == math.inf:
        return float("inf")

    def epsilon(log_excess: float) -> float:
        return hybrid_rdp(p, 1.0 + float(np.exp(log_excess))).epsilon(delta, compositions)

    # a - 1 from 0.05 to 5,000, on a log scale. Every order is a valid bound, so the search need not be exact.
    grid = np.linspace(np.log(0.05), np.log(5e3), 40)
    values = [epsilon(point) for point in grid]
    best = int(np.argmin(values))
    bounds = (grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)])
    return float(min(values[best], minimize_scalar(epsilon, bounds=bounds, method="bounded").fun))


def _log_sum(order: float, upper: npt.NDArray[np.float64], lower: npt.NDArray[np.float64]) -> float:
    """`ln sum exp(order * upper + (1 - order) * lower)`, never rounded down."""
    exponents = order * upper + (1.0 - order) * lower
    total = float(np.logaddexp.reduce(exponents))
    # Each exponent is off by a few ulps of its parts, whose cancellation may leave next to nothing of them; the
    # logarithm of the sum by no more than the worst of them, and an ulp of itself for each addition.
    parts = float(np.max(order * np.abs(upper) + abs(1.0 - order) * np.abs(lower)))
    return total + _ROUNDINGS * (parts + len(upper) * (1.0 + abs(total)))


def _check_promise(delta: float, compositions: int) -> None:
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must lie in (0, 1), got {delta!r}; bounded noise cannot have delta = 0.")
    if compositions < 1:
        raise ValueError(f"compositions must be at least 1, got {compositions}.")


def _check_noise(probabilities: npt.ArrayLike) -> npt.NDArray[np.float64]:
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 1 or p.size < 2 or not np.isfinite(p).all() or not (p > 0).all() or abs(p.sum() - 1.0) > 1e-9:
        raise ValueError(
            "probabilities must be one row of at least two positive numbers with sum 1; noise with a hole in its "
            "support gives its neighbours away there."
        )
    return np.asarray(p / p.sum())  # the noise that is drawn; the sum may miss 1 a little
