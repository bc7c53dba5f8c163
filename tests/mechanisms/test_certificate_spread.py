"""Certificates of outputs whose gaps are of the noise's size and whose spread is up to 10^12 times that."""

import math

import numpy as np
import pytest

from lightning_pac.mechanisms import MixtureNoise, certify_finite_secret, certify_noise
from lightning_pac.mechanisms.certified.clusters import cluster_outputs


def information_of_group(points, weights):
    """Entropy of the mixture minus that of its noise, on a fine grid."""
    step = 0.01
    grid = np.arange(points.min() - 9, points.max() + 9, step)
    density = np.exp(-((grid[:, None] - points) ** 2) / 2) @ weights / math.sqrt(2 * math.pi)
    entropy = -(density[density > 0] * np.log(density[density > 0])).sum() * step
    return entropy - 0.5 * math.log(2 * math.pi * math.e)


def problem(rng, exponent):
    """Groups of one to four outputs around places 10^exponent apart, and what they tell under standard normal noise."""
    places = 10.0**exponent * np.cumsum(rng.uniform(0.5, 2.0, 3))
    groups = [place + rng.uniform(0.2, 3.0) * np.arange(rng.integers(1, 5)) for place in places]
    points = np.concatenate(groups)
    weights = rng.dirichlet(np.full(len(points), 3.0))
    if exponent < 2:
        return points, weights, information_of_group(points, weights)
    truth, start = 0.0, 0
    for place, group in zip(places, groups, strict=True):
        share = weights[start : start + len(group)]
        mass = share.sum()
        # As rounded: differences of neighbours are exact.
        truth += mass * (information_of_group(group - place, share / mass) - math.log(mass))
        start += len(group)
    return points, weights, truth


@pytest.mark.parametrize("exponent", range(13))
def test_the_bound_holds_for_any_spread(exponent):
    rng = np.random.default_rng(exponent)
    turned = np.array([[2.0, 0.0], [1.5, 0.3]])  # a standard deviation of this noise in its own units
    noises = (
        MixtureNoise.gaussian(turned @ turned.T),
        MixtureNoise(np.array([0.5, 0.5]), np.zeros((2, 2)), np.stack([turned, turned])),
    )
    for _ in range(2):
        points, weights, truth = problem(rng, exponent)
        entropy = -(weights * np.log(weights)).sum()
        plane = np.outer(points, turned @ [0.6, 0.8])
        # Each fails with probability 1e-9; the values are as far above the truth as so much confidence takes.
        certificates = [certify_finite_secret(points[:, None], weights, 1 - 1e-9, num_draws=2**14)]
        certificates += [certify_noise(plane, noise, weights, 1 - 1e-9, num_draws=2**13) for noise in noises]
        for certificate in certificates:
            # The points in the plane are rounded at their own size: that moves what they tell, not what is proven.
            slack = 1e-8 + 10.0**exponent * 2e-15
            assert truth - slack <= certificate.mutual_information <= entropy + 1e-12
            assert certificate.mutual_information < truth + 0.12
            assert certificate.estimate == pytest.approx(truth, abs=0.05)


def test_what_was_far_below_the_truth_is_not():
    """Pairs one deviation apart, 10^9 from each other: the bound was 0.0005 where a blind look tells 0.69."""
    certificate = certify_finite_secret([[0.0], [1.0], [1e9], [1e9 + 1]])
    assert certificate.mutual_information == pytest.approx(
        math.log(2) + information_of_group(np.arange(2.0), [0.5, 0.5])
    )
    assert certificate.confidence == 1.0


def test_any_partition_is_a_bound_and_a_long_chain_is_cut():
    """Outputs 4 apart over 40,000 deviations: no gap to cut at, and squares too large for their differences."""
    points = 4.0 * np.arange(10_000)[:, None]
    clusters = cluster_outputs(points, np.full(10_000, 1e-4), np.asarray)
    assert len(clusters) > 1
    assert sum(cluster.probability for cluster in clusters) == pytest.approx(1.0)
    assert np.array_equal(np.sort(np.concatenate([cluster.rows for cluster in clusters])), np.arange(10_000))
    assert max(np.linalg.norm(cluster.whitened, axis=1).max() for cluster in clusters) <= 2.0**14
    middle = certify_finite_secret(points[:1_000], num_draws=2**12)
    cut = certify_finite_secret(points[:1_000] + 1e13 * (np.arange(1_000) >= 500)[:, None], num_draws=2**12)
    assert middle.mutual_information <= cut.mutual_information + 0.02


def test_what_no_arithmetic_resolves_is_refused():
    with pytest.raises(ValueError, match="distance overflows: rescale"):
        certify_finite_secret([[-1.7e308], [0.0], [1.7e308]])
    with pytest.raises(ValueError, match="distance overflows: rescale"):
        certify_noise([[0.0], [1.0], [2.0]], MixtureNoise(np.ones(1), np.zeros((1, 1)), np.full((1, 1, 1), 1e-320)))
    steep = 2 * np.eye(60) - np.tril(np.ones((60, 60)))  # its inverse holds numbers up to 2^58
    outputs = np.random.default_rng(0).standard_normal((5, 60)) @ steep.T
    with pytest.raises(ValueError, match="better conditioned"):
        certify_noise(outputs, MixtureNoise(np.ones(1), np.zeros((1, 60)), steep[None]))


def test_noise_of_very_different_strengths_is_no_obstacle():
    """A diagonal loading is solved exactly, whatever its condition number."""
    strengths = np.diag([1e10, 1.0, 1e-10])
    outputs = np.array([[0.0, 0, 0], [1e10, 0, 0], [0, 1.0, 0], [0, 0, 1e-10]])
    found = certify_noise(outputs, MixtureNoise(np.ones(1), np.zeros((1, 3)), strengths[None]))
    plain = certify_finite_secret(outputs @ np.linalg.inv(strengths))
    assert found.mutual_information == pytest.approx(plain.mutual_information, abs=0.02)
