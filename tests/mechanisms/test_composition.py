import math
import operator

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from lightning_pac.exceptions import BudgetExceededError
from lightning_pac.mechanisms import AdaptiveComposition, belief as belief_module
from lightning_pac.mechanisms.certified.certificate import two_point_information
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios import BalancedSubsets

RULES = ["logdet", "linear"]


class Tape(SecureGenerator):
    """Noise from one fixed stream, however many values are asked for at a time."""

    def __init__(self, seed=0):
        self._rng = np.random.default_rng(seed)

    def normal(self, size):
        return self._rng.standard_normal(size)


class Constant(SecureGenerator):
    """Noise that is always the same."""

    def __init__(self, value):
        self._value = value

    def normal(self, size):
        return np.full(size, self._value)


def uniform(m):
    return np.full(m, 1 / m)


def random_votes(rng, num_queries, m, num_classes):
    """Votes of which about a third are mixed, with between two and `num_classes` classes."""
    votes = np.repeat(rng.integers(0, num_classes, (num_queries, 1)), m, axis=1)
    for row in votes[rng.random(num_queries) < 0.5]:
        who = rng.integers(0, m, rng.integers(1, m))
        row[who] = rng.integers(0, num_classes, len(who))
    return votes


def one_hot(votes):
    return np.eye(votes.max() + 1)[votes]


def plain_log_posterior(prior, outputs, release):
    """Bayes' rule with the full covariance and its pseudo-inverse, as the paper writes it."""
    with np.errstate(divide="ignore"):
        log_belief = np.log(prior)
    precision = np.linalg.pinv(release.covariance, rcond=1e-10, hermitian=True)
    deviation = release.value - outputs
    log_belief = log_belief - 0.5 * np.einsum("ij,jk,ik->i", deviation, precision, deviation)
    return log_belief - logsumexp(log_belief)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_belief_is_the_posterior_and_the_noise_meets_the_budget(rule, weighted):
    rng = np.random.default_rng(1)
    m = 12
    prior = rng.dirichlet(np.ones(m)) if weighted else uniform(m)
    composition = AdaptiveComposition(prior, secret=4, rule=rule)
    spent = 0.0
    for votes in random_votes(rng, 60, m, 5):
        before = composition.belief
        budget = float(rng.uniform(1e-3, 0.3))
        release = composition.release(votes, budget)
        if len(set(votes)) == 1:
            assert release.unanimous
            assert release.label == votes[0]
            assert (composition.belief == before).all()
            continue
        spent += budget
        outputs = (votes[:, None] == release.classes).astype(float)
        mean = before @ outputs
        covariance = (before[:, None] * (outputs - mean)).T @ (outputs - mean)
        # On the contrasts, 1/2 ln det(I + C Sigma^+) is the budget (log-det) or at most that (linear).
        contrasts = np.linalg.svd(np.ones((1, len(release.classes))))[2][1:].T
        noise = contrasts.T @ release.covariance @ contrasts
        signal = contrasts.T @ covariance @ contrasts
        information = 0.5 * np.linalg.slogdet(np.eye(len(noise)) + signal @ np.linalg.inv(noise))[1]
        assert information <= budget * (1 + 1e-7)
        # A class of hardly any mass gets more noise than its due, and the rest of the budget is left.
        if rule == "logdet" and (before @ outputs).min() > 1e-6:
            assert information == pytest.approx(budget, rel=1e-4)
        expected = plain_log_posterior(before, outputs, release)
        assert composition.belief == pytest.approx(np.exp(expected), abs=1e-6)
        assert composition.log_belief == pytest.approx(expected, abs=1e-6, rel=1e-6)
        assert release.label == release.classes[np.argmax(release.value)]
        assert release.value.sum() == pytest.approx(1)
    assert composition.spent == pytest.approx(spent)
    assert composition.belief.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_votes_given_as_labels_or_as_one_hot_scores_are_treated_alike(rule):
    rng = np.random.default_rng(2)
    votes = rng.integers(0, 4, 30)
    prior = rng.dirichlet(np.ones(30))
    labels = AdaptiveComposition(prior, 3, rule).release(votes, 0.02)
    scores = AdaptiveComposition(prior, 3, rule).release(one_hot(votes), 0.02)
    assert labels.covariance == pytest.approx(scores.covariance, abs=1e-9 * labels.covariance.max())


def test_noise_has_the_covariance_that_is_stated():
    rng = np.random.default_rng(3)
    prior = rng.dirichlet(np.ones(6))
    votes = np.array([0, 1, 2, 2, 1, 0])
    for outputs in (votes, rng.standard_normal((6, 3)), rng.standard_normal((6, 20))):
        releases = [AdaptiveComposition(prior, 2).release(outputs, 0.3) for _ in range(2_000)]
        truth = np.eye(3)[2] if outputs.ndim == 1 else outputs[2]
        deviations = np.stack([release.value for release in releases]) - truth
        covariance = releases[0].covariance
        basis = np.linalg.svd(covariance)[0][:, : np.linalg.matrix_rank(covariance, tol=1e-9)]
        scale = np.linalg.cholesky(basis.T @ covariance @ basis)
        white = np.linalg.solve(scale, basis.T @ deviations.T)
        # Chi-squared on 2,000 r values: both tails together below 1e-8.
        assert 1e-8 < stats.chi2.cdf((white**2).sum(), white.size) < 1 - 1e-8
        assert np.abs(deviations - deviations @ basis @ basis.T).max() < 1e-9


def test_votes_may_be_unsigned():
    votes = np.array([[0, 1, 1, 2]])
    signed, unsigned = (
        AdaptiveComposition(uniform(4), 1, generator=Tape()).release_batch(votes.astype(kind), 0.01)
        for kind in (np.int64, np.uint64)
    )
    assert signed.values.tolist() == unsigned.values.tolist()


def test_class_numbers_may_be_anything():
    rng = np.random.default_rng(9)
    names = np.array([0, 17, 4_095, 4_096, 10**12])
    votes = random_votes(rng, 300, 10, 5)
    plain = AdaptiveComposition(uniform(10), 3, generator=Tape()).release_batch(votes, 0.01)
    named = AdaptiveComposition(uniform(10), 3, generator=Tape()).release_batch(names[votes], 0.01)
    assert (named.labels == names[plain.labels]).all()
    present = plain.classes >= 0
    assert (named.classes[present] == names[plain.classes[present]]).all()
    for row, release in zip(votes, plain, strict=True):
        assert release.classes.tolist() == sorted(set(row.tolist()))


@pytest.mark.parametrize("rule", RULES)
def test_a_batch_is_answered_as_single_queries_are_and_replays_to_the_last_bit(rule):
    rng = np.random.default_rng(4)
    votes = random_votes(rng, 5_000, 16, 6)
    budgets = rng.uniform(1e-6, 1e-2, len(votes))
    batch = AdaptiveComposition(uniform(16), 5, rule, generator=Tape())
    answers = batch.release_batch(votes, budgets)
    single = AdaptiveComposition(uniform(16), 5, rule, generator=Tape())
    singles = [single.release(row, budget) for row, budget in zip(votes[:500], budgets[:500], strict=True)]
    for one, other in zip(singles, answers, strict=False):
        assert (one.label, one.cost) == (other.label, other.cost)
        assert (one.value == other.value).all()
        assert (one.classes == other.classes).all()
    replayed = AdaptiveComposition(uniform(16), None, rule)
    replayed.replay(votes[:2_000], answers.values[:2_000], budgets[:2_000])
    restored = AdaptiveComposition(uniform(16), None, rule)
    restored.load_state_dict(replayed.state_dict())
    for row in range(2_000, 5_000):
        restored.replay(votes[row : row + 1], answers.values[row : row + 1], budgets[row])
    assert (restored.log_belief == batch.log_belief).all()
    assert restored.spent == batch.spent
    assert restored.num_releases == batch.num_releases == 5_000


def test_scores_replay_too():
    rng = np.random.default_rng(5)
    outputs = rng.standard_normal((20, 8, 3))
    outputs[4] = outputs[4, 0]
    composition = AdaptiveComposition(uniform(8), 5)
    answers = composition.release_batch(outputs, 0.01)
    assert answers.unanimous.tolist() == [row == 4 for row in range(20)]
    assert (answers.values[4] == outputs[4, 0]).all()
    replayed = AdaptiveComposition(uniform(8), None)
    replayed.replay(outputs, answers.values, 0.01)
    assert (replayed.log_belief == composition.log_belief).all()
    assert replayed.spent == composition.spent == pytest.approx(0.19)


def test_scores_in_many_dimensions_reveal_nothing_outside_the_kept_span():
    rng = np.random.default_rng(6)
    outputs = rng.standard_normal((10, 3)) @ rng.standard_normal((3, 500))
    # One secret stands out by less than the arithmetic resolves: there is no noise for it, so it must not be seen.
    outputs[7] += 1e-11 * rng.standard_normal(500)
    composition = AdaptiveComposition(uniform(10), secret=7)
    release = composition.release(outputs, 0.1)
    others = AdaptiveComposition(uniform(10), secret=2).release(outputs, 0.1)
    assert release.channel.rank == 3
    outside = np.linalg.svd(release.channel.loading().T)[2][3:]
    assert np.abs(outside @ (release.value - others.value)).max() < 1e-12
    assert np.abs(outside @ (outputs[7] - outputs[2])).max() > 1e-11


def test_low_bits_of_the_release_lie_on_the_grid(monkeypatch):
    """In whitened coordinates every release is a multiple of the step, whatever the secret and the noise."""
    seen = []

    def record(value, step):
        rounded = np.rint(np.asarray(value) / step) * step
        seen.append((step, rounded))
        return rounded

    monkeypatch.setattr(belief_module, "round_to_grid", record)
    monkeypatch.setattr(
        belief_module, "_on_release_grid", lambda value: float(record(value, belief_module.RELEASE_STEP))
    )
    composition = AdaptiveComposition(uniform(4), 0, generator=Tape())
    # One, two and three numbers, and two arrays.
    for outputs in ([0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3], np.random.default_rng(0).standard_normal((4, 9))):
        composition.release(outputs, 0.1)
    AdaptiveComposition(uniform(7), 0, generator=Tape()).release(np.arange(7), 0.1)
    assert len(seen) == 8
    for step, rounded in seen:
        assert step == 2.0**-10
        assert (rounded * 2**10 == np.rint(rounded * 2**10)).all()


@pytest.mark.parametrize("budget", [2.0**-4, 2.0**-32])
@pytest.mark.parametrize("rule", RULES)
def test_classes_of_vanishing_mass_neither_break_the_belief_nor_go_without_noise(rule, budget):
    m = 8
    for votes in ([0, 1, 1, 1, 1, 1, 1, 1], [0, 1, 2, 3, 3, 3, 3, 3], [0, 0, 1, 2, 2, 2, 2, 2]):
        for log_mass in (-30.0, -300.0, -690.0, -1e4, -1e100):
            log_belief = np.full(m, -math.log(m - 1))
            log_belief[0] = log_mass
            composition = AdaptiveComposition(uniform(m), secret=0, rule=rule)
            composition.load_state_dict({"log_belief": log_belief, "spent": 0.0, "num_releases": 0})
            for _ in range(20):
                release = composition.release(votes, budget)
                assert np.isfinite(release.value).all()
                # Never less noise than for a class of mass 2**-40, whose variance is at least 2**-40 / (2 b).
                assert np.linalg.eigvalsh(release.covariance)[1] > 0.4 * 2.0**-40
            assert np.isfinite(composition.log_belief).all()
            assert composition.belief.sum() == pytest.approx(1, abs=1e-9)


def test_the_guarantee_holds_for_skewed_beliefs():
    """1/2 ln det(I + C Sigma^+), computed from the whitened votes in extended precision, stays at or below b."""
    mpmath = pytest.importorskip("mpmath")
    from lightning_pac.mechanisms.responses import vote_channel
    from lightning_pac.mechanisms.responses.votes import (
        four_class_channel,
        signal_to_noise_of,
        single_vote_channel,
        three_class_channel,
        two_class_separation,
    )

    def two_class_channel(masses, budget, rule):
        half = two_class_separation(*masses, signal_to_noise_of(budget, rule))
        return [[half], [-half]], [1 / (2 * half * half)]

    rng = np.random.default_rng(7)
    for _ in range(60):
        k = int(rng.integers(2, 7))
        masses = np.exp(-rng.exponential(20.0, k))
        masses /= masses.sum()
        budget = float(np.exp(rng.uniform(-20, -1)))
        for rule in RULES:
            # How one query is answered: without arrays where there are two, three or four classes.
            few = {2: two_class_channel, 3: three_class_channel, 4: four_class_channel}
            single = few.get(k, single_vote_channel)
            chosen, variances = (np.array(part) for part in single(masses.tolist(), budget, rule))
            whitened, expected = vote_channel(masses, budget, rule)
            assert np.sort(variances) == pytest.approx(np.sort(expected), rel=1e-3)
            assert np.abs(chosen.sum(axis=0)).max() <= 1e-9 * np.abs(chosen).max()
            for candidate in (chosen, whitened):
                with mpmath.workdps(60):
                    w = mpmath.matrix(candidate.tolist())
                    p = [mpmath.mpf(x) for x in masses]
                    total = mpmath.fsum(p)
                    covariance = mpmath.matrix(k, k)
                    for i in range(k):
                        for j in range(k):
                            covariance[i, j] = (p[i] if i == j else 0) - p[i] * p[j] / total
                    information = mpmath.log(mpmath.det(mpmath.eye(k - 1) + w.T * covariance * w)) / 2
                assert information <= budget * (1 + 1e-9)


def test_secrets_of_prior_zero_have_no_say():
    prior = np.array([0.5, 0.0, 0.25, 0.25])
    composition = AdaptiveComposition(prior, secret=2)
    assert composition.release([3, 9, 3, 3], 0.1).unanimous
    composition.release([0, 9, 1, 1], 0.1)
    assert composition.belief[1] == 0
    with pytest.raises(ValueError, match="positive prior"):
        AdaptiveComposition(prior, secret=1)


def test_the_secret_may_be_given_as_the_file_keeps_it(tmp_path):
    pool = BalancedSubsets(num_records=10, num_subsets=4)
    secret = pool.draw_secret(tmp_path / "secret.key")
    composition = AdaptiveComposition(pool.prior, secret)
    # A budget of 12 nats separates four models by a hundred standard deviations.
    assert composition.release([10, 11, 12, 13], 12.0).label == 10 + operator.index(secret)


def test_budgets_add_up_and_are_refused_before_anything_happens():
    composition = AdaptiveComposition(uniform(8), 0, total_budget=0.1)
    mixed = [0, 1, 1, 1, 0, 0, 0, 0]
    for _ in range(10):
        composition.release(mixed, 0.01)
    state = composition.state_dict()
    with pytest.raises(BudgetExceededError, match="would exceed the total budget"):
        composition.release(mixed, 1e-9)
    with pytest.raises(BudgetExceededError, match="raise the total"):
        composition.release(np.eye(8), 0.1)
    composition.release([5] * 8, 0.01)
    assert (composition.log_belief == state["log_belief"]).all()
    assert composition.spent == state["spent"]
    whole = AdaptiveComposition(uniform(8), 0, total_budget=0.1)
    with pytest.raises(BudgetExceededError):
        whole.release_batch([mixed] * 11, 0.01)
    assert (whole.spent, whole.num_releases) == (0.0, 0)


def test_all_answers_together_tell_no_more_than_the_entropy_of_the_prior():
    composition = AdaptiveComposition([0.9, 0.1], 0, total_budget=0.4)
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    for _ in range(20):
        composition.release([0, 1], 0.1)
    assert composition.spent == pytest.approx(2.0)
    assert composition.mutual_information == pytest.approx(entropy)


@pytest.mark.parametrize(
    ("outputs", "budget", "message"),
    [
        ([0, 1, 1], 0.1, "4 votes"),
        ([0, 1, 1, -1], 0.1, "negative"),
        ([0.0, 1.0, 1.0, 1.0], 0.1, "not integers"),
        (np.zeros((3, 2)), 0.1, "4 rows"),
        (np.zeros((4, 0)), 0.1, "4 rows"),
        (np.array([[1.0], [np.nan], [0.0], [0.0]]), 0.1, "secret 1 is not finite"),
        ([0, 1, 1, 1], 0.0, "positive and finite"),
        ([0, 1, 1, 1], -1.0, "positive and finite"),
        ([0, 1, 1, 1], math.nan, "budget is nan"),
        ([0, 1, 1, 1], math.inf, "positive and finite"),
        (np.zeros((2, 2, 2, 2)), 0.1, "m labels"),
        (np.array([5, 5, 5, 2**63 + 1], dtype=np.uint64), 0.1, r"below 2\*\*63"),
        (np.diag([1e150, 1e150, 1e150, 0.0]), 1e-9, "variance overflows"),
        (np.diag([1e300, 1e300, 1e300, 0.0]), 0.1, "variance overflows"),
        (np.diag([1e100, 1e100, 1e100, 0.0]), 1e-30, "variance overflows"),
        (2.0**53 + np.diag([2.0, 2.0, 2.0, 0.0]), 0.1, "too coarse for noise"),
    ],
)
def test_bad_queries_are_refused_and_change_nothing(outputs, budget, message):
    composition = AdaptiveComposition(uniform(4), 0)
    with pytest.raises(ValueError, match=message):
        composition.release(outputs, budget)
    assert (composition.belief == 0.25).all()
    assert composition.spent == 0
    assert composition.num_releases == 0


def test_values_that_floats_round_would_spoil_the_belief(monkeypatch):
    # Why outputs far from zero are refused. Around 2**53 floats are 2 apart: the value is rounded by as much as its
    # noise, Bayes' rule is applied to the rounded value, and the next answer gets noise for a belief that is wrong.
    outputs = np.array([[2.0**53, 0.0], [2.0**53 + 2, 0.0]])
    with pytest.raises(ValueError, match="subtract a public constant"):
        AdaptiveComposition(uniform(2), 0).release(outputs, 0.35)
    monkeypatch.setattr(belief_module, "check_resolution", lambda mean, deviations: None)
    draws = np.arange(-8, 8, 1 / 64) + 1 / 128
    told = {}
    for secret in (0, 1):
        for draw in draws.tolist():
            generator = Constant(draw)
            composition = AdaptiveComposition(uniform(2), secret, generator=generator)
            value = float(composition.release(outputs, 0.35).value[0])
            told.setdefault((value, float(composition.belief[1])), [0.0, 0.0])[secret] += stats.norm.pdf(draw) / 64
    next_answer = 0.0
    for (_, believed), (first, second) in told.items():
        distance = math.sqrt(math.expm1(2 * 0.05) / (believed * (1 - believed)))
        next_answer += (first + second) / 2 * two_point_information(distance, first / (first + second))
    assert next_answer > 0.055


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="n > 0"):
        AdaptiveComposition(uniform(4), 0).release_batch(np.zeros((0, 4), dtype=int), 0.1)
    with pytest.raises(ValueError, match="one number or have shape"):
        AdaptiveComposition(uniform(4), 0).release_batch(np.zeros((3, 4), dtype=int), [0.1, 0.1])
    with pytest.raises(ValueError, match="without a secret"):
        AdaptiveComposition(uniform(4), None).release([0, 1, 1, 1], 0.1)
    with pytest.raises(ValueError, match=r"a sum of 1\.1: divide it by its sum in float64"):
        AdaptiveComposition([0.5, 0.6], 0)
    with pytest.raises(ValueError, match="rule is 'exact', but must be"):
        AdaptiveComposition(uniform(4), 0, rule="exact")
    with pytest.raises(ValueError, match="positive and finite"):
        AdaptiveComposition(uniform(4), 0, total_budget=0)
    with pytest.raises(ValueError, match="another pool"):
        AdaptiveComposition([0.5, 0.5], 0).load_state_dict(AdaptiveComposition([1.0, 0.0], 0).state_dict())


def test_what_scores_told_is_read_back_from_the_value_to_within_the_grid():
    # Directions made of the deviations themselves are orthogonal up to rounding over their variances: with more
    # coordinates than secrets the value read back was up to 48 deviations off in one direction. (Where it was, other
    # directions had decided: the beliefs of 1,500 such families moved by 4e-4 at most.)
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(200):
        secrets, dimension = int(rng.integers(2, 40)), int(rng.choice([2, 3, 10, 100, 500]))
        rank = min(secrets, dimension)
        spread = 10.0 ** rng.uniform(-9, 0, rank)
        outputs = rng.normal(size=(secrets, rank)) * spread @ rng.normal(size=(rank, dimension))
        belief = belief_module.Belief(rng.dirichlet(np.ones(secrets)))
        channel = belief.score_channel(outputs, 10.0 ** rng.uniform(-9, 1), "logdet")
        secret, span, deviations = int(rng.integers(secrets)), channel._span, channel._deviations
        noise = rng.standard_normal(channel.rank)
        told = np.rint((channel._whitened[secret] + noise) * 2**10) / 2**10
        seen = span.coordinates(channel.release(secret, noise)) / deviations
        worst = max(worst, float(np.abs(seen - told).max(initial=0.0)))
    assert worst < 2.0**-11
