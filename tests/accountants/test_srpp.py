import itertools
import math
import time
from typing import get_args

import numpy as np
import pytest
from scipy import stats

from lightning_pac.accountants import Notion, SliceCoefficients, SRPPAccountant, effective_noise_multiplier
from lightning_pac.scenarios import (
    EpochShuffle,
    FixedSize,
    Poisson,
    Sampling,
    Sequential,
    TwoWorldScenario,
    WithReplacement,
)

RECORDS, BATCH, STEPS = 50_000, 512, 3906
RATE = BATCH / RECORDS
DP = SRPPAccountant(TwoWorldScenario.differential_privacy(), Poisson(RATE))


def zero_out(num_differing: int = 10) -> TwoWorldScenario:
    return TwoWorldScenario(num_differing, RECORDS, "zero_out")


def test_published_noise_of_forty_epochs() -> None:
    def noise(differing: int, sampling: Sampling, notion: Notion = "rpp") -> float:
        return SRPPAccountant(zero_out(differing), sampling, 16, notion).noise_multiplier(8.0, STEPS)

    assert noise(10, Poisson(RATE)) == pytest.approx(6.56, abs=5e-3)
    assert noise(1, Poisson(RATE)) == pytest.approx(1.32, abs=1.2e-2)
    assert noise(10, FixedSize(BATCH), "ms-joint") == pytest.approx(20.90, abs=5e-3)
    assert noise(10, EpochShuffle(BATCH), "joint") == pytest.approx(63.25, abs=5e-3)
    assert noise(1, EpochShuffle(BATCH), "joint") == pytest.approx(6.32, abs=5e-3)
    replace = SRPPAccountant(TwoWorldScenario(10, RECORDS), Poisson(RATE))
    assert replace.noise_multiplier(8.0, STEPS) == pytest.approx(12.8, abs=2e-2)


def test_shuffling_and_amplification_save_what_they_promise() -> None:
    def noise(sampling: Sampling, notion: Notion) -> float:
        return SRPPAccountant(zero_out(), sampling, 16, notion).noise_multiplier(8.0, STEPS)

    assert noise(FixedSize(BATCH), "joint") >= 9 * noise(EpochShuffle(BATCH), "joint")
    assert noise(Poisson(RATE), "ms-joint") >= 3 * noise(Poisson(RATE), "rpp")


@pytest.mark.parametrize(
    ("sampling", "notion"),
    [
        (Poisson(RATE), "rpp"),
        (Poisson(RATE, secret_draws=False), "rpp"),
        (Poisson(RATE), "ms-ave"),
        (EpochShuffle(BATCH), "rpp"),
        (EpochShuffle(BATCH), "ms-joint"),
        (FixedSize(BATCH), "ave"),
        (WithReplacement(BATCH), "ms-joint"),
        (Sequential(BATCH), "joint"),
    ],
)
@pytest.mark.parametrize(
    "scenario", [zero_out(), TwoWorldScenario(10, RECORDS), TwoWorldScenario((4, 6), RECORDS, "zero_out")]
)
def test_noise_steps_and_epsilon_follow_from_each_other(
    scenario: TwoWorldScenario, sampling: Sampling, notion: Notion
) -> None:
    accountant = SRPPAccountant(scenario, sampling, 8.0, notion)
    noise = accountant.noise_multiplier(3.0, 500)
    assert 3.0 * (1 - 1e-5) <= accountant.epsilon(noise, 500) <= 3.0
    assert accountant.epsilon(noise * (1 - 1e-4), 500) > 3.0
    most = accountant.num_steps(noise, 3.0)
    assert most >= 500
    assert accountant.epsilon(noise, most) <= 3.0 < accountant.epsilon(noise, most + 1)


def test_unamplified_price_is_the_divergence_of_the_shifted_gaussians() -> None:
    """Two worlds whose batches hold K_t differing records on one path: `a |shift|^2 / (2 sigma^2)`."""
    accountant = SRPPAccountant(TwoWorldScenario(3, 12), EpochShuffle(2), 5.0, "joint")
    shifts = np.array([2 * 2.0, 2 * 1.0, 0, 0, 0, 0])  # two of the records in one batch, the third in another
    assert accountant.epsilon(1.7, 6) == pytest.approx(5 * (shifts**2).sum() / (2 * 1.7**2))


def test_removing_a_record_under_fixed_size_batches_costs_more_than_kappa_one_says() -> None:
    """One pass of two single-record batches: {+1, -1} shuffled against {-1}, where the second batch is empty."""
    order, means, other = 4, np.array([[1.0, -1.0], [-1.0, 1.0]]), np.array([-1.0, 0.0])
    moment = 0.0
    for chosen in itertools.product(means - other, repeat=order):
        total = np.sum(chosen, axis=0)
        moment += 0.5**order * math.exp((total @ total - sum(shift @ shift for shift in chosen)) / 2)
    truth = math.log(moment) / (order - 1)
    assert truth == pytest.approx(9.08, abs=5e-3)
    claimed = SRPPAccountant(TwoWorldScenario(1, 2, "zero_out"), EpochShuffle(1), order, "joint").epsilon(1.0, 2)
    assert claimed == pytest.approx(2.0)
    with pytest.raises(ValueError, match="add_remove does not hold under EpochShuffle"):
        SRPPAccountant(TwoWorldScenario(1, adjacency="add_remove"), EpochShuffle(1), order)


def test_blocks_enter_through_one_number() -> None:
    assert effective_noise_multiplier([1.0, 1.0], [4.0, 4.0]) == pytest.approx(4 / math.sqrt(2))
    # In general the cost is a/2 delta^T Sigma^-1 delta, maximized over the product of the block balls.
    clips, stds = [0.5, 2.0, 1.0], [1.0, 3.0, 5.0]
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(2000):
        deltas = [clip * (v / np.linalg.norm(v)) for clip, v in zip(clips, rng.normal(size=(3, 2)), strict=True)]
        largest = max(largest, sum((d @ d) / s**2 for d, s in zip(deltas, stds, strict=True)))
    assert effective_noise_multiplier(clips, stds) ** -2 == pytest.approx(largest)


def test_slice_costs_of_blocks_are_below_the_truth_over_steps_and_say_so() -> None:
    """Two equal blocks, a = 2, kappa = 2, sigma = 4, two steps: 0.50 claimed, where adaptivity reaches towards 0.75."""
    slices = SliceCoefficients.from_blocks([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0], [4.0, 4.0])
    sigma = effective_noise_multiplier([1.0, 1.0], [4.0, 4.0])
    scenario = TwoWorldScenario(1, 100)
    sliced = SRPPAccountant(scenario, Poisson(0.5), 2.0, "joint", slices)
    assert sliced.epsilon(sigma, 2) == pytest.approx(0.50)
    assert not sliced.is_certified
    assert sliced.metric_name == "privacy/srpp_joint_epsilon_uncertified"
    # The first block's mean in step two is the second block of step one, in both worlds: what is seen of the first
    # block alone is Gaussian with these moments, and its divergence a / 2 shift^T covariance^-1 shift.
    shift, covariance = np.array([2.0, 2.0 + 2.0]), 16 * np.array([[1.0, 0.0], [0.0, 2.0]])
    truth = shift @ np.linalg.solve(covariance, shift)
    assert truth == pytest.approx(0.75)
    unsliced = SRPPAccountant(scenario, Poisson(0.5, secret_draws=False), 2.0, "rpp")
    assert unsliced.epsilon(sigma, 2) == pytest.approx(1.0)
    assert unsliced.epsilon(sigma, 2) >= truth


def test_slices_average_join_and_take_the_largest() -> None:
    slices = SliceCoefficients((0.2, 1.0), (0.75, 0.25))
    scenario, sampling = TwoWorldScenario(2, 100), FixedSize(10)

    def cost(notion: Notion, aggregation: str = "logsumexp") -> float:
        return SRPPAccountant(scenario, sampling, 3.0, notion, slices, aggregation).epsilon(5.0, 2)  # type: ignore[arg-type]

    full = SRPPAccountant(scenario, sampling, 3.0, "rpp").epsilon(5.0, 2)
    assert cost("ave") == pytest.approx(0.75 * 0.2 * full + 0.25 * full)
    assert cost("joint") == pytest.approx(math.log(0.75 * math.exp(0.4 * full) + 0.25 * math.exp(2 * full)) / 2)
    assert cost("joint", "max") == pytest.approx(full)
    assert cost("ave") <= cost("joint") <= cost("joint", "max")
    expected = SRPPAccountant(scenario, sampling, 3.0, "ms-joint").epsilon(5.0, 2)
    assert cost("ms-joint") == pytest.approx(expected)  # the largest slice, never the mean inside the exponential
    noise = SRPPAccountant(scenario, sampling, 3.0, "joint", slices).noise_multiplier(1.0, 7)
    assert SRPPAccountant(scenario, sampling, 3.0, "joint", slices).epsilon(noise, 7) == pytest.approx(1.0, rel=1e-6)


def test_weights_that_miss_one_a_little_make_no_cost_smaller() -> None:
    slices = SliceCoefficients((1.0, 1.0), (0.5 - 4e-10, 0.5 - 4e-10))
    assert slices.average(1.0) == slices.joint(1.0, 1.0 + 1e-9) == pytest.approx(1.0, rel=1e-13)


def test_notions_agree_for_one_flat_block() -> None:
    costs = {
        notion: SRPPAccountant(zero_out(), EpochShuffle(BATCH), 16, notion).epsilon(30.0, STEPS)
        for notion in get_args(Notion)
    }
    assert costs["ave"] == costs["joint"] == costs["rpp"]
    assert costs["ms-ave"] == costs["ms-joint"] < costs["joint"]


def test_journals_are_charged_pass_by_pass() -> None:
    accountant = SRPPAccountant(zero_out(), EpochShuffle(BATCH), 16, "joint")
    whole = accountant.epsilon(60.0, 98)
    assert accountant.epsilon(60.0, [97, 1]) == pytest.approx(2 * whole)
    assert accountant.epsilon(60.0, [98, 98]) == accountant.epsilon(60.0, 196)
    poisson = SRPPAccountant(zero_out(), Poisson(RATE))
    assert poisson.epsilon(6.0, [97, 1]) == poisson.epsilon(6.0, 98)
    assert poisson.epsilon(6.0, []) == poisson.epsilon(6.0, 0) == 0.0


def test_differential_privacy_agrees_with_a_peer() -> None:
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    accountant = SRPPAccountant(TwoWorldScenario.differential_privacy(), Poisson(0.01))
    ours, delta = accountant.epsilon_at_delta(1.1, 2000, delta=1e-5)
    peer = pld.PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1))
    peer.compose(dp_accounting.SelfComposedDpEvent(event, 2000))
    assert ours == pytest.approx(peer.get_epsilon(1e-5), rel=2e-3)
    assert delta == 1e-5


@pytest.mark.parametrize(("steps", "peer"), [(145, 0.977), (290, 1.140), (580, 1.409)])
def test_noise_for_an_epsilon_and_delta_is_that_of_a_tight_peer(steps: int, peer: float) -> None:
    """Adult at (3, 1e-5): the noise that Opacus finds by its PRV accountant."""
    accountant = SRPPAccountant(TwoWorldScenario.differential_privacy(), Poisson(1024 / 29_561))
    noise = accountant.noise_multiplier(3.0, steps, delta=1e-5)
    assert 0.99 * peer < noise < 1.01 * peer
    assert accountant.epsilon_at_delta(noise, steps, 1e-5)[0] <= 3.0
    assert accountant.num_steps(noise, 3.0, 1e-5) == steps


def test_noise_for_a_bound_on_guessing() -> None:
    """Unamplified: `mu = 2 Phi^-1(bound)`. Amplified, 14.17 was said to give 0.7391, for which 11.03 is enough."""
    shuffled = SRPPAccountant(TwoWorldScenario(10, 5_000), EpochShuffle(50))
    noise = shuffled.noise_multiplier_for(world_success_bound=0.6, num_steps=300)
    assert noise == pytest.approx(2 * math.sqrt(3 * 10**2) / (2 * stats.norm.ppf(0.6)), rel=1e-5)
    assert shuffled.num_steps(noise, world_success_bound=0.6) == 300  # a pass pays at its start
    poisson = SRPPAccountant(TwoWorldScenario(10), Poisson(0.1))
    assert poisson.noise_multiplier_for(world_success_bound=0.7391, num_steps=50) <= 11.03
    assert poisson.world_success_bound(14.17, 50) == pytest.approx(0.691, abs=1e-3)
    rarer = poisson.noise_multiplier_for(world_success_bound=0.9, num_steps=50, prior=0.85)
    assert 0.9 * (1 - 1e-5) <= poisson.world_success_bound(rarer, 50, prior=0.15) <= 0.9


def test_the_trade_off_is_that_of_the_shifted_gaussian() -> None:
    accountant = SRPPAccountant(TwoWorldScenario(10, 5_000), EpochShuffle(50), notion="joint")
    mu = 2 * math.sqrt(3 * 10**2) / 40.0
    missed = accountant.trade_off(40.0, 300)
    for rate in (1e-3, 1e-2, 0.3):
        assert missed(rate) == pytest.approx(stats.norm.cdf(stats.norm.ppf(1 - rate) - mu), rel=1e-9)


def test_likelihood_ratio_attack_reaches_the_bound_and_beats_it_at_half_the_noise() -> None:
    """The optimal attack on simulated runs of the Gaussian sum: all gradients aligned, both worlds equally likely."""
    rng = np.random.default_rng(5)
    rate, differing, steps, runs, sigma = 0.2, 3, 20, 20_000, 4.0
    counts = np.arange(differing + 1)
    weights = np.array([math.comb(differing, k) * rate**k * (1 - rate) ** (differing - k) for k in counts])

    def attack(noise: float, both_ways: bool) -> float:
        correct = 0
        for world in (0, 1):
            drawn = rng.binomial(differing, rate, size=(runs, steps))
            signal = drawn if world else (-drawn if both_ways else np.zeros_like(drawn))
            release = signal + noise * rng.normal(size=(runs, steps))

            def log_ratio(x: np.ndarray, noise: float = noise) -> np.ndarray:
                return np.log(np.exp((x[..., None] * counts - counts**2 / 2) / noise**2) @ weights).sum(axis=1)

            evidence = log_ratio(release) - (log_ratio(-release) if both_ways else 0.0)
            correct += int(((evidence > 0) == bool(world)).sum())
        return correct / (2 * runs)

    for scenario in (TwoWorldScenario(differing, adjacency="zero_out"), TwoWorldScenario(differing)):
        both_ways = scenario.adjacency == "replace"
        bound = SRPPAccountant(scenario, Poisson(rate)).world_success_bound(sigma, steps)
        margin = 5 / (2 * math.sqrt(2 * runs))  # five standard errors; the seed is fixed
        assert attack(sigma, both_ways) == pytest.approx(bound, abs=margin)
        assert attack(sigma / 2, both_ways) - margin > bound


def test_mean_square_success_uses_the_kullback_leibler_order_alone() -> None:
    accountant = SRPPAccountant(zero_out(), FixedSize(BATCH), 16, "ms-joint")
    information = FixedSize(BATCH).expected_square_sum(10, RECORDS, 100) / (2 * 20.0**2)
    success = accountant.world_success_bound(20.0, 100)
    assert (2 * success - 1) * math.log(success / (1 - success)) == pytest.approx(information)
    for ask in (
        lambda: accountant.epsilon_at_delta(20.0, 100),
        lambda: accountant.noise_multiplier(3.0, 100, delta=1e-5),
        lambda: accountant.noise_multiplier_for(world_success_bound=0.6, num_steps=100),
        lambda: accountant.trade_off(20.0, 100),
        lambda: accountant.num_steps(20.0, 3.0, 1e-5),
    ):
        with pytest.raises(ValueError, match=r"^An average over batches .* promises no \(epsilon, delta\)"):
            ask()


def test_world_success_grows_with_steps_and_falls_with_noise() -> None:
    accountant = SRPPAccountant(zero_out(), Poisson(RATE))
    by_steps = [accountant.world_success_bound(8.0, steps) for steps in (0, 1, 100, 10_000, 10**7)]
    assert by_steps == sorted(by_steps)
    assert by_steps[0] == pytest.approx(0.5, abs=1e-9)
    assert by_steps[-1] > 0.999
    assert accountant.world_success_bound(16.0, 100) < accountant.world_success_bound(8.0, 100)
    assert 0.95 <= accountant.world_success_bound(8.0, 100, prior=0.05) < 0.96


def test_conditions_and_metrics_name_the_notion() -> None:
    names = {SRPPAccountant(zero_out(), FixedSize(BATCH), 16, notion).metric_name for notion in get_args(Notion)}
    assert names == {
        "privacy/rpp_epsilon",
        "privacy/srpp_ave_epsilon",
        "privacy/srpp_joint_epsilon",
        "privacy/ms_srpp_ave_epsilon",
        "privacy/ms_srpp_joint_epsilon",
    }
    amplified = SRPPAccountant(TwoWorldScenario((1, 2), RECORDS, "zero_out"), Poisson(RATE))
    assert any("Poisson draws are secret" in sentence for sentence in amplified.conditions())
    assert any("1 records are in the first world only" in sentence for sentence in amplified.conditions())
    averaged = SRPPAccountant(zero_out(), EpochShuffle(BATCH), 16, "ms-ave")
    assert any("average over the draw" in sentence for sentence in averaged.conditions())
    assert any("same world" in sentence for sentence in averaged.conditions())
    for accountant in (amplified, averaged):
        assert all(sentence.endswith(".") for sentence in accountant.conditions())


def test_calibration_is_quick() -> None:
    started = time.process_time()
    for sampling, scenario in [(Poisson(0.0123), TwoWorldScenario(10)), (Poisson(0.0124), zero_out())]:
        SRPPAccountant(scenario, sampling).noise_multiplier(8.0, STEPS)
    assert time.process_time() - started < 8  # about half a second


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: SRPPAccountant(zero_out(), Poisson(RATE), 1.0),
            r"renyi_order is 1\.0, but must be finite and above 1",
        ),
        (lambda: SRPPAccountant(zero_out(), Poisson(RATE), 2.0, "dp"), "notion is 'dp', but must be ave, joint"),
        (lambda: SRPPAccountant(zero_out(), Sequential(8), 2.0, "ms-ave"), "The order of the records is public"),
        (
            lambda: SRPPAccountant(zero_out(), Poisson(RATE, secret_draws=False), 2.0, "ms-ave"),
            "These Poisson draws are not secret",
        ),
        (
            lambda: SRPPAccountant(TwoWorldScenario(1, adjacency="add_remove"), FixedSize(8)),
            "use Poisson sampling, or the adjacency zero_out",
        ),
        (lambda: SRPPAccountant(TwoWorldScenario(1), EpochShuffle(8)), "state num_records in the scenario"),
        (
            lambda: SRPPAccountant(zero_out(), Poisson(RATE), slices=SliceCoefficients((1.0,), (1.0,))),
            'The notion "rpp" is unsliced',
        ),
        (
            lambda: SRPPAccountant(zero_out(), Poisson(RATE), 2.0, "joint", joint_aggregation="mean"),
            "must be logsumexp or max",
        ),
        (lambda: SRPPAccountant(zero_out(), Poisson(RATE)).epsilon(0.0, 1), r"noise_multiplier is 0\.0, but must"),
        (lambda: SRPPAccountant(zero_out(), Poisson(RATE)).noise_multiplier(-1.0, 1), r"epsilon is -1\.0, but must"),
        (
            lambda: SRPPAccountant(zero_out(), Poisson(RATE)).noise_multiplier(math.nan, 1),
            "epsilon is nan, but must be",
        ),
        (
            lambda: SRPPAccountant(zero_out(), Poisson(RATE)).noise_multiplier(1.0, 0),
            "calibrated for at least one step",
        ),
        (lambda: SRPPAccountant(zero_out(), Poisson(RATE)).num_steps(1.0, math.inf), "epsilon is inf, but must"),
        (lambda: SRPPAccountant(zero_out(), Poisson(RATE)).epsilon_at_delta(9.0, 5, 0.0), r"delta is 0\.0, but"),
        (lambda: DP.noise_multiplier(3.0, 5, delta=0.0), r"delta is 0\.0, but must lie strictly between 0 and 1"),
        (lambda: DP.noise_multiplier(3.0, 5, delta=1.0), r"delta is 1\.0, but must lie strictly between 0 and 1"),
        (lambda: DP.noise_multiplier(3.0, 5, delta=float("1e-400")), r"delta is 0\.0, but must lie strictly"),
        (lambda: DP.noise_multiplier(3.0, 0, delta=1e-5), "calibrated for at least one step"),
        (lambda: DP.noise_multiplier_for(world_success_bound=0.4, num_steps=5), r"is 0\.4, but must lie above 0\.5"),
        (lambda: DP.noise_multiplier_for(world_success_bound=1.0, num_steps=5), r"is 1\.0, .*and below 1"),
        (lambda: DP.num_steps(1.0), "Nothing is promised: pass epsilon"),
        (lambda: DP.num_steps(1.0, 3.0, 1e-5, world_success_bound=0.6), "pass exactly one of them"),
        (lambda: DP.num_steps(1.0, 3.0, world_success_bound=0.6), "pass exactly one of them"),
        (lambda: DP.num_steps(1.0, delta=1e-5), "belongs to an epsilon"),
        (lambda: DP.num_steps(1.0, 3.0, prior=0.2), "belongs to a bound on guessing"),
        (lambda: effective_noise_multiplier([1.0], []), "every block has one of"),
        (lambda: effective_noise_multiplier([1.0], [0.0]), "must be positive and finite"),
        (lambda: SliceCoefficients((0.5, 2.0), (0.5, 0.5)), r"coefficients must lie in \[0, 1\]"),
        (lambda: SliceCoefficients((0.5, 1.0), (0.5, 0.6)), "must be nonnegative and sum to 1"),
        (lambda: SliceCoefficients((0.5,), (0.5, 0.5)), "every slice has one of each"),
        (lambda: SliceCoefficients.from_blocks([[1.0, 1.0]], [1.0, 1.0], [1.0, 1.0]), "squares summing to 1"),
    ],
)
def test_bad_input_is_one_clear_sentence(call, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert str(caught.value).count(". ") == 0
