import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from lightning_pac.information import binary_kl, entropy, kl_divergence, log_mean_exp, renyi_divergence

PROBABILITY = st.floats(1e-9, 1 - 1e-9)


def exact_binary_kl(p: float, q: float) -> float:
    with mpmath.workdps(60):
        first, second = mpmath.mpf(p), mpmath.mpf(q)
        return float(first * mpmath.log(first / second) + (1 - first) * mpmath.log((1 - first) / (1 - second)))


@given(PROBABILITY, PROBABILITY)
def test_binary_kl_against_sixty_digits(p: float, q: float) -> None:
    assert binary_kl(p, q) == pytest.approx(exact_binary_kl(p, q), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("excess", [1e-3, 1e-6, 1e-9, 1e-12])
def test_nearly_equal_laws_lose_no_digits(excess: float) -> None:
    assert binary_kl(0.5 + excess, 0.5) == pytest.approx(exact_binary_kl(0.5 + excess, 0.5), rel=1e-9)


def test_ends_of_the_interval() -> None:
    assert binary_kl(0.0, 0.3) == pytest.approx(-math.log(0.7))
    assert binary_kl(1.0, 0.3) == pytest.approx(-math.log(0.3))
    assert binary_kl(0.3, 0.0) == binary_kl(0.3, 1.0) == math.inf
    assert binary_kl(0.0, 0.0) == binary_kl(1.0, 1.0) == 0.0
    assert binary_kl([0.1, 0.2], 0.5).shape == (2,)


@pytest.mark.parametrize("rare", [1e-300, 1e-310, 5e-324])
def test_a_quotient_beyond_floats_has_a_divergence(rare: float) -> None:
    # Of a half against what is so rare: half of ln 0.5 / rare, and of ln 0.5 / 1.
    expected = math.log(0.5) - math.log(rare) / 2
    assert binary_kl(0.5, rare) == pytest.approx(expected, rel=1e-12)
    assert binary_kl(0.5, 1 - rare) == math.inf
    assert kl_divergence([0.5, 0.5], [rare, 1.0]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rare", [1e-16, 1e-17, 1e-20, 1e-300, 5e-324])
def test_a_rare_value_in_the_first_law_costs_nothing(rare: float) -> None:
    """(p - q)/q is -1 but for a rounding, whose logarithm was minus infinity."""
    p, q = [rare, 0.3, 0.7 - rare], [0.2, 0.3, 0.5]
    with mpmath.workdps(400):
        exact = float(sum(mpmath.mpf(a) * mpmath.log(mpmath.mpf(a) / mpmath.mpf(b)) for a, b in zip(p, q, strict=True)))
    assert kl_divergence(p, q) == pytest.approx(exact, rel=1e-12)
    assert renyi_divergence(p, q, 1.0) == pytest.approx(exact, rel=1e-12)
    assert renyi_divergence(p, q, 1 + 1e-12) == pytest.approx(exact, rel=1e-9)
    assert binary_kl(rare, 0.5) == pytest.approx(math.log(2), rel=1e-14)
    assert binary_kl(1 - 2.0**-53, 1e-3) == pytest.approx(-math.log(1e-3), rel=1e-12)


def test_divergences_near_and_far_from_order_one_keep_their_digits() -> None:
    rng = np.random.default_rng(0)
    for order in (1e-9, 0.5, 1 - 1e-9, 1 + 1e-12, 1 + 1e-9, 7.3, 1e4, 1e12):
        for reach in (1, 20, 300):
            p, q = (law / law.sum() for law in 10.0 ** -rng.uniform(0, reach, (2, 4)))
            with mpmath.workdps(60):
                a, total = mpmath.mpf(order), sum(map(mpmath.mpf, p.tolist()))
                terms = [(mpmath.mpf(x) / total) ** a * mpmath.mpf(y) ** (1 - a) for x, y in zip(p, q, strict=True)]
                exact = float(mpmath.log(mpmath.fsum(terms)) / (a - 1))
            assert renyi_divergence(p, q, order) == pytest.approx(exact, rel=1e-9, abs=1e-14)


def test_discrete_laws_against_scipy() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(5), size=(3, 4)), rng.dirichlet(np.ones(5), size=4)
    assert np.allclose(entropy(p), stats.entropy(p, axis=-1))
    assert np.allclose(kl_divergence(p, q), stats.entropy(p, np.broadcast_to(q, p.shape), axis=-1))
    for order in (0.3, 0.999999, 1.000001, 2.0, 40.0):
        direct = np.log((p**order * q ** (1 - order)).sum(axis=-1)) / (order - 1)
        assert np.allclose(renyi_divergence(p, q, order), direct, rtol=1e-4, atol=1e-9)
    assert np.allclose(renyi_divergence(p, q, 1 + 1e-6), kl_divergence(p, q), rtol=1e-4)
    assert np.allclose(renyi_divergence(p, q, math.inf), np.log((p / q).max(axis=-1)))
    assert np.allclose(renyi_divergence(p, q, 1), kl_divergence(p, q))


def test_disjoint_supports() -> None:
    assert kl_divergence([1.0, 0.0], [0.0, 1.0]) == math.inf
    assert kl_divergence([0.0, 1.0], [0.5, 0.5]) == pytest.approx(math.log(2))
    assert renyi_divergence([0.5, 0.5], [0.0, 1.0], 2.0) == math.inf
    assert renyi_divergence([0.0, 1.0], [0.5, 0.5], 2.0) == pytest.approx(math.log(2))
    assert renyi_divergence([0.5, 0.5], [0.0, 1.0], 0.5) == pytest.approx(math.log(2))
    assert entropy([1.0, 0.0]) == 0.0


def test_renyi_survives_orders_that_overflow_powers() -> None:
    assert renyi_divergence([1e-300, 1 - 1e-300], [1e-10, 1 - 1e-10], 500.0) == pytest.approx(1e-10, rel=1e-2)


def test_bad_input_is_one_clear_sentence() -> None:
    with pytest.raises(ValueError, match=r"p is 1\.5, but a probability lies in \[0, 1\]\.$"):
        binary_kl(1.5, 0.5)
    with pytest.raises(ValueError, match="probabilities sum to 1: divide by their sum first"):
        entropy([0.5, 0.6])
    with pytest.raises(ValueError, match="a Rényi order is positive"):
        renyi_divergence([1.0], [1.0], 0.0)


@pytest.mark.parametrize("size", [1e-300, 1e-12, 1e-3, 0.9, 1.1, 800.0])
def test_a_mean_of_exponentials_keeps_its_digits(size: float) -> None:
    exponents, weights = [size, -size / 3, size / 2], [0.2, 0.3, 0.5 - 9e-10]  # the sum of weights is rounded
    with mpmath.workdps(340):
        total = sum(map(mpmath.mpf, weights))
        mean = sum(mpmath.mpf(w) * mpmath.exp(mpmath.mpf(x)) for w, x in zip(weights, exponents, strict=True)) / total
        exact = float(mpmath.log(mean))
    assert log_mean_exp(exponents, weights) == pytest.approx(exact, rel=1e-12)


def test_a_mean_of_exponentials_far_below_one_is_no_zero() -> None:
    assert log_mean_exp([-50.0, -60.0], [0.5, 0.5]) == pytest.approx(-50 + math.log((1 + math.exp(-10)) / 2), rel=1e-14)
    # What is rare is worth e^500 times as much: the logarithm is of numbers near 1.
    assert log_mean_exp([1e-14, 500.0], [1.0, 1e-240]) == pytest.approx(1e-14 + 1e-240 * math.exp(500), rel=0.1)
