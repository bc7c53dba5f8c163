"""Truncated biased Laplace noise with advanced composition: the usual construction, as a baseline."""

import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

__all__ = ["advanced_composition_share", "biased_laplace", "biased_laplace_location", "discrete_biased_laplace"]

# Noise for less is endless; with more, nothing is hidden.
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-9, 256.0


def biased_laplace_location(epsilon: float, delta: float, sensitivity: float = 1.0) -> tuple[float, float]:
    """Location mu and scale of Lemma 1: `mu = s + (s/eps) ln(1/(2 delta (1 - e^{-mu eps/s})))`; the range is [0, 2 mu].

    Args:
        epsilon: Privacy parameter of one release, from 1e-9 to 256.
        delta: Failure probability of one release in (0, 1).
        sensitivity: Largest difference of neighbouring queries.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> mu, scale = biased_laplace_location(1.0, 1e-4)
        >>> round(mu, 4), scale
        (9.5173, 1.0)
    """
    if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        raise ValueError(
            f"epsilon must be from {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}, got {epsilon!r}: noise for less has no "
            "end, and more hides nothing."
        )
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must lie in (0, 1), got {delta!r}: bounded noise cannot do without.")
    if not 1e-100 <= sensitivity <= 1e100:
        raise ValueError(f"sensitivity must be positive and finite, got {sensitivity!r}.")
    scale = sensitivity / epsilon
    # With v = mu / scale the fixed point reads e^v (1 - e^{-v}) = e^eps / (2 delta), so e^v is explicit.
    return scale * math.log1p(math.exp(epsilon) / (2.0 * delta)), scale


def discrete_biased_laplace(epsilon: float, delta: float) -> npt.NDArray[np.float64]:
    """The geometric counterpart on {0..2 mu} with mu rounded up: `p_i` proportional to `e^{-eps |i - mu|}`.

    Args:
        epsilon: Privacy parameter of one release, positive.
        delta: Failure probability of one release in (0, 1).

    Example:
        >>> p = discrete_biased_laplace(1.0, 1e-4)
        >>> p.size, bool(p[0] <= 1e-4)
        (21, True)
    """
    location = math.ceil(biased_laplace_location(epsilon, delta)[0])
    p = np.exp(-epsilon * np.abs(np.arange(2 * location + 1) - location))
    normalized: npt.NDArray[np.float64] = p / p.sum()
    return normalized


def biased_laplace(epsilon: float, delta: float, compositions: int = 1) -> npt.NDArray[np.float64]:
    """Discrete truncated biased Laplace noise that is (epsilon, delta)-DP over T releases by advanced composition.

    Example:
        >>> p = biased_laplace(1.0, 1e-5, compositions=500)
        >>> bool(p @ np.arange(p.size) ** 2 > 1e6)
        True
    """
    return discrete_biased_laplace(*advanced_composition_share(epsilon, delta, compositions))


def advanced_composition_share(epsilon: float, delta: float, compositions: int) -> tuple[float, float]:
    """The share of each of T releases: `eps = sqrt(2 T ln(2/delta)) eps_0 + T eps_0 (e^{eps_0} - 1)`, `delta / 2T`.

    One release spends everything.
    """
    if compositions == 1:
        return epsilon, delta
    root = math.sqrt(2.0 * compositions * math.log(2.0 / delta))
    # At epsilon / root the first term alone spends epsilon.
    share = brentq(lambda e: root * e + compositions * e * math.expm1(e) - epsilon, 0.0, epsilon / root)
    return float(share), delta / (2.0 * compositions)
