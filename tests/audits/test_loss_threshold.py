import numpy as np
import pytest
from scipy import integrate, stats

from lightning_pac.audits import loss_threshold, loss_threshold_attack, proportion_interval
from lightning_pac.cards import PrivacyCard


@pytest.mark.parametrize("trials", [1, 7, 40])
@pytest.mark.parametrize("confidence", [0.8, 0.99])
def test_the_interval_covers_every_probability_at_its_confidence(trials, confidence):
    intervals = [proportion_interval(successes, trials, confidence) for successes in range(trials + 1)]
    for probability in np.linspace(0, 1, 201):
        weights = stats.binom.pmf(np.arange(trials + 1), trials, probability)
        covered = sum(w for w, (low, high) in zip(weights, intervals, strict=True) if low <= probability <= high)
        assert covered >= confidence - 1e-12


def test_the_interval_is_no_wider_than_it_must_be():
    low, high = proportion_interval(60, 100, 0.9)
    assert stats.binom.sf(59, 100, low) == pytest.approx(0.05)
    assert stats.binom.cdf(60, 100, high) == pytest.approx(0.05)


def test_success_is_half_the_total_variation_above_one_half():
    rng = np.random.default_rng(1)
    members, others = rng.exponential(1.0, 200_000), rng.exponential(3.0, 100_000)
    grid = np.linspace(0, 60, 200_001)
    difference = stats.expon.pdf(grid) - stats.expon.pdf(grid, scale=3.0)
    truth = 0.5 + 0.25 * integrate.trapezoid(np.abs(difference), grid)
    result = loss_threshold_attack(members, others, confidence=1 - 1e-6, rng=0)
    assert result.interval[0] <= truth <= result.interval[1]
    assert result.success == pytest.approx(truth, abs=0.01)
    assert result.refutes(0.6)
    assert not result.refutes(0.8)


@pytest.mark.slow
def test_choosing_and_counting_on_the_same_records_would_flatter_the_attack(monkeypatch):
    rng = np.random.default_rng(2)
    draws = rng.normal(size=(2000, 2, 20))

    def mean_success():
        return np.mean([loss_threshold_attack(members, others, rng=0).success for members, others in draws])

    honest = mean_success()
    # A mean of 2000 successes of at least 20 guesses each has a deviation below 0.5 / sqrt(40_000): five of them.
    assert abs(honest - 0.5) < 5 * 0.5 / np.sqrt(2000 * 20)
    monkeypatch.setattr(loss_threshold, "_split", lambda losses, name, generator: (losses, losses))
    assert mean_success() > 0.55


def test_members_and_others_count_equally():
    result = loss_threshold_attack(np.zeros(1000), np.concatenate([np.zeros(10), np.ones(10)]), rng=0)
    assert 0.5 <= result.success <= 1.0
    assert result.num_trials == 510


def test_the_result_goes_on_a_card_as_an_estimate():
    estimate = loss_threshold_attack([0.1, 0.2, 0.3], [1.0, 2.0, 3.0], rng=0).to_estimate()
    card = PrivacyCard("Run", "Which world.", guarantees=(), conditions=(), estimates=(estimate,))
    assert "Loss threshold attack success" in card.to_markdown()


@pytest.mark.parametrize(
    ("members", "others", "sentence"),
    [
        ([0.1], [0.1, 0.2], "^member_losses has 1 values"),
        ([0.1, 0.2], [], "^nonmember_losses has 0 values"),
        ([0.1, np.nan], [0.1, 0.2], "^member_losses has 1 that"),
    ],
)
def test_bad_losses_are_refused(members, others, sentence):
    with pytest.raises(ValueError, match=sentence):
        loss_threshold_attack(members, others)


@pytest.mark.parametrize(("successes", "trials", "confidence"), [(3, 2, 0.9), (-1, 2, 0.9), (0, 0, 0.9), (1, 2, 1.0)])
def test_impossible_counts_are_refused(successes, trials, confidence):
    with pytest.raises(ValueError, match=r"not possible|strictly between"):
        proportion_interval(successes, trials, confidence)
