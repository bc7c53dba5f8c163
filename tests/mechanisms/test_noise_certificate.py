"""Bounds for noise of any covariance and for mixtures, against quadrature and optimization."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from lightning_pac.mechanisms import (
    MixtureNoise,
    bounded_output_information,
    certify_noise,
    logdet_bound,
    logdet_information,
)
from lightning_pac.mechanisms.certified.noise_certificate import scale_noise
from lightning_pac.randomness import secure_generator


def mixture(weights, means, deviations):
    """One-dimensional mixture noise."""
    return MixtureNoise(np.array(weights), np.array(means)[:, None], np.array(deviations)[:, None, None])


def information_by_quadrature(points, prior, density):
    """Mutual information of a secret and its number plus noise of the given density, on a fine grid."""
    grid = np.linspace(-30, 30, 600_001)
    step = grid[1] - grid[0]
    given = np.array([density(grid - point) for point in points])
    marginal = prior @ given
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(given > 1e-200, given * np.log(given / marginal), 0.0)
    return float((prior @ terms).sum() * step)


def density_of(noise):
    def density(x):
        parts = [
            w * stats.norm.pdf(x, m, s)
            for w, m, s in zip(noise.weights, noise.means[:, 0], noise.loadings[:, 0, 0], strict=True)
        ]
        return sum(parts)

    return density


def random_mixture(rng):
    means = rng.uniform(-1, 1, 2)
    weight = rng.uniform(0.2, 0.8)
    means -= weight * means[0] + (1 - weight) * means[1]
    return mixture([weight, 1 - weight], means, rng.uniform(0.3, 1.5, 2))


def test_the_bound_covers_the_truth_for_mixture_noise():
    rng = np.random.default_rng(0)
    failures, ratios = 0, []
    for _ in range(16):
        points, prior = rng.standard_normal(5) * 1.5, rng.dirichlet(np.full(5, 2.0))
        noise = random_mixture(rng)
        truth = information_by_quadrature(points, prior, density_of(noise))
        certificate = certify_noise(points[:, None], noise, prior, num_draws=4_000)
        failures += certificate.mutual_information < truth - 1e-9
        ratios.append(certificate.estimate / truth)
        covariance = [[prior @ points**2 - (prior @ points) ** 2]]
        assert logdet_information(covariance, noise) >= truth - 1e-9
    # Binomial(16, 0.01): five or more with probability 4e-7 if the confidence were only just met; it is far from that.
    assert failures <= 4
    assert np.median(ratios) == pytest.approx(1, abs=0.05)


def test_the_covariance_of_a_mixture_does_not_bound_what_it_hides():
    """Noise of +1 or -1 has variance 1 and hides nothing of 0 and 1/2: the formula is off 20 times."""
    noise = mixture([0.5, 0.5], [-1.0, 1.0], [0.01, 0.01])
    points, prior = np.array([0.0, 0.5]), np.array([0.5, 0.5])
    truth = information_by_quadrature(points, prior, density_of(noise))
    assert truth == pytest.approx(math.log(2), abs=1e-6)
    claimed = float(logdet_bound([0.0625], noise.second_moment()[0]))
    assert claimed < 0.05 * truth
    assert logdet_information([[0.0625]], noise) >= truth
    assert certify_noise(points[:, None], noise, num_draws=2_000).mutual_information >= truth - 1e-9


def test_more_of_a_mixture_can_tell_more():
    """Scaling up noise of +1 or -1 separates what it had mixed up, so a search for the scale may not rely on order."""
    noise = mixture([0.5, 0.5], [-1.0, 1.0], [0.05, 0.05])
    points, prior = np.array([0.0, 2.0]), np.array([0.5, 0.5])
    told = [information_by_quadrature(points, prior, density_of(noise.scaled(scale))) for scale in (1.0, 1.5)]
    assert told[0] == pytest.approx(0.5 * math.log(2), abs=1e-3)
    assert told[1] == pytest.approx(math.log(2), abs=1e-3)
    scaled, certificate = scale_noise(points[:, None], prior, noise, 0.4, 0.99, 4_000, secure_generator())
    assert certificate.mutual_information <= 0.4
    assert information_by_quadrature(points, prior, density_of(scaled)) <= 0.4 + 1e-9


def test_logdet_information_of_one_component():
    rng = np.random.default_rng(1)
    for _ in range(20):
        first, second = rng.standard_normal((4, 4)), rng.standard_normal((4, 6))
        signal, covariance = first @ first.T, second @ second.T
        expected = 0.5 * np.linalg.slogdet(np.eye(4) + signal @ np.linalg.inv(covariance))[1]
        assert logdet_information(signal, MixtureNoise.gaussian(covariance)) == pytest.approx(expected, rel=1e-9)


def test_capacity_is_the_largest_logdet_of_a_ball():
    rng = np.random.default_rng(2)
    for _ in range(5):
        variances = rng.uniform(0.05, 3, 3)
        noise = MixtureNoise.gaussian(np.diag(variances))
        radius = float(rng.uniform(0.2, 2))

        def minus_information(logits, variances=variances, radius=radius):
            powers = radius**2 * np.exp(logits) / np.exp(logits).sum()
            return -0.5 * np.log1p(powers / variances).sum()

        best = -min(optimize.minimize(minus_information, rng.standard_normal(3), tol=1e-12).fun for _ in range(8))
        assert bounded_output_information(radius, noise) == pytest.approx(best, rel=1e-5)


def test_rotated_noise_whitens_to_the_same_certificate():
    """Two outputs: quadrature depends on the distance in the noise's own units only."""
    covariance = np.array([[2.0, 0.7], [0.7, 1.0]])
    outputs = np.array([[0.0, 0.0], [1.0, -2.0]])
    difference = outputs[1]
    distance = math.sqrt(difference @ np.linalg.inv(covariance) @ difference)
    one = certify_noise(outputs, MixtureNoise.gaussian(covariance))
    other = certify_noise([[0.0], [distance]], MixtureNoise.gaussian([[1.0]]))
    assert one.mutual_information == pytest.approx(other.mutual_information, rel=1e-9)


def test_draws_follow_the_density_and_the_power():
    noise = mixture([0.3, 0.7], [1.4, -0.6], [0.5, 0.2])
    draws = noise.sample(200_000)[:, 0]
    # Kolmogorov's distance of 200,000 draws passes 0.0062 with probability 4e-7.
    levels = np.linspace(-2, 4, 400)
    expected = 0.3 * stats.norm.cdf(levels, 1.4, 0.5) + 0.7 * stats.norm.cdf(levels, -0.6, 0.2)
    assert np.abs((draws[:, None] <= levels).mean(axis=0) - expected).max() < 0.0062
    assert noise.power == pytest.approx(0.3 * (1.4**2 + 0.25) + 0.7 * (0.36 + 0.04))
    grid = np.linspace(-8, 8, 20_001)
    assert np.exp(noise.log_density(grid[:, None])).sum() * (grid[1] - grid[0]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((np.ones(1), np.zeros((1, 0)), np.zeros((1, 0, 0))), "means has shape"),
        ((np.ones(1), np.zeros((1, 2)), np.full((1, 2, 2), np.nan)), "must be finite"),
        ((np.ones(1), np.zeros((1, 2)), np.zeros((1, 2, 2))), "full rank"),
        ((np.full(2, 0.7), np.zeros((2, 1)), np.ones((2, 1, 1))), "sum 1"),
        ((np.ones(1), np.zeros((1, 2)), np.ones((1, 3, 3))), "one mixture"),
    ],
)
def test_bad_noise_is_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        MixtureNoise(*parts)


def test_weights_that_miss_their_sum_are_shared_out():
    """A density that integrates to less than 1 would have a larger entropy, and its certificates less information."""
    noise, whole = (mixture(np.array([0.5, 0.5]) * part, [-1.0, 1.0], [1.0, 1.0]) for part in (1 - 9e-7, 1.0))
    assert noise.log_density(np.zeros((1, 1))) == pytest.approx(whole.log_density(np.zeros((1, 1))), rel=1e-14)


@pytest.mark.parametrize(
    "covariance", [[[1.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, -1.0]], [[1.0, 1.0]], [[1.0, 5.0], [0.0, 1.0]]]
)
def test_a_covariance_that_is_none_is_refused_in_words(covariance):
    with pytest.raises(ValueError, match="must be square, symmetric and positive definite"):
        MixtureNoise.gaussian(covariance)
