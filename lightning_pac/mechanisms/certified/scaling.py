"""Scaling noise down until the mutual information itself, not a surrogate of it, meets the budget."""

import math

import numpy as np
from scipy.optimize import brentq

from lightning_pac._roots import moved_until
from lightning_pac.information import Array
from lightning_pac.mechanisms.certified.certificate import (
    Certificate,
    certify_finite_secret,
    posterior_divergences,
    two_point_information,
)
from lightning_pac.mechanisms.certified.clusters import cluster_outputs
from lightning_pac.randomness import SecureGenerator

__all__ = ["retry_factor", "scale_to_budget"]

_ATTEMPTS = 4
_BISECTIONS = 12


def scale_to_budget(
    whitened: Array, mass: Array, budget: float, confidence: float, num_draws: int, generator: SecureGenerator
) -> tuple[float, Certificate]:
    """Smallest factor on the noise's deviation whose certified mutual information is within the budget.

    With two outputs the information is a one-dimensional integral and the scale is exact. Otherwise one sample chooses
    the scale and a fresh one certifies it; each further attempt, with more noise, spends another share of the failure
    probability. Factor 1 is the log-det rule, certified without sampling, and is where the attempts end.

    Args:
        whitened: Outputs over the deviations of the log-det rule, distinct rows, shape (k, r).
        mass: Probability of each row, shape (k,).
        budget: Mutual information in nats.
        confidence: Probability that the certificate holds.
        num_draws: Draws of each sample.
        generator: Source of the draws.

    Returns:
        The factor, at most 1, and the certificate of the noise scaled by it.
    """
    if len(whitened) == 2:
        distance = float(np.linalg.norm(whitened[1] - whitened[0]))
        rarer = float(mass.min())
        scale = _two_point_scale(distance, rarer, budget)
        information = two_point_information(distance / scale, rarer)
        return scale, Certificate(information, 1.0, "quadrature", information)
    failure = 1 - confidence
    scale = _choose(whitened, mass, budget, failure / 2, num_draws, generator)
    for attempt in range(_ATTEMPTS):
        if scale >= 1:
            break
        share = 1 - failure / 2 ** (attempt + 1)
        certificate = certify_finite_secret(whitened / scale, mass, share, num_draws, generator)
        if certificate.mutual_information <= budget:
            # The shares of all attempts together stay below the failure probability that was asked for.
            return scale, Certificate(
                certificate.mutual_information, confidence, certificate.method, certificate.estimate
            )
        scale *= retry_factor(certificate.mutual_information, budget)
    # The log-det bound of its own rule is the budget.
    return 1.0, Certificate(budget, 1.0, "logdet")


def retry_factor(found: float, budget: float) -> float:
    """The factor by which to enlarge noise after a bound that is above the budget."""
    # Information falls about as the factor's square: the whole ratio leaves room for the next sample's error.
    return max(1.002, found / budget)


def _two_point_scale(distance: float, probability: float, budget: float) -> float:
    def excess(log_distance: float) -> float:
        # On logarithmic scales the curve is nearly straight: I is about p q d^2 / 2 for small distances d.
        return math.log(two_point_information(math.exp(log_distance), probability) / budget)

    low = math.log(distance)
    if excess(low) >= 0:
        return 1.0
    high = low + 0.5
    while excess(high) < 0:
        high += 0.5
    root = brentq(excess, low, high, xtol=1e-13, rtol=1e-14)
    return distance / math.exp(moved_until(lambda log_distance: excess(log_distance) <= 0, root, -1e-12))


def _choose(
    whitened: Array, mass: Array, budget: float, failure: float, num_draws: int, generator: SecureGenerator
) -> float:
    """Scale that is likely to be certified, by bisection on samples that the certificate does not see."""
    # Geometric bisection: 12 steps leave a factor of 16^(1/4096), less than 0.1 %.
    low, high = 1 / 16, 1.0
    draws = max(1000, num_draws // 4)
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        sample = posterior_divergences(cluster_outputs(whitened / middle, mass, np.asarray), draws, generator)
        within = sample.likely_bound(num_draws, failure) <= budget
        low, high = (low, middle) if within else (middle, high)
    return high
