"""The distinguishability of two worlds' releases, as one curve from which every promise is read."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import optimize
from typing_extensions import override

from lightning_pac._roots import moved_until
from lightning_pac._validation import validated
from lightning_pac.accountants.privacy_loss.gaussian import gaussian_log_delta, gaussian_trade_off, log_delta_error
from lightning_pac.information import Array

__all__ = ["CombinedCurve", "GaussianCurve", "LatticeCurve", "PrivacyCurve"]

_SMALLEST = math.ulp(0.0)


@validated
class PrivacyCurve(ABC):
    """The least delta that goes with every epsilon, in both directions between the two worlds.

    Every figure errs upwards for the attacker: `delta`, `epsilon` and `success_bound` are never below the truth, and
    `trade_off` is never above it.
    """

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """The least delta that goes with epsilon, in nats and not negative."""

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """The least epsilon that goes with delta in (0, 1), in nats; infinite where the curve does not fall so far."""

    @abstractmethod
    def error_bounds(self, false_positive_rate: float) -> tuple[float, float]:
        """Two bounds on a test's false-negative rate, from the lines `1 - delta - e^eps FPR` and their mirror images.

        Both hold for one order of the worlds at least, and the same of the two for every curve.
        """

    def trade_off(self, false_positive_rate: float) -> float:
        """The least false-negative rate of any test of one world against the other, whichever is the first.

        The upper envelope of `1 - delta(eps) - e^eps FPR` and `e^-eps (1 - delta(eps) - FPR)` over all epsilons
        (Wasserman and Zhou 2010; Dong, Roth and Su 2022, proposition 2.5).

        Args:
            false_positive_rate: how often the test may be wrong in the first world, in [0, 1].

        Raises:
            ValueError: if the rate is not in [0, 1].

        Example:
            >>> print(f"{1 - GaussianCurve(1.0).trade_off(0.01):.4f}")  # true-positive rate at one false alarm in 100
            0.0924
        """
        if not 0 <= false_positive_rate <= 1:
            raise ValueError(f"false_positive_rate is {false_positive_rate}, but a probability lies in [0, 1].")
        return min(1.0, max(0.0, *self.error_bounds(false_positive_rate)))

    def success_bound(self, prior: float = 0.5) -> float:
        """The largest probability of naming the right world.

        `(1 - pi) + pi delta(ln((1 - pi)/pi))` for prior `pi <= 1/2` of one world: the best test of the worlds weighted
        by their priors (Neyman and Pearson). Which of them is the likelier one makes no difference to a curve in both
        directions.

        Args:
            prior: probability of one of the worlds before anything is released, in (0, 1).

        Raises:
            ValueError: if the prior is not in (0, 1).

        Example:
            >>> print(f"{GaussianCurve(1.0).success_bound():.4f}")  # Phi(1/2)
            0.6915
        """
        if not 0 < prior < 1:
            raise ValueError(f"prior is {prior}, but must lie strictly between 0 and 1.")
        rarer = min(prior, 1 - prior)
        gain = rarer * self.delta(math.log((1 - rarer) / rarer))
        # The sum is rounded: to the next float, which is above it.
        return min(1.0, math.nextafter((1 - rarer) + gain, 2.0)) if gain else 1 - rarer


@validated
@dataclass(frozen=True)
class GaussianCurve(PrivacyCurve):
    """The curve of N(0, 1) against N(mu, 1), exact to 11 digits for ordinary mu and rounded upwards there.

    Args:
        mu: distance of the means, not negative.

    Raises:
        ValueError: if mu is negative or not finite.

    Example:
        >>> curve = GaussianCurve(0.5)
        >>> print(f"{curve.delta(1.0):.3e} {curve.epsilon(1e-5):.4f} {1 - curve.trade_off(0.01):.4f}")
        6.830e-03 1.9931 0.0339
    """

    mu: float

    def __post_init__(self) -> None:
        if not 0 <= self.mu < math.inf:
            raise ValueError(f"mu is {self.mu}, but a distance is finite and not negative.")

    @override
    def delta(self, epsilon: float) -> float:
        _check_epsilon(epsilon)
        if not self.mu:
            return 0.0
        log_delta = gaussian_log_delta(self.mu, epsilon) + log_delta_error(self.mu)
        return min(1.0, math.exp(min(0.0, log_delta)) + _SMALLEST)  # subnormal numbers are rounded, some of them to 0

    @override
    def epsilon(self, delta: float) -> float:
        _check_delta(delta)
        if self.delta(0.0) <= delta:
            return 0.0

        target = math.log(delta)
        if delta < 1e-300:  # so much less that rounding among the subnormal numbers, and the one that is added, fit in
            target = math.log(delta / _SMALLEST - 0.6) + math.log(_SMALLEST)

        error = log_delta_error(self.mu)

        def excess(epsilon: float) -> float:
            # The search needs finite values, also where delta underflows.
            return max(-1e9 - 2 * error, gaussian_log_delta(self.mu, epsilon)) + error - target

        high = self.mu
        while excess(high) > 0:
            high *= 2
            if math.isinf(high):  # at mu above 1e154, whose square overflows
                return math.inf
        epsilon = float(optimize.brentq(excess, 0.0, high, xtol=1e-300, rtol=1e-14))
        # The bound itself decides. It is flat near 0, so that its roundings count as parts of mu there.
        return moved_until(lambda epsilon: self.delta(epsilon) <= delta, epsilon, 1e-13 * (epsilon + self.mu))

    @override
    def error_bounds(self, false_positive_rate: float) -> tuple[float, float]:
        rate = gaussian_trade_off(self.mu, false_positive_rate) * (1 - log_delta_error(self.mu))
        return rate, rate


@dataclass(frozen=True)
class LatticeCurve(PrivacyCurve):
    """The curve of a privacy loss on a lattice, given at its points; between them delta is linear in `e^epsilon`.

    Args:
        start: the first lattice point, in nats, at most 0.
        step: distance of lattice points.
        deltas: delta at each lattice point, nonincreasing, shape (points,).
    """

    start: float
    step: float
    deltas: Array = field(repr=False)

    @override
    def delta(self, epsilon: float) -> float:
        _check_epsilon(epsilon)
        place = (epsilon - self.start) / self.step
        if place < 0:
            # Delta falls in e^epsilon by at most the other world's mass, which is 1.
            fall = -math.expm1(epsilon - self.start) * math.exp(min(self.start, 700.0))
            return min(1.0, (float(self.deltas[0]) + fall) * (1 + 1e-14))
        if not place < len(self.deltas) - 1:
            return float(self.deltas[-1])
        left = int(place)
        # A chord of a convex function lies above it, and a shorter way along the chord above a longer one.
        # `expm1(part) / expm1(step)`, written so that no step overflows.
        part = (place - left) * self.step
        share = math.exp(part - self.step) * math.expm1(-part) / math.expm1(-self.step) * (1 - 1e-12)
        return float(self.deltas[left] + share * (self.deltas[left + 1] - self.deltas[left]))

    @override
    def epsilon(self, delta: float) -> float:
        _check_delta(delta)
        # The first point at which the bound is at most delta; searched backwards, since deltas fall.
        right = len(self.deltas) - int(np.searchsorted(self.deltas[::-1], delta, side="right"))
        if right == len(self.deltas):
            return math.inf
        if right == 0:
            return max(0.0, self.start)
        above, below = float(self.deltas[right - 1]), float(self.deltas[right])
        share = (above - delta) / (above - below)
        # The chord in e^epsilon solved for epsilon; where e^step overflows, the right end of it.
        part = math.log1p(share * math.expm1(self.step)) if self.step < 700 else self.step
        return max(0.0, (self.start + (right - 1) * self.step + part) * (1 + 1e-14) + 1e-13 * self.step)

    @override
    def error_bounds(self, false_positive_rate: float) -> tuple[float, float]:
        # Lines of the points with epsilon >= 0, and in `flat` their mirror images, which are less steep than 1.
        epsilons = self.start + self.step * np.arange(len(self.deltas))
        kept = (epsilons >= 0) & (epsilons <= 700.0)  # e^epsilon is to be a number; every line is a bound by itself
        slopes, offsets = np.exp(epsilons[kept]), 1 - self.deltas[kept]
        steep, flat = offsets - slopes * false_positive_rate, (offsets - false_positive_rate) / slopes
        return float(steep.max(initial=0.0)), float(flat.max(initial=0.0))


@dataclass(frozen=True)
class CombinedCurve(PrivacyCurve):
    """The upper or the lower envelope of curves: the worst of several pairs of worlds, or the best of several bounds.

    Args:
        curves: the curves.
        pick: `max` for the worst, `min` for the best.
    """

    curves: Sequence[PrivacyCurve]
    pick: Callable[[Sequence[float]], float]

    @override
    def delta(self, epsilon: float) -> float:
        return self.pick([curve.delta(epsilon) for curve in self.curves])

    @override
    def epsilon(self, delta: float) -> float:
        return self.pick([curve.epsilon(delta) for curve in self.curves])

    @override
    def error_bounds(self, false_positive_rate: float) -> tuple[float, float]:
        steep, flat = zip(*(curve.error_bounds(false_positive_rate) for curve in self.curves), strict=True)
        # `pick` ranks by how much is given away, and false-negative rates rank the other way round.
        return 1 - self.pick([1 - rate for rate in steep]), 1 - self.pick([1 - rate for rate in flat])


def _check_epsilon(epsilon: float) -> None:
    if not epsilon >= 0:
        raise ValueError(f"epsilon is {epsilon}, but a privacy loss that is promised is not negative.")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}, but a failure probability lies strictly between 0 and 1.")
