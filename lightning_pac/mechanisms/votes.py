"""Gaussian noise for one-hot votes, in the k - 1 exact contrasts of the k classes that occur."""

import math

import numpy as np
import numpy.typing as npt
from scipy.linalg.lapack import dsyevd

from lightning_pac.mechanisms.variances import Array, CompositionRule, linear_variances, logdet_variances

__all__ = ["vote_channel"]

# A class of smaller mass is given the noise of this mass. The covariance of an unnormalized measure,
# x^T C x = min_c sum_i p_i (x_i - c)^2, grows with every p_i, so this can only add noise; without it, a class that the
# belief has all but excluded would get a noise that floating point cannot tell from none.
SMALLEST_MASS = 2.0**-40

# Upper bound on the error of a computed eigenvalue of a vote covariance (norm at most 2 after the shift below).
_EIGENVALUE_ERROR = 2.0**-48


def vote_channel(masses: Array, budget: npt.ArrayLike, rule: CompositionRule) -> tuple[Array, Array]:
    r"""Whitened votes and noise variances for the release of one vote among k classes.

    A random one-hot vote has covariance $C = \mathrm{diag}(p) - p p^T$ of rank k - 1. With its eigenvectors U, all
    orthogonal to the constant vector, and noise variances e, the release is $R = e_y + U \sqrt e \, g$, and
    $U^T R / \sqrt e$ is standard normal around row y of the whitened votes.

    Args:
        masses: Belief mass of each class that occurs, shape (..., k), k >= 2.
        budget: Mutual information budget in nats, shape (...).
        rule: `"logdet"` or `"linear"`.

    Returns:
        The whitened votes `W = U / sqrt(e)`, shape (..., k, k - 1), and the variances e, shape (..., k - 1). The
        covariance of the release is `(W e^2) W^T`, its pseudo-inverse `W W^T`.

    Source: *PAC-Private Responses*, Algorithm 1 for one-hot outputs.
    """
    mass = np.maximum(masses, SMALLEST_MASS)
    classes = mass.shape[-1]
    covariance = -mass[..., :, None] * (mass / mass.sum(axis=-1, keepdims=True))[..., None, :]
    # Adding a multiple of the constant direction moves the null vector to the top, away from the small eigenvalues.
    covariance += 2.0 / classes
    diagonal = np.arange(classes)
    covariance[..., diagonal, diagonal] += mass
    eigenvalues, vectors = np.linalg.eigh(covariance)
    eigenvalues = eigenvalues[..., :-1] + _EIGENVALUE_ERROR
    variances = noise_variances(eigenvalues, budget, rule)
    return vectors[..., :-1] / np.sqrt(variances)[..., None, :], variances


def single_vote_channel(masses: list[float], budget: float, rule: CompositionRule) -> tuple[Array, Array]:
    """`vote_channel` for one query, without the overhead of array operations on a handful of numbers."""
    mass = np.array([max(value, SMALLEST_MASS) for value in masses])
    classes = len(masses)
    covariance = np.multiply.outer(mass, mass * (-1.0 / sum(mass.tolist())))
    covariance += 2.0 / classes
    covariance.flat[:: classes + 1] += mass
    eigenvalues, vectors, failed = dsyevd(covariance)
    if failed:
        raise ArithmeticError(f"The eigenvalues of a vote covariance did not converge for the masses {masses}.")
    roots = [math.sqrt(value + _EIGENVALUE_ERROR) for value in eigenvalues.tolist()[:-1]]
    total = sum(roots)
    if rule == "linear":
        variances = [root * total / (2 * budget) for root in roots]
    else:
        scale = _logdet_scale(roots, budget, 2 * budget / total)
        variances = [root**2 / math.expm1(2 * math.asinh(scale * root / 2)) for root in roots]
    return vectors[:, :-1] / np.sqrt(variances), np.array(variances)


def _logdet_scale(roots: list[float], budget: float, start: float) -> float:
    """The s of `logdet_variances`, by Newton's method from below in plain floats."""
    scale = start
    for _ in range(200):
        gap = budget - sum(math.asinh(scale * root / 2) for root in roots)
        slope = sum(root / math.sqrt(4 + (scale * root) ** 2) for root in roots)
        step = gap / slope
        if not step > 1e-15 * scale:
            break
        scale += step
    return scale


def two_class_separation(first: float, second: float, signal_to_noise: float) -> float:
    """Half the distance between the two whitened votes when only two classes occur.

    Args:
        first: Belief mass of the first class.
        second: Belief mass of the second class.
        signal_to_noise: See `signal_to_noise_of`.
    """
    first, second = max(first, SMALLEST_MASS), max(second, SMALLEST_MASS)
    return math.sqrt(signal_to_noise * (first + second) / (4 * first * second))


def signal_to_noise_of(budget: float, rule: CompositionRule) -> float:
    r"""Ratio $\lambda / e$ of a single direction: $e^{2b} - 1$ (log-det) or $2b$ (linear)."""
    return math.expm1(2 * budget) if rule == "logdet" else 2 * budget


def noise_variances(eigenvalues: Array, budget: npt.ArrayLike, rule: CompositionRule) -> Array:
    """Noise variances of the named rule."""
    return logdet_variances(eigenvalues, budget) if rule == "logdet" else linear_variances(eigenvalues, budget)
