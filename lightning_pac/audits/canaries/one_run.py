r"""Lower confidence bounds on privacy from one run with many canaries.

Each of m canaries is in or out by a coin of its own. From everything released, c of the coins are guessed, with c fixed
before they are opened; W of the guesses are right. A bound on how often W is v or more, for every release that keeps a
claim, is a p-value of the claim.

**Pure epsilon with delta** (ours, and attained; for delta 0 that of Steinke, Nasr and Jagielski 2023, whose theorem 5.2
with delta fails near 1: at m = 3, v = 1, epsilon 0.335 and delta 0.0816 it says 0.963, where 0.981 is possible). Run on
coins that are permuted and some of them flipped at random, with its guesses put back, a release keeps its promise and
the law of W, and its guesses depend on $p_w = P[W = w]$ alone. A canary is guessed right, and w of the others, with
probability $\tfrac{w + 1}{m} p_{w+1}$; the same guesses, had that coin shown its other side, with
$\tfrac{c - w}{m} p_w$. With B binomial of c trials at $e^\varepsilon / (1 + e^\varepsilon)$, for which the first is
$e^\varepsilon$ times the second, and $p_w = h_w P[B = w]$, the promise is

.. math:: \sum_{w \ge 1} w \, P[B = w] \, (h_w - h_{w-1})_+ \le m \delta.

Now h is a mixture of intervals, of which those up to c have the most of $W \ge v$ for the least: B given $B \ge j$
takes $\kappa_j = j P[B = j] / P[B \ge j]$ of $m \delta$. So the largest $P[W \ge v]$ is the concave envelope of the
points $(\kappa_j, P[B \ge v] / P[B \ge j])$, j from 0 to v, at $m \delta$.

**A trade-off f** (in the manner of Mahloujifar, Melis and Chaudhuri 2024). Let $\bar f(x) = 1 - f(x)$, concave, be the
best true-positive rate at a false-positive rate x, in both orders of the worlds. Given all coins but one, the event
"that canary is guessed to be s, and j - 1 of the other guesses are right, or more" has the probability P1 if the coin
shows s, and P0 if not, with $P_1 \le \bar f(P_0)$. In the first case W is at least j and that guess is right; in the
second it is wrong and W is at least j - 1. Averaged over the coins, s and the canary (Jensen), with
$p_w = P[W = w]$,

.. math:: A_j \le \bar f(B_{j-1}), \qquad A_j = \sum_{w \ge j} \tfrac{w}{m} p_w, \quad
          B_j = \sum_{w \ge j} \tfrac{c - w}{m} p_w, \qquad A_0 + B_0 = \tfrac{c}{m}.

The largest $P[W \ge v]$ under these is found from the top: mass $\tau$ at $w = v$ alone (mass further up raises A and
lowers B), and below it, from $j = v$ down to 1, the least $p_{j-1}$ with $B_{j-1} \ge \bar f^{-1}(A_j)$ (more of it, in
place of mass further down, raises A and B by less in B). $\tau$ is possible if what is needed sums to 1 at most.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import optimize, special, stats

from lightning_pac._validation import Confidence, Count, Natural, NonNegative, Probability, validated
from lightning_pac.accountants import PrivacyCurve
from lightning_pac.information import Array

__all__ = ["claim_p_value", "epsilon_lower_bound", "gaussian_lower_bound", "pure_p_value"]

_LARGEST_MU = 60.0
_LARGEST_EPSILON = 100.0
_NUM_TANGENTS = 256
_SMALLEST_P_VALUE = 1e-12


@validated
def pure_p_value(
    num_canaries: Count, num_guesses: Count, num_right: Natural, epsilon: NonNegative, delta: Probability = 0.0
) -> float:
    """The most often that so many guesses are right under (epsilon, delta).

    Args:
        num_canaries: m.
        num_guesses: c, fixed before the coins are opened.
        num_right: v.
        epsilon: claimed privacy loss, in nats.
        delta: claimed failure probability.

    Raises:
        ValueError: if there are more guesses than canaries, or more right ones than guesses.

    Example:
        >>> print(f"{pure_p_value(10, 10, 10, epsilon=0.0):.6f}")  # ten coins
        0.000977
    """
    _check_counts(num_canaries, num_guesses, num_right)
    if not num_right:
        return 1.0
    log_masses = stats.binom(num_guesses, special.expit(epsilon)).logpmf(np.arange(num_guesses + 1))
    log_tails = np.logaddexp.accumulate(log_masses[::-1])[::-1][: num_right + 1]  # ln P[B >= j] for j = 0, ..., v
    costs = np.arange(num_right + 1, dtype=np.float64) * np.exp(log_masses[: num_right + 1] - log_tails)
    return min(1.0, _concave_envelope(costs, np.exp(log_tails[-1] - log_tails), num_canaries * delta))


@validated
def epsilon_lower_bound(
    num_canaries: Count, num_guesses: Count, num_right: Natural, delta: Probability = 0.0, confidence: Confidence = 0.95
) -> float:
    """Lower confidence limit of epsilon at delta, of any release; 0 where nothing is shown.

    Args:
        num_canaries: m.
        num_guesses: c, fixed before the coins are opened.
        num_right: v.
        delta: failure probability that epsilon goes with, well below one in the number of canaries.
        confidence: probability that the limit is below the truth.

    Raises:
        ValueError: if there are more guesses than canaries, or more right ones than guesses.

    Example:
        >>> print(f"{epsilon_lower_bound(1000, 1000, 700):.2f}")
        0.73
    """

    def excess(epsilon: float) -> float:
        return pure_p_value(num_canaries, num_guesses, num_right, epsilon, delta) - (1 - confidence)

    return _largest_refuted(excess, _LARGEST_EPSILON)


@validated
def claim_p_value(num_canaries: Count, num_guesses: Count, num_right: Natural, curve: PrivacyCurve) -> float:
    r"""The most often that so many guesses are right where a whole curve is kept, in f-DP form.

    Of the curve, tangents are used: $\bar f(x) \le \delta(\varepsilon) + e^\varepsilon x$ and its mirror image
    $1 - e^{-\varepsilon} (1 - \delta(\varepsilon) - x)$ at 256 epsilons, whose lower envelope is concave and never
    below $\bar f$.

    Args:
        num_canaries: m.
        num_guesses: c, fixed before the coins are opened.
        num_right: v.
        curve: what is claimed of one canary.

    Raises:
        ValueError: if there are more guesses than canaries, or more right ones than guesses.

    Example:
        >>> from lightning_pac.accountants import GaussianCurve
        >>> print(f"{claim_p_value(1000, 200, 190, GaussianCurve(0.5)):.1e}")
        2.5e-05
    """
    _check_counts(num_canaries, num_guesses, num_right)
    epsilons = np.linspace(0.0, min(curve.epsilon(1e-9), _LARGEST_EPSILON), _NUM_TANGENTS)
    deltas, growth = np.array([curve.delta(float(epsilon)) for epsilon in epsilons]), np.exp(epsilons)

    def inverse(power: float) -> float:
        return max(0.0, float(np.max((power - deltas) / growth)), float(np.max(1 - deltas - growth * (1 - power))))

    def is_possible(tail: float) -> bool:
        return _is_possible(tail, num_canaries, num_guesses, num_right, inverse)

    low, high = _SMALLEST_P_VALUE, 1.0
    if is_possible(high):
        return high
    if not is_possible(low):
        return low
    # Bisected on a log scale: the largest mass that is possible, rounded upwards.
    while high > low * 1.001:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if is_possible(middle) else (low, middle)
    return high


@validated
def gaussian_lower_bound(
    num_canaries: Count, num_guesses: Count, num_right: Natural, confidence: Confidence = 0.95
) -> float:
    """Lower confidence limit of `mu`, where a canary's trade-off is that of N(0, 1) against N(mu, 1); 0 for nothing.

    `GaussianCurve(mu).epsilon(delta)` is then a lower limit of epsilon at any delta, for releases of that form.

    Args:
        num_canaries: m.
        num_guesses: c, fixed before the coins are opened.
        num_right: v.
        confidence: probability that the limit is below the truth.

    Raises:
        ValueError: if there are more guesses than canaries, or more right ones than guesses.

    Example:
        >>> print(f"{gaussian_lower_bound(1000, 200, 150):.2f}")
        0.34
    """
    _check_counts(num_canaries, num_guesses, num_right)

    def excess(mu: float) -> float:
        def inverse(power: float) -> float:
            return float(special.ndtr(special.ndtri(power) - mu))  # of Phi(Phi^-1(x) + mu)

        return 1.0 if _is_possible(1 - confidence, num_canaries, num_guesses, num_right, inverse) else -1.0

    return _largest_refuted(excess, _LARGEST_MU)


def _is_possible(tail: float, m: int, c: int, v: int, inverse: Callable[[float], float]) -> bool:
    """Whether W may be v or more with this probability, by the recursion from the top."""
    right, wrong = v * tail / m, (c - v) * tail / m  # A_v and B_v
    for j in range(v, 0, -1):
        missing = inverse(min(1.0, right)) - wrong
        if missing > 0:
            mass = missing * m / (c - j + 1)
            right += (j - 1) / m * mass
            wrong += missing
        if right + wrong > c / m * (1 + 1e-12):
            return False
    return True


def _concave_envelope(costs: Array, gains: Array, budget: float) -> float:
    """The largest mean gain of a mixture of points of at most this mean cost; costs and gains ascend from cost 0."""
    within = int(np.searchsorted(costs, budget, side="right"))
    if within == len(costs):
        return float(gains[-1])
    first, end = 0, within
    # The steepest chord over the budget from a point within it, then the flattest one back from its end, and so on.
    for _ in range(len(costs)):
        before = first
        end = within + int(np.argmax((gains[within:] - gains[first]) / (costs[within:] - costs[first])))
        first = int(np.argmin((gains[end] - gains[:within]) / (costs[end] - costs[:within])))
        if first == before:
            break
    slope = (gains[end] - gains[first]) / (costs[end] - costs[first])
    return float((gains - slope * costs).max() + slope * budget)  # no point is above that line


def _largest_refuted(excess: Callable[[float], float], largest: float) -> float:
    """The parameter up to which a claim has a p-value below the level, rounded downwards."""
    if excess(0.0) > 0:
        return 0.0
    if excess(largest) < 0:
        return largest
    found = float(optimize.bisect(excess, 0.0, largest, xtol=1e-6))
    return max(0.0, found - 2e-6)


def _check_counts(canaries: int, guesses: int, right: int) -> None:
    if not right <= guesses <= canaries:
        raise ValueError(
            f"num_right is {right} of {guesses} guesses about {canaries} canaries, but at most all guesses are right, "
            "and one is made about a canary."
        )
