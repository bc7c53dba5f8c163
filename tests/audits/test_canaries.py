"""One-run bounds and white-box tests against laws that are known."""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from lightning_pac.accountants import GaussianCurve
from lightning_pac.audits import (
    AuditTest,
    alarms,
    claim_p_value,
    count_test,
    deviation_test,
    epsilon_lower_bound,
    gaussian_lower_bound,
    guess_coins,
    law_test,
    pure_p_value,
)


def test_randomised_response_has_the_binomial_tail() -> None:
    # The worst release of pure epsilon: each coin told rightly with probability e^eps / (1 + e^eps).
    for guesses, right, epsilon in [(10, 9, 0.5), (40, 30, 1.0), (7, 0, 2.0)]:
        truth = stats.binom(guesses, 1 / (1 + math.exp(-epsilon))).sf(right - 1)
        assert pure_p_value(guesses, guesses, right, epsilon) == pytest.approx(truth, rel=1e-9)
        assert pure_p_value(2 * guesses, guesses, right, epsilon, 1e-3) >= truth


@pytest.mark.parametrize(("canaries", "guesses", "right"), [(6, 6, 5), (8, 5, 5), (12, 8, 6)])
def test_the_recursion_is_the_linear_program(canaries: int, guesses: int, right: int) -> None:
    mu = 0.8
    masses = np.arange(guesses + 1)
    rows, limits = [], []
    # f-bar is the least of its tangents delta + e^eps x, so that each of its constraints is many linear ones.
    for tangent in np.linspace(1e-6, 1 - 1e-6, 400):
        height, slope = stats.norm.cdf(stats.norm.ppf(tangent) + mu), None
        slope = stats.norm.pdf(stats.norm.ppf(tangent) + mu) / stats.norm.pdf(stats.norm.ppf(tangent))
        for j in range(1, guesses + 1):
            told = np.where(masses >= j, masses / canaries, 0.0)
            wrong = np.where(masses >= j - 1, (guesses - masses) / canaries, 0.0)
            rows.append(told - slope * wrong)
            limits.append(height - slope * tangent)
    found = optimize.linprog(
        -(masses >= right).astype(float), rows, limits, np.ones((1, guesses + 1)), [1.0], bounds=(0, 1)
    )
    p_value = claim_p_value(canaries, guesses, right, GaussianCurve(mu))
    assert -found.fun <= p_value * 1.001  # the tangents are above f-bar, the recursion's grid is above the tangents
    assert p_value <= -found.fun * 1.15 + 0.02
    # The inverse of a Gaussian is exact there: at the limit of confidence the two must agree.
    limit = gaussian_lower_bound(canaries, guesses, right, confidence=1 - (-found.fun))
    assert limit == pytest.approx(mu, abs=0.01)


def largest_share_of_all_releases(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The largest P[W >= v] over all (epsilon, delta) releases of the coins, by a linear program over whole laws."""
    coins = list(itertools.product((-1, 1), repeat=canaries))
    answers = [y for y in itertools.product((-1, 0, 1), repeat=canaries) if np.count_nonzero(y) == guesses]
    laws = np.arange(len(coins) * len(answers)).reshape(len(coins), -1)
    pairs = [(i, j) for i, x in enumerate(coins) for j, z in enumerate(coins) if np.sum(np.not_equal(x, z)) == 1]
    size = laws.size * (1 + canaries)
    above, sums = np.zeros((laws.size * canaries, size)), np.zeros((len(pairs), size))
    for k, (i, j) in enumerate(pairs):
        rows = np.arange(k * len(answers), (k + 1) * len(answers))
        above[rows, laws[i]], above[rows, laws[j]], above[rows, laws.size + rows] = 1, -math.exp(epsilon), -1
        sums[k, laws.size + rows] = 1
    total = np.zeros((len(coins), size))
    total[np.arange(len(coins))[:, None], laws] = 1
    wins = np.zeros(size)
    wins[laws] = np.array([[np.sum(np.equal(x, y)) >= right for y in answers] for x in coins]) / len(coins)
    solved = optimize.linprog(
        -wins, np.vstack([above, sums]), [0.0] * len(above) + [delta] * len(sums), total, np.ones(len(coins))
    )
    return float(-solved.fun)


@pytest.mark.parametrize(
    ("canaries", "guesses", "right"), [(1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 1), (3, 2, 2), (3, 3, 3)]
)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.33545884607, 0.08161441741), (1.5, 0.01), (0.1, 1e-3), (0.0, 0.2)])
def test_no_release_guesses_better_than_the_bound_and_one_is_as_good(
    canaries: int, guesses: int, right: int, epsilon: float, delta: float
) -> None:
    truth = largest_share_of_all_releases(canaries, guesses, right, epsilon, delta)
    assert pure_p_value(canaries, guesses, right, epsilon, delta) == pytest.approx(truth, rel=1e-7)


@pytest.mark.parametrize(("canaries", "guesses", "right"), [(40, 40, 30), (100, 100, 52), (60, 25, 20)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-3), (0.05, 1e-2), (0.9, 1e-5)])
def test_the_envelope_is_the_linear_program_of_many_coins(
    canaries: int, guesses: int, right: int, epsilon: float, delta: float
) -> None:
    """Over the laws of the number of right guesses, with both orders of a canary's coin."""
    w = np.arange(guesses)
    rises = np.zeros((2 * guesses, 3 * guesses + 1))
    mine, other = (w + 1) / canaries, (guesses - w) / canaries
    rises[w, w + 1], rises[w, w] = mine, -math.exp(epsilon) * other
    rises[guesses + w, w], rises[guesses + w, w + 1] = other, -math.exp(epsilon) * mine
    rises[np.arange(2 * guesses), guesses + 1 + np.arange(2 * guesses)] = -1
    spent = np.concatenate([np.zeros(guesses + 1), np.ones(2 * guesses)])
    wins = np.concatenate([np.arange(guesses + 1) >= right, np.zeros(2 * guesses)])
    solved = optimize.linprog(
        -wins, np.vstack([rises, spent]), [0.0] * (2 * guesses) + [delta], [1 - spent], [1.0], method="highs"
    )
    assert pure_p_value(canaries, guesses, right, epsilon, delta) == pytest.approx(-solved.fun, rel=1e-4, abs=1e-6)


def test_limits_are_below_a_gaussian_of_known_epsilon() -> None:
    rng, mu, delta, misses = np.random.default_rng(5), 1.0, 1e-5, 0
    truth = GaussianCurve(mu).epsilon(delta)
    assert truth == pytest.approx(4.377, abs=1e-3)
    found = []
    limits = functools.cache(
        lambda right: (gaussian_lower_bound(200, 40, right), epsilon_lower_bound(200, 40, right, delta))
    )
    for _ in range(200):
        coins = rng.integers(0, 2, 200).astype(bool)
        scores = rng.normal(size=200) + mu * coins
        order = np.argsort(scores)
        right = int((~coins[order[:20]]).sum() + coins[order[-20:]].sum())
        found.append(limits(right)[0])
        misses += found[-1] > mu or limits(right)[1] > truth
    # At 95 % each of the two limits may be above the truth in 5 % of the games: both are far from it.
    assert misses <= stats.binom.ppf(0.999, 200, 0.1)
    assert np.mean(found) > 0.15, "and they are no empty words"


def test_a_release_that_tells_too_much_is_refuted() -> None:
    rng = np.random.default_rng(2)
    coins = rng.integers(0, 2, 300).astype(bool)
    loud = guess_coins("white-box", rng.normal(size=300) + 5 * coins, coins, GaussianCurve(0.5), 100)
    silent = guess_coins("black-box", rng.normal(size=300), coins, GaussianCurve(0.5), 100)
    assert loud.p_value < 1e-5
    assert loud.epsilon > GaussianCurve(0.5).epsilon(1e-5)
    assert silent.p_value > 0.05
    assert loud.to_estimate().value == loud.epsilon
    with pytest.raises(ValueError, match="num_guesses is 400"):
        guess_coins("white-box", np.zeros(300), coins, GaussianCurve(0.5), 400)
    with pytest.raises(ValueError, match="num_right is 5 of 4"):
        pure_p_value(10, 4, 5, 1.0)


def test_a_card_states_the_limit_that_holds_for_any_release_beside_that_of_a_gaussian() -> None:
    """Randomised response at epsilon 1/2 gets 0.52 to 0.63 by the latter, in each of five draws, and 0.44 at most."""
    rng = np.random.default_rng(0)
    coins = rng.integers(0, 2, 10_000).astype(bool)
    told = coins == (rng.random(10_000) < 1 / (1 + math.exp(-0.5)))
    game = guess_coins("white-box", told + 1e-9 * rng.normal(size=10_000), coins, GaussianCurve(0.5), 2000)
    assert game.epsilon_of_counts < 0.5 < game.epsilon
    assert f"at least {game.epsilon_of_counts:.3g} whatever it is" in game.to_estimate().meaning


def test_white_box_tests_have_their_rate_of_false_alarms_and_see_what_is_wrong() -> None:
    rng, rate = np.random.default_rng(0), 0.05
    wrong = 0
    for _ in range(150):
        noise = rng.normal(size=500)
        tests = [
            deviation_test("noise", float(noise @ noise), 500, 1.0),
            law_test("law", noise),
            count_test("draws", int(rng.binomial(1000, 0.1)), 1000, 0.1),
        ]
        wrong += bool(alarms(tests, rate))
    assert wrong <= stats.binom.ppf(0.9999, 150, rate)
    for factor, shape in itertools.product((0.5, 1.2), ("normal", "laplace")):
        noise = factor * getattr(rng, shape)(size=3000)
        seen = [deviation_test("noise", float(noise @ noise), 3000, 1.0), law_test("law", noise)]
        assert alarms(seen, 1e-6)
    assert alarms([count_test("draws", 150, 1000, 0.1), AuditTest("other", 1.0, "")], 1e-3)
