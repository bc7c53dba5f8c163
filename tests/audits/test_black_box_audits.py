import itertools

import numpy as np
import pytest
from scipy import stats

from lightning_pac.accountants import independent_bits_prior, membership_success_bound
from lightning_pac.audits import (
    cluster_confidence,
    compare_private_means,
    empirical_likelihood_attack,
    informed_membership_prior,
    margin_confidence,
    membership_attack,
    recovery_attack,
)
from lightning_pac.mechanisms import calibrate_gaussian
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios import BalancedSubsets, ComplementaryHalves


def test_the_empirical_attack_is_as_good_as_neyman_and_pearson_on_gaussians():
    rng = np.random.default_rng(0)
    members = rng.random((4000, 20)) < 0.5
    for shift in (0.0, 0.5, 2.0):
        result = empirical_likelihood_attack(rng.normal(size=members.shape) + shift * members, members)
        assert result.success == pytest.approx(stats.norm.cdf(shift / 2), abs=0.02)
        assert result.interval[0] < stats.norm.cdf(shift / 2) < result.interval[1]


def test_the_direction_is_learned_for_each_record():
    rng = np.random.default_rng(1)
    members = rng.random((1000, 2)) < 0.5
    scores = np.where(members, [1.0, -1.0], [-1.0, 1.0])
    assert empirical_likelihood_attack(scores, members).success == 1.0


def test_thresholds_counted_where_they_were_chosen_find_success_in_noise():
    # Why the runs are split: on 20 runs of pure noise the best threshold looks much better than a coin.
    rng = np.random.default_rng(2)
    members = rng.random((20, 500)) < 0.5
    scores = rng.normal(size=members.shape)
    assert abs(empirical_likelihood_attack(scores, members).success - 0.5) < 0.03
    doubled = empirical_likelihood_attack(np.vstack([scores, scores]), np.vstack([members, members]))
    assert doubled.success > 0.65


def test_confidences_follow_the_paper():
    centers, records = np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 0.0], [1.5, 2.0]])
    assert cluster_confidence(centers, records).tolist() == [1.0, 0.5]
    assert cluster_confidence(np.stack([centers, centers]), records).shape == (2, 2)
    planes = np.array([[3.0, 4.0, 0.0], [-3.0, -4.0, 10.0]])
    distances = np.array([[0.0, 2.0], [2.5, -0.5]])
    assert margin_confidence(planes, records) == pytest.approx(1 / (1 + np.exp(-distances.max(axis=1))))
    assert margin_confidence(planes[:1], records)[1] == pytest.approx(1 / (1 + np.exp(-2.5)))


def test_bad_scores():
    with pytest.raises(ValueError, match="at least four runs"):
        empirical_likelihood_attack(np.zeros((2, 3)), np.zeros((2, 3)))
    with pytest.raises(ValueError, match="not finite"):
        empirical_likelihood_attack(np.full((4, 1), np.nan), np.zeros((4, 1)))


def posteriors(outputs, budget, trials, weaker=1.0):
    """Beliefs after one release each, with noise smaller than calibrated by the factor `weaker`."""
    noise = calibrate_gaussian(outputs, budget)
    generator = SecureGenerator(seed=4)
    rng = np.random.default_rng(5)
    secrets = rng.integers(0, len(outputs), trials)
    values = outputs[secrets] + weaker * noise.sample(trials, generator)
    precision = np.linalg.pinv(weaker**2 * noise.covariance())
    deviations = values[:, None] - outputs
    evidence = -0.5 * np.einsum("tmd,de,tme->tm", deviations, precision, deviations)
    beliefs = np.exp(evidence - evidence.max(axis=1, keepdims=True))
    return beliefs / beliefs.sum(axis=1, keepdims=True), secrets


@pytest.mark.filterwarnings("ignore:Noise and draws seeded")
def test_attacks_stay_within_the_bounds_and_refute_noise_that_is_too_small():
    space = ComplementaryHalves(40, 32)
    records = np.random.default_rng(3).normal(size=(40, 3))
    outputs = np.stack([records[space.subset(j)].mean(axis=0) for j in range(32)])
    beliefs, secrets = posteriors(outputs, 0.25, 2000)
    assert not membership_attack(beliefs, secrets, space).refutes(membership_success_bound(0.25))
    audit = recovery_attack(beliefs, secrets, space, range(10), 9)
    assert not audit.refutes(0.25)
    assert audit.success > audit.prior
    broken, secrets = posteriors(outputs, 0.25, 2000, weaker=0.2)
    assert recovery_attack(broken, secrets, space, range(10), 9).refutes(0.25)


def test_the_prior_of_the_finite_table_is_far_above_independent_bits():
    space = BalancedSubsets(200, 128)
    audit = recovery_attack(np.full((10, 128), 1 / 128), np.arange(10), space, range(12), 12)
    table = space.membership_table(np.arange(12))
    counts = [sum((guess == table.T).all(axis=1)) for guess in {tuple(column) for column in table.T.tolist()}]
    assert audit.prior == pytest.approx(max(counts) / 128)
    assert audit.prior > 25 * independent_bits_prior(12, 12)


def test_recovery_by_brute_force():
    space = BalancedSubsets(6, 4)
    beliefs = np.array([[0.4, 0.3, 0.2, 0.1]])
    table = space.membership_table([0, 1, 2])
    best = max(
        sum(p for p, column in zip(beliefs[0], table.T, strict=True) if (column == guess).sum() >= 2)
        for guess in itertools.product([False, True], repeat=3)
    )
    won = [recovery_attack(beliefs, [secret], space, [0, 1, 2], 2).success for secret in range(4)]
    assert float(np.array(won) @ beliefs[0]) == pytest.approx(best)


def test_recovery_refuses_what_it_cannot_enumerate():
    with pytest.raises(ValueError, match="17 records"):
        recovery_attack(np.full((1, 4), 0.25), [0], BalancedSubsets(20, 4), range(17), 3)
    with pytest.raises(ValueError, match="beliefs has shape"):
        recovery_attack(np.full((1, 3), 1 / 3), [0], BalancedSubsets(20, 4), range(3), 3)


def test_whoever_knows_some_memberships_knows_the_rest_from_a_public_table():
    space = BalancedSubsets(400, 128)
    known = [informed_membership_prior(space, count, 400, rng=0) for count in (0, 3, 7, 14)]
    assert known[0] == 0.5
    assert known[1] < 0.6
    assert known[2] > 0.75
    assert known[3] > 0.98
    assert informed_membership_prior(ComplementaryHalves(400, 2), 1, 20, rng=0) == 1.0
    with pytest.raises(ValueError, match="must leave one"):
        informed_membership_prior(space, 400)


def test_private_means_at_one_success_bound():
    records = np.random.default_rng(6).random((200, 4))
    result = compare_private_means(records, ComplementaryHalves(200, 128), 1 / 16, rng=0)
    assert result.success == pytest.approx(0.67491, abs=1e-5)
    assert result.epsilon == pytest.approx(np.log(0.67491 / 0.32509), abs=1e-4)
    for without, total in (result.subset, result.individual, result.laplace, result.gaussian):
        assert without < total
    # Without clipping: a Laplace vector of scale C / (n eps) with C the largest L1 norm, and the Gaussian whose best
    # attack, a threshold half way, succeeds with exactly the bound.
    largest = np.abs(records).sum(axis=1).max()
    draws = np.random.default_rng(7).laplace(scale=largest / (200 * result.epsilon), size=(20_000, 4))
    assert result.laplace[1] < np.linalg.norm(draws, axis=1).mean() * 1.05
    sigma = np.linalg.norm(records, axis=1).max() / (200 * 2 * stats.norm.ppf(result.success))
    assert result.gaussian[1] < sigma * 2 * 1.05
    with pytest.raises(ValueError, match="make the space for them"):
        compare_private_means(records, ComplementaryHalves(100, 4), 0.1)
