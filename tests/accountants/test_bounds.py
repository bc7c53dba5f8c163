import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from scipy import stats

from lightning_pac.accountants import (
    DEFAULT_ORDERS,
    dp_epsilon_for_success,
    dp_success_bound,
    independent_bits_prior,
    membership_prior,
    membership_success_bound,
    responses_until,
    subset_recovery_prior,
    world_success_bound,
)


def exact_success(information: float, prior: float) -> mpmath.mpf:
    with mpmath.workdps(50):
        base, target = mpmath.mpf(prior), mpmath.mpf(information)
        low, high = base, mpmath.mpf(1)
        for _ in range(150):
            p = (low + high) / 2
            divergence = p * mpmath.log(p / base) + (1 - p) * mpmath.log((1 - p) / (1 - base))
            low, high = (p, high) if divergence <= target else (low, p)
        return low


@pytest.mark.parametrize(
    ("information", "prior", "percent"),
    [
        (2.0**-4, 0.5, 67.491),
        (2.0**-8, 0.5, 54.417),
        (1e6 * 2.0**-32, 0.5, 51.079),
        (210_000 * 2.0**-32, 0.5, 50.494),
        (1 / 128, 0.01, 2.477),
        (4.0, 0.01, 92.582),
    ],
)
def test_published_success_bounds(information: float, prior: float, percent: float) -> None:
    assert 100 * membership_success_bound(information, prior) == pytest.approx(percent, abs=5.1e-4)


@given(st.floats(1e-20, 20), st.floats(1e-6, 1 - 1e-6))
@example(0.04695258643776917, 0.04695258643776917)
@example(567.5369962094733, 3.325173190280046e-247)
@settings(max_examples=60, deadline=None)
def test_success_bound_is_never_below_fifty_digits(information: float, prior: float) -> None:
    bound = membership_success_bound(information, prior)
    if information >= -math.log(prior):
        assert bound == 1.0
        return
    exact = exact_success(information, prior)
    assert bound >= exact
    assert bound - prior == pytest.approx(float(exact - mpmath.mpf(prior)), rel=1e-9, abs=1e-15)


def test_ends_of_the_success_bound() -> None:
    assert membership_success_bound(0.0, 0.3) == 0.3
    # All of 1,020, 1,023 and 1,074 independent bits: their odds are hardly a float, or none.
    for bits in (1020, 1023, 1074):
        exact = exact_success(4.0, 2.0**-bits)
        assert exact <= membership_success_bound(4.0, 2.0**-bits) <= exact * 1.1
    assert membership_success_bound(math.inf) == membership_success_bound(math.log(2)) == 1.0
    excess = membership_success_bound(2.0**-32) - 0.5
    assert excess == pytest.approx(math.sqrt(2.0**-32 / 2), rel=1e-6)


def test_differential_privacy_and_back() -> None:
    success = membership_success_bound(1e6 * 2.0**-32)
    assert dp_epsilon_for_success(success, delta=1e-5) == pytest.approx(0.0431, abs=5e-5)
    for epsilon, delta in itertools.product([0.0, 0.1, 1.0, 8.0], [0.0, 1e-5, 0.1]):
        assert dp_epsilon_for_success(dp_success_bound(epsilon, delta), delta) == pytest.approx(epsilon, abs=1e-9)
    assert dp_epsilon_for_success(1.0) == math.inf
    assert dp_epsilon_for_success(0.2) == 0.0
    # The best test between Laplace(0) and Laplace(1) of scale 1/eps, which is (eps, 0)-DP, stays below.
    assert stats.laplace(scale=1).cdf(0.5) <= dp_success_bound(1.0)


def test_queries_until_equivalent_epsilon() -> None:
    for epsilon in (0.5, 1.0, 2.0):
        queries = responses_until(epsilon, 2.0**-20)
        assert membership_success_bound(queries * 2.0**-20) <= dp_success_bound(epsilon, 1e-5) + 1e-12
        assert membership_success_bound((queries + 1) * 2.0**-20) > dp_success_bound(epsilon, 1e-5)


def test_priors() -> None:
    assert membership_prior(0.3) == 0.7
    assert membership_prior() == 0.5
    for n, k in [(5, 3), (8, 8), (4, 0)]:
        count = sum(sum(bits) >= k for bits in itertools.product([0, 1], repeat=n))
        assert independent_bits_prior(k, n) == pytest.approx(count / 2**n)


def test_subset_prior_by_enumeration() -> None:
    rng = np.random.default_rng(0)
    table, weights = rng.random((5, 7)) < 0.5, rng.dirichlet(np.ones(7))
    for k in range(6):
        best = 0.0
        for guess in itertools.product([False, True], repeat=5):
            agreements = (table == np.array(guess)[:, None]).sum(axis=0)
            best = max(best, weights[agreements >= k].sum())
        assert subset_recovery_prior(table, k, weights) == pytest.approx(best)


def test_a_table_of_subsets_is_guessed_by_its_index() -> None:
    table = np.random.default_rng(0).random((20, 128)) < 0.5
    assert subset_recovery_prior(table, 20) == pytest.approx(1 / 128, abs=1e-5)
    assert independent_bits_prior(20, 20) == pytest.approx(9.54e-7, rel=1e-3)


def brute_force_success(orders: np.ndarray, epsilons: np.ndarray, prior: float, size: int = 400) -> float:
    p, r = np.meshgrid(np.linspace(1e-5, 1 - 1e-5, size), np.linspace(1e-5, 1 - 1e-5, size))
    allowed = np.ones_like(p, dtype=bool)
    for order, epsilon in zip(orders, epsilons, strict=True):
        for first, second in ((p, r), (r, p)):
            if order == 1:
                divergence = first * np.log(first / second) + (1 - first) * np.log((1 - first) / (1 - second))
            else:
                moment = first**order * second ** (1 - order) + (1 - first) ** order * (1 - second) ** (1 - order)
                divergence = np.log(moment) / (order - 1)
            allowed &= divergence <= epsilon
    return float((prior * p + (1 - prior) * (1 - r))[allowed].max())


@pytest.mark.parametrize("prior", [0.5, 0.2, 0.03])
@pytest.mark.parametrize("scale", [0.05, 0.5, 3.0])
def test_world_success_against_a_grid_of_error_rates(prior: float, scale: float) -> None:
    orders = np.array([1.0, 1.5, 4.0])
    epsilons = scale * np.array([0.5, 0.6, 2.0])
    bound = world_success_bound(orders, epsilons, prior)
    found = brute_force_success(orders, epsilons, prior)
    assert found <= bound <= found + 6e-3


def test_world_success_of_gaussians_at_distance_one() -> None:
    orders = np.array([1.0, *DEFAULT_ORDERS])
    bound = world_success_bound(orders, orders / 2)
    assert bound == pytest.approx(0.740, abs=5e-4)
    assert bound > stats.norm.cdf(0.5) == pytest.approx(0.691, abs=5e-4)
    assert world_success_bound(orders, orders / 2, prior=0.5 + 1e-9) == pytest.approx(bound, abs=1e-6)


def test_world_success_at_the_ends() -> None:
    assert world_success_bound([2.0], [0.0]) == pytest.approx(0.5, abs=1e-9)
    assert world_success_bound([2.0], [math.inf]) == 1.0
    assert world_success_bound([1.01, 2.0], [1e-14, 1e-14]) == pytest.approx(0.5, abs=1e-6)
    assert world_success_bound([2.0], [1e5]) == 1.0
    assert world_success_bound([2.0], [0.1], prior=0.9) >= 0.9
    assert world_success_bound([2.0, 8.0], [1.0, 1.0]) < world_success_bound([2.0], [1.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: membership_success_bound(-1.0), "information is not negative"),
        (lambda: membership_success_bound(math.nan), "mutual_information is nan"),
        (lambda: membership_success_bound(1.0, prior=1.0), r"prior is 1\.0, but must lie strictly between 0 and 1"),
        (lambda: dp_success_bound(-1.0), "a privacy loss is not negative"),
        (lambda: dp_success_bound(1.0, delta=2.0), r"delta is 2\.0, but a failure probability lies in"),
        (lambda: dp_epsilon_for_success(1.1), r"success is 1\.1, but a probability lies in"),
        (lambda: responses_until(1.0, 0.0), "a response costs more than nothing"),
        (lambda: membership_prior(-0.1), "a probability lies in"),
        (lambda: independent_bits_prior(3, 2), "must lie between 0 and num_bits, 2"),
        (lambda: subset_recovery_prior(np.ones((21, 2)), 1), "choose at most 20"),
        (lambda: subset_recovery_prior(np.ones(3), 1), "one row per record"),
        (lambda: subset_recovery_prior(np.ones((3, 2)), 4), "must lie between 0 and 3"),
        (lambda: subset_recovery_prior(np.ones((3, 2)), 1, [1.0]), "there are 2 subsets"),
        (lambda: world_success_bound([0.5], [1.0]), "orders must be at least 1"),
        (lambda: world_success_bound([2.0], [-1.0]), "must not be negative"),
        (lambda: world_success_bound([2.0], [1.0], prior=0.0), "strictly between 0 and 1"),
    ],
)
def test_bad_input_is_one_clear_sentence(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("epsilon", [1e-18, 1e-9, 1.0, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-17, 1e-5, 0.5])
def test_a_success_bound_is_not_rounded_down(epsilon: float, delta: float) -> None:
    with mpmath.workdps(50):
        truth = 1 - (1 - mpmath.mpf(delta)) / (1 + mpmath.exp(epsilon))
        assert truth <= dp_success_bound(epsilon, delta) <= truth + mpmath.mpf(2) ** -50


@pytest.mark.parametrize("divergence", [1e-30, 1e-12, 1e-3])
def test_a_bound_on_worlds_is_not_rounded_down(divergence: float) -> None:
    """At order one, where p and 1 - p lie (2 p - 1) ln(p / (1 - p)) apart."""
    with mpmath.workdps(50):
        p = mpmath.mpf(world_success_bound([1.0], [divergence]))
        assert (2 * p - 1) * mpmath.log(p / (1 - p)) >= divergence


@pytest.mark.parametrize(
    ("epsilon", "delta", "budget"),
    [(1e-16, 0.0, 1e-40), (2.7e-30, 0.0, 1e-33), (1e-50, 1e-30, 1e-45), (5.9e-11, 0.0, 2.8e-26), (1.64, 0.0, 1.2e-25)],
)
def test_no_more_responses_than_the_dp_bound_allows(epsilon: float, delta: float, budget: float) -> None:
    with mpmath.workdps(150):
        p = 1 - (1 - mpmath.mpf(delta)) / (1 + mpmath.exp(mpmath.mpf(epsilon)))
        most = (p * mpmath.log(2 * p) + (1 - p) * mpmath.log(2 * (1 - p))) / mpmath.mpf(budget)
        counted = responses_until(epsilon, budget, delta)
        assert most * (1 - mpmath.mpf(2) ** -40) - 1 <= counted <= most
