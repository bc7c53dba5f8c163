"""Rényi divergence of the worst pair of one Poisson-sampled step, by quadrature that errs upwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import stats
from scipy.special import logsumexp

from lightning_pac._validation import Order, validated
from lightning_pac.accountants.privacy_loss.events import GaussianRelease, PoissonSteps, PrivacyEvent, SpreadSteps
from lightning_pac.accountants.privacy_loss.mixtures import MixturePair
from lightning_pac.information import Array

__all__ = ["mixture_divergence", "opposite_mixtures_divergence", "renyi_divergence"]

# Deviations of the noise beyond which the integrand is bounded and not summed.
_TAIL = 12.0
_RELATIVE_TOLERANCE = 1e-11
# An interval of more deviations is given up as infinite; after so many halvings the last change is charged.
_MAX_INTERVALS = 1 << 14
_MAX_HALVINGS = 5


@validated
def renyi_divergence(events: Sequence[PrivacyEvent], order: Order) -> float:
    """Rényi divergence of everything released, in the worse direction of every event, in nats.

    Args:
        events: what was released, adaptively or not.
        order: Rényi order a, above 1.

    Returns:
        `a mu^2 / 2` for Gaussian releases, and for each Poisson step the divergence of its worst pair, but no more
        than if its draws were known; infinite where no grid resolves it.

    Raises:
        ValueError: if the order is not above 1.

    Example:
        >>> print(f"{renyi_divergence([GaussianRelease(0.25), GaussianRelease(0.75)], order=16.0):.1f}")
        8.0
    """
    return math.fsum(
        order * event.mu_squared / 2 if isinstance(event, GaussianRelease) else _cost_of_steps(event, order)
        for event in events
    )


def _cost_of_group(steps: SpreadSteps, order: float) -> float:
    """`3^c` times what one record costs at order `2^c a`, for up to `2^c` records (Mironov 2017, proposition 2)."""
    doublings = (steps.total_differing - 1).bit_length()
    if order < 2:
        return math.inf
    return float(3**doublings) * _cost_of_steps(steps.of_one, order * 2**doublings)


def _cost_of_steps(steps: PoissonSteps, order: float) -> float:
    pairs = {pair[::way] for pair in steps.pairs for way in (1, -1)}
    noise, rate = steps.noise_multiplier, steps.rate
    if isinstance(steps, SpreadSteps):
        return min(order * steps.mu_squared / 2, _cost_of_group(steps, order))
    amplified = max(opposite_mixtures_divergence(order, noise, rate, *pair) for pair in pairs)
    return min(order * steps.mu_squared / 2, steps.num_steps * amplified)


@validated
@lru_cache(maxsize=1 << 16)
def opposite_mixtures_divergence(
    order: float, noise_multiplier: float, rate: float, num_first: int, num_second: int
) -> float:
    """`D_a(G_d1 || G'_d2)`, the exact price of a step (theorem in `mixtures`), rounded upwards.

    With `L1 = G_d1/Z` and `L2 = G'_d2/Z` the integrand is `Z L1^a L2^(1-a)`. The slope of its logarithm is
    `(-x + a k1 + (a-1) k2)/s^2`, with posterior means `0 <= k1 <= d1` and k2 of the counts, and `k2 <= d2 q` right of
    0: left of 0 and right of `a d1 + (a-1) d2 q` it falls at least as fast as a Gaussian, which bounds what lies
    outside the interval. The trapezoidal rule's step is halved until the value is stable, and the last change is added.

    Args:
        order: Rényi order a, above 1.
        noise_multiplier: `s`, the noise deviation in clipping norms.
        rate: Poisson sampling rate q, in (0, 1].
        num_first: records d1 that only the first world has; 0 gives `D_a(Z||G)`.
        num_second: records d2 that only the second has; 0 gives `D_a(G||Z)`.

    Returns:
        The divergence in nats; infinite where noise is so small, or the order so high, that no grid of sensible size
        resolves it.

    Example:
        >>> print(f"{opposite_mixtures_divergence(2.0, 1.0, 1.0, 1, 0):.6f}")
        1.000000
    """
    if not order > 1:
        raise ValueError(f"order is {order}, but must be above 1.")
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier is {noise_multiplier}, but must be positive and finite.")
    if not 0 < rate <= 1:
        raise ValueError(f"rate is {rate}, but a record is drawn with a probability in (0, 1].")
    for name, number in (("num_first", num_first), ("num_second", num_second)):
        if number < 0:
            raise ValueError(f"{name} is {number}, but must not be negative.")
    if num_first == num_second == 0:
        return 0.0
    low = -(num_second + _TAIL * noise_multiplier)
    high = order * num_first + (order - 1) * num_second * rate + _TAIL * noise_multiplier
    pair = MixturePair(noise_multiplier, rate, num_first, num_second)
    return _raised_log_moment(pair, order, low, high) / (order - 1)


def mixture_divergence(order: float, noise_multiplier: float, rate: float, num_differing: int, reverse: bool) -> float:
    """`D_a(G||Z)`, or `D_a(Z||G)` in reverse: the name of version 0.1.0 for pairs that one world has no records of."""
    pair = (0, num_differing) if reverse else (num_differing, 0)
    return opposite_mixtures_divergence(order, noise_multiplier, rate, *pair)


def _raised_log_moment(pair: MixturePair, order: float, low: float, high: float) -> float:
    """An upper bound on `ln E_Q[(P/Q)^a]`, which is at least 0."""
    deviation = pair.noise_multiplier
    # Half a deviation already integrates a Gaussian of this width to 1e-34; narrower peaks show in the refinement.
    if not (high - low) / deviation <= _MAX_INTERVALS:
        return math.inf
    num_intervals = max(16, math.ceil((high - low) / deviation))
    x = np.linspace(low, high, num_intervals + 1)
    ratios = np.stack(pair.log_ratios(x))  # ln P/Z and ln Q/Z, shape (2, points)
    value, settled = math.inf, 0
    for halving in range(_MAX_HALVINGS + 1):
        step = (high - low) / num_intervals
        # Q(x) h as Z (Q/Z) h, and the loss ln P/Q: the integrand is Q e^(a loss).
        log_weights = _log_gauss(x, deviation) + ratios[1] + math.log(step)
        losses = ratios[0] - ratios[1]
        log_terms = log_weights + order * losses
        log_moment = float(logsumexp(log_terms))
        near_one = log_moment < 0.1
        if near_one:
            # E_Q[P/Q] = 1, so E_Q[r^a] - 1 = E_Q[r^a - 1 - a (r - 1)], whose integrand is nonnegative: no cancellation.
            refined = float(np.sum(_convex_excess(log_weights, losses, order)))
        else:
            refined = log_moment
        change, value = abs(refined - value), refined
        # Two halvings in a row that change nothing: one alone may be chance.
        settled = settled + 1 if change <= _RELATIVE_TOLERANCE * abs(value) else 0
        if settled == 2 or halving == _MAX_HALVINGS:
            break
        # Old points are the even ones of the finer grid, so only midpoints are evaluated.
        merged, merged_ratios = np.empty(2 * num_intervals + 1), np.empty((2, 2 * num_intervals + 1))
        merged[::2], merged[1::2] = x, x[:-1] + step / 2
        merged_ratios[:, ::2], merged_ratios[:, 1::2] = ratios, np.stack(pair.log_ratios(merged[1::2]))
        x, ratios, num_intervals = merged, merged_ratios, 2 * num_intervals
    if not math.isfinite(value) or (not near_one and change > 1e-3 * abs(value)):
        return math.inf
    # The integrand falls at least as fast as exp(-12 |x - end| / s) beyond both ends.
    tails = math.exp(min(700.0, max(log_terms[0], log_terms[-1]) - math.log(step))) * 2 * deviation / _TAIL
    rounding = 1e-15 * (1 + float(np.max(np.abs(order * losses)[log_terms > log_terms.max() - 50])))
    if near_one:
        # The excess adds a - 1 - a r to r^a, which beyond the ends is at most a - 1 times tails of 12 deviations.
        gauss_tails = 4 * (order + 1) * float(stats.norm.sf(_TAIL))
        # Differences of about a - 1 between numbers of size one, each right to a few hundred roundings.
        rounded = 1e-12 + 1e-13 / (order - 1)
        return math.log1p(value * (1 + rounded) + change + tails + gauss_tails)
    return value + change + math.log1p(math.exp(math.log(tails) - value) if tails else 0.0) + rounding


def _convex_excess(log_weights: Array, losses: Array, power: float) -> Array:
    """Weighted `r^c - 1 - c (r - 1)`, nonnegative, by its series in `ln r` where the difference would cancel."""
    weights = np.exp(log_weights)
    size = np.abs(losses) * power
    t = np.where(size < 1.0, losses, 0.0)
    # With r = e^t, sum_(n >= 2) (c^n - c) t^n / n!; below 1e-2 the six terms leave less than 1e-15 of it.
    series = sum((power**n - power) * t**n / math.factorial(n) for n in range(2, 8))
    direct = np.expm1(power * t) - power * np.expm1(t)
    near = weights * np.where(size < 1e-2, series, direct)
    # Away from 1 the powers may overflow where the weight underflows: multiply in logarithms.
    far = np.exp(log_weights + power * losses) - power * np.exp(log_weights + losses) + (power - 1) * weights
    return np.asarray(np.maximum(np.where(size < 1.0, near, far), 0.0))


def _log_gauss(x: Array, deviation: float) -> Array:
    return -(x**2) / (2 * deviation**2) - math.log(deviation * math.sqrt(2 * math.pi))
