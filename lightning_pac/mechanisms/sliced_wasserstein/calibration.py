"""Noise of the Gaussian sliced Wasserstein mechanism, as functions of per-slice sensitivities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, minimize
from scipy.special import logsumexp

from lightning_pac._roots import moved_until
from lightning_pac._validation import Matrix, Positive, Probability, validated
from lightning_pac.information import SMALLEST_BUDGET, Array, log_mean_exp
from lightning_pac.scenarios.slice_profile import SliceProfile

__all__ = [
    "SlicedNotion",
    "isotropic_covariance",
    "optimized_covariance",
    "sliced_cost",
    "unsliced_cost",
]

SlicedNotion = Literal["ave", "joint"]

_UNIT = 2.0**-53


@validated
def sliced_cost(
    sensitivities: Matrix,
    profile: SliceProfile,
    covariance: Matrix,
    renyi_order: float,
    notion: SlicedNotion,
    joint: Literal["logsumexp", "max"] = "logsumexp",
) -> float:
    """Sliced Rényi cost of Gaussian noise, the largest over all pairs.

    A slice costs `a Delta_l^2 / (2 v_l)` with `v_l = u_l^T Sigma u_l`. Ave weighs the slices, Joint is
    `ln(sum_l w_l exp((a-1) cost_l)) / (a-1)`; the paper's form of Joint takes the largest slice instead.

    Args:
        sensitivities: `Delta_l(i, j)`, shape (num_pairs, num_slices).
        profile: the slices and their weights.
        covariance: of the noise, shape (dimension, dimension).
        renyi_order: `a` > 1.
        notion: `ave` or `joint`.
        joint: `logsumexp` (ours, tighter) or `max` (SRPP paper, Theorem 4.8).

    Returns:
        The cost in nats; infinite where a slice with a difference has no noise.

    Raises:
        ValueError: if the order or the notion is out of range.

    Example:
        >>> profile = SliceProfile.coordinate(2)
        >>> sliced_cost(np.array([[1.0, 0.0]]), profile, np.eye(2), renyi_order=4, notion="ave")
        1.0
    """
    check_order_and_notion(renyi_order, notion)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # A slice without difference costs nothing, even where the noise has no variance along it.
        shifts = np.where(sensitivities > 0, sensitivities / np.sqrt(_variances(profile.directions, covariance)), 0.0)
        costs = renyi_order * shifts**2 / 2
    return float(_pair_costs(costs, profile, renyi_order, notion, joint).max())


@validated
def unsliced_cost(differences: Sequence[Matrix], covariance: Matrix, renyi_order: float) -> float:
    """Rényi Pufferfish cost `a/2 max delta^T Sigma^-1 delta` over the matched points of one coupling a pair.

    This is what an adversary who sees the whole release can learn at most; a slice profile plays no part in it.

    Args:
        differences: for each pair the differences of coupled points, each of shape (num_matches, dimension).
        covariance: of the noise, shape (dimension, dimension).
        renyi_order: `a` > 1.

    Returns:
        The cost in nats.

    Raises:
        ValueError: if there are no differences, or no noise in some direction.
    """
    if not differences:
        raise ValueError("differences is empty: give those of at least one pair.")
    eigenvalues = np.linalg.eigvalsh(covariance)
    if not eigenvalues[0] > 8 * len(covariance) * _UNIT * eigenvalues[-1]:
        raise ValueError("covariance has a direction without noise, where nothing bounds the cost: add noise there.")
    # delta^T Sigma^-1 delta = |L^-1 delta|^2 with Sigma = L L^T.
    factor = np.linalg.cholesky(covariance)
    largest = max(
        float(np.square(np.linalg.solve(factor, difference.T)).sum(axis=0).max()) for difference in differences
    )
    return 0.5 * renyi_order * largest


@validated
def isotropic_covariance(
    sensitivities: Matrix,
    profile: SliceProfile,
    epsilon: Positive,
    renyi_order: float,
    notion: SlicedNotion,
    joint: Literal["logsumexp", "max"] = "logsumexp",
) -> Array:
    """`sigma^2 I` with the smallest variance whose sliced cost is `epsilon` (SRPP paper, Theorems 4.7 and 4.8).

    Ave: `sigma^2 = a/(2 eps) max_(i,j) sum_l w_l Delta_l(i,j)^2`; the maximum is outside the sum, which is never more
    than the paper's. Joint: the paper's `a/(2 eps) max_l max_(i,j) Delta_l(i,j)^2`, or the root of the log-sum-exp.

    Args:
        sensitivities: `Delta_l(i, j)` of each secret pair and slice, shape (num_pairs, num_slices).
        profile: The slices and their weights.
        epsilon: Sliced budget in nats.
        renyi_order: `a` > 1.
        notion: `ave` or `joint`.
        joint: `logsumexp`, or `max` for the paper's largest slice.

    Returns:
        Covariance of shape (dimension, dimension).

    Raises:
        ValueError: if epsilon, the order or the notion is out of range.

    Example:
        >>> profile = SliceProfile.coordinate(2)
        >>> isotropic_covariance(np.array([[1.0, 0.0]]), profile, epsilon=1.0, renyi_order=4, notion="ave")
        array([[1., 0.],
               [0., 1.]])
    """
    shape = np.eye(profile.dimension)
    return shape * _scale(shape, sensitivities, profile, epsilon, renyi_order, notion, joint)


@validated
def optimized_covariance(
    sensitivities: Matrix,
    profile: SliceProfile,
    epsilon: Positive,
    renyi_order: float,
    notion: SlicedNotion,
    joint: Literal["logsumexp", "max"] = "logsumexp",
    floor: Probability = 0.05,
) -> Array:
    """The covariance of least trace whose sliced cost is `epsilon` (ours).

    Every slice cost is convex in Sigma, so the problem is; it is solved over factors of Sigma with a smooth maximum
    over the pairs, and the result is then scaled so that the exact cost is `epsilon`. The optimization decides how much
    noise there is, never whether it is enough.

    Args:
        sensitivities: `Delta_l(i, j)`, shape (num_pairs, num_slices).
        profile: the slices and their weights.
        epsilon: the cost to meet, in nats.
        renyi_order: `a` > 1.
        notion: `ave` or `joint`.
        joint: as in `sliced_cost`.
        floor: smallest share of the mean variance in any direction. A profile with few slices leaves directions that it
            does not look at without any need for noise, and an adversary who does look there would see the data.

    Returns:
        Covariance of shape (dimension, dimension).
    """
    dimension = profile.dimension
    rows, columns = np.tril_indices(dimension)

    def covariance_of(parameters: Array) -> Array:
        factor = np.zeros((dimension, dimension))
        factor[rows, columns] = parameters
        shape = factor @ factor.T
        # Mixed with the identity at the same trace, so that no direction has less than the floor's share.
        shape *= dimension / np.trace(shape)
        return (1 - floor) * shape + floor * np.eye(dimension)

    def objective(parameters: Array) -> tuple[float, Array]:
        return _log_power(parameters, (rows, columns), sensitivities, profile, epsilon, renyi_order, notion, floor)

    # From the isotropic shape; whatever the search returns is rescaled to meet the budget, or dropped if it is
    # worse.
    start = np.eye(dimension)[rows, columns]
    best = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    shape = covariance_of(best.x)
    candidate = shape * _scale(shape, sensitivities, profile, epsilon, renyi_order, notion, joint)
    isotropic = isotropic_covariance(sensitivities, profile, epsilon, renyi_order, notion, joint)
    return candidate if np.trace(candidate) < np.trace(isotropic) else isotropic


def check_order_and_notion(renyi_order: float, notion: str) -> None:
    """Refuse an order or a notion that no sliced guarantee has."""
    if not renyi_order > 1 or not np.isfinite(renyi_order):
        raise ValueError(f"renyi_order is {renyi_order}, but a Rényi order here is finite and above 1.")
    if notion not in get_args(SlicedNotion):
        raise ValueError(f'notion is {notion!r}, but a sliced release has the notion "ave" or "joint".')


def _pair_costs(
    costs: Array, profile: SliceProfile, order: float, notion: SlicedNotion, joint: Literal["logsumexp", "max"]
) -> Array:
    assert profile.weights is not None
    costs, weights = costs[:, profile.weights > 0], profile.weights[profile.weights > 0]
    if notion == "ave":
        averaged: Array = costs @ weights / weights.sum()  # which may miss 1 a little
        return averaged
    if joint == "max":
        return np.asarray(costs.max(axis=1))
    return np.asarray(log_mean_exp((order - 1) * costs, weights) / (order - 1))


def _variances(directions: Matrix, covariance: Matrix) -> Array:
    """Variances of the noise along directions, less their rounding error where it counts; never negative."""
    found = np.einsum("ld,de,le->l", directions, covariance, directions, optimize=True)
    sizes = np.einsum("ld,de,le->l", *map(np.abs, (directions, covariance, directions)), optimize=True)
    error = (2 * len(covariance) + 4) * _UNIT * sizes
    # Up to a part in 10^12 it is left in: little cancels then.
    return np.asarray(np.where(found > 2.0**40 * error, found, np.maximum(found - error, 0.0)))


def _scale(
    shape: Array,
    sensitivities: Array,
    profile: SliceProfile,
    epsilon: float,
    order: float,
    notion: SlicedNotion,
    joint: Literal["logsumexp", "max"],
) -> float:
    """The factor of a covariance's shape at which the cost is epsilon, never below it."""
    check_order_and_notion(order, notion)
    if not SMALLEST_BUDGET <= epsilon < 1e100:
        raise ValueError(f"epsilon is {epsilon}, but a budget is from {SMALLEST_BUDGET:.2g} to 1e100 nats.")
    if not np.isfinite(sensitivities).all():
        raise ValueError(
            "sensitivities must be finite, or no amount of Gaussian noise is enough: bound the query's output."
        )
    variances = np.einsum("ld,de,le->l", profile.directions, shape, profile.directions, optimize=True)
    # A covariance c times as large divides every slice's cost by c: Ave and the largest slice have closed forms.
    costs = np.where(sensitivities > 0, order * sensitivities**2 / (2 * variances), 0.0)
    average = float(_pair_costs(costs, profile, order, "ave", joint).max())
    if notion == "ave" or average == 0:
        return average / epsilon if average else 1.0
    largest = float(_pair_costs(costs, profile, order, "joint", "max").max())
    if joint == "max" or largest <= average:
        return largest / epsilon

    def excess(log_scale: float) -> float:
        return float(_pair_costs(costs * np.exp(-log_scale), profile, order, "joint", joint).max()) - epsilon

    # The log-sum-exp lies between Ave and the largest slice. The root is moved up until the cost is met.
    low, high = np.log(average / epsilon), np.log(largest / epsilon)
    log_scale = brentq(excess, low - 1e-9, high + 1e-9, xtol=1e-12)
    return float(np.exp(moved_until(lambda log: excess(log) <= 0, log_scale, 1e-12)))


def _log_power(
    parameters: Array,
    triangle: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]],
    sensitivities: Array,
    profile: SliceProfile,
    epsilon: float,
    order: float,
    notion: SlicedNotion,
    floor: float,
) -> tuple[float, Array]:
    """Smooth logarithm of the noise power that a factor needs, and its gradient.

    Joint has no scale to take out in closed form, so the scale is found first and held for the gradient: at the
    optimum of a problem with one constraint, the derivative of the scale is that of the cost over its derivative by
    the scale.
    """
    assert profile.weights is not None
    dimension = profile.dimension
    factor = np.zeros((dimension, dimension))
    factor[triangle] = parameters
    raw = factor @ factor.T
    trace = np.trace(raw)
    shape = (1 - floor) * raw * (dimension / trace) + floor * np.eye(dimension)
    scale = _scale(shape, sensitivities, profile, epsilon, order, notion, "logsumexp")
    directions = profile.directions
    variances = np.einsum("ld,de,le->l", directions, shape, directions, optimize=True)
    costs = order * sensitivities**2 / (2 * scale * variances)
    if notion == "ave":
        pair_costs, slice_weights = costs @ profile.weights, np.broadcast_to(profile.weights, costs.shape)
    else:
        pair_costs = log_mean_exp((order - 1) * costs, profile.weights) / (order - 1)
        # Derivatives of the log-sum-exp by the slices' costs, which sum to 1.
        slice_weights = profile.weights * np.exp((order - 1) * (costs - pair_costs[:, None]))
    # A maximum over pairs, smoothed at one part in two hundred of the budget.
    sharpness = 200.0 / epsilon
    pair_weights = np.exp(sharpness * (pair_costs - pair_costs.max()))
    pair_weights /= pair_weights.sum()
    # Chain rule: from the costs to the shape, to the factor's product before it was normalized, to the factor.
    influence = (pair_weights[:, None] * slice_weights * costs).sum(axis=0)
    # d cost_l / d Sigma = -(cost_l / v_l) u_l u_l^T, over d cost / d ln(scale) = -cost.
    by_shape = -(directions.T * (influence / variances)) @ directions / influence.sum()
    # The second term is the derivative of the normalizing trace.
    by_raw = (1 - floor) * dimension * (by_shape / trace - np.eye(dimension) * (by_shape * raw).sum() / trace**2)
    smooth = logsumexp(sharpness * (pair_costs - epsilon)) / sharpness
    by_factor = 2 * by_raw @ factor
    return float(np.log(scale) + smooth / epsilon), by_factor[triangle]
