"""Prices of one step against thirty digits, from above."""

import math

import mpmath
import numpy as np
import pytest
import sampled_worlds
from scipy import stats
from scipy.special import logsumexp

from lightning_pac.accountants.privacy_loss import opposite_mixtures_divergence


def exact_divergence(order: float, sigma: float, rate: float, pair: tuple[int, int]) -> float:
    """Thirty-digit sum of the definition at steps of a fifth of a deviation, which is exact to 1e-100.

    One is subtracted from the ratio first: prices of 1e-12 keep their digits.
    """
    with mpmath.workdps(max(30, mpmath.mp.dps)):
        q, s, a = mpmath.mpf(rate), mpmath.mpf(sigma), mpmath.mpf(order)
        weights = [[mpmath.binomial(d, k) * q**k * (1 - q) ** (d - k) for k in range(d + 1)] for d in pair]

        def ratio(side: int, x: mpmath.mpf) -> mpmath.mpf:
            terms = enumerate(weights[side])
            return sum(w * mpmath.exp((k * x - mpmath.mpf(k) ** 2 / 2) / s**2) for k, w in terms)

        low, high = -14 * sigma - pair[1], 14 * sigma + order * pair[0] + (order - 1) * pair[1] * rate
        moment, step = mpmath.mpf(0), s / 5
        for i in range(math.ceil((high - low) / float(step))):
            x = low + i * step
            moment += step * mpmath.npdf(x, 0, s) * (ratio(0, x) ** a * ratio(1, -x) ** (1 - a) - 1)
        return float(mpmath.log1p(moment) / (a - 1))


RATE = 512 / 50_000


@pytest.mark.parametrize(
    ("order", "sigma", "rate", "pair"),
    [
        (2.0, 1.0, 0.1, (1, 0)),
        (2.0, 1.0, 0.1, (0, 1)),
        (1.01, 2.0, 0.05, (3, 0)),
        (3.7, 0.6, 0.01, (2, 0)),
        (16.0, 6.56, RATE, (0, 10)),
        (2.5, 20.0, 1e-5, (0, 4)),
        (4.0, 1.5, 0.01, (5, 5)),
        (16.0, 13.0, 0.01, (10, 10)),
        (3.0, 0.8, 0.3, (1, 3)),
        (2.0, 50.0, 4.4e-6, (10, 10)),
        (1.05, 20.0, 4.3e-6, (10, 10)),
        (4.0, 30.0, 1e-7, (3, 3)),
    ],
)
def test_quadrature_against_thirty_digits_and_from_above(
    order: float, sigma: float, rate: float, pair: tuple[int, int]
) -> None:
    exact = exact_divergence(order, sigma, rate, pair)
    value = opposite_mixtures_divergence(order, sigma, rate, *pair)
    assert exact * (1 - 1e-12) <= value <= exact * (1 + 1e-7)


@pytest.mark.parametrize(("sigma", "rate"), [(0.7, 0.5), (10.0, 1e-4), (1.0, 0.01)])
def test_orders_that_are_nearly_one_are_priced_from_above(sigma: float, rate: float) -> None:
    """The order less one is then small beside the rounding of the powers."""
    with mpmath.workdps(40):
        exact = exact_divergence(1 + 1e-10, sigma, rate, (1, 0))
    assert exact <= opposite_mixtures_divergence(1 + 1e-10, sigma, rate, 1, 0) <= exact * 1.002


def test_every_record_every_step_is_a_plain_gaussian() -> None:
    for order, pair in [(1.5, (1, 0)), (16.0, (0, 4)), (4.0, (2, 2))]:
        value = opposite_mixtures_divergence(order, 2.0, 1.0, *pair)
        assert value == pytest.approx(order * sum(pair) ** 2 / 8, rel=1e-9)


def wide_divergence(order: float, sigma: float, rate: float, pair: tuple[int, int], high: float) -> float:
    """The divergence over [-d2 - 15 sigma, high], by densities alone."""
    x = np.linspace(-pair[1] - 15 * sigma, high, 20_001)
    first = sampled_worlds.log_density(x, pair[0], rate, sigma, 1)
    second = sampled_worlds.log_density(x, pair[1], rate, sigma, -1)
    return float(logsumexp(order * first + (1 - order) * second) + math.log(x[1] - x[0])) / (order - 1)


def test_a_short_interval_would_err_downwards() -> None:
    """Z against G' is centred right of zero: an interval up to 12 sigma loses mass."""
    order, sigma, rate, pair = 400.0, 20.0, 0.05, (0, 30)
    honest = opposite_mixtures_divergence(order, sigma, rate, *pair)
    assert honest == pytest.approx(wide_divergence(order, sigma, rate, pair, 3000.0), rel=1e-9)
    assert wide_divergence(order, sigma, rate, pair, 12 * sigma) < 0.97 * honest


@pytest.mark.parametrize("other", [0, 3])
def test_prices_lie_above_random_sums_on_the_line(other: int) -> None:
    """Aligned, opposed gradients are the worst: random ones of norm at most 1, in one dimension, by quadrature."""
    rng = np.random.default_rng(0)
    sigma, rate, order = 1.0, 0.3, 4.0
    x = np.linspace(-20, 20, 4_001)
    price = opposite_mixtures_divergence(order, sigma, rate, 3, other)
    for _ in range(20):
        densities = []
        for number in (3, other):
            vectors = rng.uniform(-1, 1, size=(number, 1)) if number else np.zeros((1, 1))
            means, weights = sampled_worlds.subset_sums(vectors, rate)
            densities.append((weights[:, None] * stats.norm.pdf(x, means.reshape(-1, 1), sigma)).sum(axis=0))
        moment = np.sum(densities[0] ** order * densities[1] ** (1 - order)) * (x[1] - x[0])
        assert math.log(moment) / (order - 1) <= price + 1e-9
