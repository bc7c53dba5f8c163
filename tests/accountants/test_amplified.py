import itertools
import math
import warnings

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from lightning_pac.accountants import amplified_step_cost
from lightning_pac.accountants.srpp.mixture import mixture_divergence, opposite_mixtures_divergence
from lightning_pac.scenarios import TwoWorldScenario

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from opacus.accountants.analysis.rdp import compute_rdp

RATE, STEPS = 512 / 50_000, 3906


def exact_divergence(order: float, sigma: float, rate: float, differing: int, reverse: bool) -> float:
    """Thirty-digit quadrature of the definition, split at every place where the integrand can bend."""
    with mpmath.workdps(30):
        q, s, a = mpmath.mpf(rate), mpmath.mpf(sigma), mpmath.mpf(order)
        weights = [mpmath.binomial(differing, k) * q**k * (1 - q) ** (differing - k) for k in range(differing + 1)]

        def density(x, means):
            return sum(w * mpmath.exp(-((x - k) ** 2) / (2 * s**2)) for k, w in means) / (
                s * mpmath.sqrt(2 * mpmath.pi)
            )

        mixture, gauss = list(enumerate(weights)), [(0, 1)]
        first, second = (gauss, mixture) if reverse else (mixture, gauss)

        def integrand(x):
            return density(x, first) ** a * density(x, second) ** (1 - a)

        low = -((order - 1) * differing * rate if reverse else 0) - 14 * sigma
        high = (differing if reverse else order * differing) + 14 * sigma
        points = np.linspace(low, high, 41)
        return float(mpmath.log(mpmath.quad(integrand, list(points))) / (a - 1))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("order", "sigma", "rate", "differing"),
    [(2.0, 1.0, 0.1, 1), (1.01, 2.0, 0.05, 3), (3.7, 0.6, 0.01, 2), (16.0, 6.56, RATE, 10), (2.5, 20.0, 1e-5, 4)],
)
def test_quadrature_against_thirty_digits_and_from_above(
    order: float, sigma: float, rate: float, differing: int, reverse: bool
) -> None:
    exact = exact_divergence(order, sigma, rate, differing, reverse)
    value = mixture_divergence(order, sigma, rate, differing, reverse)
    assert exact * (1 - 1e-12) <= value <= exact * (1 + 1e-8)


def test_one_record_is_the_subsampled_gaussian() -> None:
    scenario = TwoWorldScenario.differential_privacy()
    worst = 0.0
    for order, sigma, rate in itertools.product([2, 3, 4, 8, 16, 32, 64], [0.7, 1.3, 4.0], [0.001, 0.01, 0.2]):
        peer = float(compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=[order])[0])
        worst = max(worst, abs(amplified_step_cost(scenario, rate, sigma, float(order)) / peer - 1))
    assert worst < 1e-6


def test_every_record_every_step_is_a_plain_gaussian() -> None:
    for order, differing in [(1.5, 1), (16.0, 4)]:
        for reverse in (False, True):
            value = mixture_divergence(order, 2.0, 1.0, differing, reverse)
            assert value == pytest.approx(order * differing**2 / 8, rel=1e-9)


@pytest.mark.parametrize(
    ("scenario", "sigma", "epsilon"),
    [
        (TwoWorldScenario(10, adjacency="add_remove"), 6.56, 8.0),
        (TwoWorldScenario(10, adjacency="zero_out"), 6.56, 8.0),
        (TwoWorldScenario(10), 12.8155, 8.0),
    ],
)
def test_published_costs_of_a_run(scenario: TwoWorldScenario, sigma: float, epsilon: float) -> None:
    assert STEPS * amplified_step_cost(scenario, RATE, sigma, 16.0) == pytest.approx(epsilon, rel=2e-3)


def test_the_triangle_bound_is_close_to_opposite_mixtures() -> None:
    """Known figures: half a percent above at p = r = 2, d = 10, q = 0.01, sigma = 13, and close for small noise too."""
    for order in (1.5, 4.0, 16.0):
        bound = amplified_step_cost(TwoWorldScenario(10), 0.01, 13.0, order)
        attained = opposite_mixtures_divergence(order, 13.0, 0.01, 10, 10)
        assert attained <= bound <= 1.006 * attained
    bound = amplified_step_cost(TwoWorldScenario(5), 0.01, 1.5, 4.0)
    attained = opposite_mixtures_divergence(4.0, 1.5, 0.01, 5, 5)
    assert attained <= bound <= 1.5 * attained


def gaussian_mixture(centers: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Means and weights of a sum of Poisson-sampled vectors, one component per subset."""
    subsets = np.array(list(itertools.product([0, 1], repeat=len(centers))))
    sizes = subsets.sum(axis=1)
    return subsets @ centers, rate**sizes * (1 - rate) ** (len(centers) - sizes)


def log_density(x: np.ndarray, means: np.ndarray, weights: np.ndarray, sigma: float) -> np.ndarray:
    squares = ((x[:, None, :] - means[None]) ** 2).sum(axis=-1)
    return np.log(np.exp(-squares / (2 * sigma**2)) @ weights)


@pytest.mark.parametrize("adjacency", ["zero_out", "nested=False", "replace"])
@pytest.mark.parametrize("aligned", [True, False])
def test_never_below_a_monte_carlo_estimate_of_two_worlds(adjacency: str, aligned: bool) -> None:
    rng = np.random.default_rng(3)
    sigma, rate, order, differing, draws = 2.0, 0.2, 3.0, 4, 60_000
    for _ in range(2):
        directions = rng.normal(size=(2, differing, 2))
        directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
        if aligned:
            directions[0], directions[1] = [1.0, 0.0], [-1.0, 0.0]
        first, second = directions
        if adjacency == "zero_out":
            scenario = TwoWorldScenario(differing, adjacency="zero_out")
            second = np.zeros_like(second)
        elif adjacency == "replace":
            scenario = TwoWorldScenario(differing)
        else:
            scenario = TwoWorldScenario(differing, adjacency="zero_out", nested=False)
            first, second = first[: differing // 2], second[differing // 2 :]
        worlds = [gaussian_mixture(centers, rate) for centers in (first, second)]
        for (means_p, weights_p), (means_q, weights_q) in (worlds, worlds[::-1]):
            drawn = means_q[rng.choice(len(means_q), size=draws, p=weights_q)]
            x = drawn + sigma * rng.normal(size=(draws, 2))
            ratio = log_density(x, means_p, weights_p, sigma) - log_density(x, means_q, weights_q, sigma)
            powers = np.exp(order * ratio)
            estimate = math.log(powers.mean()) / (order - 1)
            error = powers.std() / powers.mean() / math.sqrt(draws) / (order - 1)
            bound = amplified_step_cost(scenario, rate, sigma, order)
            assert estimate - 5 * error <= bound
            if aligned and adjacency == "zero_out":
                assert estimate > bound / 3  # the larger direction is attained, the other is not far


def test_a_price_without_amplification_of_both_worlds_would_be_caught() -> None:
    """The comparison above has teeth: half of the differing records are priced below what two worlds attain."""
    attained = opposite_mixtures_divergence(4.0, 2.0, 0.2, 4, 4)
    assert amplified_step_cost(TwoWorldScenario(4), 0.2, 2.0, 4.0) >= attained
    assert amplified_step_cost(TwoWorldScenario(2), 0.2, 2.0, 4.0) < attained
    assert amplified_step_cost(TwoWorldScenario(4, adjacency="zero_out"), 0.2, 2.0, 4.0) < attained


def test_a_failed_quadrature_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_pac.accountants import amplified

    monkeypatch.setattr(amplified, "mixture_divergence", lambda *_, **__: 1e-9)
    with pytest.raises(ArithmeticError, match="which two real worlds attain"):
        amplified_step_cost.__wrapped__(TwoWorldScenario(3), 0.1, 1.0, 4.0)


@pytest.mark.parametrize(
    ("order", "sigma", "rate", "differing"), [(2.0, 50.0, 4.4e-6, 10), (1.05, 20.0, 4.3e-6, 10), (4.0, 30.0, 1e-7, 3)]
)
def test_opposite_mixtures_stay_exact_at_small_rates(order: float, sigma: float, rate: float, differing: int) -> None:
    """Their rounding was once taken for a failed quadrature, and such runs could not be calibrated."""
    with mpmath.workdps(40):
        q, s, a = mpmath.mpf(rate), mpmath.mpf(sigma), mpmath.mpf(order)
        weights = [mpmath.binomial(differing, k) * q**k * (1 - q) ** (differing - k) for k in range(differing + 1)]

        def ratio(x):
            return sum(w * mpmath.exp((k * x - mpmath.mpf(k) ** 2 / 2) / s**2) for k, w in enumerate(weights))

        def integrand(x):
            return mpmath.npdf(x, 0, s) * (ratio(x) ** a * ratio(-x) ** (1 - a) - 1)

        moment = mpmath.quad(integrand, list(np.linspace(-14 * sigma, 14 * sigma + 2 * order * differing, 33)))
        exact = float(mpmath.log1p(moment) / (a - 1))
    assert opposite_mixtures_divergence(order, sigma, rate, differing, differing) == pytest.approx(exact, rel=1e-6)
    assert amplified_step_cost(TwoWorldScenario(differing), rate, sigma, order) >= exact


def test_splits_and_directions() -> None:
    rate, sigma, order = 0.05, 1.5, 5.0

    def price(**arguments: object) -> float:
        return amplified_step_cost(TwoWorldScenario(adjacency="zero_out", **arguments), rate, sigma, order)  # type: ignore[arg-type]

    nested, any_split = price(num_differing=4), price(num_differing=4, nested=False)
    splits = [price(num_differing=(4 - other, other)) for other in range(5)]
    assert price(num_differing=(4, 0)) == price(num_differing=(0, 4)) == nested
    assert max(splits) <= any_split <= 1.001 * max(splits)
    assert splits == splits[::-1]
    assert any_split <= order * 16 / (2 * sigma**2)


def test_prices_are_monotone() -> None:
    for scenario in (TwoWorldScenario(3), TwoWorldScenario(3, adjacency="zero_out")):
        by_noise = [amplified_step_cost(scenario, 0.05, sigma, 8.0) for sigma in np.geomspace(0.3, 30, 12)]
        assert by_noise == sorted(by_noise, reverse=True)
        by_order = [amplified_step_cost(scenario, 0.05, 2.0, order) for order in (1.01, 1.5, 3.0, 8.0, 40.0, 300.0)]
        assert by_order == sorted(by_order)
        assert all(
            cost <= order * (3 * scenario.sensitivity_factor / 2.0) ** 2 / 2 * (1 + 1e-12)
            for cost, order in zip(by_order, (1.01, 1.5, 3.0, 8.0, 40.0, 300.0), strict=True)
        )


def test_noise_too_small_to_integrate_falls_back_to_the_unamplified_price() -> None:
    assert amplified_step_cost(TwoWorldScenario(10), 0.01, 1e-4, 16.0) == pytest.approx(8 * (20 / 1e-4) ** 2)


def wide_log_moment(order: float, sigma: float, rate: float, differing: int, low: float) -> float:
    """`D_a(Z||G)` over [low, d + 15 sigma], by densities alone."""
    x = np.linspace(low, differing + 15 * sigma, 200_001)
    counts = np.arange(differing + 1)[:, None]
    log_mixture = logsumexp(stats.binom.logpmf(counts, differing, rate) + stats.norm.logpdf(x, counts, sigma), axis=0)
    terms = order * stats.norm.logpdf(x, 0, sigma) + (1 - order) * log_mixture
    return float(logsumexp(terms) + math.log(x[1] - x[0])) / (order - 1)


def test_a_short_interval_would_be_exploited() -> None:
    """Z against G is centred left of zero: an interval from -12 sigma on loses mass, and errs downwards."""
    order, sigma, rate, differing = 400.0, 20.0, 0.05, 30
    honest = mixture_divergence(order, sigma, rate, differing, reverse=True)
    assert honest == pytest.approx(wide_log_moment(order, sigma, rate, differing, -3000.0), rel=1e-9)
    assert wide_log_moment(order, sigma, rate, differing, -12 * sigma) < 0.97 * honest


def test_certified_values_lie_above_random_gaussian_sums() -> None:
    """Aligned gradients are the worst: random ones of norm at most 1, in one dimension, by quadrature."""
    rng = np.random.default_rng(0)
    sigma, rate, order = 1.0, 0.3, 4.0
    x = np.linspace(-10, 20, 20_001)
    for _ in range(20):
        means, weights = gaussian_mixture(rng.uniform(-1, 1, size=(3, 1)), rate)
        mixed = (weights[:, None] * stats.norm.pdf(x, means, sigma)).sum(axis=0)
        plain = stats.norm.pdf(x, 0, sigma)
        forward = np.sum(mixed**order * plain ** (1 - order)) * (x[1] - x[0])
        assert math.log(forward) / (order - 1) <= mixture_divergence(order, sigma, rate, 3, False) + 1e-9
