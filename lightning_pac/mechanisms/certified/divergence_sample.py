"""An upper bound on the information of a release, from a sample of the divergences of single draws."""

import dataclasses
import math

import numpy as np
from scipy.optimize import brentq

from lightning_pac.information import Array

__all__ = ["DivergenceSample", "upper_mean_bound"]

# Of the stake at which the capital could become zero.
_LARGEST_STAKE = 0.9
# Shares alpha of v that are tried.
_SHARES = np.linspace(0, 1, 41)


@dataclasses.dataclass(frozen=True, eq=False)
class DivergenceSample:
    r"""Values at independent draws of a release whose mean is the information that it tells.

    For outputs W of mean zero and standard normal noise, with $Z(y) = \sum_j P_j e^{W_j^T y - |W_j|^2 / 2}$, two
    functions of a release have that mean: the divergence of the posterior from the prior,
    $v = \mathrm{KL}(P_{S|y} \| P)$, and $u = E|W|^2/2 - \ln Z(y)$. Where one is large the other is small, so that
    $\alpha v + (1 - \alpha) u$ varies far less than either. Neither is ever above a known number:
    $v \le \ln(1/\min_j P_j)$, and $u \le E|W|^2$ by Jensen's inequality. Where the outputs fall into clusters, both are
    given the cluster, and the clusters' entropy comes on top (`Cluster`).

    Attributes:
        divergences: v, shape (n,).
        largest: What no divergence is above.
        surprisals: u, shape (n,); None for noise that is not Gaussian.
        energy: E|W|^2, which no surprisal is above.
        certain: What every release tells besides, in nats.
    """

    divergences: Array
    largest: float
    surprisals: Array | None = None
    energy: float = 0.0
    certain: float = 0.0

    def bound(self, failure: float) -> tuple[float, float]:
        """Upper bound on the information that fails with this probability at most, and an estimate of it.

        The mixture is chosen on a sixteenth of the draws, which the bound does not use again.
        """
        pilot = len(self.divergences) // 16
        if pilot < 2:
            # Too few draws for a pilot: v alone, with the largest variance on [0, largest] (Popoviciu).
            variance = self.largest**2 / 4
            estimate = float(self.divergences.mean())
            bound = upper_mean_bound(self.divergences, self.largest, failure, variance)
            return self.certain + bound, self.certain + estimate
        rest = len(self.divergences) - pilot
        share, variance, _ = self._choose(slice(None, pilot), rest, failure)
        values = self._mixed(share, slice(pilot, None))
        bound = upper_mean_bound(values, self._largest(share), failure, variance)
        return self.certain + bound, self.certain + max(0.0, float(values.mean()))

    def likely_bound(self, num_draws: int, failure: float) -> float:
        """A value that a bound from that many other draws exceeds one time in six: it proves nothing."""
        rest = num_draws - num_draws // 16
        share, variance, margin = self._choose(slice(None), rest, failure)
        # A standard error of both samples.
        margin += math.sqrt(variance * (1 / len(self.divergences) + 1 / rest))
        return self.certain + float(self._mixed(share, slice(None)).mean()) + margin

    def _choose(self, rows: slice, num_draws: int, failure: float) -> tuple[float, float, float]:
        """The share of v with the narrowest bound from so many draws, its variance and its margin."""
        if self.surprisals is None:
            shares, variances = np.ones(1), self.divergences[rows].var(ddof=1, keepdims=True)
        else:
            shares = _SHARES
            # Var(alpha v + (1 - alpha) u) as a quadratic form in (alpha, 1 - alpha); rounding may leave it below 0.
            weights = np.stack([shares, 1 - shares])
            covariance = np.cov(self.divergences[rows], self.surprisals[rows])
            variances = np.einsum("is,ij,js->s", weights, covariance, weights).clip(0)
        margins = []
        for share, variance in zip(shares.tolist(), variances.tolist(), strict=True):
            stake = _stake(variance, num_draws, self._largest(share), failure)
            # To second order ln(capital) is n (lambda t - lambda^2 V / 2) at the margin t, and ln(1/f) at this one.
            margins.append(-math.log(failure) / (stake * num_draws) + stake * variance / 2)
        best = int(np.argmin(margins))
        return float(shares[best]), float(variances[best]), margins[best]

    def _mixed(self, share: float, rows: slice) -> Array:
        if self.surprisals is None:
            return self.divergences[rows]
        return np.asarray(share * self.divergences[rows] + (1 - share) * self.surprisals[rows])

    def _largest(self, share: float) -> float:
        return share * self.largest + (1 - share) * self.energy


def upper_mean_bound(values: Array, largest: float, failure: float, variance: float) -> float:
    r"""Upper confidence bound on a mean that is not negative, of independent values that are never above `largest`.

    Staking $\lambda$ on each value being below m makes the capital $\prod_i (1 + \lambda (m - X_i))$. Where m
    is the mean the game is fair, and the capital passes $1/f$ with probability f at most (Markov). It grows with m, so
    the m at which it is $1/f$ is above the mean except with probability f. Values may be unbounded below.

    Args:
        values: Shape (n,).
        largest: Above 0.
        failure: f, the probability with which the bound may fail.
        variance: About that of the values, found without them; a wrong one only widens the bound.

    Source: Waudby-Smith and Ramdas (2024), section 4, with one stake for all values.

    Example:
        >>> round(upper_mean_bound(np.full(1000, 0.5), 1.0, 0.01, 0.0), 4)
        0.5051
    """
    stake = _stake(variance, len(values), largest, failure)
    goal = -math.log(failure)

    def excess(mean: float) -> float:
        # ln(capital) - ln(1/f). Each factor is at least 0.1, since no value is above `largest`.
        return float(np.log1p(stake * (mean - values)).sum()) - goal

    # By Jensen the capital at the sample mean is at most 1, so that the root lies above it. Raising a negative root
    # to 0 keeps it an upper bound.
    low = max(0.0, float(values.mean()))
    if excess(low) >= 0:
        return low
    # To first order the root is ln(1/f) / (lambda n) above the mean.
    width = goal / (stake * len(values))
    while excess(low + width) < 0:
        width *= 2
    # To the safe side of the root.
    return float(brentq(excess, low, low + width, xtol=1e-13)) + 1e-12


def _stake(variance: float, num_draws: int, largest: float, failure: float) -> float:
    """The stake of the narrowest bound for nearly normal values; it keeps the capital positive."""
    # Minimizes ln(1/f) / (lambda n) + lambda V / 2.
    best = math.sqrt(-2 * math.log(failure) / (num_draws * variance)) if variance > 0 else math.inf
    return min(_LARGEST_STAKE / largest, best)
