"""Noise of least second moment for T releases, by hybrid RDP (Alg. 1) or against the exact composition."""

import functools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, minimize_scalar

from lightning_pac.accountants.noised_counts import ShiftComposition, hybrid_rdp_epsilon
from lightning_pac.information import Array
from lightning_pac.mechanisms.one_sided.convex_program import HybridRenyiProgram
from lightning_pac.mechanisms.one_sided.single_release import optimal_release

__all__ = ["Accounting", "ComposedRelease"]

Accounting = Literal["exact", "hybrid_rdp"]

_OVERSTATED = 0.3  # what hybrid RDP adds to the logarithm of epsilon, or a little less
_SHORTFALL = 1.5e-4  # by which the logarithm of the exact epsilon may stay below the budget's


@dataclass(frozen=True)
class ComposedRelease:
    """The design of noise on {0..R} for T releases of a sensitivity-1 integer query at one delta.

    By hybrid RDP the program is convex for each order, and the order is optimized. The exact composition has no convex
    form; the noise is then sought among the optimal noises of hybrid RDP at an order near the best one, whose target is
    loosened until the *exact* epsilon meets the budget (ours). The order matters little there: over 9 to 16 the second
    moment changes by 1 % at T = 500, delta = 1e-5, epsilon = 1, and what the tails may take of delta by 0.5 %.

    Args:
        delta: Failure probability of the composition in (0, 1).
        compositions: Number T of releases, at least two.
        max_value: Largest noise R.
        accounting: `"exact"` or `"hybrid_rdp"`.
    """

    delta: float
    compositions: int
    max_value: int
    accounting: Accounting = "exact"

    def epsilon(self, probabilities: npt.ArrayLike) -> float:
        """Epsilon of the composition by the chosen accounting."""
        if self.accounting == "exact":
            return ShiftComposition(probabilities, self.compositions).epsilon(self.delta)
        return hybrid_rdp_epsilon(probabilities, self.delta, self.compositions)

    def minimize_moment(self, epsilon: float) -> Array | None:
        """The noise of least second moment at that epsilon, or None if there is none on {0..R}."""
        if self.max_value < self._least_of_one(epsilon):
            return None
        if self.accounting == "hybrid_rdp":
            return self._best_order(epsilon)
        candidates = [p for p in (self._loosen(epsilon), self._staircase(epsilon)) if p is not None]
        return min(candidates, key=lambda p: float(self._moments[: p.size] @ p), default=None)

    def least_max_value(self, epsilon: float) -> int:
        """The least R at which `minimize_moment` finds noise."""

        def feasible(max_value: int) -> bool:
            return _replace(self, max_value).is_feasible(epsilon)

        # Noise on {0..R} is also noise on every longer range, so that bisection finds the least R.
        low = max(1, self._least_of_one(epsilon) - 1)
        high = max(low + 1, self.max_value)
        while not feasible(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if feasible(middle) else (middle, high)
        return high

    def is_feasible(self, epsilon: float) -> bool:
        """Whether `minimize_moment` finds noise at that epsilon."""
        if self.max_value < self._least_of_one(epsilon):
            return False
        if self.accounting == "exact":
            if self._staircase(epsilon) is not None:
                return True
            narrow = self._narrow(self._order(epsilon))
            return narrow is not None and self.epsilon(narrow) <= epsilon
        return any(self._at_order(epsilon, order) is not None for order in self._orders(epsilon))

    def _least_of_one(self, epsilon: float) -> int:
        """The least R at which one of the releases alone keeps the promise; programs for less of it are singular."""
        return optimal_release(epsilon, self.delta).size - 1

    @property
    def _moments(self) -> Array:
        squares: Array = np.arange(self.max_value + 1, dtype=np.float64) ** 2
        return squares

    def _best_order(self, epsilon: float) -> Array | None:
        found = {order: p for order in self._orders(epsilon) if (p := self._at_order(epsilon, order)) is not None}
        if not found:
            return None
        best = min(found, key=lambda order: float(self._moments @ found[order]))

        def moment(log_excess: float) -> float:
            order = 1.0 + math.exp(log_excess)
            p = self._at_order(epsilon, order, found[best])
            if p is None:
                # A finite penalty steers the search away from orders at which no noise exists.
                return 4.0 * float(self._moments @ found[best])
            found[order] = p
            return float(self._moments @ p)

        # Refine the best of a few orders by a short search on a logarithmic axis, from its own noise.
        center = math.log(best - 1.0)
        minimize_scalar(moment, bounds=(center - 0.25, center + 0.25), method="bounded", options={"maxiter": 5})
        return min(found.values(), key=lambda p: float(self._moments @ p))

    def _at_order(self, epsilon: float, order: float, start: Array | None = None) -> Array | None:
        start = self._start() if start is None else start
        if start is None:
            return None
        p = self._program(epsilon, order).minimize_moment(start)
        # What the solver's tolerance oversteps is taken back by asking for a little less.
        for _ in range(3):
            if p is None or (reached := hybrid_rdp_epsilon(p, self.delta, self.compositions, order)) <= epsilon:
                return p
            p = self._program(epsilon - 2.0 * (reached - epsilon), order).minimize_moment(start)
        return None

    def _loosen(self, epsilon: float) -> Array | None:
        order, start = self._order(epsilon), self._start()
        if start is None:
            return None
        found: dict[float, Array] = {}
        reached: dict[float, float] = {}  # the exact epsilon of each: to find it takes as long as to find the noise

        def solve(log_target: float) -> bool:
            if log_target not in found:
                nearest = found[min(found, key=lambda other: abs(other - log_target))] if found else start
                p = self._program(math.exp(log_target), order).minimize_moment(nearest, relative_gap=1e-4)
                if p is None:
                    return False
                found[log_target], reached[log_target] = p, self.epsilon(p)
            return True

        def excess(log_target: float) -> float:
            return math.log(max(reached[log_target], 1e-9) / epsilon) if solve(log_target) else -1.0

        # Bracket the target at which the exact epsilon meets the budget: hybrid RDP overstates it, mostly by a third.
        low = math.log(epsilon)
        while excess(low) > 0.0:
            low -= 0.1
        if low not in found:
            low += _OVERSTATED
        if not solve(low) or excess(low) > 0.0:
            narrow = self._narrow(order)
            if narrow is None or (least := self.epsilon(narrow)) > epsilon:
                return None
            low = math.log(hybrid_rdp_epsilon(narrow, self.delta, self.compositions, order)) + 1e-4
            found[low], reached[low] = narrow, least
        # Exact epsilon and target are almost proportional.
        high = low - excess(low) + 0.02
        while excess(high) < 0.0:
            low, high = high, high - excess(high) + 0.02
        # Chords that aim at the private side of the root.
        while excess(low) < -2.0 * _SHORTFALL and high - low > 1e-5:
            middle = low - (excess(low) + _SHORTFALL) * (high - low) / (excess(high) - excess(low))
            low, high = (middle, high) if excess(middle) <= 0.0 else (low, middle)
        # The root is inexact; of all noises met on the way take the best one that is private.
        private = [p for log_target, p in found.items() if reached[log_target] <= epsilon]
        return min(private, key=lambda p: float(self._moments @ p)) if private else None

    def _staircase(self, epsilon: float) -> Array | None:
        """The best optimal single release; better than hybrid RDP's noise for a handful of releases only."""
        if self.compositions > 10:
            return None
        candidates = _staircases(epsilon, self.delta, self.compositions)
        within = [p for p in candidates if p.size <= self.max_value + 1]
        return min(within, key=lambda p: float(self._moments[: p.size] @ p), default=None)

    def _narrow(self, order: float) -> Array | None:
        """The noise of least epsilon at an order, whatever its moment: each round takes the last one's as target."""
        p = self._start()
        if p is None:
            return None
        reached = hybrid_rdp_epsilon(p, self.delta, self.compositions, order)
        for _ in range(12):
            better = self._program(reached, order).minimize_violation(p)
            following = hybrid_rdp_epsilon(better, self.delta, self.compositions, order)
            if following >= reached * (1.0 - 1e-4):
                break
            p, reached = better, following
        return p

    def _program(self, epsilon: float, order: float) -> HybridRenyiProgram:
        return HybridRenyiProgram(self._moments, order, epsilon, self.delta, self.compositions)

    def _orders(self, epsilon: float) -> tuple[float, ...]:
        # eps = rho a + ln(1/delta) / (a - 1) is least at a - 1 = 2 ln(1/delta) / eps, as for Gaussian noise.
        best = 2.0 * math.log(1.0 / self.delta) / epsilon
        return tuple(1.0 + factor * best for factor in (0.8, 1.05, 1.4))

    def _order(self, epsilon: float) -> float:
        return 1.0 + 1.1 * math.log(1.0 / self.delta) / epsilon

    def _start(self) -> Array | None:
        """A bell around R/2 whose tails take three tenths of delta; None where R is too small for any."""
        center = self.max_value / 2.0
        tail = 0.3 * self.delta / self.compositions

        def bell(log_scale: float) -> Array:
            logs = -0.5 * ((np.arange(self.max_value + 1) - center) / math.exp(log_scale)) ** 2
            # The program starts from logarithms, so that no probability may underflow.
            weights = np.exp(np.maximum(logs, -600.0))
            return np.asarray(weights / weights.sum())

        def excess(log_scale: float) -> float:
            return math.log(float(bell(log_scale)[0]) / tail)

        # The tail grows with the scale: find the scale at which it takes its share.
        low, high = math.log(center / 30.0), math.log(100.0 * center)
        if excess(high) < 0.0 or excess(low) > 0.0:
            return None
        # Slightly narrower than the root, so that the tails stay below their share.
        return bell(float(brentq(excess, low, high)) - 1e-9)


@functools.lru_cache(maxsize=16)
def _staircases(epsilon: float, delta: float, compositions: int) -> tuple[Array, ...]:
    """Optimal single releases of which so many keep the promise by the exact composition, on any range."""

    def reached(p: Array) -> float:
        return ShiftComposition(p, compositions).epsilon(delta)

    candidates = []
    # This share of delta pays for the ends of the single releases, the rest for their composition.
    for share in (0.5, 0.8, 0.95):
        part = share * delta / compositions

        def excess(single: float, part: float = part) -> float:
            return reached(optimal_release(single, part)) - epsilon

        low, high = 0.99 * epsilon / compositions, epsilon
        if excess(low) < 0.0 < excess(high):
            p = optimal_release(float(brentq(excess, low, high, xtol=1e-5)) - 1e-5, part)
            if reached(p) <= epsilon:
                candidates.append(p)
    return tuple(candidates)


def default_max_value(epsilon: float, delta: float, compositions: int) -> int:
    """An R that costs next to no second moment: the width of a bell-shaped noise with the same guarantee."""
    # The deviation of Gaussian noise for T releases, eps = 2 sqrt(rho ln(1/delta)) with rho = T / (2 sigma^2).
    scale = math.sqrt(2.0 * compositions * math.log(1.0 / delta)) / epsilon + 1.0
    # ln of the factor by which the normal density falls from its peak 1 / (2.5 sigma) to delta / (2 T).
    log_tail = max(1.0, math.log(2.0 * compositions / (delta * 2.5 * scale)))
    return math.ceil(2.0 * scale * math.sqrt(2.0 * log_tail)) + 10


def _replace(design: ComposedRelease, max_value: int) -> ComposedRelease:
    return ComposedRelease(design.delta, design.compositions, max_value, design.accounting)
