import numpy as np
import pytest
from scipy import stats

from lightning_pac.mechanisms import AdaptiveComposition, BatchRelease, bayes_filter, hypothesis_filter
from lightning_pac.mechanisms.responses import vote_channel

ALPHA = 0.05

BELIEFS = {
    "even-2": [0.5, 0.5],
    "skewed-2": [0.97, 0.03],
    "even-3": [1 / 3, 1 / 3, 1 / 3],
    "skewed-3": [0.98, 0.01, 0.01],
    "even-10": [0.1] * 10,
    "skewed-10": [0.991] + [0.001] * 9,
}
CASES = [(name, budget) for name in BELIEFS for budget in (2.0**-4, 2.0**-10, 2.0**-20)]


def simulate(masses, budget, num, vote=None, seed=0):
    """Independent releases under one belief; the vote is drawn from the belief, or fixed."""
    rng = np.random.default_rng(seed)
    k = len(masses)
    p = np.array(masses)
    mean_free = np.diag(p) - np.outer(p, p)
    eigenvalues, vectors = np.linalg.eigh(mean_free)
    eigenvalues, vectors = eigenvalues[1:], vectors[:, 1:]
    whitened, variances = vote_channel(p, budget, "logdet")
    covariance = (whitened * variances**2) @ whitened.T
    # The covariance is the log-det rule's: same eigenvectors, and the budget is met.
    assert np.allclose(
        vectors.T @ whitened @ whitened.T @ vectors @ np.diag(eigenvalues),
        np.diag(eigenvalues / (vectors.T @ covariance @ vectors).diagonal()),
        atol=1e-8,
    )
    votes = rng.choice(k, num, p=p) if vote is None else np.full(num, vote)
    root = np.linalg.cholesky(covariance + np.ones((k, k)))
    noise = rng.standard_normal((num, k)) @ root.T
    noise -= noise.mean(axis=1, keepdims=True)
    values = np.eye(k)[votes] + noise
    answers = BatchRelease(
        labels=values.argmax(axis=1),
        values=values,
        classes=np.tile(np.arange(k), (num, 1)),
        masses=np.tile(p, (num, 1)),
        costs=np.full(num, budget),
        rule="logdet",
    )
    return votes, answers


def at_most(successes, trials, rate, false_alarm=1e-9):
    """Whether a count is compatible with a rate of at most `rate`."""
    return stats.binom.sf(successes - 1, trials, rate) > false_alarm


@pytest.mark.parametrize(("name", "budget"), CASES)
def test_kept_labels_of_the_bayes_filter_are_wrong_at_most_alpha_of_the_time(name, budget):
    votes, answers = simulate(BELIEFS[name], budget, 20_000)
    result = bayes_filter(answers, ALPHA)
    wrong = result.keep & (result.labels != votes)
    assert at_most(wrong.sum(), result.keep.sum(), ALPHA)
    # Calibrated: the stated confidence is the frequency of being right.
    expected = result.confidence[result.keep].sum()
    deviation = np.sqrt((result.confidence * (1 - result.confidence))[result.keep].sum()) + 1
    assert abs((result.keep & ~wrong).sum() - expected) < 6.5 * deviation


def test_multiplying_by_the_likelihood_twice_is_noticed():
    votes, answers = simulate(BELIEFS["even-3"], 0.5, 20_000)
    whitened, _ = vote_channel(answers.masses, answers.costs, "logdet")
    coordinates = np.einsum("nk,nkr->nr", answers.values, whitened)
    likelihood = np.exp(np.einsum("nkr,nr->nk", whitened, coordinates) - 0.5 * (whitened**2).sum(axis=2))
    updated = answers.masses * likelihood
    # Costs and noise stay those of the release; only the prior of the filter has seen the release already.
    twice = updated / updated.sum(axis=1, keepdims=True) * likelihood
    posterior = twice / twice.sum(axis=1, keepdims=True)
    keep = posterior.max(axis=1) >= 1 - ALPHA
    wrong = keep & (posterior.argmax(axis=1) != votes)
    assert not at_most(wrong.sum(), keep.sum(), ALPHA)


@pytest.mark.parametrize(("name", "budget"), CASES)
def test_the_hypothesis_test_holds_for_every_secret(name, budget):
    for vote in range(min(3, len(BELIEFS[name]))):
        votes, answers = simulate(BELIEFS[name], budget, 5_000, vote=vote)
        result = hypothesis_filter(answers, ALPHA)
        assert (result.labels == answers.labels).all()
        assert at_most((result.keep & (result.labels != votes)).sum(), len(votes), ALPHA)


def test_the_level_of_the_paper_is_exceeded():
    votes, answers = simulate(BELIEFS["skewed-10"], 2.0**-4, 50_000)
    paper = hypothesis_filter(answers, 0.01, paper_level=True)
    wrong = paper.keep & (paper.labels != votes)
    assert not at_most(wrong.sum(), len(votes), 0.01)


def test_the_statistic_is_the_one_of_the_proposition():
    _, answers = simulate(BELIEFS["skewed-3"], 0.1, 50)
    result = hypothesis_filter(answers, ALPHA)
    for i, release in enumerate(answers):
        precision = np.linalg.pinv(release.covariance)
        label = int(release.value.argmax())
        statistics = []
        for j in set(range(3)) - {label}:
            d = np.eye(3)[label] - np.eye(3)[j]
            statistics.append(d @ precision @ (release.value - np.eye(3)[j]) / np.sqrt(d @ precision @ d))
        assert result.confidence[i] == pytest.approx(min(statistics))


def test_the_filter_agrees_with_the_updated_belief_of_the_engine():
    rng = np.random.default_rng(0)
    prior = rng.dirichlet(np.ones(9))
    composition = AdaptiveComposition(prior, 2)
    for votes in rng.integers(0, 4, (50, 9)):
        answers = composition.release_batch(votes[None], 0.05)
        result = bayes_filter(answers)
        if answers.unanimous[0]:
            assert result.keep[0]
            continue
        mass = [composition.belief[votes == c].sum() for c in answers.classes[0]]
        assert result.confidence[0] == pytest.approx(max(mass), rel=1e-6)
        assert result.labels[0] == answers.classes[0][np.argmax(mass)]


def test_unanimous_answers_are_kept_and_bad_arguments_refused():
    composition = AdaptiveComposition([0.5, 0.5], 0)
    answers = composition.release_batch([[4, 4], [4, 4]], 0.1)
    for result in (bayes_filter(answers), hypothesis_filter(answers)):
        assert result.keep.all()
        assert result.labels.tolist() == [4, 4]
    with pytest.raises(ValueError, match="between 0 and 1"):
        bayes_filter(answers, 0.0)
    scores = composition.release_batch(np.zeros((1, 2, 3)), 0.1)
    with pytest.raises(ValueError, match="given as votes"):
        hypothesis_filter(scores)


@pytest.mark.slow
def test_filters_on_a_hundred_thousand_releases():
    for name, budget in CASES:
        votes, answers = simulate(BELIEFS[name], budget, 100_000, seed=1)
        bayes, test = bayes_filter(answers, 0.01), hypothesis_filter(answers, 0.01)
        paper = hypothesis_filter(answers, 0.01, paper_level=True)
        wrong = (bayes.keep & (bayes.labels != votes)).sum()
        assert at_most(wrong, bayes.keep.sum(), 0.01)
        assert at_most((test.keep & (test.labels != votes)).sum(), len(votes), 0.01)
        print(
            f"{name:10} b={budget:.3g}"
            f" Bayes kept {bayes.keep.mean():.4f}, wrong|kept {wrong / max(1, bayes.keep.sum()):.4f};"
            f" test kept&wrong {(test.keep & (test.labels != votes)).mean():.4f},"
            f" paper {(paper.keep & (paper.labels != votes)).mean():.4f},"
            f" paper wrong|kept {(paper.keep & (paper.labels != votes)).sum() / max(1, paper.keep.sum()):.3f}"
        )
