"""The distance of a release from the Gaussian of its moments: an estimate by slices, and critics that certify it."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter1d
from scipy.special import ndtri

from lightning_pac._validation import (
    Confidence,
    Count,
    Exponent,
    Matrix,
    MatrixLike,
    Vector,
    VectorLike,
    validated,
)
from lightning_pac.cards import Estimate
from lightning_pac.information import Array
from lightning_pac.mechanisms.certified.certificate import donsker_varadhan_correction
from lightning_pac.randomness import SecureGenerator, secure_generator

__all__ = ["Critic", "certified_correction", "density_critic", "sliced_wasserstein_correction", "transport_critic"]

Critic = Callable[[Array], Array]

# Quantiles that describe a marginal.
_KNOTS = 257
# Histograms reach 6 deviations to either side; the floor keeps log-ratios of empty bins finite.
_BINS, _REACH, _FLOOR = 512, 6.0, 1e-4


@validated
def sliced_wasserstein_correction(
    releases: MatrixLike,
    mean: VectorLike,
    covariance: MatrixLike,
    num_slices: Count = 256,
    generator: SecureGenerator | None = None,
) -> Estimate:
    r"""Estimate of the divergence of a release from its Gaussian, from below: $\frac d2 \mathrm{SW}_2^2$, whitened.

    For the law itself, Talagrand's inequality makes it a lower bound of the divergence, with d/2 in place of the
    paper's 1/2. From samples it can err either way, so it is an estimate and nothing is released on its strength;
    `transport_critic` with `certified_correction` is the certified counterpart.

    Args:
        releases: Independent draws, shape (n, d).
        mean: Exact mean of the release, shape (d,).
        covariance: Exact covariance of the release, shape (d, d).
        num_slices: Directions, uniform on the sphere.
        generator: Source of the directions, the process-wide secure generator if None.

    Source: *Residual-PAC*, Theorem 4 and Algorithm 5; the factor d is ours.

    Example:
        >>> bimodal = np.repeat([-1.0, 1.0], 500)[:, None]
        >>> round(sliced_wasserstein_correction(bimodal, [0.0], [[1.0]]).value, 2)
        0.2
    """
    whitened = _whiten(np.asarray(releases, np.float64), np.asarray(mean, np.float64), np.asarray(covariance))
    size, dimension = whitened.shape
    # Normalized Gaussian vectors are uniform on the sphere.
    directions = (secure_generator() if generator is None else generator).normal((dimension, num_slices))
    directions /= np.linalg.norm(directions, axis=0)
    # In one dimension the optimal transport matches sorted draws with the normal's quantiles.
    quantiles = ndtri((np.arange(size) + 0.5) / size)
    distances = ((np.sort(whitened @ directions, axis=0) - quantiles[:, None]) ** 2).mean(axis=0)
    return Estimate(
        name="non_gaussianity",
        value=float(dimension / 2 * distances.mean()),
        unit="nats",
        meaning="The log-det bound is estimated to overstate the information by at least this much.",
        method=f"sliced Wasserstein distance over {num_slices} directions of {size} draws",
    )


@validated
def transport_critic(releases: Matrix, mean: Vector, covariance: Matrix, bound: Exponent = 4.0) -> Critic:
    r"""A critic made of the one-dimensional transport potentials along the principal axes of the release.

    Along each axis $\varphi'(z) = z - \Phi^{-1}(F(z))$, the displacement from the release's marginal to the standard
    normal. For the true marginals the Donsker-Varadhan objective of their sum is at least half the squared distances'
    sum; fitted ones are a critic like any other, certified on draws that they have not seen.

    Args:
        releases: Training draws, shape (n, d).
        mean: Exact mean of the release.
        covariance: Exact covariance of the release.
        bound: The critic's values are cut to [-bound, bound].

    Returns:
        A function of draws (n, d) with values (n,).

    Source: ours, from the duality of Bobkov and Götze (1999).
    """
    # Midpoints, since the normal's quantiles at 0 and 1 are infinite.
    probabilities = (np.arange(_KNOTS) + 0.5) / _KNOTS
    normal = ndtri(probabilities)
    whitened = _whiten(releases, mean, covariance)
    tables = []
    for column in whitened.T:
        knots = np.quantile(column, probabilities)
        grid = np.linspace(knots[0] - 1, knots[-1] + 1, 4 * _KNOTS)
        # Outside the outermost quantiles the displacement stays what it is there.
        slope = np.where(
            grid < knots[0],
            knots[0] - normal[0],
            np.where(grid > knots[-1], knots[-1] - normal[-1], grid - np.interp(grid, knots, normal)),
        )
        # The potential is the integral of the displacement, by the trapezoidal rule.
        potential = np.concatenate([[0.0], np.cumsum((slope[1:] + slope[:-1]) / 2 * np.diff(grid))])
        # Donsker-Varadhan is blind to a constant; with mean 0 the potential is cut least.
        tables.append((grid, potential - np.interp(column, grid, potential).mean()))

    def critic(values: Array) -> Array:
        points = _whiten(values, mean, covariance)
        total = sum(np.interp(points[:, axis], *table) for axis, table in enumerate(tables))
        return np.asarray(np.clip(total, -bound, bound))

    return critic


@validated
def density_critic(releases: Matrix, mean: Vector, covariance: Matrix, bound: Exponent = 4.0) -> Critic:
    r"""A critic made of the marginals' log-density ratios to the standard normal, along the release's principal axes.

    The best critic there is if the whitened release has independent coordinates. Densities are smoothed histograms.

    Args:
        releases: Training draws, shape (n, d).
        mean: Exact mean of the release.
        covariance: Exact covariance of the release.
        bound: The critic's values are cut to [-bound, bound].

    Source: ours.
    """
    whitened = _whiten(releases, mean, covariance)
    edges = np.linspace(-_REACH, _REACH, _BINS + 1)
    centres, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    # Silverman's rule of thumb, in bins.
    bandwidth = 0.9 * len(whitened) ** -0.2 / width
    reference = np.exp(-(centres**2) / 2) / math.sqrt(2 * math.pi)
    tables = []
    for column in whitened.T:
        counts = np.histogram(column, edges)[0] / (len(column) * width)
        density = gaussian_filter1d(counts.astype(np.float64), bandwidth, mode="constant")
        # The same floor above and below leaves the ratio at 1 where neither density has mass.
        tables.append(np.log((density + _FLOOR) / (reference + _FLOOR)))

    def critic(values: Array) -> Array:
        points = _whiten(values, mean, covariance)
        total = sum(np.interp(points[:, axis], centres, table) for axis, table in enumerate(tables))
        return np.asarray(np.clip(total, -bound, bound))

    return critic


@validated
def certified_correction(
    critic: Critic,
    releases: Matrix,
    mean: Vector,
    covariance: Matrix,
    bound: Exponent,
    confidence: Confidence,
    generator: SecureGenerator,
) -> float:
    """Certified part of the log-det bound that non-Gaussianity takes away, for a critic fixed beforehand.

    Args:
        critic: Values in [-bound, bound].
        releases: Fresh draws that neither the critic nor the noise was chosen with, shape (n, d).
        mean: Exact mean of the release.
        covariance: Exact covariance of the release; a fitted one overstates the correction.
        bound: Largest absolute value of the critic.
        confidence: Probability that the correction is valid.
        generator: Source of the Gaussian draws, as many as releases.
    """
    normals = generator.normal(releases.shape)
    gaussian = mean + normals @ np.linalg.cholesky(covariance).T
    return donsker_varadhan_correction(critic(releases), critic(gaussian), bound, confidence)


def _whiten(values: Array, mean: Array, covariance: npt.ArrayLike) -> Array:
    if (mean.shape, np.shape(covariance)) != (values.shape[1:], 2 * values.shape[1:]):
        raise ValueError(f"releases has shape {values.shape}, mean {mean.shape} and covariance {np.shape(covariance)}.")
    # S = V diag(l) V^T: (x - mean) V / sqrt(l) has the identity for its covariance.
    eigenvalues, vectors = np.linalg.eigh(np.asarray(covariance, np.float64))
    if not eigenvalues[0] > 0 or not math.isfinite(float(eigenvalues[-1])):
        raise ValueError("covariance must be positive definite: noise every direction of the release.")
    return np.asarray((values - mean) @ vectors / np.sqrt(eigenvalues))
