"""Maximal-leakage channels against enumeration and a linear program; PAC noise against quadrature and stationarity."""

import itertools
import math
import time

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import linprog, minimize
from scipy.stats import truncnorm

from lightning_pac.mechanisms.one_sided import (
    PositiveNoise,
    TruncatedGaussian,
    TruncatedLaplace,
    discrete_truncated_gaussian,
    maximal_leakage,
    optimal_pac_noise,
    two_sided_information,
)
from lightning_pac.randomness import release_grid


def _instance(rng):
    inputs, columns = int(rng.integers(1, 8)), int(rng.integers(1, 7))
    states = rng.integers(0, columns, inputs)
    cost = np.cumsum(rng.random((inputs, columns)) * (rng.random((inputs, columns)) < 0.8), axis=1)
    return states, rng.dirichlet(np.ones(inputs)), cost


def _best_subset(states, prior, cost, count):
    """The cheapest deterministic channel that shows at most `count` states, and whether it shows the first one."""
    best = (math.inf, ())
    columns = range(cost.shape[1])
    for size in range(1, count + 1):
        for shown in itertools.combinations(columns, min(size, cost.shape[1])):
            if shown[-1] < states.max():
                continue
            total = sum(prior[i] * cost[i, min(k for k in shown if k >= s)] for i, s in enumerate(states))
            best = min(best, (total, shown))
    return best


def _least_cost(states, prior, cost, budget):
    """The same over all randomized channels, by linear programming."""
    inputs, columns = cost.shape
    size = inputs * columns
    above, limits = [], []
    for i, j in itertools.product(range(inputs), range(columns)):
        row = np.zeros(size + columns)
        row[i * columns + j], row[size + j] = 1.0, -1.0
        above.append(row)
        limits.append(0.0)
    above.append(np.concatenate([np.zeros(size), np.ones(columns)]))
    limits.append(budget)
    rows = np.zeros((inputs, size + columns))
    for i in range(inputs):
        rows[i, i * columns : (i + 1) * columns] = 1.0
    bounds = [(0, 0 if j < states[i] else 1) for i in range(inputs) for j in range(columns)] + [(0, 1)] * columns
    objective = np.concatenate([(prior[:, None] * cost).ravel(), np.zeros(columns)])
    return linprog(objective, np.array(above), limits, rows, np.ones(inputs), bounds).fun


def test_whole_budgets_equal_enumeration_on_500_instances():
    rng = np.random.default_rng(0)
    first_is_best = 0
    for _ in range(500):
        states, prior, cost = _instance(rng)
        count = int(rng.integers(1, 5))
        channel = PositiveNoise.for_maximal_leakage(states, prior, cost, math.log(count))
        best, shown = _best_subset(states, prior, cost, count)
        first_is_best += count > 1 and states.min() in shown
        assert channel.expected_cost == pytest.approx(best, abs=1e-12)
        assert channel.leakage <= math.log(count) + 1e-12
    assert first_is_best > 50


def test_fractional_budgets_equal_the_linear_program():
    rng = np.random.default_rng(1)
    for _ in range(60):
        states, prior, cost = _instance(rng)
        budget = float(rng.uniform(1.0, 5.0))
        channel = PositiveNoise.for_maximal_leakage(states, prior, cost, math.log(budget))
        assert channel.expected_cost == pytest.approx(_least_cost(states, prior, cost, budget), abs=1e-7)
        assert channel.leakage <= math.log(budget) + 1e-9
        assert (channel.transition[np.arange(cost.shape[1])[None, :] < states[:, None]] == 0).all()
        assert channel.transition.sum(axis=1) == pytest.approx(np.ones(len(states)))


def test_the_papers_example_and_400_states():
    cost = np.tile(np.arange(1.0, 8.0), (7, 1))
    channel = PositiveNoise.for_maximal_leakage(np.arange(7), np.full(7, 1 / 7), cost, math.log(3.5))
    assert channel.leakage == pytest.approx(math.log(3.5))
    start = time.process_time()
    states = np.arange(400)
    big = PositiveNoise.for_maximal_leakage(
        states, np.full(400, 1 / 400), np.tile(np.arange(400.0), (400, 1)), math.log(60.5)
    )
    assert time.process_time() - start < 5.0
    assert big.leakage == pytest.approx(math.log(60.5))


def test_free_budget_leaves_every_state_alone():
    channel = PositiveNoise.for_maximal_leakage([0, 2, 2], [0.2, 0.3, 0.5], np.tile(np.arange(4.0), (3, 1)), 5.0)
    assert np.flatnonzero(channel.transition[1]).tolist() == [2]
    assert channel.leakage == pytest.approx(math.log(2))


def test_a_channel_draws_from_its_rows_and_pads_upwards():
    channel = PositiveNoise.for_maximal_leakage(
        [0, 1, 2], [0.5, 0.3, 0.2], np.tile(np.arange(3.0), (3, 1)), math.log(1.5)
    )
    draws = np.array([channel.sample(0) for _ in range(20_000)])
    observed, expected = np.bincount(draws, minlength=3), 20_000 * channel.transition[0]
    # Six standard deviations of a binomial: 2e-9 for each of three states.
    assert (np.abs(observed - expected) <= 6 * np.sqrt(expected + 1)).all()
    assert channel.pad(2) == 2
    assert channel.log_prob(0, 2) == pytest.approx(math.log(channel.transition[0, 2]))
    with pytest.raises(ValueError, match="value is above the highest designed state, 2"):
        channel.pad(3)


_STATES, _PRIOR, _COST = [0, 1], [0.5, 0.5], [[0.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((_STATES, [0.5, 0.6], _COST, 0.1), "prior must be 2 non-negative numbers with sum 1"),
        ((_STATES, [1.5, -0.5], _COST, 0.1), "prior must be 2 non-negative numbers"),
        ((_STATES, _PRIOR, [[1.0, 0.5], [0.0, 1.0]], 0.1), "Cost decreases or is not finite in row 0"),
        (([-1, 1], _PRIOR, _COST, 0.1), "states must be one row of integers from 0"),
        (([0, 2], _PRIOR, _COST, 0.1), "a column for each state up to 2"),
        ((_STATES, _PRIOR, _COST, -0.1), "leakage must be a finite number of nats, at least 0"),
    ],
)
def test_bad_channels_are_one_clear_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        PositiveNoise.for_maximal_leakage(*arguments)


def test_maximal_leakage_is_the_gain_of_the_best_guess():
    rng = np.random.default_rng(2)
    transition = rng.dirichlet(np.ones(4), size=5)
    gains = []
    for _ in range(200):
        prior = rng.dirichlet(np.ones(5) * 0.3)
        gains.append((prior[:, None] * transition).max(axis=0).sum() / prior.max())
    uniform = transition.max(axis=0).sum()
    assert max(gains) <= math.exp(maximal_leakage(transition)) + 1e-12
    assert uniform == pytest.approx(math.exp(maximal_leakage(transition)))


def test_guesses_of_a_secret_are_bounded_over_releases() -> None:
    rng = np.random.default_rng(5)
    for size, leakage in itertools.product((4, 6), (0.3, math.log(2), 1.2)):
        states, prior = np.arange(size), np.full(size, 1 / size)
        channel = PositiveNoise.for_maximal_leakage(states, prior, np.tile(states, (size, 1)), leakage)
        # The input is the secret, and uniform: the bound is what the best guess reaches.
        assert channel.guess_bound(1 / size) == pytest.approx(channel.transition.max(axis=0).sum() / size)
        # Two releases of two functions of a secret of 8 values, the second chosen by what the first showed.
        functions = rng.integers(0, size, (size + 1, 8))
        first = channel.transition[functions[0]]
        both = [(first[:, [shown]] * channel.transition[functions[1 + shown]]).max(axis=0).sum() for shown in states]
        assert channel.guess_bound(1 / 8) >= first.max(axis=0).sum() / 8
        assert channel.guess_bound(1 / 8, releases=2) >= sum(both) / 8
        assert channel.guess_bound(1 / 8, releases=0) == pytest.approx(1 / 8)
        assert channel.guess_bound(1 / 8, releases=100) == 1.0
    with pytest.raises(ValueError, match="prior must be the probability of the likeliest secret"):
        channel.guess_bound(0.0)
    with pytest.raises(ValueError, match="releases must not be negative"):
        channel.guess_bound(0.5, releases=-1)


@pytest.mark.parametrize(
    ("location", "scale", "end"),
    [(2.0, 1.0, 4.0), (0.0, 0.01, 5.0), (-3.0, 0.2, 1.0), (7.0, 0.5, 1.0), (0.5, 1e6, 3.0), (1.0, 30.0, 2.0)],
)
def test_truncated_gaussian_against_quadrature_and_scipy(location, scale, end):
    noise = TruncatedGaussian(location, scale, end)
    peer = truncnorm(-location / scale, (end - location) / scale, location, scale)
    peak = min(max(location, 0.0), end)
    span = min(12 * scale, end)
    low, high = max(0.0, peak - span), min(end, peak + span)

    def density(x):
        return math.exp(float(noise.log_prob(x)))

    assert quad(density, low, high, epsabs=1e-13)[0] == pytest.approx(1.0, rel=1e-7)
    first = quad(lambda x: x * density(x), low, high, epsabs=1e-13)[0]
    second = quad(lambda x: x * x * density(x), low, high, epsabs=1e-14)[0]
    assert noise.mean == pytest.approx(first, rel=1e-6)
    assert noise.second_moment == pytest.approx(second, rel=1e-6)
    assert noise.variance > 0
    if scale < 1e3 and abs(location - peak) < 10 * scale:
        assert noise.mean == pytest.approx(peer.mean(), rel=1e-6)
        assert noise.entropy == pytest.approx(peer.entropy(), abs=1e-5)
    draws = noise.sample(20_000)
    assert 0.0 <= draws.min() <= draws.max() <= end
    # Six standard errors: 2e-9.
    assert abs(draws.mean() - first) < 6 * math.sqrt(noise.variance / draws.size)


@pytest.mark.parametrize(("end", "budget"), [(10.0, 25.0), (10.0, 1.0), (5.0, 25.0), (20.0, 50.0), (10.0, 0.01)])
def test_pac_noise_is_stationary_and_beats_other_shapes(end, budget):
    noise = PositiveNoise.for_pac(20.6, end, budget)
    assert noise.second_moment <= budget * (1 + 1e-9)
    assert 0.0 <= noise.location <= end / 2
    # The Lagrangian's derivative in the density, independent of Alg. 3's search.
    assert noise.location == pytest.approx(noise.scale**2 * noise.mean / (20.6 + noise.variance), rel=1e-3, abs=1e-9)

    # A free density on a grid, minimized numerically from the uniform one, does no better.
    cells = 60
    middle = (np.arange(cells) + 0.5) * end / cells

    def information(logits):
        p = np.exp(logits - np.logaddexp.reduce(logits))
        variance = p @ middle**2 - (p @ middle) ** 2
        entropy = -p @ np.log(p * cells / end)
        penalty = 1e3 * max(0.0, p @ middle**2 / budget - 1.0) ** 2
        return 0.5 * math.log(2 * math.pi * math.e * (20.6 + variance)) - entropy + penalty

    if budget > 0.1:
        found = minimize(information, -middle / end, method="L-BFGS-B", options={"maxiter": 300})
        assert noise.mutual_information <= found.fun + 2e-3
    assert noise.mutual_information > two_sided_information(20.6, budget)


def test_the_pac_bound_holds_for_a_two_point_output():
    noise = PositiveNoise.for_pac(1.0, 6.0, 9.0)

    def density(x, shift):
        return np.exp(noise.log_prob(x - shift))

    # Outputs 0 and 2 with equal chance have variance 1.
    x = np.linspace(0.0, 8.0, 200_001)
    first, second = density(x, 0.0), density(x, 2.0)
    mixture = 0.5 * (first + second)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = sum(np.where(d > 0, 0.5 * d * np.log(d / mixture), 0.0) for d in (first, second))
    assert float(np.trapezoid(terms, x)) <= noise.mutual_information


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, 10.0, 25.0), "output_variance must be finite and not negative"),
        ((20.6, -10.0, 25.0), r"max_value must be positive and finite, got -10.0: one-sided noise lies in \[0, R\]"),
        ((20.6, 10.0, 0.0), "second_moment must be positive"),
    ],
)
def test_bad_pac_noise_is_one_clear_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        PositiveNoise.for_pac(*arguments)


def test_truncated_laplace_against_quadrature():
    noise = TruncatedLaplace.for_dp(1.0, 1e-4)
    assert noise.second_moment == pytest.approx(92.6, abs=0.05)
    for power, value in ((0, 1.0), (1, noise.mean), (2, noise.second_moment)):
        total = quad(
            lambda x, k=power: x**k * math.exp(float(noise.log_prob(x))), 0, noise.max_value, points=[noise.mean]
        )
        assert value == pytest.approx(total[0], rel=1e-8)
    draws = noise.sample(20_000)
    assert 0.0 <= draws.min() <= draws.max() <= noise.max_value
    assert abs(draws.mean() - noise.mean) < 6 * math.sqrt(noise.variance / draws.size)
    # Lemma 1 by brute force: the hockey stick of a move by one is at most delta.
    x = np.linspace(-0.5, noise.max_value + 1.5, 400_001)
    here, there = np.exp(noise.log_prob(x)), np.exp(noise.log_prob(x - 1.0))
    assert float(np.trapezoid(np.maximum(here - math.e * there, 0), x)) <= 1.0001e-4
    assert discrete_truncated_gaussian(5.0, 2.0, 10).mean == pytest.approx(5.0)
    with pytest.raises(ValueError, match="one-sided noise lies in"):
        TruncatedLaplace(1.0, -3.0)


@pytest.mark.parametrize(
    "noise", [TruncatedLaplace.for_dp(1.0, 1e-9), optimal_pac_noise(0.25, 30, 150), TruncatedGaussian(0.0, 1e9, 3)]
)
def test_padded_values_do_not_show_by_their_low_bits_what_was_padded(noise):
    # A float that 1/3 plus a draw can be is often none that 0 plus a draw can be: without the grid, 1/3 was told from 0
    # in 3 % of draws of the Laplace noise and 80 % of the Gaussian.
    step = release_grid(min(noise.scale, noise.max_value))
    for value in (0.0, 1 / 3, -2 / 7, 1e5 + 0.1):
        padded = np.array([noise.pad(value) for _ in range(200)])
        assert (padded / step == np.rint(padded / step)).all()
        assert value <= padded.min()
        assert padded.max() <= value + noise.max_value + step
    bare = np.array([1 / 3 + float(noise.sample()) for _ in range(200)])
    assert (bare / step != np.rint(bare / step)).any()
