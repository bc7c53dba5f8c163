"""Statements of the Residual-PAC paper on budgets, noise and what is told, against integrals over one number."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from lightning_pac.mechanisms import calibrate_gaussian, confidence_auto_pac

LAWS = {
    "two modes": np.array([-1.0, 1.0]),
    "clusters": np.array([-3.0, -2.9, 0.0, 0.1, 3.0]),
    "rare": np.concatenate([np.zeros(99), [10.0]]),
}
# What four points in two pairs tell has two scales.
PAIRS = np.array([-1.001, -0.999, 0.999, 1.001])


def density(points: np.ndarray, deviation: float, grid: np.ndarray) -> np.ndarray:
    distinct, counts = np.unique(points, return_counts=True)
    return stats.norm.pdf((grid[:, None] - distinct) / deviation) @ counts / len(points) / deviation


def entropy(values: np.ndarray, step: float) -> float:
    inside = values[values > 0]
    return float(-(inside * np.log(inside)).sum() * step)


def grid_for(points: np.ndarray, deviation: float) -> np.ndarray:
    return np.linspace(points.min() - 10 * deviation, points.max() + 10 * deviation, 20_001)


def information(points: np.ndarray, deviation: float) -> float:
    """Entropy of the sum less that of Gaussian noise."""
    grid = grid_for(points, deviation)
    noise = 0.5 * math.log(2 * math.pi * math.e * deviation**2)
    return entropy(density(points, deviation, grid), grid[1] - grid[0]) - noise


@pytest.mark.parametrize("name", LAWS)
def test_a_larger_budget_tells_more_and_the_rest_is_the_divergence_from_a_gaussian(name: str) -> None:
    """Theorem 2: what log-det noise tells is the budget less the gap, and never falls: its second case never occurs."""
    points = LAWS[name]
    told, gaps = [], []
    for share in (0.05, 0.2, 0.5, 0.7, 0.95):
        budget = share * stats.entropy(np.unique(points, return_counts=True)[1])
        deviation = math.sqrt(calibrate_gaussian(points[:, None], budget).power)
        grid = grid_for(points, deviation)
        law = density(points, deviation, grid)
        logs = np.log(np.maximum(law, 1e-300)) - stats.norm.logpdf(
            grid, points.mean(), math.sqrt(points.var() + deviation**2)
        )
        gaps.append(float((law * logs).sum() * (grid[1] - grid[0])))
        told.append(information(points, deviation))
        assert told[-1] == pytest.approx(budget - gaps[-1], abs=1e-6)
    assert all(later >= earlier for earlier, later in itertools.pairwise(told))
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(gaps))


def test_the_least_noise_of_a_larger_budget_tells_more_unless_two_are_least() -> None:
    """Proposition 4 over noises of four shapes; where powers tie, a solution can tell less for more budget."""
    grid, step = np.linspace(-60, 60, 24_001), 120 / 24_000
    noises = []
    for scale in np.geomspace(0.2, 10, 25):
        for shape in (stats.norm, stats.laplace(scale=math.sqrt(0.5)), stats.uniform(-math.sqrt(3), 2 * math.sqrt(3))):
            law, shifted = (shape.pdf((grid - at) / scale) / scale for at in (-1.0, 1.0))
            alone = entropy(shape.pdf(grid / scale) / scale, step)
            noises.append((float(scale**2), entropy((law + shifted) / 2, step) - alone))
    # Of equal powers the one that tells less.
    chosen = [min(noise for noise in noises if noise[1] <= budget)[1] for budget in np.linspace(0.02, 0.6, 30)]
    assert all(later >= earlier for earlier, later in itertools.pairwise(chosen))
    # Of the three shapes of one power each is a solution at every budget that all keep: any order of leakage is one.
    alike = [told for power, told in noises if power == noises[-1][0]]
    assert len(alike) == 3
    assert max(alike) > min(alike) + 1e-5


def test_noise_for_a_confidence_costs_power_and_can_tell_more() -> None:
    """Proposition 3: part (ii) holds; part (i) fails in the isotropic branch, for an event in 20,000."""
    size = 20_000
    modes = np.repeat([-1.0, 1.0], size // 2)
    rare = np.zeros(size)
    rare[0] = math.sqrt(0.25 * size)  # a quarter of the variance of the modes, and next to no information
    outputs = np.stack([modes, rare], axis=1)
    confident = confidence_auto_pac(outputs, 0.05, 1e-4, radius=75.0, security=1e-3)
    plain = calibrate_gaussian(outputs, 0.05)
    assert confident.variances[0] == confident.variances[1]
    assert confident.power > plain.power
    along_modes = [float(noise.covariance()[0, 0]) for noise in (confident, plain)]
    told = [information(modes, math.sqrt(variance)) for variance in along_modes]
    # The rare event adds at most its entropy, and nothing is taken away by seeing it.
    most = math.log(size) / size - (1 - 1 / size) * math.log1p(-1 / size)
    assert told[0] > told[1] + most


def test_a_nat_of_budget_buys_at_most_a_nat_with_logdet() -> None:
    """Theorem 5(i)."""
    for points in (*LAWS.values(), PAIRS):
        budgets = np.linspace(0.02, 1.5, 25)
        told = [information(points, math.sqrt(points.var() / math.expm1(2 * budget))) for budget in budgets]
        assert np.diff(told).max() <= budgets[1] - budgets[0] + 1e-9


def test_the_least_noise_can_be_less_sensitive_than_logdet() -> None:
    """Theorem 5(ii) and Corollary 3 fail: between the two scales of a law its least noise hardly changes."""

    def most_of_the_least(budget: float) -> float:
        """Power of the Gaussian noise that tells the budget: no less than the least of any law."""
        return math.exp(2 * brentq(lambda log: information(PAIRS, math.exp(log)) - budget, -9, 3))

    def logdet(budget: float) -> float:
        return float(PAIRS.var() / math.expm1(2 * budget))

    # The least power lies between 0 and the Gaussian's, so it falls by less than 1e-4 where log-det falls by 0.15.
    assert most_of_the_least(0.8) < 1e-4
    assert logdet(0.8) - logdet(1.2) > 0.15
    # Were it steeper everywhere, as the theorem says, it would fall by more.
    assert most_of_the_least(0.8) < logdet(0.8) - logdet(1.2)


def test_noise_that_leaves_the_label_alone_tells_the_label_subspace() -> None:
    """Proposition 7(ii) cannot be: without noise on the differences of logits, they are told whole."""
    logits = np.random.default_rng(0).standard_normal((6, 2))
    differences = (logits[:, 0] - logits[:, 1]) / math.sqrt(2)
    told = [information(differences, deviation) for deviation in (1.0, 1e-1, 1e-3)]
    # What both directions tell is at least what one tells, whatever noise is on the other.
    assert told == sorted(told)
    assert told[-1] == pytest.approx(math.log(6), abs=1e-6)
    # For logits of a density, as the proposition has them, it is infinite: Gaussian ones by log-det.
    assert all(0.5 * math.log1p(1 / variance) > bound for variance, bound in ((1e-9, 10), (1e-18, 20), (1e-30, 34)))


def test_the_margin_of_a_family_of_decoders_covers_its_generalization() -> None:
    """Lemma 1 and Corollary 4: the trained loss is within the margin of the best in the family."""
    rng = np.random.default_rng(1)
    slopes, largest, failure, size = np.array([0.5, 1.0, 2.0, 4.0]), 6.0, 0.05, 500

    def losses(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Loss of each decoder of a sign from it plus noise, cut off at B; shape (decoders, draws)."""
        return np.minimum(np.logaddexp(0.0, -slopes[:, None] * x * y), largest)

    grid, step = np.linspace(-12, 12, 24_001), 24 / 24_000
    exact = (losses(np.ones(len(grid)), grid) * stats.norm.pdf(grid - 1)).sum(axis=1).min() * step
    distances, complexities = [], []
    for _ in range(400):
        x = rng.choice([-1.0, 1.0], size)
        found = losses(x, x + rng.standard_normal(size))
        distances.append(abs(found.mean(axis=1).min() - exact))
        complexities.append((found @ rng.choice([-1.0, 1.0], size)).max() / size)
    concentration = 2 * largest * math.sqrt(2 * math.log(1 / failure) / size)
    # Massart's lemma bounds the complexity that the simulation estimates.
    assert np.mean(complexities) <= largest * math.sqrt(2 * math.log(len(slopes)) / size)
    margin = 4 * float(np.mean(complexities)) + concentration
    assert np.mean(np.array(distances) > margin) <= 2 * failure
    # A margin that falls with the number of draws, not its root, fails: the check can tell.
    assert np.mean(np.array(distances) > margin / size) > 2 * failure
