r"""The price of showing the best of a secret number of private runs.

Let P and Q be the laws of one run's outcome, its score included, in the two worlds, m the expected number of runs and
$f(x) = E[x^K]$. The best outcome has the law $A(y) = P(y)\,E\,f'(X)$, where X lies uniformly between the chances that a
run is worse than y, and that it is no better (ties are broken blindly). For the truncated negative binomial number
$f'(x) = m \gamma^{1+\eta} (1 - (1-\gamma) x)^{-1-\eta} \le m$.

**Theorem (ours).** Let $\delta$ be a bound on the hockey stick of one run in both directions, and $r \ge 1$ with
$r - 1 \ge \frac{1-\gamma}{\gamma}\,\delta(\ln r)$. Then with $c = (1 + \eta) \ln r$, in both directions,

.. math:: D_a(A \| B) \le D_a(P \| Q) + c + \frac{\ln m}{a - 1}, \qquad
          \delta_{A \| B}(\varepsilon + c) \le m\,\delta(\varepsilon).

*Proof.* Being better than a place in the order is a test, so the chances u and v of it in the two worlds satisfy
$v \le r u + \delta(\ln r)$. Hence $\gamma + (1-\gamma) v \le \gamma + (1-\gamma)\delta(\ln r) + r (1-\gamma) u \le
r\,(\gamma + (1-\gamma) u)$, that is $f'(X) \le e^c f'(X')$ for the same place in both worlds. So
$A - e^{\varepsilon + c} B \le f' (P - e^\varepsilon Q) \le m\,(P - e^\varepsilon Q)_+$, and
$A^a B^{1-a} \le P^a Q^{1-a} f' e^{(a-1)c}$. For the mean over X, both are sums over places. ∎

Every Rényi price at an order b gives $\delta(\varepsilon) \le e^{(b-1)(\varepsilon(b)-\varepsilon)}
(1-1/b)^{b-1}/b$, and by it r is at most $e^{(1-1/b)\varepsilon(b)} \gamma^{-1/b}$, which is the price of Papernot and
Steinke (2022, theorem 2): theirs is never below this one. That P and Q change places in the inequality for v is why the
price of one direction alone proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import optimize
from typing_extensions import override

from lightning_pac._roots import moved_until
from lightning_pac._validation import NonNegative, Order, validated
from lightning_pac.accountants.privacy_loss import (
    PrivacyCurve,
    PrivacyEvent,
    event_from_dict,
    privacy_curve,
    renyi_divergence,
)
from lightning_pac.accountants.private_selection.number_of_runs import NumberOfRuns
from lightning_pac.randomness import finite_precision, missing_tail

__all__ = ["SelectionCurve", "SelectionPrice"]

# What the number of runs, computed in floats, may add to a loss: a multiple of ten digits.
_ARITHMETIC = 2.0**-30


@validated
@dataclass(frozen=True)
class SelectionCurve(PrivacyCurve):
    r"""The curve of the best of a secret number of runs, from the curve of one.

    `delta(eps) <= m delta_1(eps - c)`, by the theorem at the top of this module. Below the epsilon where that
    is useful, the curve is the chord of hockey sticks in both directions, $1 - s (1 + e^\varepsilon)$ with the largest
    $s = (1 - \delta)/(1 + e^\varepsilon)$.

    Args:
        one_run: the curve of one run with its score.
        runs: the number of runs.

    Example:
        >>> from lightning_pac.accountants.privacy_loss import GaussianCurve
        >>> curve = SelectionCurve(GaussianCurve(0.5), NumberOfRuns.expecting(20))
        >>> print(f"{curve.epsilon(1e-5):.2f} {GaussianCurve(0.5).epsilon(1e-5):.2f}")
        3.16 1.99
    """

    one_run: PrivacyCurve
    runs: NumberOfRuns

    @cached_property
    def shift(self) -> float:
        """`c`, in nats: what it adds to a loss that a run was compared with others."""
        return comparison_cost(self.runs, self.one_run.delta) + _ARITHMETIC

    def renyi(self, one_run: float, order: Order) -> float:
        """Rényi divergence of the selection, in nats.

        Args:
            one_run: that of one run at the order, in the worse direction.
            order: Rényi order, above 1.
        """
        return one_run + self.shift + math.log(self.runs.mean) / (order - 1)

    @override
    def delta(self, epsilon: float) -> float:
        if not epsilon >= 0:
            raise ValueError(f"epsilon is {epsilon}, but a privacy loss that is promised is not negative.")
        place, chord = self._chord
        if epsilon < place:
            return min(1.0, 1 - chord * (1 + math.exp(epsilon)) * (1 - 1e-14))
        return self._shifted(epsilon)

    @override
    def epsilon(self, delta: float) -> float:
        if not 0 < delta < 1:
            raise ValueError(f"delta is {delta}, but a failure probability lies strictly between 0 and 1.")
        place, chord = self._chord
        if delta >= self._shifted(place):
            # 1 - s (1 + e^eps) = delta solved for epsilon.
            return max(0.0, math.log(max(1.0, (1 - delta) / chord * (1 + 1e-14) - 1)))
        return max(place, self.shift + self.one_run.epsilon(delta / self.runs.mean))

    @override
    def error_bounds(self, false_positive_rate: float) -> tuple[float, float]:
        place, _ = self._chord
        # Lines at any epsilons are bounds; cubes put most of them close to the place where the curve begins.
        epsilons = place + np.linspace(0.0, 3.0, 25) ** 3
        deltas = np.array([self._shifted(float(epsilon)) for epsilon in epsilons])
        steep = 1 - deltas - np.exp(epsilons) * false_positive_rate
        flat = (1 - deltas - false_positive_rate) * np.exp(-epsilons)
        return float(steep.max(initial=0.0)), float(flat.max(initial=0.0))

    def _shifted(self, epsilon: float) -> float:
        return min(1.0, self.runs.mean * self.one_run.delta(max(0.0, epsilon - self.shift)) * (1 + 1e-12))

    @cached_property
    def _chord(self) -> tuple[float, float]:
        """The epsilon at which `(1 - delta)/(1 + e^eps)` is largest, and its value; any epsilon gives a bound."""

        def value(epsilon: float) -> float:
            return (1 - self._shifted(epsilon)) / (1 + math.exp(epsilon))

        # Here delta is 0.01 at most, so that 1 - delta has hardly anything left to gain.
        far = min(700.0, self.shift + self.one_run.epsilon(min(0.5, 0.01 / self.runs.mean)))
        grid = [self.shift + (far - self.shift) * step / 32 for step in range(33)]
        best = max(grid, key=value)
        # The least float in place of 0, since `epsilon` divides by it.
        return best, max(value(best), 5e-324)


@validated
@dataclass(frozen=True)
class SelectionPrice:
    """The price of a private selection, however many runs it turns out to have.

    Args:
        one_run: everything that one run may release at most, its score included.
        runs: the number of runs.
        draws: values of noise from finite bits that one run draws at most; on average over the number of runs they
            count in every figure.

    Example:
        >>> from lightning_pac.accountants.privacy_loss import GaussianRelease
        >>> price = SelectionPrice([GaussianRelease(1.0)], NumberOfRuns.expecting(20))  # 20 expected runs of 8 nats
        >>> print(f"{price.renyi(16.0):.2f}")
        9.82
    """

    one_run: Sequence[PrivacyEvent]
    runs: NumberOfRuns
    draws: NonNegative = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "one_run", tuple(self.one_run))

    @cached_property
    def curve(self) -> SelectionCurve:
        """The curve of everything that is shown, but for `tail`."""
        one_run = privacy_curve(self.one_run)
        nats = finite_precision(self.draws)
        return SelectionCurve(_Blurred(one_run, nats) if nats else one_run, self.runs)

    def to_dict(self) -> dict[str, Any]:
        """The price as plain values, as a ledger keeps it."""
        return {
            "one_run": [event.to_dict() for event in self.one_run],
            "gamma": self.runs.gamma,
            "eta": self.runs.eta,
            "draws": self.draws,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SelectionPrice:
        """The price that `to_dict` wrote.

        Args:
            values: plain values.
        """
        runs = NumberOfRuns(values["gamma"], values["eta"])
        return cls([event_from_dict(event) for event in values["one_run"]], runs, values["draws"])

    @property
    def tail(self) -> float:
        """The charge of finite bits to every delta: that of one run, as often as runs are expected."""
        return min(1.0, self.runs.mean * missing_tail(self.draws))

    def renyi(self, order: Order) -> float:
        """Rényi divergence of the selection in both directions, in nats.

        Args:
            order: Rényi order, above 1.

        Raises:
            ValueError: if the order is not above 1.
        """
        return self.curve.renyi(renyi_divergence(self.one_run, order) + finite_precision(self.draws, order), order)


def comparison_cost(runs: NumberOfRuns, delta: Callable[[float], float]) -> float:
    """`(1 + eta) ln r` for the least r of the theorem, rounded upwards.

    Args:
        runs: the number of runs.
        delta: hockey stick of one run in both directions, not increasing, as a function of epsilon in nats.
    """
    odds = (1 - runs.gamma) / runs.gamma

    def missing(log_ratio: float) -> float:
        return odds * delta(log_ratio) - math.expm1(log_ratio)

    high = math.log1p(odds)  # where even delta 1 is paid for
    if missing(0.0) <= 0:
        return 0.0
    found = float(optimize.brentq(missing, 0.0, high, xtol=1e-12)) if missing(high) < 0 else high
    # The theorem's condition itself decides.
    found = moved_until(lambda ratio: ratio >= high or missing(ratio) <= 0, found, found * 1e-9 + 1e-12)
    return (1 + runs.eta) * min(high, found) * (1 + 1e-14)


@dataclass(frozen=True)
class _Blurred(PrivacyCurve):
    """A curve whose noise has finite bits: densities are off by a factor of up to `e^(nats/3)` in either world."""

    exact: PrivacyCurve
    nats: float

    @override
    def delta(self, epsilon: float) -> float:
        # A hockey stick at -x is at most that at 0 plus x, which stands for epsilons below 0.
        blurred = self.exact.delta(max(0.0, epsilon - self.nats)) * math.exp(self.nats)
        return min(1.0, blurred + max(0.0, self.nats - epsilon))

    @override
    def epsilon(self, delta: float) -> float:
        return self.exact.epsilon(delta * math.exp(-self.nats)) + self.nats

    @override
    def error_bounds(self, false_positive_rate: float) -> tuple[float, float]:
        steep, flat = self.exact.error_bounds(false_positive_rate)
        return max(0.0, steep - self.nats), max(0.0, flat - self.nats)
