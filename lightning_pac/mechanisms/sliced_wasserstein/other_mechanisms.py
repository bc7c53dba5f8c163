"""Other mechanisms at the same budget: general Wasserstein, distribution-aware Cauchy, Gaussian DP."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow
from scipy.special import betaln, comb, eval_legendre, gammaln, logsumexp, stdtrit

from lightning_pac._validation import Positive, validated
from lightning_pac.information import Array, log_mean_exp
from lightning_pac.mechanisms.sliced_wasserstein.distances import quantile_differences
from lightning_pac.scenarios.attribute import AttributeScenario, Query

__all__ = [
    "Baseline",
    "baselines",
    "cauchy_renyi_divergence",
    "wasserstein_infinity_bound",
    "wasserstein_infinity_exact",
]

# Where the second term of a Legendre function is a rounding of the first.
_FAR = 1e16
# Gauss-Legendre nodes on [-1, 1].
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)

# Pairs of points up to which the distance is found by maximum flow over all of them.
_EXACT_MATCHES = 40_000


@dataclass(frozen=True)
class Baseline:
    """The noise that another mechanism needs.

    Attributes:
        name: `general_wasserstein`, `distribution_aware_cauchy` or `gaussian_dp`.
        scale: standard deviation of Gaussian noise, or scale of Cauchy noise, in every coordinate.
        power: expected squared norm of the noise; infinite for Cauchy noise of an exponent of 3 and less.
        absolute: expected absolute noise in one coordinate within its central half, the scale at which noises of
            different tails can be compared: the median of `|noise|`.
    """

    name: str
    scale: float
    power: float
    absolute: float


@validated
def baselines(
    scenario: AttributeScenario,
    query: Query | None,
    epsilon: Positive,
    renyi_order: float,
    cauchy_exponent: float = 2.0,
) -> dict[str, Baseline]:
    """Noise of the three baselines at an unsliced Rényi budget.

    `general_wasserstein` (GWM): `sigma^2 = a W_inf^2 / (2 eps)`. `distribution_aware_cauchy` (DAGWM): coordinates of
    generalized Cauchy noise times a scale, priced by the mean over a coupling of `exp((a-1) D_a)`, which bounds the
    divergence because that function of the pair of laws is jointly convex. `gaussian_dp`: the diameter of all
    outputs in place of W_inf.

    Args:
        scenario: the secret and its world.
        query: as for `SlicedWassersteinMechanism`.
        epsilon: budget in nats.
        renyi_order: `a` > 1.
        cauchy_exponent: k of the Cauchy noise, as for `cauchy_renyi_divergence`. Its variance is finite above 3.

    Returns:
        The baselines by name.

    Raises:
        ValueError: if epsilon is not above 0, the order not above 1, or the exponent none of this order.

    Example:
        >>> scenario = AttributeScenario.from_shifts({"a": [0.0], "b": [1.0]})
        >>> baselines(scenario, None, epsilon=2.0, renyi_order=4)["general_wasserstein"].scale
        1.0
    """
    if not 1 < renyi_order < 1e100:
        raise ValueError(f"renyi_order is {renyi_order}, but must be above 1, and less than 1e100.")
    assert scenario.pairs is not None
    outputs = scenario.outputs(query)
    dimension = next(iter(outputs.values())).shape[1]
    pairs = {frozenset(pair): pair for pair in scenario.pairs}.values()
    distance = max(wasserstein_infinity_bound(outputs[first], outputs[second]) for first, second in pairs)
    # The diagonal of the bounding box bounds the diameter.
    diameter = float(np.linalg.norm(np.ptp(np.concatenate(list(outputs.values())), axis=0)))
    cauchy = max(_cauchy_scale(outputs, pair, epsilon, renyi_order, cauchy_exponent) for pair in pairs)
    # Times sqrt(k - 1) it is Student's t with k - 1 degrees of freedom: variance 1 / (k - 3), and its third quartile.
    variance = 1 / (cauchy_exponent - 3) if cauchy_exponent > 3 else float("inf") if cauchy else 0.0
    quartile = float(stdtrit(cauchy_exponent - 1, 0.75)) / np.sqrt(cauchy_exponent - 1)
    found = [
        Baseline("distribution_aware_cauchy", cauchy, dimension * variance * cauchy * cauchy, quartile * cauchy),
    ]
    for name, sensitivity in (("general_wasserstein", distance), ("gaussian_dp", diameter)):
        sigma = float(np.sqrt(renyi_order * sensitivity**2 / (2 * epsilon)))
        # Third quartile of the standard normal, the median of its absolute value.
        found.append(Baseline(name, sigma, dimension * sigma**2, 0.6744897501960817 * sigma))
    return {baseline.name: baseline for baseline in found}


def cauchy_renyi_divergence(shift: npt.ArrayLike, renyi_order: float, cauchy_exponent: float = 2.0) -> Array:
    """Rényi divergence between generalized Cauchy laws, of density in proportion to `(1 + x^2)^(-k/2)`, shifted by s.

    For k = 2, the standard Cauchy law, `D_a = ln P_{a-1}(1 + s^2/2) / (a-1)` with the Legendre function P. For other k
    it is the logarithm of a polynomial in s^2 where `k (a-1) / 2` is an integer.

    Args:
        shift: s, any shape.
        renyi_order: `a` > 1.
        cauchy_exponent: k > 1.

    Returns:
        The divergences in nats, of the shift's shape.

    Raises:
        ValueError: if a shift is 1e150 or more, the exponent not above 1, or `k (a-1) / 2` no integer for an exponent
            other than 2.

    Example:
        >>> float(cauchy_renyi_divergence(0.0, 4.0))
        0.0
        >>> round(float(cauchy_renyi_divergence(1.0, 2.0, cauchy_exponent=4.0)), 6)
        1.287854
    """
    shift = np.asarray(shift, dtype=np.float64)
    degree = cauchy_exponent * (renyi_order - 1) / 2
    if not (np.abs(shift) < 1e150).all():
        raise ValueError("shift must be a number below 1e150: the square of a larger one overflows.")
    if cauchy_exponent == 2:
        return _legendre_divergence(np.square(shift) / 2, degree)
    if not cauchy_exponent > 1 or degree > 500 or degree != round(degree):
        raise ValueError(
            f"cauchy_exponent is {cauchy_exponent}, but must be above 1, and times {(renyi_order - 1) / 2:g} (half the "
            "order less one) a whole number up to 500; 2, the standard Cauchy law, goes with every order."
        )
    logarithms = _polynomial(round(degree), cauchy_exponent)
    with np.errstate(divide="ignore"):
        terms = logarithms + np.arange(1, len(logarithms) + 1) * 2 * np.log(np.abs(shift))[..., None]
    divergences: Array = np.logaddexp(0.0, logsumexp(terms, axis=-1)) / (renyi_order - 1)
    return divergences


@functools.lru_cache
def _polynomial(n: int, exponent: float) -> Array:
    """Logarithms of the coefficients of s^2, s^4, ... s^(2n) in the moment of Cauchy laws; the constant is 1."""
    # With x = tan(t), (1 + (x-s)^2) / (1 + x^2) = 1 + s^2 cos^2 t - 2 s sin t cos t, to be raised to the power n
    # and averaged over a density in proportion to cos^(k-2) t. Odd powers of the sine vanish: every term is positive.
    logarithms = np.full(n + 1, -np.inf)
    for sines in range(0, n + 1, 2):
        for squares in range(n - sines + 1):
            mean = betaln((sines + 1) / 2, (sines + 2 * squares + exponent - 1) / 2) - betaln(0.5, (exponent - 1) / 2)
            ways = np.log(comb(n, sines)) + np.log(comb(n - sines, squares)) + sines * np.log(2)
            power = sines // 2 + squares
            logarithms[power] = np.logaddexp(logarithms[power], ways + mean)
    return logarithms[1:]


def _legendre_divergence(excess: Array, degree: float) -> Array:
    """`ln P_n(1 + excess) / n` for the degree n."""
    if degree < 1e-8:
        return np.log1p(excess / 2)  # the limit, which is the Kullback-Leibler divergence
    if degree < 16:
        # Far out P_n(x) is its largest power of 2x times Gamma(n + 1/2) / (sqrt(pi) Gamma(n + 1)), and overflows.
        power = degree * np.log(2 * np.maximum(excess, 1.0)) + gammaln(degree + 0.5) - gammaln(degree + 1)
        near = np.log(eval_legendre(degree, 1 + np.minimum(excess, _FAR)))
        logarithm = np.where(excess < _FAR, near, power - 0.5 * np.log(np.pi))
    else:
        logarithm = _log_legendre(excess, degree)
    # P_n(1 + x) = 1 + n (n + 1) x / 2 + (n - 1) n (n + 1) (n + 2) x^2 / 16 + ...; 1 + x forgets small x.
    is_small = (degree * (degree + 1) * np.minimum(excess, 1.0) < 2e-5) & (excess < 0.1)
    small = np.where(is_small, excess, 0.0)
    series, term = np.zeros_like(small), degree * (degree + 1) * small / 2
    for k in range(1, 12):
        series, term = series + term, term * (degree - k) * (degree + k + 1) / (k + 1) ** 2 * (small / 2)
    found: Array = np.where(is_small, np.log1p(series), logarithm) / degree
    return found


def _log_legendre(excess: Array, degree: float) -> Array:
    """`ln P_n(x)` by Laplace's integral, the mean of `(x + sqrt(x^2 - 1) cos t)^n` over t from 0 to pi."""
    root = np.sqrt(excess) * np.sqrt(excess + 2)  # of x^2 - 1
    share = root / (1 + excess + root)
    # Over its largest value, at t = 0, it is (1 - 2 share sin^2(t/2))^n: until it has fallen by e^-40.
    end = 2 * np.arcsin(np.sqrt(np.minimum(1.0, -np.expm1(-40 / degree) / np.maximum(2 * share, 1e-300))))
    angles = end[..., None] * (_NODES + 1) / 2
    fallen = np.exp(degree * np.log1p(-2 * share[..., None] * np.sin(angles / 2) ** 2))
    logarithm: Array = degree * np.log1p(excess + root) + np.log(fallen @ _WEIGHTS * end / (2 * np.pi))
    return logarithm


def wasserstein_infinity_bound(first: Array, second: Array) -> float:
    """W-infinity distance of two empirical laws in any dimension: exact for small ones, else an upper bound.

    Args:
        first: points, shape (n, dimension).
        second: points, shape (m, dimension).
    """
    if len(first) * len(second) <= _EXACT_MATCHES:
        return wasserstein_infinity_exact(first, second)
    shift = first.mean(axis=0) - second.mean(axis=0)
    norm = float(np.linalg.norm(shift))
    # Matching along any direction is a coupling, whose longest move is an upper bound.
    directions = [*np.eye(first.shape[1]), *([shift / norm] if norm else [])]
    return min(
        float(np.linalg.norm(quantile_differences(first, second, direction), axis=1).max()) for direction in directions
    )


def wasserstein_infinity_exact(first: Array, second: Array) -> float:
    """W-infinity distance in any dimension: the least radius at which all mass can be moved, by maximum flow.

    Args:
        first: points, shape (n, dimension).
        second: points, shape (m, dimension).

    Example:
        >>> wasserstein_infinity_exact(np.array([[0.0], [1.0]]), np.array([[0.0], [1.0], [5.0]]))
        4.0
    """
    n, m = len(first), len(second)
    distances = np.linalg.norm(first[:, None, :] - second[None, :, :], axis=2)
    # The answer is one of the pairwise distances: bisect them by feasibility.
    radii = np.unique(distances)
    low, high = 0, len(radii) - 1
    while low < high:
        middle = (low + high) // 2
        if _all_mass_moves(distances <= radii[middle], n, m):
            high = middle
        else:
            low = middle + 1
    return float(radii[low])


def _all_mass_moves(allowed: npt.NDArray[np.bool_], n: int, m: int) -> bool:
    rows, columns = np.nonzero(allowed)
    source, sink = n + m, n + m + 1
    # A transport problem in whole units: n units leave each of the m points, m arrive at each of the n.
    tails = np.concatenate([np.full(n, source), rows, n + np.arange(m)])
    heads = np.concatenate([np.arange(n), n + columns, np.full(m, sink)])
    capacity = np.concatenate([np.full(n, m), np.full(len(rows), min(n, m)), np.full(m, n)]).astype(np.int32)
    graph = coo_array((capacity, (tails, heads)), shape=(n + m + 2, n + m + 2)).tocsr()
    return int(maximum_flow(graph, source, sink).flow_value) == n * m


def _cauchy_scale(
    outputs: Mapping[Any, Array], pair: tuple[Any, Any], epsilon: float, order: float, exponent: float
) -> float:
    """The least scale over couplings along the axes at which both directions of a pair meet the budget."""
    first, second = (outputs[value] for value in pair)
    dimension = first.shape[1]
    best = float("inf")
    for direction in np.eye(dimension):
        # Matches of the quantile grid have different masses; the largest is at most one over the smaller sample.
        matches, masses = _weighted_differences(first, second, direction)
        if not matches.any():
            return 0.0

        def excess(log_scale: float, matches: Array = matches, masses: Array = masses) -> float:
            divergences = cauchy_renyi_divergence(matches / np.exp(log_scale), order, exponent).sum(axis=1)
            # Coordinates are independent, so that their divergences add; exp((a - 1) D) is averaged over the coupling.
            return float(log_mean_exp((order - 1) * divergences, masses) / (order - 1)) - epsilon

        # The divergence depends on shift over scale, so the scale is bracketed around the largest shift.
        reach = np.log(np.abs(matches).max())
        low, high = reach - 20.0, reach + 20.0
        if excess(low) <= 0:  # a budget that any scale worth naming meets
            best = min(best, float(np.exp(low)))
            continue
        while excess(high) > 0:
            high += 20.0
        # More than the root's tolerance, to the side of more noise.
        best = min(best, float(np.exp(brentq(excess, low, high, xtol=1e-10) + 1e-9)))
    return best


def _weighted_differences(first: Array, second: Array, direction: Array) -> tuple[Array, Array]:
    n, m = len(first), len(second)
    breaks = np.union1d(np.arange(1, n + 1) * m, np.arange(1, m + 1) * n)
    return quantile_differences(first, second, direction), np.diff(breaks, prepend=0) / (n * m)
