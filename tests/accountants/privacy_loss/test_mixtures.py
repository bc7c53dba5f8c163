"""The theorem of `mixtures`: opposite mixtures dominate whatever differing records can do, and are attained."""

import math

import numpy as np
import pytest
import sampled_worlds
from scipy import special, stats

from lightning_pac.accountants import privacy_curve
from lightning_pac.accountants.privacy_loss import PoissonSteps
from lightning_pac.accountants.privacy_loss.mixtures import MixturePair

EPSILONS = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 4.0])


def positive_parts(values: np.ndarray, width: float) -> float:
    """Integral along the last axis of what is positive, exact for lines between the points."""
    left, right = values[..., :-1], values[..., 1:]
    high, low = np.maximum(left, right), np.minimum(left, right)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = high**2 / (2 * (high - low))
    return float(np.where(low >= 0, (high + low) / 2, np.where(high > 0, crossing, 0.0)).sum()) * width


def of_vectors(first: np.ndarray, second: np.ndarray, rate: float, sigma: float) -> np.ndarray:
    """Hockey sticks between sums of Poisson-sampled vectors in the plane with noise, by extrapolated quadrature."""
    figures = []
    for points in (101, 201):
        axis = np.linspace(-len(first) - 7 * sigma, len(first) + 7 * sigma, points)
        densities = []
        for vectors in (first, second):
            centers, weights = sampled_worlds.subset_sums(vectors, rate)
            across, along = (stats.norm.pdf(axis[:, None], centers[:, i], sigma) for i in (1, 0))  # (points, subsets)
            densities.append((across * weights) @ along.T)
        width = axis[1] - axis[0]
        figures.append([positive_parts(densities[0] - math.exp(e) * densities[1], width) * width for e in EPSILONS])
    coarse, fine = np.array(figures)
    return fine + (fine - coarse) / 3


def of_opposite_mixtures(pair: tuple[int, int], rate: float, sigma: float) -> np.ndarray:
    x = np.linspace(-pair[1] - 12 * sigma, pair[0] + 12 * sigma, 20_001)
    first = np.exp(sampled_worlds.log_density(x, pair[0], rate, sigma, 1))
    second = np.exp(sampled_worlds.log_density(x, pair[1], rate, sigma, -1))
    return np.array([positive_parts(first - math.exp(epsilon) * second, x[1] - x[0]) for epsilon in EPSILONS])


def unit_disc(rng: np.random.Generator, number: int) -> np.ndarray:
    """Vectors of norm at most 1, most of them near the rim, some of them all in one half."""
    angles = rng.uniform(-1, 1, number) * rng.choice([0.2, 1.0, math.pi]) + rng.choice([0.0, math.pi])
    return (rng.uniform(0, 1, number) ** 0.2)[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)


@pytest.mark.parametrize("adjacency", ["replace", "both worlds", "nested"])
def test_no_pair_of_vector_mixtures_exceeds_the_opposite_mixtures(adjacency: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(15):
        rate, sigma = rng.choice([0.05, 0.3, 0.8]), rng.choice([0.7, 1.0, 2.0])
        pair = {"replace": (3, 3), "both worlds": (3, 1), "nested": (3, 0)}[adjacency]
        first, second = (unit_disc(rng, number) if number else np.zeros((1, 2)) for number in pair)
        for order, (p, q) in ((pair, (first, second)), (pair[::-1], (second, first))):
            assert np.all(of_vectors(p, q, rate, sigma) <= of_opposite_mixtures(order, rate, sigma) + 2e-5)


def test_opposed_aligned_gradients_attain_it() -> None:
    right, left = np.array([[1.0, 0.0]] * 3), np.array([[-1.0, 0.0]] * 2)
    attained = of_vectors(right, left, 0.3, 1.0)
    assert attained == pytest.approx(of_opposite_mixtures((3, 2), 0.3, 1.0), abs=2e-5)
    # The comparison has teeth: fewer records would not cover these.
    assert np.any(attained > of_opposite_mixtures((3, 1), 0.3, 1.0) + 1e-3)
    assert np.any(attained > of_opposite_mixtures((2, 2), 0.3, 1.0) + 1e-3)


@pytest.mark.parametrize("pair", [(4, 0), (0, 4), (3, 2), (200, 200)])
def test_losses_and_masses_of_a_pair(pair: tuple[int, int]) -> None:
    rate, sigma = 0.1, 1.5
    mixtures = MixturePair(sigma, rate, *pair)
    x = np.linspace(-12.0, 15.0, 301)
    assert mixtures.log_ratio(x) == pytest.approx(sampled_worlds.losses(x, rate, sigma, pair), rel=1e-11, abs=1e-13)
    for masses, side, number in zip(mixtures.bin_masses(x), (1, -1), pair, strict=True):
        counts = np.arange(number + 1)
        weights = stats.binom.pmf(counts, number, rate)
        cdf = stats.norm.cdf((x[:, None] - side * counts) / sigma) @ weights
        assert masses == pytest.approx(np.diff(cdf), rel=1e-9, abs=1e-15)


def test_tails_of_bins_keep_their_relative_accuracy() -> None:
    mixtures = MixturePair(1.0, 0.01, 1, 0)
    first, second = mixtures.bin_masses(np.array([-20.0, -19.99, 19.99, 20.0]))
    assert second[0] == pytest.approx(stats.norm.cdf(-19.99) - stats.norm.cdf(-20.0), rel=1e-12)
    assert second[2] == pytest.approx(second[0], rel=1e-12)
    assert first[2] == pytest.approx(0.99 * second[0] + 0.01 * (stats.norm.sf(18.99) - stats.norm.sf(19.0)), rel=1e-12)


def test_terms_left_out_are_charged() -> None:
    whole, cut = MixturePair(1.0, 0.1, 50, 50), MixturePair(1.0, 0.1, 50, 50, dropped=1e-6)
    counts, log_weights, missing = cut.first
    assert 0 < missing < 1e-6
    assert missing + np.exp(log_weights).sum() == pytest.approx(1.0, abs=1e-13)
    assert len(counts) < len(whole.first[0])


@pytest.mark.parametrize(("sigma", "rate", "differing"), [(0.3, 0.5, 4), (0.25, 0.9, 3), (0.2, 0.9, 4)])
def test_losses_near_zero_keep_the_terms_above_one(sigma: float, rate: float, differing: int) -> None:
    counts = np.arange(differing + 1)
    weights = stats.binom.pmf(counts, differing, rate)
    x = np.linspace(-1, differing + 1, 20_001)
    truth = special.logsumexp((np.outer(x, counts) - counts**2 / 2) / sigma**2 + np.log(weights), axis=1)
    found = MixturePair(sigma, rate, differing, 0).log_ratio(x)
    assert np.abs(found - truth).max() < 1e-12


@pytest.mark.parametrize("sigma", [0.02, 0.04])
def test_noise_too_small_for_any_loss_but_one_has_a_curve(sigma: float) -> None:
    # With half a chance of being drawn, a record that noise does not hide is seen half of the time.
    curve = privacy_curve([PoissonSteps(sigma, 0.5, 1, 1, "add_remove")])
    assert curve.delta(1.0) == pytest.approx(0.5, abs=1e-6)
    assert curve.epsilon(1e-5) > 100
