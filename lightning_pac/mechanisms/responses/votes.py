"""Gaussian noise for one-hot votes, in the k - 1 exact contrasts of the k classes that occur."""

import math

import numpy as np
import numpy.typing as npt
from scipy.linalg.lapack import dsyevd

from lightning_pac.information import Array
from lightning_pac.mechanisms.variances import CompositionRule, share_linearly, share_optimally

__all__ = ["vote_channel"]

_ROOT_HALF = math.sqrt(1 / 2)
_ROOT_SIXTH = math.sqrt(1 / 6)
_ROOT_THREE_QUARTERS = math.sqrt(3 / 4)

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
    if classes == 2:
        # One direction, (1, -1), whose eigenvalue is 2 p q for masses of sum one.
        variances = noise_variances(
            2 * mass.prod(axis=-1, keepdims=True) / mass.sum(axis=-1, keepdims=True), budget, rule
        )
        return np.array([[_ROOT_HALF], [-_ROOT_HALF]]) / np.sqrt(variances)[..., None, :], variances
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
    """`vote_channel` for one query, without the overhead of operations on stacks of matrices."""
    eigenvalues, vectors = _eigenvectors([max(value, SMALLEST_MASS) for value in masses])
    variances = np.array(_variances(eigenvalues.tolist()[:-1], budget, rule))
    return vectors[:, :-1] / np.sqrt(variances), variances


def three_class_channel(
    masses: list[float], budget: float, rule: CompositionRule
) -> tuple[list[tuple[float, float]], list[float]]:
    """`vote_channel` for one query with three classes, in plain floats: whitened votes and variances.

    From the 2 x 2 covariance of the contrasts (1, -1, 0) and (1, 1, -2), whose diagonal, trace and determinant are sums
    of positive terms, so that nothing cancels.
    """
    first, second, third = [max(value, SMALLEST_MASS) for value in masses]
    total = first + second + third
    both = first + second
    # Entries c_11, c_22 and c_12 for masses of any total.
    one = (4 * first * second + both * third) / (2 * total)
    other = 3 * both * third / (2 * total)
    mixed = _ROOT_THREE_QUARTERS * (first - second) * third / total
    # Trace and difference give the larger eigenvalue; the smaller one is the determinant over it, without cancellation.
    largest = (one + other) / 2 + math.hypot((one - other) / 2, mixed)
    smallest = 3 * first * second * third / (total * largest)
    # tan(2 angle) = 2 c_12 / (c_11 - c_22) diagonalizes.
    angle = math.atan2(2 * mixed, one - other) / 2
    variances = _variances([largest, smallest], budget, rule)
    cosine, sine = math.cos(angle), math.sin(angle)
    large, small = 1 / math.sqrt(variances[0]), 1 / math.sqrt(variances[1])
    x, y = _ROOT_HALF * cosine * large, _ROOT_SIXTH * sine * large
    u, v = _ROOT_HALF * sine * small, _ROOT_SIXTH * cosine * small
    # Rows of W: the rotated contrasts over the deviations of their noise.
    return [(y + x, v - u), (y - x, v + u), (-2 * y, -2 * v)], variances


def four_class_channel(
    masses: list[float], budget: float, rule: CompositionRule
) -> tuple[list[tuple[float, float, float]], list[float]]:
    """`vote_channel` for one query with four classes, in plain floats: whitened votes and variances."""
    eigenvalues, vectors = _eigenvectors([max(value, SMALLEST_MASS) for value in masses])
    variances = _variances(eigenvalues.tolist()[:-1], budget, rule)
    one, two, three = [1 / math.sqrt(variance) for variance in variances]
    return [(first * one, second * two, third * three) for first, second, third, _ in vectors.tolist()], variances


def _eigenvectors(mass: list[float]) -> tuple[Array, Array]:
    classes = len(mass)
    masses = np.array(mass)
    covariance = np.multiply.outer(masses, masses * (-1.0 / sum(mass)))
    covariance += 2.0 / classes
    covariance.flat[:: classes + 1] += masses
    eigenvalues, vectors, failed = dsyevd(covariance)
    if failed:
        raise ArithmeticError(f"The eigenvalues of a vote covariance did not converge for the masses {mass}.")
    return eigenvalues, vectors


def _variances(eigenvalues: list[float], budget: float, rule: CompositionRule) -> list[float]:
    """`noise_variances` for a few eigenvalues."""
    roots = [math.sqrt(value + _EIGENVALUE_ERROR) for value in eigenvalues]
    total = sum(roots)
    if rule == "linear":
        share = total / (2 * budget)
        return [root * share for root in roots]
    scale = _logdet_scale(roots, budget, 2 * budget / total)
    # 1 / (e^{2 arsinh x} - 1) = 1 / (2 x (x + sqrt(1 + x^2)))
    return [2 * root / (scale * (scale * root + math.sqrt(4 + (scale * root) ** 2))) for root in roots]


def _logdet_scale(roots: list[float], budget: float, start: float) -> float:
    """The s of `logdet_variances`: closed for two directions, else by Newton's method from below."""
    if len(roots) == 2:
        first, second = roots
        # With x = s r_1 / 2 and y = s r_2 / 2, arsinh x + arsinh y = b means x^2 + y^2 + 2 x y cosh b = sinh^2 b.
        spread = first * first + second * second + 2 * first * second * math.cosh(budget)
        return 2 * math.sinh(budget) / math.sqrt(spread)
    # arsinh x = x - x^3 / 6 + ...; the sum is concave in s, so that steps from above land below, and stay there.
    cubes = sum([root * root * root for root in roots])
    scale = start * (1 + start * start * start * cubes / (48 * budget)) if budget < 0.1 else start
    for _ in range(200):
        gap, slope = budget, 0.0
        for root in roots:
            half = scale * root / 2
            gap -= math.asinh(half)
            slope += root / math.sqrt(1 + half * half)
        step = 2 * gap / slope
        scale += step
        if abs(step) <= 1e-15 * scale:
            break
    return scale


def two_class_separation(first: float, second: float, signal_to_noise: float) -> float:
    """Half the distance between the two whitened votes when only two classes occur.

    Args:
        first: Belief mass of the first class.
        second: Belief mass of the second class.
        signal_to_noise: See `signal_to_noise_of`.
    """
    first, second = max(first, SMALLEST_MASS), max(second, SMALLEST_MASS)
    # Half of sqrt(2) / sqrt(e), where e = lambda / snr and lambda = 2 p q / (p + q).
    return math.sqrt(signal_to_noise * (first + second) / (4 * first * second))


def signal_to_noise_of(budget: float, rule: CompositionRule) -> float:
    r"""Ratio $\lambda / e$ of a single direction: $e^{2b} - 1$ (log-det) or $2b$ (linear)."""
    return math.expm1(2 * budget) if rule == "logdet" else 2 * budget


def noise_variances(eigenvalues: Array, budget: npt.ArrayLike, rule: CompositionRule) -> Array:
    """Noise variances of the named rule."""
    budgets = np.asarray(budget, np.float64)
    return share_optimally(eigenvalues, budgets) if rule == "logdet" else share_linearly(eigenvalues, budgets)
