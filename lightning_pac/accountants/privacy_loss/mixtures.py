r"""The worst pair of distributions that one Poisson-sampled step can have in two worlds.

`G_d = sum_k Binom(k; d, q) N(k, sigma^2)` is what d aligned differing records do to a step at clipping norm 1 and rate
q, and `G'_d` its mirror image.

**Theorem** (ours). Let d1 records be in the first world only and d2 in the second only (`replace`: d1 = d2 = d, each
record with another content in the other world). For all clipped gradients of theirs, in any dimension and chosen by
all that was released before, the step is no easier to tell apart than $(G_{d_1}, G'_{d_2})$: its trade-off function is
not below $T(G_{d_1}, G'_{d_2})$, which opposed, aligned gradients attain. So that pair dominates for every hockey stick
and every Rényi order, and dominates over the run when composed.

*Proof.* Condition on which other records were drawn: they are drawn alike in both worlds, and shift both. (A mixture
over them with the same weights in both worlds is no easier to tell apart than its hardest component allows, since
trade-off functions are convex.) Put $Z = N(0, \sigma^2 I)$, neither set of records, between P and Q. By the nested
case, which is Kahane's convexity inequality, $T(P, Z) \ge f_1 = T(G_{d_1}, Z)$ and $T(Z, Q) \ge f_2 = T(Z, G'_{d_2})$.
Take any test $\phi$ with $E_P \phi = \alpha$. Then $E_Z \phi \le 1 - f_1(\alpha)$, and as $f_2$ falls,
$1 - E_Q \phi \ge f_2(E_Z \phi) \ge f_2(1 - f_1(\alpha))$. Both curves are traced by thresholds, as likelihood ratios
grow along the line: at $\alpha = P(G_{d_1} < t)$, $1 - f_1(\alpha) = P(Z < t)$, and there $f_2 = P(G'_{d_2} \ge t)$. So
the bound is the curve $(P(G_{d_1} < t), P(G'_{d_2} \ge t))$ of the threshold tests of $(G_{d_1}, G'_{d_2})$, whose
likelihood ratio grows too: it is $T(G_{d_1}, G'_{d_2})$. Given any past a step is dominated by this one pair, and so
its composition dominates the run (Zhu, Dong and Wang 2022, theorem 10).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from lightning_pac.accountants.privacy_loss.binomial import ROUNDING, log_binomial, log_binomial_error
from lightning_pac.information import Array

__all__ = ["MixturePair"]

# Entries of an array of shape (points, counts) that are held at a time, 16 MiB.
_CHUNK = 1 << 21


@dataclass(frozen=True)
class MixturePair:
    """The pair `(G_d1, G'_d2)`: `(G_d, Z)` at d2 = 0, `(Z, G'_d)`, which is (Z, G) seen in a mirror, at d1 = 0.

    Args:
        noise_multiplier: noise deviation sigma in clipping norms.
        rate: probability q that a record is drawn, in (0, 1].
        num_first: records d1 that pull to the right in the first world.
        num_second: records d2 that pull to the left in the second.
        dropped: binomial terms that together weigh less than this are left out at either end.
    """

    noise_multiplier: float
    rate: float
    num_first: int
    num_second: int
    dropped: float = 0.0

    @cached_property
    def first(self) -> tuple[Array, Array, float]:
        """Counts k, log weights, and the weight left out, of G_d1."""
        return _binomial(self.num_first, self.rate, self.dropped)

    @cached_property
    def second(self) -> tuple[Array, Array, float]:
        """Counts k, log weights, and the weight left out, of G'_d2."""
        return _binomial(self.num_second, self.rate, self.dropped)

    def log_ratio(self, x: Array) -> Array:
        """Privacy loss `ln (G_d1/G'_d2)(x)`, increasing in x; shape of x."""
        right, left = self.log_ratios(x)
        return np.asarray(right - left)

    def log_ratios(self, x: Array) -> tuple[Array, Array]:
        """`ln (G_d1/Z)(x)` and `ln (G'_d2/Z)(x)`, with full relative accuracy where a ratio is near 1."""
        return (
            _log_ratio(x, *self.first[:2], self.noise_multiplier),
            _log_ratio(-x, *self.second[:2], self.noise_multiplier),
        )

    def log_ratio_error(self, x: Array) -> float:
        """A bound on the rounding error of `log_ratio` at any of these points."""
        largest = 0.0
        for counts, log_weights, _ in (self.first, self.second):
            # No exponent (k x - k^2 / 2) / s^2 is larger; weights and the number of terms add their own roundings.
            reach = float(counts[-1]) * (float(np.abs(x).max()) + float(counts[-1])) / self.noise_multiplier**2
            largest += reach + float(np.abs(log_weights).max()) + len(counts)
        return 8 * ROUNDING * (largest + 16) + 2 * self.weight_error

    @property
    def weight_error(self) -> float:
        """A bound on the relative error of the binomial weights."""
        sides = ((self.num_first, self.first), (self.num_second, self.second))
        return max(log_binomial_error(number, self.rate, *terms[:2]) for number, terms in sides)

    def bin_masses(self, x: Array) -> tuple[Array, Array]:
        """Probabilities of both distributions between neighbouring points, shapes (len(x) - 1,)."""
        return (
            _bin_masses(x, *self.first[:2], self.noise_multiplier),
            _bin_masses(-x[::-1], *self.second[:2], self.noise_multiplier)[::-1],
        )

    def first_tails(self, x: Array) -> tuple[Array, Array]:
        """Probabilities under the first distribution of lying below and above each point, shapes (len(x),)."""
        counts, log_weights, _ = self.first
        z = (x[:, None] - counts) / self.noise_multiplier  # (points, counts)
        return special.ndtr(z) @ np.exp(log_weights), special.ndtr(-z) @ np.exp(log_weights)


def _binomial(number: int, rate: float, dropped: float) -> tuple[Array, Array, float]:
    if rate == 1:
        return np.array([float(number)]), np.zeros(1), 0.0
    counts, log_weights = np.arange(number + 1, dtype=np.float64), log_binomial(number, rate)
    weights = np.exp(log_weights)
    # Terms are left out from either end as long as they add up to at most half of `dropped`.
    kept = (np.cumsum(weights) > dropped / 2) & (np.cumsum(weights[::-1])[::-1] > dropped / 2)
    if dropped == 0:
        kept = np.ones_like(kept)
    return counts[kept], log_weights[kept], float(weights[~kept].sum())


def _log_ratio(x: Array, counts: Array, log_weights: Array, deviation: float) -> Array:
    weights = np.exp(log_weights)
    result = np.empty_like(x)
    size = max(1, _CHUNK // len(counts))
    for start in range(0, len(x), size):
        # ln (G/Z)(x) = ln sum_k w_k e^((k x - k^2 / 2) / s^2), the largest term taken out of the sum.
        exponents = (np.outer(x[start : start + size], counts) - counts**2 / 2) / deviation**2  # (points, counts)
        terms = exponents + log_weights
        peak = terms.max(axis=1)
        part = peak + np.log(np.exp(terms - peak[:, None]).sum(axis=1))
        near = np.abs(part) < 0.1
        if near.any():
            # ln L = ln(1 + sum_k w_k (e^{..} - 1)): subtracting the ones first keeps a ratio near 1 exact.
            excess = np.where(
                exponents[near] > 1,
                np.exp(terms[near]) - weights,  # below e^0.1, since their sum is
                weights * np.expm1(np.minimum(exponents[near], 1.0)),
            )
            part[near] = np.log1p(excess.sum(axis=1))
        result[start : start + size] = part
    return result


def _bin_masses(x: Array, counts: Array, log_weights: Array, deviation: float) -> Array:
    # A Gaussian's mass between two points is the difference of its tails on the side where they lie, so that every
    # term, and with it the sum, has full relative accuracy.
    weights = np.exp(log_weights)
    result = np.empty(len(x) - 1)
    size = max(2, _CHUNK // len(counts))
    for start in range(0, len(x) - 1, size):
        z = (x[start : start + size + 1, None] - counts) / deviation  # (points, counts)
        tails = special.ndtr(-np.abs(z))
        astride = (z[:-1] < 0) & (z[1:] > 0)
        masses = np.where(astride, 1 - tails[:-1] - tails[1:], np.abs(tails[1:] - tails[:-1]))
        result[start : start + size] = masses @ weights
    return result
