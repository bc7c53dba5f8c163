import numpy as np
import pytest
from scipy import integrate, stats
from slow_cases import slow

from lightning_pac.accountants import SRPPAccountant
from lightning_pac.audits import likelihood_ratio_attack
from lightning_pac.scenarios import BlockedPoisson, EpochShuffle, FixedSize, Poisson, TwoWorldScenario, WithReplacement

# Intervals at this confidence fail falsely less than once in a million runs each.
SURE = 1 - 1e-6


def within(result, truth):
    return result.interval[0] <= truth <= result.interval[1]


@pytest.mark.parametrize(
    ("scenario", "shift"),
    [
        (TwoWorldScenario(3, num_records=50), 6.0),
        (TwoWorldScenario(3, num_records=50, adjacency="zero_out"), 3.0),
        (TwoWorldScenario((2, 3), num_records=50, adjacency="zero_out"), 5.0),
    ],
)
@pytest.mark.parametrize("sampling", [FixedSize(50), EpochShuffle(50), Poisson(1.0)])
def test_full_batches_are_a_gaussian_shift(scenario, shift, sampling):
    noise, steps = 12.0, 9
    truth = stats.norm.cdf(shift * np.sqrt(steps) / (2 * noise))
    result = likelihood_ratio_attack(scenario, sampling, noise, steps, num_runs=20_000, confidence=SURE, rng=0)
    assert within(result, truth)
    wrong = likelihood_ratio_attack(scenario, sampling, noise / 2, steps, num_runs=20_000, confidence=SURE, rng=0)
    assert wrong.refutes(truth)


@pytest.mark.parametrize(
    "scenario", [TwoWorldScenario(4), TwoWorldScenario((1, 3), adjacency="add_remove")], ids=["replace", "both ways"]
)
def test_one_step_with_secret_draws_attains_the_total_variation(scenario):
    rate, noise = 0.2, 1.5
    grid = np.linspace(-25, 25, 20_001)

    def density(count, sign):
        weights = stats.binom.pmf(np.arange(count + 1), count, rate)
        return sum(w * stats.norm.pdf(grid, sign * k, noise) for k, w in enumerate(weights))

    first, second = (4, 4) if scenario.adjacency == "replace" else scenario.num_differing
    truth = 0.5 + 0.25 * integrate.trapezoid(np.abs(density(first, -1) - density(second, 1)), grid)
    result = likelihood_ratio_attack(scenario, Poisson(rate), noise, 1, num_runs=50_000, confidence=SURE, rng=0)
    assert within(result, truth)


def test_seeing_the_draws_helps_the_attacker():
    scenario, steps = TwoWorldScenario(4), 50
    hidden = likelihood_ratio_attack(scenario, Poisson(0.05), 4.0, steps, num_runs=20_000, confidence=SURE, rng=0)
    seen = likelihood_ratio_attack(
        scenario, Poisson(0.05, secret_draws=False), 4.0, steps, num_runs=20_000, confidence=SURE, rng=0
    )
    assert seen.interval[0] > hidden.interval[1]
    assert "but not the draws" in hidden.method


@pytest.mark.parametrize(
    "sampling", [EpochShuffle(8), EpochShuffle(8, drop_last=True), FixedSize(8), WithReplacement(8)]
)
def test_counts_are_those_of_real_batches(sampling):
    records, sizes, steps, runs = 30, [3, 2], 6, 4000
    rng = np.random.default_rng(5)
    drawn = np.moveaxis(sampling.draw_counts(sizes, records, (runs, steps), rng), -1, 0)
    assert drawn.shape == (2, runs, steps)
    real = np.zeros_like(drawn)
    per_pass = 4 if not getattr(sampling, "drop_last", False) else 3
    for run in range(runs):
        order = np.concatenate([np.resize(rng.permutation(records), 32)[: 8 * per_pass] for _ in range(3)])
        for step in range(steps):
            if isinstance(sampling, WithReplacement):
                batch = rng.integers(records, size=8)
            elif isinstance(sampling, FixedSize):
                batch = rng.choice(records, size=8, replace=False)
            else:
                full = 8 if step % per_pass < 3 else 6
                batch = order[8 * step : 8 * step + full]
            real[:, run, step] = np.count_nonzero(batch < 3), np.count_nonzero((batch >= 3) & (batch < 5))
    for statistic in (
        lambda k: k[0],
        lambda k: k[0] * k[1],
        lambda k: k.sum(axis=0) ** 2,
        lambda k: k[0, :, :1] * k[0],
    ):
        ours, theirs = statistic(drawn), statistic(real)
        deviation = np.sqrt((ours.var(axis=0) + theirs.var(axis=0)) / runs)
        # Six deviations for each of at most 24 means: a false alarm below 1e-7.
        assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) <= 6 * deviation + 1e-12).all()


def test_bad_arguments_are_refused():
    scenario = TwoWorldScenario(3)
    with pytest.raises(ValueError, match="needs it: state num_records"):
        likelihood_ratio_attack(scenario, FixedSize(8), 1.0, 5)
    with pytest.raises(ValueError, match="noise_multiplier is 0"):
        likelihood_ratio_attack(scenario, Poisson(0.1), 0.0, 5)
    with pytest.raises(ValueError, match="must be at least 1"):
        likelihood_ratio_attack(scenario, Poisson(0.1), 1.0, 0)


@pytest.mark.parametrize(
    ("scenario", "sampling", "steps"),
    [
        (TwoWorldScenario(4), Poisson(0.1), 60),
        (TwoWorldScenario(4), Poisson(0.5), 40),
        (TwoWorldScenario(5, adjacency="add_remove"), Poisson(0.1, batch_size=50), 60),
        (TwoWorldScenario(1, adjacency="add_remove"), Poisson(0.2, batch_size=50), 60),
        (TwoWorldScenario(4, num_records=64), EpochShuffle(64), 10),
        (TwoWorldScenario(4, num_records=64, adjacency="zero_out"), FixedSize(64), 10),
    ],
)
def test_the_attack_stays_below_the_account_and_refutes_it_when_the_noise_is_halved(scenario, sampling, steps):
    accountant = SRPPAccountant(scenario, sampling, renyi_order=4, notion="rpp")
    noise = accountant.noise_multiplier(4.0, steps)
    bound = accountant.world_success_bound(noise, steps)
    attack = likelihood_ratio_attack(scenario, sampling, noise, steps, num_runs=20_000, confidence=SURE, rng=0)
    assert not attack.refutes(bound)
    assert attack.success > 0.5 + (bound - 0.5) / 2, "the attack is too weak to audit anything"
    halved = likelihood_ratio_attack(scenario, sampling, noise / 2, steps, num_runs=20_000, confidence=SURE, rng=0)
    assert halved.refutes(bound), (halved.success, bound)


@pytest.mark.parametrize(
    ("scenario", "same"),
    [
        # Five turns of the one record's block.
        (TwoWorldScenario(1, num_records=40, adjacency="zero_out"), Poisson(0.4)),
        *slow((TwoWorldScenario(1, num_records=40), Poisson(0.4))),
        # As many turns of three blocks, each with a record of its own.
        (TwoWorldScenario(3, num_records=3, adjacency="zero_out"), 3),
    ],
)
def test_within_blocks_the_attacker_waits_for_the_turn_of_the_record(scenario, same):
    sampling = BlockedPoisson(rate=0.05, blocks=8)
    result = likelihood_ratio_attack(scenario, sampling, 0.7, 40, num_runs=4_000, confidence=SURE, rng=0)
    if same == 3:
        alone = TwoWorldScenario(1, adjacency="zero_out")
        assert within(result, likelihood_ratio_attack(alone, Poisson(0.4), 0.7, 15, num_runs=40_000, rng=1).success)
    else:
        assert within(result, likelihood_ratio_attack(scenario, same, 0.7, 5, num_runs=40_000, rng=1).success)
    assert not result.refutes(SRPPAccountant(scenario, sampling).world_success_bound(0.7, 40))
