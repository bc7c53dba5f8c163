"""Rényi divergences between noised empirical laws, by quadrature: what a sliced guarantee bounds."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from lightning_pac._validation import Matrix, Noise, Order, Vector, validated
from lightning_pac.information import Array, log_mean_exp
from lightning_pac.scenarios.slice_profile import SliceProfile

__all__ = ["gaussian_mixture_divergence", "sliced_divergence"]

# 128 MiB of float64.
_MAX_POINTS = 2**24
# At 12 deviations a normal density has fallen by a factor e^-72.
_REACH = 12.0
# One Gaussian needs only a few; ratios of mixtures are less smooth.
_POINTS_PER_DEVIATION = 24
# Exponents of shape (points, centres) held at a time: 32 MB.
_CHUNK_ELEMENTS = 4_000_000


@validated
def sliced_divergence(
    first: Matrix, second: Matrix, covariance: Matrix, profile: SliceProfile, renyi_order: Order
) -> dict[str, float]:
    """Ave and Joint sliced Rényi divergence of two noised empirical laws, in nats.

    Along a slice each law is a Gaussian mixture, one component a record. `Ave = sum_l w_l D_l`,
    `Joint = ln(sum_l w_l exp((a-1) D_l)) / (a-1)`; `Ave <= Joint <=` the unsliced divergence.

    Args:
        first: outputs of one value, shape (n, dimension).
        second: outputs of the other, shape (m, dimension).
        covariance: of the Gaussian noise, shape (dimension, dimension).
        profile: the slices.
        renyi_order: `a` > 1.

    Returns:
        The divergences under the keys `ave` and `joint`.

    Example:
        >>> profile = SliceProfile.coordinate(2)
        >>> values = sliced_divergence(np.zeros((1, 2)), np.array([[1.0, 0.0]]), np.eye(2), profile, renyi_order=4)
        >>> round(values["ave"], 6)
        1.0
    """
    assert profile.weights is not None
    if not first.shape[1] == second.shape[1] == len(covariance) == covariance.shape[1] == profile.dimension:
        raise ValueError("first, second, covariance and profile must have the same dimension.")
    divergences = np.array(
        [
            # Along a slice v the noise has the variance v^T Sigma v.
            gaussian_mixture_divergence(
                first @ direction, second @ direction, float(np.sqrt(direction @ covariance @ direction)), renyi_order
            )
            for direction in profile.directions
        ]
    )
    joint = log_mean_exp((renyi_order - 1) * divergences, profile.weights) / (renyi_order - 1)
    return {"ave": float(profile.weights @ divergences), "joint": float(joint)}


@validated
def gaussian_mixture_divergence(first: Vector, second: Vector, deviation: Noise, renyi_order: Order) -> float:
    """`D_a(P || Q)` of two equal-weight Gaussian mixtures on the line with a common deviation, in nats.

    The trapezoidal rule in log space; for integrands that are analytic and vanish at both ends it converges
    faster than any power of the step. The interval reaches beyond the centres on the side to which the order pushes
    the integrand.

    Args:
        first: centres of P, shape (n,).
        second: centres of Q, shape (m,).
        deviation: standard deviation of every component.
        renyi_order: `a` > 1.

    Example:
        >>> round(gaussian_mixture_divergence(np.array([0.0]), np.array([1.0]), 1.0, 2.0), 9)
        1.0
    """
    low, high = min(first.min(), second.min()), max(first.max(), second.max())
    # p^a q^(1-a) of single components peaks at a x - (a-1) y.
    reach = (renyi_order - 1) * (high - low) + _REACH * deviation
    points = (high - low + 2 * reach) / deviation * _POINTS_PER_DEVIATION
    if not points <= _MAX_POINTS:
        raise ValueError(f"renyi_order is {renyi_order} and deviation {deviation}: too far apart for any grid.")
    count = int(np.ceil(points)) + 1
    grid = np.linspace(low - reach, high + reach, count)
    log_p, log_q = (_log_mixture(grid, centres, deviation) for centres in (first, second))
    # ln of the integral of p^a q^(1-a), of which the second power overflows outside log space. The integrand vanishes
    # at both ends, so that all points have the same weight.
    step = grid[1] - grid[0]
    total = logsumexp(renyi_order * log_p + (1 - renyi_order) * log_q) + np.log(step)
    return float(total / (renyi_order - 1))


def _log_mixture(grid: Array, centres: Array, deviation: float) -> Array:
    density = np.empty_like(grid)
    rows = max(1, _CHUNK_ELEMENTS // len(centres))
    for start in range(0, len(grid), rows):
        part = (grid[start : start + rows, None] - centres[None, :]) / deviation
        density[start : start + rows] = logsumexp(-0.5 * np.square(part), axis=1)
    # 1 / (n sigma sqrt(2 pi)), common to all points.
    density -= np.log(len(centres) * deviation * np.sqrt(2 * np.pi))
    return density
