import math

import numpy as np
import pytest
from scipy import stats

from lightning_pac.accountants import GaussianCurve, membership_success_bound, subset_recovery_prior
from lightning_pac.audits import (
    decoder_leakage,
    empirical_likelihood_attack,
    guess_coins,
    membership_attack,
    membership_posterior,
    recovery_attack,
    simulate_beliefs,
)
from lightning_pac.mechanisms import AdaptiveComposition, belief as belief_module
from lightning_pac.scenarios import BalancedSubsets, SubsetTable

POOL = BalancedSubsets(num_records=40, num_subsets=32, seed=1)


def play(num_games, num_queries, budget, rng):
    """Games against an adversary who singles out what its own posterior makes the best suspects.

    The adversary does not ask the engine for its belief: it applies Bayes' rule to the released vector and covariance
    itself. Returns its posteriors, the secrets and, for each query, the mass of the suspect and the noise's variance.
    """
    m = POOL.num_secrets
    steps: list[tuple[float, float]] = []
    posteriors, secrets = [], rng.integers(0, m, num_games)
    for secret in secrets:
        composition = AdaptiveComposition(POOL.prior, int(secret))
        log_posterior = np.full(m, -math.log(m))
        for _ in range(num_queries):
            # A fixed noise is made for one suspect in m and protects worst whoever has become one in two.
            suspects = np.zeros(m, dtype=int)
            suspects[np.argmax(log_posterior)] = 1
            release = composition.release(suspects, budget)
            direction = np.array([1.0, -1.0]) / math.sqrt(2)
            variance = direction @ release.covariance @ direction
            steps.append((math.exp(log_posterior[np.argmax(suspects)]), variance))
            deviation = (release.value - np.eye(2)) @ direction
            log_posterior += (-(deviation**2) / (2 * variance))[suspects]
            log_posterior -= np.log(np.exp(log_posterior - log_posterior.max()).sum()) + log_posterior.max()
        posteriors.append(np.exp(log_posterior))
    return np.array(posteriors), secrets, np.array(steps).reshape(num_games, num_queries, 2)


def step_information(steps):
    """Information of each release given what came before, by quadrature over the two-point mixture."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / weights.sum()
    mass, gap = steps[..., 0, None], np.sqrt(2 / steps[..., 1, None])
    # Log-likelihood ratio of the true point to the other one.
    ratio = gap * nodes + gap**2 / 2
    return -sum(
        (prior * np.log(np.maximum(prior + (1 - prior) * np.exp(-ratio), 1e-300)) * weights).sum(axis=-1)
        for prior in (mass, 1 - mass)
    )


def measured_information(posteriors):
    """Mean entropy drop in nats and its standard error."""
    drops = math.log(posteriors.shape[1]) + np.where(posteriors > 0, posteriors * np.log(posteriors + 1e-300), 0).sum(1)
    return drops.mean(), drops.std() / math.sqrt(len(drops))


def best_bet(posteriors, secrets):
    """Successes of an adversary who names, in each game, the record and membership it is surest of."""
    table = POOL.membership_table()
    members = membership_posterior(posteriors, table)
    record = np.abs(members - 0.5).argmax(axis=1)
    guess = members[np.arange(len(record)), record] > 0.5
    return int((guess == table[record, secrets]).sum())


def check(posteriors, secrets, spent):
    mean, error = measured_information(posteriors)
    # A deviation of 5.5 standard errors has probability 2e-8; the binomial test 1e-8.
    assert mean <= spent + 5.5 * error
    bound = membership_success_bound(spent)
    assert stats.binom.sf(best_bet(posteriors, secrets) - 1, len(secrets), bound) > 1e-8
    return mean, error, bound


def test_an_adaptive_adversary_stays_within_the_sum_of_the_budgets():
    posteriors, secrets, steps = play(100, 60, 2.0**-7, np.random.default_rng(0))
    check(posteriors, secrets, 60 * 2.0**-7)
    # Not on average only: no single query tells more than its budget, given everything before it.
    assert step_information(steps).max() <= 2.0**-7 * (1 + 1e-9)


@pytest.mark.slow
def test_a_belief_that_is_not_updated_leaks_twice_the_budget(monkeypatch):
    monkeypatch.setattr(belief_module.Belief, "multiply_classes", lambda *_: None)
    _, _, steps = play(100, 60, 2.0**-7, np.random.default_rng(0))
    leaked = step_information(steps)
    assert leaked.max() > 2 * 2.0**-7
    totals = leaked.sum(axis=1)
    # Measured over 1,000 games: 2.1 times the budget, with a standard deviation of 1.1 budgets for one game.
    assert totals.mean() > 1.5 * 60 * 2.0**-7


@pytest.mark.slow
def test_a_thousand_games_with_the_update_on_and_off(monkeypatch):
    budget, queries = 2.0**-7, 60
    posteriors, secrets, steps = play(1000, queries, budget, np.random.default_rng(1))
    mean, error, bound = check(posteriors, secrets, queries * budget)
    attack = membership_attack(posteriors, secrets, POOL)
    assert attack.success <= bound + 5.5 * 0.5 / math.sqrt(1000)
    print(f"on:  information {mean:.4f} +- {error:.4f}, budget {queries * budget:.4f}")
    print(
        f"     all records {attack.success:.4f}, best bet {best_bet(posteriors, secrets) / 1000:.4f}, bound {bound:.4f}"
    )
    monkeypatch.setattr(belief_module.Belief, "multiply_classes", lambda *_: None)
    posteriors, secrets, broken = play(1000, queries, budget, np.random.default_rng(1))
    mean, error = measured_information(posteriors)
    print(f"off: information {mean:.4f} +- {error:.4f}, {mean / (queries * budget):.2f} times the budget")
    print(f"     best bet {best_bet(posteriors, secrets) / 1000:.4f}")
    for name, record in (("on", steps), ("off", broken)):
        sums = step_information(record).sum(axis=1)
        print(f"{name}: sum of conditional information {sums.mean():.4f} +- {sums.std() / 1000**0.5:.4f}")
    assert mean - 5 * error > 1.5 * queries * budget
    with pytest.raises(AssertionError):
        check(posteriors, secrets, queries * budget)


def test_simulated_trials_follow_the_engine():
    rng = np.random.default_rng(2)
    votes = rng.integers(0, 3, (40, 32))
    votes[::4] = 1
    audit = simulate_beliefs(votes, 0.02, num_trials=400, checkpoints=[10, 40])
    assert audit.mutual_information == pytest.approx([7 * 0.02, 30 * 0.02])
    beliefs = []
    for secret in rng.integers(0, 32, 400):
        composition = AdaptiveComposition(POOL.prior, int(secret))
        composition.release_batch(votes, 0.02)
        beliefs.append(composition.belief)
    mean, error = measured_information(np.array(beliefs))
    # Two independent means: 6 joint standard errors, 2e-9.
    assert abs(audit.measured_information[-1] - mean) < 6 * math.sqrt(2) * error
    assert (audit.success(POOL) <= audit.bound(POOL) + 0.15).all()


def test_the_attack_is_the_best_decision_for_its_belief():
    rng = np.random.default_rng(3)
    beliefs = rng.dirichlet(np.full(32, 0.1), 500)
    secrets = np.array([rng.choice(32, p=belief) for belief in beliefs])
    table = POOL.membership_table()
    expected = np.maximum(membership_posterior(beliefs, table), 1 - membership_posterior(beliefs, table)).mean()
    result = membership_attack(beliefs, secrets, POOL)
    assert abs(result.success - expected) < 6 * 0.5 / math.sqrt(500)
    assert result.interval[0] < expected < result.interval[1]
    with pytest.raises(ValueError, match="beliefs has shape"):
        membership_attack(beliefs, secrets[:3], POOL)


@pytest.mark.parametrize("secrets", [[0.0, 1.0], [True, False], [0, POOL.num_secrets], [-1, 0]])
def test_secrets_are_numbers_of_subsets(secrets):
    beliefs, sentence = np.eye(POOL.num_secrets)[:2], "must be one whole number from 0 to"
    with pytest.raises(ValueError, match=sentence):
        membership_attack(beliefs, np.array(secrets), POOL)
    with pytest.raises(ValueError, match=sentence):  # an IndexError, or another subset's success
        recovery_attack(beliefs, np.array(secrets), POOL, np.arange(6), num_correct=3)
    with pytest.raises(ValueError, match=sentence):  # 0.9 was read as 0, and -1 as the last secret
        decoder_leakage([-1.0, -1.0], np.array(secrets), POOL.prior)


@pytest.mark.parametrize("votes", [[[0.0, 1.0, 1.0]], [[True, False, True]], [[-1, 0, 1]]])
def test_votes_are_labels(votes):
    with pytest.raises(
        ValueError, match=r"votes, of shape .* must be one whole number from 0 for each query and secret"
    ):
        simulate_beliefs(np.array(votes), 0.1, 5)


def test_a_decoder_is_asked_for_secrets_that_can_be_drawn():
    with pytest.raises(ValueError, match="one of prior 0"):
        decoder_leakage([-1.0, -1.0], [0, 2], [0.5, 0.5, 0.0])


def test_sides_other_than_true_and_false_are_refused():
    """The coins -1 and 1 were all heads, with which no guess of heads is wrong."""
    sides = np.where(np.arange(40) % 2, 1, -1)
    with pytest.raises(ValueError, match=r"coins .*must be True or False, 1 or 0"):
        guess_coins("white-box", np.arange(40.0), sides, GaussianCurve(1.0))
    with pytest.raises(ValueError, match=r"memberships .*must be True or False"):
        empirical_likelihood_attack(np.zeros((40, 1)), sides[:, None])
    with pytest.raises(ValueError, match=r"memberships .*must be True or False"):
        subset_recovery_prior([[-1, 1]], num_correct=1)
    with pytest.raises(ValueError, match=r"table .*must be True or False"):
        SubsetTable([[-1, 1]])
    assert guess_coins("white-box", np.arange(40.0), (sides > 0) * 1.0, GaussianCurve(1.0)).num_canaries == 40


def test_the_audit_plots_success_against_the_bound(tmp_path):
    pytest.importorskip("matplotlib")
    audit = simulate_beliefs([[0] * 16 + [1] * 16] * 20, 0.01, 50, checkpoints=[1, 5, 20])
    audit.plot(POOL, tmp_path / "audit.png")
    assert (tmp_path / "audit.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="must ascend"):
        simulate_beliefs([[0, 1]], 0.1, 5, checkpoints=[3])
