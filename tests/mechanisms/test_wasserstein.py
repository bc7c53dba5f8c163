"""Distances on the line and in space against definitions worked out another way."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy import integrate, stats

from lightning_pac.information import log_mean_exp
from lightning_pac.mechanisms.sliced_wasserstein import (
    baselines,
    slice_sensitivities,
    wasserstein,
    wasserstein_infinity,
)
from lightning_pac.mechanisms.sliced_wasserstein.other_mechanisms import (
    cauchy_renyi_divergence,
    wasserstein_infinity_bound,
    wasserstein_infinity_exact,
)
from lightning_pac.scenarios import AttributeScenario, SliceProfile


def quantile(sample: np.ndarray, level: Fraction) -> float:
    """Left-continuous inverse of the empirical distribution function, by its definition in exact arithmetic."""
    ordered = sorted(sample)
    return next(value for rank, value in enumerate(ordered, 1) if Fraction(rank, len(ordered)) >= level)


def brute_force_gaps(first: np.ndarray, second: np.ndarray) -> list[tuple[float, Fraction]]:
    n, m = len(first), len(second)
    breaks = sorted({Fraction(i, n) for i in range(n + 1)} | {Fraction(j, m) for j in range(m + 1)})
    return [
        (abs(quantile(first, high) - quantile(second, high)), high - low) for low, high in itertools.pairwise(breaks)
    ]


def test_distances_equal_brute_force_on_1000_pairs_of_unequal_sizes() -> None:
    rng = np.random.default_rng(1)
    for _ in range(1000):
        n, m = rng.integers(1, 14, size=2)
        # Rounding makes ties, which is where an index off by one would show.
        first, second = np.round(rng.normal(size=n), 1), np.round(rng.normal(1.0, 2.0, size=m), 1)
        gaps = brute_force_gaps(first, second)
        assert wasserstein_infinity(first, second) == pytest.approx(max(gap for gap, _ in gaps), abs=1e-12)
        for p in (1.0, 2.5):
            expected = sum(float(mass) * gap**p for gap, mass in gaps) ** (1 / p)
            assert wasserstein(first, second, p) == pytest.approx(expected, abs=1e-12)


def test_first_order_distance_equals_scipy() -> None:
    rng = np.random.default_rng(2)
    first, second = rng.normal(size=501), rng.exponential(size=301)
    assert wasserstein(first, second, 1) == pytest.approx(stats.wasserstein_distance(first, second), rel=1e-12)


def test_two_samples_of_one_law_are_apart() -> None:
    """The sheet's figure: an estimate of a distance that is zero."""
    rng = np.random.default_rng(3)
    distances = [wasserstein_infinity(rng.random(200), rng.random(200)) for _ in range(200)]
    assert np.mean(distances) == pytest.approx(0.096, abs=0.02)


def test_sensitivities_of_all_slices_and_pairs() -> None:
    rng = np.random.default_rng(4)
    table = {"x": rng.normal(size=(60, 3)), "group": np.repeat(["a", "b", "c"], [10, 20, 30])}
    scenario = AttributeScenario.from_table(table, secret="group")
    outputs = scenario.outputs(lambda rows: rows["x"])
    profile = SliceProfile.random(3, 7, seed=0)
    distances = slice_sensitivities(scenario, outputs, profile)
    assert distances.shape == (6, 7)
    for row, (one, other) in enumerate(scenario.pairs):
        for column, direction in enumerate(profile.directions):
            gaps = brute_force_gaps(outputs[one] @ direction, outputs[other] @ direction)
            assert distances[row, column] == pytest.approx(max(gap for gap, _ in gaps), abs=1e-12)


def test_distance_in_space_equals_the_best_matching() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        n, m = (2, 4) if rng.random() < 0.5 else (5, 5)
        first, second = rng.normal(size=(n, 2)), rng.normal(size=(m, 2))
        copies = np.repeat(first, m // n, axis=0)
        best = min(
            max(np.linalg.norm(copies[i] - second[j]) for i, j in enumerate(matching))
            for matching in itertools.permutations(range(m))
        )
        assert wasserstein_infinity_exact(first, second) == pytest.approx(best, rel=1e-12)


def test_the_bound_for_large_laws_is_never_below_the_distance() -> None:
    rng = np.random.default_rng(6)
    first, second = rng.normal(size=(210, 3)), rng.normal(size=(200, 3)) + 1.0
    exact = wasserstein_infinity_exact(first, second)
    assert wasserstein_infinity_bound(first, second) >= exact


@pytest.mark.parametrize(
    ("order", "exponent"), [(1.5, 2.0), (2.0, 2.0), (4.0, 2.0), (7.5, 2.0), (4.0, 4.0), (2.0, 6.0), (3.0, 3.0)]
)
@pytest.mark.parametrize("shift", [0.3, 2.0, 10.0])
def test_cauchy_divergence_equals_quadrature(order: float, exponent: float, shift: float) -> None:
    # x = tan(t) maps the line to an interval on which the integrand is smooth.
    step = np.pi / 400_000
    x = np.tan(-np.pi / 2 + step * (np.arange(400_000) + 0.5))
    ratio = ((1 + (x - shift) ** 2) / (1 + x**2)) ** (exponent / 2)
    weights = (1 + x**2) ** (1 - exponent / 2)
    expected = np.log(np.sum(weights * ratio ** (order - 1)) / np.sum(weights)) / (order - 1)
    # The law of the variable of integration is P; the other order of arguments is the same by symmetry.
    assert cauchy_renyi_divergence(shift, order, exponent) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("order", [1 + 1e-7, 1.01, 16.9, 17.3, 32.0, 64.0, 257.0, 1000.0, 1e4])
@pytest.mark.parametrize("shift", [0.01, 1.0, 4.0, 40.0, 1e4, 1e9])
def test_cauchy_divergence_at_any_order(order: float, shift: float) -> None:
    """It was NaN from order 32 on, as the Legendre function overflows, and below 0 near order 1."""
    # With x = tan(t) the ratio of the densities is a wave in 2 t, whose power is smooth and periodic.
    t = np.pi / 400_000 * (np.arange(400_000) + 0.5)
    ratio = (1 + (np.tan(t) - shift) ** 2) * np.cos(t) ** 2
    expected = log_mean_exp((order - 1) * np.log(ratio), np.ones(len(t))) / (order - 1)
    assert cauchy_renyi_divergence(shift, order) == pytest.approx(expected, rel=1e-6)


def test_baselines_at_a_large_order() -> None:
    scenario = AttributeScenario.from_shifts({"a": [0.0, 0.0], "b": [1.0, 2.0]})
    scales = [baselines(scenario, None, 1.0, order)["distribution_aware_cauchy"].scale for order in (16, 64, 256, 1e6)]
    assert scales == sorted(scales)
    # At the largest order the log-ratio counts: 2 arsinh(s / 2) for each coordinate.
    assert 2 * np.arcsinh(1 / scales[-1] / 2) + 2 * np.arcsinh(2 / scales[-1] / 2) == pytest.approx(1.0, rel=1e-4)
    with pytest.raises(ValueError, match="shift must be a number below 1e150"):
        cauchy_renyi_divergence(1e160, 4.0)


@pytest.mark.parametrize("exponent", [2.0, 4.0])
def test_noise_for_laws_keeps_the_budget_by_quadrature(exponent: float) -> None:
    """Theorems 2.6 and A.2: laws of several points, unequal in size, whose couplings share out the mass."""
    laws = {"a": np.array([0.0, 0.5, 3.0]), "b": np.array([0.2, 4.0])}
    scenario = AttributeScenario({value: points[:, None] for value, points in laws.items()})
    epsilon, order = 0.5, 4.0
    found = baselines(scenario, None, epsilon, order, exponent)
    grid = np.linspace(-3_000, 3_000, 1_200_001)
    densities = {
        "general_wasserstein": lambda x: np.exp(-(x**2) / 2),
        "distribution_aware_cauchy": lambda x: (1 + x**2) ** (-exponent / 2),
    }
    for name, density in densities.items():
        scale = found[name].scale
        first, second = (
            np.mean([density((grid - point) / scale) for point in points], axis=0) / density(grid / scale).sum()
            for points in laws.values()
        )
        for p, q in ((first, second), (second, first)):
            with np.errstate(all="ignore"):
                moment = np.nansum(np.where(p > 1e-200, p * (p / q) ** (order - 1), 0.0))
            spent = np.log(moment) / (order - 1)
            assert 0.01 * epsilon < spent <= epsilon


def test_generalized_cauchy_noise_has_the_moments_and_meets_the_budget() -> None:
    scenario = AttributeScenario.from_shifts({"a": [0.0, 0.0], "b": [3.0, 4.0]})
    found = baselines(scenario, None, epsilon=0.5, renyi_order=4, cauchy_exponent=4.0)["distribution_aware_cauchy"]
    spent = cauchy_renyi_divergence(3.0 / found.scale, 4, 4.0) + cauchy_renyi_divergence(4.0 / found.scale, 4, 4.0)
    assert spent == pytest.approx(0.5, rel=1e-6)

    def density(x: float) -> float:
        return float((1 + x * x) ** -2)

    mass = integrate.quad(density, -np.inf, np.inf)[0]
    second = integrate.quad(lambda x: x * x * density(x), -np.inf, np.inf)[0]
    assert found.power == pytest.approx(2 * found.scale**2 * second / mass)
    quartile = integrate.quad(density, 0, found.absolute / found.scale)[0]
    assert quartile / mass == pytest.approx(0.25)
    with pytest.raises(ValueError, match="a whole number up to 500"):
        baselines(scenario, None, epsilon=0.5, renyi_order=4, cauchy_exponent=2.5)


def test_baselines_meet_the_budget_where_it_can_be_computed() -> None:
    scenario = AttributeScenario.from_shifts({"a": [0.0, 0.0], "b": [3.0, 4.0]})
    found = baselines(scenario, None, epsilon=0.5, renyi_order=4)
    # Two points at distance 5: a 25 / (2 sigma^2) = 0.5.
    assert found["general_wasserstein"].scale == pytest.approx(10.0)
    assert found["gaussian_dp"].scale == pytest.approx(10.0)
    scale = found["distribution_aware_cauchy"].scale
    spent = cauchy_renyi_divergence(3.0 / scale, 4) + cauchy_renyi_divergence(4.0 / scale, 4)
    assert spent == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(("first", "second", "sentence"), [([], [1.0], "empty"), ([np.nan], [1.0], "not finite")])
def test_samples_that_are_no_law_are_refused(first: list[float], second: list[float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        wasserstein_infinity(first, second)


def test_p_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"p is 0\.5"):
        wasserstein([0.0], [1.0], p=0.5)


@pytest.mark.parametrize(("order", "exponent"), [(1.5, 2.0), (4.0, 2.0), (4.0, 6.0)])
@pytest.mark.parametrize("shift", [1e-9, 1e-6, 1e-3])
def test_cauchy_divergence_of_small_shifts_is_quadratic(order: float, exponent: float, shift: float) -> None:
    # Half the order times the Fisher information of a location, k (k - 1) / (k + 2), times the shift squared.
    information = exponent * (exponent - 1) / (exponent + 2)
    divergence = cauchy_renyi_divergence(shift, order, exponent)
    assert divergence / shift**2 == pytest.approx(order * information / 2, rel=1e-4)
