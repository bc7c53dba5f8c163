"""Rényi divergences between a Gaussian and a binomial mixture of shifted Gaussians, by quadrature.

`G = sum_k Binom(k; d, q) N(k, s^2)` and `Z = N(0, s^2)`: what the d differing records do to one Poisson-sampled step at
clipping norm 1, and what happens without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy import stats
from scipy.special import logsumexp

from lightning_pac.information import Array

__all__ = ["mixture_divergence", "opposite_mixtures_divergence"]

_TAIL = 12.0
_RELATIVE_TOLERANCE = 1e-11
_MAX_INTERVALS = 1 << 14
_MAX_HALVINGS = 5
_CHUNK = 1 << 22


@lru_cache(maxsize=1 << 16)
def mixture_divergence(order: float, noise_multiplier: float, rate: float, num_differing: int, reverse: bool) -> float:
    """Rényi divergence between the mixture G and the Gaussian Z (ours; order of G as in the module's text).

    The trapezoidal rule in log space on `Z L^c`, `L = G/Z`, with c = a for `D_a(G||Z)` and c = 1 - a for `D_a(Z||G)`.
    The step is halved until the value is stable; the last change and a bound on both tails are added, so the number
    errs upwards.

    Args:
        order: Rényi order a, above 1.
        noise_multiplier: `s`, the noise deviation in clipping norms.
        rate: Poisson sampling rate q, in (0, 1].
        num_differing: records d, at least 0.
        reverse: False for `D_a(G||Z)`, True for `D_a(Z||G)`.

    Returns:
        The divergence in nats; infinite where noise is so small, or the order so high, that no grid of sensible size
        resolves it.

    Example:
        >>> print(f"{mixture_divergence(2.0, 1.0, 1.0, 1, reverse=False):.6f}")
        1.000000
    """
    if num_differing == 0:
        return 0.0
    power = 1 - order if reverse else order
    deviation = noise_multiplier
    if reverse:
        low = -((order - 1) * num_differing * rate + _TAIL * deviation)
        high = num_differing + _TAIL * deviation
    else:
        low, high = -_TAIL * deviation, order * num_differing + _TAIL * deviation
    mixture = _Mixture(num_differing, rate, deviation)
    return _certified_log_moment(mixture, power, low, high) / (order - 1)


def opposite_mixtures_divergence(
    order: float, noise_multiplier: float, rate: float, num_first: int, num_second: int
) -> float:
    """Divergence of G with d1 records from the mirror image of G with d2: what two opposed sets of gradients do.

    A true lower bound on the worst case where records differ in both directions. Every certified price lies above it.

    Args:
        order: Rényi order a, above 1.
        noise_multiplier: noise deviation in clipping norms.
        rate: Poisson sampling rate.
        num_first: records d1 pulling to the right.
        num_second: records d2 pulling to the left.
    """
    first = _Mixture(num_first, rate, noise_multiplier)
    second = _Mixture(num_second, rate, noise_multiplier)
    margin = _TAIL * noise_multiplier
    high = order * num_first + (order - 1) * num_second * rate + margin
    x = np.linspace(-margin, high, max(1 << 10, int(8 * (high + margin) / noise_multiplier)))
    right, left = first.log_ratio(x), second.log_ratio(-x)
    exponents = order * right + (1 - order) * left
    log_weights = _log_gauss(x, noise_multiplier) + math.log(x[1] - x[0])
    log_moment = float(logsumexp(log_weights + exponents))
    if log_moment > 0.1:
        return log_moment / (order - 1)
    # Both ratios have mean 1 under Z: without what they have in common, nothing cancels where all are close to 1.
    near = np.maximum(order * np.abs(right), order * np.abs(left)) < 1.0
    small = [np.where(near, values, 0.0) for values in (exponents, right, left)]
    excess = np.expm1(small[0]) - order * np.expm1(small[1]) - (1 - order) * np.expm1(small[2])
    powers = [np.exp(log_weights + values) for values in (exponents, right, left)]
    far = powers[0] - order * powers[1] - (1 - order) * powers[2]
    return math.log1p(max(0.0, float(np.where(near, np.exp(log_weights) * excess, far).sum()))) / (order - 1)


class _Mixture:
    def __init__(self, num_differing: int, rate: float, deviation: float) -> None:
        self.deviation = deviation
        self.counts = np.arange(num_differing + 1, dtype=np.float64)
        self.log_weights = stats.binom.logpmf(self.counts, num_differing, rate)

    def log_ratio(self, x: Array) -> Array:
        """`ln L(x)`, shape of x, with full relative accuracy where L is near 1."""
        return _in_chunks(self._log_ratio, x, len(self.counts))

    def _log_ratio(self, x: Array) -> Array:
        exponents = (np.outer(x, self.counts) - self.counts**2 / 2) / self.deviation**2  # (points, d + 1)
        terms = exponents + self.log_weights
        peak = terms.max(axis=1)
        general: Array = peak + np.log(np.exp(terms - peak[:, None]).sum(axis=1))
        near = np.abs(general) < 0.1
        if near.any():
            # ln L = ln(1 + sum_k w_k (e^{..} - 1)): subtracting the ones first keeps a ratio near 1 exact.
            weights = np.exp(self.log_weights)
            moderate = np.minimum(exponents[near], 1.0)
            excess = np.where(
                exponents[near] > 1, np.exp(np.minimum(terms[near], 0.0)) - weights, weights * np.expm1(moderate)
            )
            general[near] = np.log1p(excess.sum(axis=1))
        return general


def _certified_log_moment(mixture: _Mixture, power: float, low: float, high: float) -> float:
    """An upper bound on `ln E_Z[L^c]` for c > 1 or c < 0, where that expectation is at least 1."""
    deviation = mixture.deviation
    # Half a deviation already integrates a Gaussian of this width to 1e-34; narrower peaks show in the refinement.
    num_intervals = max(16, math.ceil((high - low) / deviation))
    if num_intervals > _MAX_INTERVALS:
        return math.inf
    x = np.linspace(low, high, num_intervals + 1)
    log_ratio = mixture.log_ratio(x)
    value, settled = math.inf, 0
    for halving in range(_MAX_HALVINGS + 1):
        step = (high - low) / num_intervals
        log_terms = power * log_ratio + _log_gauss(x, deviation) + math.log(step)
        log_moment = float(logsumexp(log_terms))
        near_one = log_moment < 0.1
        if near_one:
            # E[L] = 1 under Z, so E[L^c] - 1 = E[L^c - 1 - c (L - 1)], whose integrand is nonnegative: no cancellation.
            log_weights = _log_gauss(x, deviation) + math.log(step)
            refined = float(np.sum(_convex_excess(log_weights, log_ratio, power)))
        else:
            refined = log_moment
        change, value = abs(refined - value), refined
        settled = settled + 1 if change <= _RELATIVE_TOLERANCE * abs(value) else 0
        if settled == 2 or halving == _MAX_HALVINGS:
            break
        midpoints = x[:-1] + step / 2
        merged = np.empty(2 * num_intervals + 1)
        merged_ratio = np.empty_like(merged)
        merged[::2], merged[1::2] = x, midpoints
        merged_ratio[::2], merged_ratio[1::2] = log_ratio, mixture.log_ratio(midpoints)
        x, log_ratio, num_intervals = merged, merged_ratio, 2 * num_intervals
    if not math.isfinite(value) or (not near_one and change > 1e-3 * abs(value)):
        return math.inf
    # The integrand falls at least as fast as exp(-12 |x - end| / s) beyond both ends.
    log_step = math.log(step)
    tails = math.exp(min(700.0, max(log_terms[0], log_terms[-1]) - log_step)) * 2 * deviation / _TAIL
    rounding = 1e-15 * (1 + float(np.max(np.abs(power * log_ratio)[log_terms > log_terms.max() - 50])))
    if near_one:
        gauss_tails = 4 * (abs(power) + 1) * float(stats.norm.sf(_TAIL))
        return math.log1p(value * (1 + 1e-12) + change + tails + gauss_tails)
    return value + change + math.log1p(math.exp(math.log(tails) - value) if tails else 0.0) + rounding


def _convex_excess(log_weights: Array, log_ratio: Array, power: float) -> Array:
    """Weighted `L^c - 1 - c (L - 1)`, nonnegative, by its series in `ln L` where the difference would cancel."""
    weights = np.exp(log_weights)
    size = np.abs(log_ratio) * max(1.0, abs(power))
    t = np.where(size < 1.0, log_ratio, 0.0)
    series = sum((power**n - power) * t**n / math.factorial(n) for n in range(2, 8))
    direct = np.expm1(power * t) - power * np.expm1(t)
    near = weights * np.where(size < 1e-2, series, direct)
    # Away from 1 the powers may overflow where the weight underflows: multiply in logarithms.
    far = np.exp(log_weights + power * log_ratio) - power * np.exp(log_weights + log_ratio) + (power - 1) * weights
    return np.asarray(np.maximum(np.where(size < 1.0, near, far), 0.0))


def _log_gauss(x: Array, deviation: float) -> Array:
    return -(x**2) / (2 * deviation**2) - math.log(deviation * math.sqrt(2 * math.pi))


def _in_chunks(function: Callable[[Array], Array], x: Array, width: int) -> Array:
    size = max(1, _CHUNK // width)
    return np.concatenate([function(x[start : start + size]) for start in range(0, len(x), size)])
