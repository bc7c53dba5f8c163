"""Proven upper bounds for noise of any covariance and for Gaussian mixtures, and the scale that meets a budget."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from lightning_pac._roots import moved_until
from lightning_pac._validation import Confidence, Device, Draws, MatrixLike, Positive, validated
from lightning_pac.information import Array
from lightning_pac.mechanisms.certified.certificate import (
    Certificate,
    certify_clusters,
    check_weights,
    divergence_sample,
    draw_secrets,
    logdet_of,
    merge_equal,
    smallest_bound,
)
from lightning_pac.mechanisms.certified.clusters import Cluster, cluster_outputs, clusters_entropy, covariance_of
from lightning_pac.mechanisms.certified.divergence_sample import DivergenceSample
from lightning_pac.mechanisms.certified.mixture_noise import MixtureNoise
from lightning_pac.mechanisms.certified.scaling import retry_factor, scale_to_budget
from lightning_pac.randomness import SecureGenerator, secure_generator

__all__ = ["bounded_output_information", "certify_noise", "logdet_information", "scale_noise", "scale_to_bound"]

_ATTEMPTS = 3
_BISECTIONS = 10

# By how many deviations of the noise rounding may move an output.
_LARGEST_ERROR = 2.0**-16


@validated
def certify_noise(
    outputs: MatrixLike,
    noise: MixtureNoise,
    weights: npt.ArrayLike | None = None,
    confidence: Confidence = 0.99,
    num_draws: Draws = 2**15,
    generator: SecureGenerator | None = None,
    device: Device | None = None,
) -> Certificate:
    """Bound the mutual information of a finite secret and its output plus the given noise.

    Under Gaussian noise it is `certify_finite_secret` of whitened outputs. For a mixture the posterior of the secret
    uses the mixture's density; its divergence from the prior has the same range, and so the same confidence bound.

    Args:
        outputs: One row per secret, shape (m, d).
        noise: Fixed before the draws of this function are made.
        weights: Prior of the secret, uniform if None.
        confidence: Probability that the bound holds.
        num_draws: Draws of the release.
        generator: Source of the draws, the process-wide secure generator if None.
        device: A torch device for the posteriors under Gaussian noise; numpy if None.

    Raises:
        ValueError: If the weights are no distribution, the outputs lie so far apart that their distance overflows, or
            the noise is so ill-conditioned that rounding would decide.

    Source: ours.

    Example:
        >>> certificate = certify_noise([[-1.0], [1.0]], MixtureNoise.gaussian([[1.0]]))
        >>> round(certificate.mutual_information, 4), certificate.confidence
        (0.3368, 1.0)
    """
    table = np.asarray(outputs, dtype=np.float64)
    points, mass = merge_equal(table, check_weights(weights, len(table)))
    clusters = _clusters(points, mass, noise)
    # Clusters of one output each are told apart without draws, whatever the noise.
    if noise.is_gaussian or len(clusters) == len(points):
        return certify_clusters(clusters, confidence, num_draws, generator, device)
    source = secure_generator() if generator is None else generator
    bound, estimate = mixture_divergences(clusters, noise, num_draws, source).bound(1 - confidence)
    # A bound that is certain is preferred to one that holds with a probability, where it is no larger.
    certain = clusters_entropy(clusters) + sum(
        cluster.probability * logdet_information(covariance_of(cluster.deviations, cluster.weights), noise)
        for cluster in clusters
    )
    return smallest_bound(bound, certain, clusters, confidence, estimate)


@validated
def logdet_information(covariance: MatrixLike, noise: MixtureNoise) -> float:
    r"""Log-det bound $\sum_k w_k \tfrac12 \ln\det(I + C \Sigma_k^{-1})$ of an output with exact covariance C.

    Who also learns which component the noise came from learns no less, and given the component the noise is Gaussian.
    The formula with the *mixture's* covariance in place of the components' is no bound: noise of +1 or -1 plus a little
    Gaussian has variance 1 and hides nothing of outputs 0 and 1/2.

    Args:
        covariance: C, shape (d, d), or any matrix that C stays below.
        noise: The noise.

    Source: *Residual-PAC*, Theorem 1, for one component; the mixture is ours.

    Example:
        >>> round(logdet_information([[1.0]], MixtureNoise.gaussian([[1.0]])), 4)
        0.3466
    """
    matrix = np.asarray(covariance, dtype=np.float64)
    bound = 0.0
    for component, weight in enumerate(noise.weights):
        # Whitening both sides keeps the product symmetric, so that its eigenvalues are real.
        half = noise.whiten(matrix, component)
        ratio = noise.whiten(half.T, component)
        bound += float(weight) * logdet_of((ratio + ratio.T) / 2)
    return bound


@validated
def bounded_output_information(radius: Positive, noise: MixtureNoise) -> float:
    r"""Information that *any* output within a ball can pass on: the capacity $\max_{\mathrm{tr} C \le r^2}$ of log-det.

    The maximum fills water over the noise's variances. Nothing needs to be known about the secret's law.

    Args:
        radius: r, the largest distance of an output from a public centre.
        noise: The noise.

    Source: ours; water-filling is Shannon's (1949).

    Example:
        >>> round(bounded_output_information(1.0, MixtureNoise.gaussian([[1.0]])), 4)
        0.3466
    """
    # Its square must be a number with all its digits.
    if not 1e-100 <= radius <= 1e100:
        raise ValueError(f"radius is {radius}, but must be from 1e-100 to 1e100.")
    bound = 0.0
    for weight, loading in zip(noise.weights, noise.loadings, strict=True):
        variances = np.sort(np.linalg.svd(loading, compute_uv=False) ** 2)
        # Water-filling: the signal that is left over once the k quietest directions are level, for every k. Only
        # differences of variances are summed, so that a signal far below them is not rounded away.
        spare = radius**2 - np.append(0.0, np.cumsum(np.arange(1, len(variances)) * np.diff(variances)))
        filled = max(1, int(np.count_nonzero(spare > 0)))
        # Each filled direction takes its depth below the last one and an equal part of what is left over.
        signal = spare[filled - 1] / filled + (variances[filled - 1] - variances[:filled])
        bound += float(weight) * 0.5 * float(np.log1p(signal / variances[:filled]).sum())
    return bound


def scale_to_bound(noise: MixtureNoise, budget: float, bound: Callable[[MixtureNoise], float]) -> MixtureNoise:
    """The noise times the smallest factor for which a deterministic bound, decreasing in it, is within the budget."""
    low = high = 0.0
    # On the logarithm of the factor, widened until the root lies between.
    while bound(noise.scaled(math.exp(high))) > budget:
        high += 1.0
    while bound(noise.scaled(math.exp(low))) <= budget:
        low -= 1.0
    root = brentq(lambda log: bound(noise.scaled(math.exp(log))) - budget, low, high, xtol=1e-12)
    root = moved_until(lambda log: bound(noise.scaled(math.exp(log))) <= budget, root, 1e-10)
    return noise.scaled(math.exp(root))


def scale_noise(
    outputs: Array,
    mass: Array,
    noise: MixtureNoise,
    budget: float,
    confidence: float,
    num_draws: int,
    generator: SecureGenerator,
) -> tuple[MixtureNoise, Certificate]:
    """The noise times a small factor whose certified mutual information is within the budget.

    One sample chooses the factor and a fresh one certifies it; a failed attempt is repeated with more noise and another
    share of the failure probability, and the last resort is the log-det bound, which needs no sample. Mutual
    information decreases in the factor for Gaussian noise but not for every mixture, so the factor of a mixture need
    not be the smallest; its certificate holds all the same.

    Args:
        outputs: Distinct rows, shape (k, d).
        mass: Probability of each, shape (k,).
        noise: The shape.
        budget: Nats, below the outputs' entropy.
        confidence: Probability that the certificate holds.
        num_draws: Draws of each sample.
        generator: Source of the draws.
    """
    deviations = outputs - mass @ outputs
    covariance = (mass * deviations.T) @ deviations
    start = scale_to_bound(noise, budget, lambda scaled: logdet_information(covariance, scaled))
    if noise.is_gaussian:
        factor, certificate = scale_to_budget(start.whiten(deviations), mass, budget, confidence, num_draws, generator)
        return start.scaled(factor), certificate
    factor = _choose_mixture_scale(outputs, mass, start, budget, 1 - confidence, num_draws, generator)
    for attempt in range(_ATTEMPTS):
        if factor >= 1:
            break
        # Attempt t fails with probability f / 2^(t + 1) at most, all together with less than f.
        share = 1 - (1 - confidence) / 2 ** (attempt + 1)
        certificate = certify_noise(outputs, start.scaled(factor), mass, share, num_draws, generator)
        if certificate.mutual_information <= budget:
            return start.scaled(factor), Certificate(
                certificate.mutual_information, confidence, certificate.method, certificate.estimate
            )
        factor *= retry_factor(certificate.mutual_information, budget)
    return start, Certificate(budget, 1.0, "logdet")


def mixture_divergences(
    clusters: list[Cluster], noise: MixtureNoise, num_draws: int, generator: SecureGenerator
) -> DivergenceSample:
    """Divergences of the posterior from the prior at independent draws of the release."""
    divergences = np.zeros(num_draws)
    for rows, index, secrets in draw_secrets(clusters, num_draws, generator):
        # The divergence of the posterior that each release of a secret leads to, within the secret's cluster.
        points, weights = clusters[index].deviations, clusters[index].weights
        evidence = _log_likelihoods(points[secrets] + noise.sample(len(rows), generator), points, noise)
        largest = evidence.max(axis=1, keepdims=True)
        likelihood = np.exp(evidence - largest) * weights
        total = likelihood.sum(axis=1)
        divergences[rows] = np.einsum("nm,nm->n", likelihood, evidence) / total - largest[:, 0] - np.log(total)
    return divergence_sample(clusters, divergences)


def _clusters(points: Array, mass: Array, noise: MixtureNoise) -> list[Cluster]:
    envelope, narrowing = noise.envelope
    clusters = cluster_outputs(points, mass, envelope.whiten, narrowing)
    # The largest distance of an output from its cluster's mean, in units of any component.
    reach = narrowing * max(float(np.linalg.norm(cluster.whitened, axis=1).max()) for cluster in clusters)
    if (error := reach * noise.whitening_error) > _LARGEST_ERROR:
        raise ValueError(
            f"The noise is so much stronger in some directions than in others that rounding may move an output by "
            f"{error:.2g} of its deviation: give noise whose covariance is better conditioned."
        )
    return clusters


def _log_likelihoods(releases: Array, points: Array, noise: MixtureNoise) -> Array:
    """Log-density of the noise at every release minus every point, shape (n, m)."""
    total: Array | None = None
    for component, weight in enumerate(noise.weights):
        first = noise.whiten(releases - noise.means[component], component)
        second = noise.whiten(points, component)
        # All |a - b|^2 by one matrix product: within a cluster's radius cancellation leaves enough digits.
        squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1) - 2 * first @ second.T
        terms = math.log(weight) + noise.log_normalizer(component) - 0.5 * squares
        total = terms if total is None else np.logaddexp(total, terms)
    assert total is not None
    return total


def _choose_mixture_scale(
    points: Array,
    mass: Array,
    noise: MixtureNoise,
    budget: float,
    failure: float,
    num_draws: int,
    generator: SecureGenerator,
) -> float:
    # Geometric bisection: 10 steps leave a factor of 16^(1/1024), 0.3 %.
    low, high = 1 / 16, 1.0
    draws = max(1000, num_draws // 4)
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        scaled = noise.scaled(middle)
        sample = mixture_divergences(_clusters(points, mass, scaled), scaled, draws, generator)
        within = sample.likely_bound(num_draws, failure / 2) <= budget
        low, high = (low, middle) if within else (middle, high)
    return high
