"""Residual privacy against integrals and simulation."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from lightning_pac.accountants import (
    GaussianReference,
    LogisticReference,
    ResidualPrivacy,
    UniformReference,
    composed_conditional_entropy,
    posterior_disadvantage,
    reference_offset,
)
from lightning_pac.mechanisms import Certificate, individual_noise

WIDE = stats.norm(0, 10)


def proven(nats, confidence=1.0):
    return Certificate(nats, confidence, "enumeration")


def test_what_is_not_proven_is_refused():
    for guess in (0.5, 1, None, "0.5"):
        with pytest.raises(TypeError, match="proof must be a proven bound, such as a Certificate, got"):
            ResidualPrivacy(math.log(8), math.log(8), guess)
    one_record = individual_noise([[0.0], [1.0]], [[True, False]], budget=0.5).certificate
    with pytest.raises(ValueError, match="about the membership of any single record"):
        ResidualPrivacy(math.log(2), math.log(2), one_record)


def test_the_confidences_of_proofs_are_kept_and_one_proof_fails_once():
    first, other = (ResidualPrivacy(2.0, 2.0, proven(0.1, confidence)) for confidence in (0.99, 0.95))
    assert first.confidence == 0.99
    assert first.compose(other).confidence == pytest.approx(0.94)
    assert first.compose(first, first).confidence == pytest.approx(0.99)
    assert first.compose(first, first).mutual_information == pytest.approx(0.3)


def test_the_offset_is_a_cross_entropy_and_not_the_entropy_of_the_reference():
    """A logistic reference for N(0, 100): 8.11 nats, where its own entropy is 2."""
    log_density = stats.logistic.logpdf
    expected = integrate.quad(lambda x: -WIDE.pdf(x) * log_density(x), -120, 120, points=[0], limit=300)[0]
    assert expected == pytest.approx(8.11, abs=0.005)
    draws = WIDE.ppf((np.arange(200_000) + 0.5) / 200_000)[:, None]
    assert reference_offset(draws, LogisticReference()) == pytest.approx(expected, abs=2e-3)
    # With 2 in its place, the residual privacy of a mechanism that tells 1 nat would be overstated by 6.11.
    honest = ResidualPrivacy(float(WIDE.entropy()), expected, proven(1.0))
    divergence = integrate.quad(lambda x: WIDE.pdf(x) * (WIDE.logpdf(x) - log_density(x)), -120, 120, points=[0])[0]
    assert honest.intrinsic == pytest.approx(-divergence, abs=1e-6)
    assert honest.residual == pytest.approx(-divergence - 1)


def test_the_matched_gaussian_and_the_box_are_offset_by_their_own_entropy():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((2_000, 3)) @ rng.standard_normal((3, 3))
    matched = GaussianReference(values.mean(axis=0), np.cov(values.T, ddof=0))
    assert reference_offset(values, matched) == pytest.approx(matched.entropy)
    assert matched.entropy == pytest.approx(stats.multivariate_normal(matched.mean, matched.covariance).entropy())
    assert matched.log_density(values) == pytest.approx(
        stats.multivariate_normal(matched.mean, matched.covariance).logpdf(values)
    )
    box = UniformReference(values.min(axis=0), values.max(axis=0))
    assert reference_offset(values, box) == pytest.approx(box.entropy)
    with pytest.raises(ValueError, match="1 values no density"):
        reference_offset(values, UniformReference(values.min(axis=0) + 1e-9 * np.eye(3)[0], values.max(axis=0)))


def test_the_logistic_map_is_a_density():
    reference = LogisticReference(scale=2.0)
    total = integrate.quad(lambda x: math.exp(reference.log_density([[x]])[0]), -100, 100)[0]
    assert total == pytest.approx(1)
    slope = (reference.unit_cube([[1.0 + 1e-6]]) - reference.unit_cube([[1.0 - 1e-6]]))[0, 0] / 2e-6
    assert math.log(slope) == pytest.approx(reference.log_density([[1.0]])[0], abs=1e-8)


def test_composition_bounds_what_two_independent_answers_leave():
    """A secret of four values and two noisy answers, enumerated."""
    rng = np.random.default_rng(1)
    prior = rng.dirichlet(np.ones(4))
    channels = [rng.dirichlet(np.ones(3), size=4) for _ in range(2)]

    def conditional_entropy(channel):
        joint = prior[:, None] * channel
        posterior = joint / joint.sum(axis=0)
        return float(-(joint * np.log(posterior)).sum())

    entropy = float(-(prior * np.log(prior)).sum())
    separately = [conditional_entropy(channel) for channel in channels]
    together = conditional_entropy(np.einsum("sa,sb->sab", *channels).reshape(4, -1))
    bound = composed_conditional_entropy(separately, entropy)
    assert bound <= together
    parts = [ResidualPrivacy(entropy, math.log(4), proven(entropy - left)) for left in separately]
    assert parts[0].compose(parts[1]).conditional_entropy == pytest.approx(bound)
    assert parts[0].compose(parts[1]).residual == pytest.approx(bound - math.log(4))
    with pytest.raises(ValueError, match="do not compose"):
        parts[0].compose(ResidualPrivacy(entropy, 0.0, proven(0.1)))


def test_the_best_attack_leaves_at_least_the_residual_privacy():
    """Guessing one of eight equally likely values through a symmetric channel that is right with probability 0.4."""
    channel = np.full((8, 8), 0.6 / 7) + np.eye(8) * (0.4 - 0.6 / 7)
    joint = channel / 8
    information = float((joint * np.log(8 * channel)).sum())
    success = float(joint.max(axis=0).sum())
    residual = ResidualPrivacy(math.log(8), math.log(8), proven(information))
    assert posterior_disadvantage(residual.intrinsic, success, 1 / 8) >= residual.residual
    with pytest.raises(ValueError, match="at most 0"):
        posterior_disadvantage(0.1, 0.5, 0.5)
    # An attack that is all but never right: it was said to be at an infinite disadvantage.
    assert posterior_disadvantage(0.0, 1e-20, 0.5) == pytest.approx(-math.log(2))


def test_references_that_are_no_laws_are_refused():
    with pytest.raises(ValueError, match="symmetric and positive definite"):
        GaussianReference(np.zeros(2), -np.eye(2))  # whose determinant is that of the unit matrix
    with pytest.raises(ValueError, match=r"mean has shape \(2,\) and covariance \(1, 1\)"):
        GaussianReference(np.zeros(2), np.eye(1))
    with pytest.raises(ValueError, match="upper corner above the lower"):
        UniformReference(np.zeros(2), np.array([1.0, 0.0]))
