"""Composed figures against published ones, a peer, simulations and each other."""

import itertools
import math
import time
import warnings

import numpy as np
import pytest
import sampled_worlds
from scipy import stats

from lightning_pac.accountants.privacy_loss import (
    GaussianCurve,
    GaussianRelease,
    PoissonSteps,
    PrivacyCurve,
    opposite_mixtures_divergence,
    privacy_curve,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from dp_accounting.pld import privacy_loss_distribution


def steps(sigma: float, rate: float, num_steps: int, differing, adjacency: str = "zero_out", **more) -> PoissonSteps:
    return PoissonSteps(sigma, rate, num_steps, differing, adjacency, **more)


@pytest.mark.parametrize(
    ("event", "bound"),
    [
        (steps(6.408, 0.01, 3906, 10), 0.688),
        (steps(5.006, 0.01, 3906, 10), 0.7356),
        (steps(1.314, 0.01, 3906, 1, "add_remove"), 0.6083),
        (steps(1.105, 0.01, 3906, 1, "add_remove"), 0.6360),
        (steps(14.17, 0.1, 50, 10, "replace"), 0.691),
    ],
)
def test_known_bounds_on_guessing(event: PoissonSteps, bound: float) -> None:
    assert privacy_curve([event]).success_bound() == pytest.approx(bound, abs=5e-4)


def test_a_peer_agrees() -> None:
    for sigma, rate, differing, count, interval in [(2.0, 0.1, 3, 40, 1e-3), (6.408, 0.01, 10, 200, 3e-4)]:
        weights = stats.binom.pmf(np.arange(differing + 1), differing, rate)
        peer = privacy_loss_distribution.from_mixture_gaussian_mechanism(
            sigma, np.arange(differing + 1.0), weights, value_discretization_interval=interval
        ).self_compose(count)
        curve = privacy_curve([steps(sigma, rate, count, differing)])
        for epsilon in (0.0, 0.2, 0.5):
            assert curve.delta(epsilon) == pytest.approx(peer.get_delta_for_epsilon(epsilon), rel=1e-3)
        assert curve.epsilon(1e-5) == pytest.approx(peer.get_epsilon_for_delta(1e-5), rel=1e-3)


# The sigma of the simulations varies from where one step tells much to where a run tells little.
SETTINGS = [
    (sigma, rate, pair, count)
    for sigma, rate, count in [(0.6, 0.01, 20), (1.0, 0.1, 10), (2.0, 0.05, 30), (5.0, 0.3, 20), (1.5, 0.5, 5)]
    for pair in [(1, 0), (4, 0), (2, 2), (3, 1)]
]


def adjacent(sigma: float, rate: float, pair: tuple[int, int], count: int) -> PoissonSteps:
    if pair[0] == pair[1]:
        return steps(sigma, rate, count, pair[0], "replace")
    return steps(sigma, rate, count, pair if pair[1] else pair[0])


def least_excess(curve: PrivacyCurve, losses: np.ndarray) -> float:
    """By how many standard errors delta lies above its estimate, at the epsilon where that is least."""
    values = []
    for epsilon in np.quantile(losses, [0.5, 0.9, 0.99]).clip(0.0):
        above = np.maximum(0.0, -np.expm1(epsilon - losses))
        values.append((curve.delta(float(epsilon)) - above.mean()) / (above.std() / math.sqrt(len(losses)) + 1e-12))
    return min(values)


def check_simulations(draws: int) -> None:
    """120 comparisons at 5 standard errors: a false alarm in 30,000 runs."""
    for number, (sigma, rate, pair, count) in enumerate(SETTINGS):
        curve = privacy_curve([adjacent(sigma, rate, pair, count)])
        closest = math.inf
        for way in (1, -1):
            rng = np.random.default_rng([number, way % 3])
            losses = sampled_worlds.draw_losses(rng, sigma, rate, pair[::way], count, draws)
            excess = least_excess(curve, losses)
            assert excess > -5
            closest = min(closest, excess)
        assert closest < 5  # the larger order of the worlds is attained


def test_no_figure_below_a_simulation() -> None:
    check_simulations(10_000)


@pytest.mark.slow
def test_no_figure_below_a_large_simulation() -> None:
    check_simulations(2_000_000)


def test_a_likelihood_ratio_attack_reaches_the_bound() -> None:
    """80,000 attacks each on runs of `replace` and of a nested pair: within 1 % of the bound, four standard errors."""
    rng = np.random.default_rng(5)
    for pair in [(3, 3), (4, 0)]:
        bound = privacy_curve([adjacent(4.0, 0.2, pair, 15)]).success_bound()
        first = sampled_worlds.draw_losses(rng, 4.0, 0.2, pair, 15, 40_000)
        second = sampled_worlds.draw_losses(rng, 4.0, 0.2, pair[::-1], 15, 40_000)
        success = (np.mean(first > 0) + np.mean(second > 0)) / 2
        assert abs(success / bound - 1) < 0.01


def test_the_trade_off_is_that_of_threshold_tests() -> None:
    """The curve against the likelihood-ratio test of 40,000 simulated runs, and its symmetry."""
    rng = np.random.default_rng(6)
    curve = privacy_curve([steps(3.0, 0.2, 20, 3, "replace")])
    positives = np.sort(sampled_worlds.draw_losses(rng, 3.0, 0.2, (3, 3), 20, 40_000))
    for rate in (0.01, 0.1, 0.4):
        threshold = -np.quantile(positives, rate)  # losses in the second world are minus those in the first
        missed = np.mean(positives <= threshold)
        assert curve.trade_off(rate) == pytest.approx(missed, abs=0.03)  # five standard errors at the smallest rate
        assert curve.trade_off(curve.trade_off(rate)) <= rate + 1e-6
    assert (curve.trade_off(0.0), curve.trade_off(1.0)) == (pytest.approx(1.0, abs=1e-6), 0.0)


def test_the_trade_off_at_false_alarms_beyond_e_to_the_700() -> None:
    """Three steps, each drawn with probability 1/2, 50 deviations apart: who raises an alarm above 37.3 misses 1/8."""
    curve = privacy_curve([steps(0.02, 0.5, 3, 1, "zero_out")])
    rate = 3 * stats.norm.sf(37.3)
    assert 1e-305 < rate < 1e-300
    assert curve.trade_off(rate) <= 1 / 8


def test_the_trade_off_of_unlike_orders_is_below_both() -> None:
    """Nested pairs differ with the order of the worlds: the curve holds whichever of them is the null hypothesis."""
    rng = np.random.default_rng(8)
    curve = privacy_curve([steps(0.7, 0.05, 4, 1)])
    present = sampled_worlds.draw_losses(rng, 0.7, 0.05, (1, 0), 4, 100_000)
    absent = -sampled_worlds.draw_losses(rng, 0.7, 0.05, (0, 1), 4, 100_000)
    for rate in (0.01, 0.05, 0.3, 0.8):
        missed = np.mean(present <= np.quantile(absent, 1 - rate))
        alarms_missed = np.mean(absent >= np.quantile(present, rate))
        assert curve.trade_off(rate) <= min(missed, alarms_missed) + 0.02


def test_priors_weigh_the_worlds() -> None:
    """Success from a prior, by the best threshold on simulated losses, in both assignments."""
    rng = np.random.default_rng(9)
    curve = privacy_curve([steps(1.0, 0.2, 10, 1)])
    present = sampled_worlds.draw_losses(rng, 1.0, 0.2, (1, 0), 10, 40_000)
    absent = -sampled_worlds.draw_losses(rng, 1.0, 0.2, (0, 1), 10, 40_000)
    for prior in (0.3, 0.5, 0.7):
        threshold = math.log((1 - prior) / prior)
        success = prior * np.mean(present > threshold) + (1 - prior) * np.mean(absent <= threshold)
        assert curve.success_bound(prior) >= success - 0.005
        assert curve.success_bound(prior) <= max(success + 0.02, prior, 1 - prior)


def test_unlike_events_are_one_run() -> None:
    whole = privacy_curve([steps(2.0, 0.1, 60, 2)])
    parts = privacy_curve([steps(2.0, 0.1, 25, 2), GaussianRelease(0.0), steps(2.0, 0.1, 35, 2)])
    assert parts.epsilon(1e-6) == whole.epsilon(1e-6)
    more = privacy_curve([steps(2.0, 0.1, 60, 2), steps(3.0, 0.05, 40, 2), GaussianRelease(0.3)])
    rng = np.random.default_rng(1)
    losses = sampled_worlds.draw_losses(rng, 2.0, 0.1, (2, 0), 60, 30_000)
    losses += sampled_worlds.draw_losses(rng, 3.0, 0.05, (2, 0), 40, 30_000)
    losses += rng.normal(0.15, math.sqrt(0.3), 30_000)
    assert least_excess(more, losses) > -5
    assert np.mean(np.maximum(0.0, -np.expm1(-losses))) == pytest.approx(more.delta(0.0), abs=0.01)


def test_gaussians_alone_are_exact_and_draws_never_cost_more_than_known_ones() -> None:
    assert privacy_curve([GaussianRelease(0.25), GaussianRelease(1.0)]) == GaussianCurve(math.sqrt(1.25))
    assert privacy_curve([]).success_bound() == 0.5
    assert privacy_curve([steps(2.0, 1.0, 9, 2)]) == GaussianCurve(3.0)
    nearly = privacy_curve([steps(2.0, 0.999999, 9, 2, "replace")])
    assert nearly.epsilon(1e-5) <= GaussianCurve(6.0).epsilon(1e-5)


def test_every_split_is_composed_over_the_whole_run() -> None:
    either = privacy_curve([steps(1.5, 0.05, 30, 4, nested=False)])
    splits = [privacy_curve([steps(1.5, 0.05, 30, (4 - other, other))]) for other in range(5)]
    for epsilon in (0.0, 0.3, 1.0):
        deltas = [curve.delta(epsilon) for curve in splits]
        assert either.delta(epsilon) == max(deltas)
        # In every case tried it is the split that leaves one world without any of them.
        assert max(deltas) == pytest.approx(deltas[0], rel=1e-6)
    assert privacy_curve([steps(1.5, 0.05, 30, 4)]).epsilon(1e-5) == pytest.approx(splits[0].epsilon(1e-5))


def test_many_splits_are_covered_by_few() -> None:
    event = steps(300.0, 0.01, 1, 1000, nested=False)
    assert len(event.pairs) <= 40
    for other in range(1001):
        assert any(first >= 1000 - other and second >= other for first, second in event.pairs)


def test_which_world_holds_the_records_is_one_for_all_events() -> None:
    same = [steps(1.0, 0.05, 20, 1), steps(0.8, 0.02, 20, 1)]
    opposed = [same[0], steps(0.8, 0.02, 20, 1, holder="second")]
    mirrored = [steps(1.0, 0.05, 20, 1, holder="second"), steps(0.8, 0.02, 20, 1, holder="second")]
    assert privacy_curve(same).delta(0.5) == privacy_curve(mirrored).delta(0.5)
    assert privacy_curve(opposed).delta(0.5) < privacy_curve(same).delta(0.5)


def test_open_splits_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="declare the same num_differing for both"):
        privacy_curve([steps(1.0, 0.1, 5, 2, nested=False), steps(1.0, 0.1, 5, 3, nested=False)])


def test_below_the_rényi_conversion() -> None:
    """Exact figures never exceed what Rényi prices of the same pair imply."""
    for sigma, rate, pair, count in [
        (6.408, 0.01, (10, 0), 3906),
        (14.17, 0.1, (10, 10), 50),
        (0.8, 0.01, (1, 0), 200),
    ]:
        curve = privacy_curve([adjacent(sigma, rate, pair, count)])
        converted = math.inf
        for order in (1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0):
            price = count * max(opposite_mixtures_divergence(order, sigma, rate, *pair[::way]) for way in (1, -1))
            converted = min(converted, price + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1))
        assert curve.epsilon(1e-5) < converted


def test_figures_are_monotone_and_consistent() -> None:
    curve = privacy_curve([steps(1.0, 0.02, 200, 2)])
    deltas = [curve.delta(epsilon) for epsilon in np.linspace(0.0, 6.0, 40)]
    assert all(later <= before * (1 + 1e-3) for before, later in itertools.pairwise(deltas))
    for delta in (1e-3, 1e-5, 1e-9, 1e-14):
        assert curve.delta(curve.epsilon(delta)) == pytest.approx(delta, rel=1e-3)
    assert math.isfinite(curve.epsilon(1e-300))


def test_sums_are_quick() -> None:
    """Stated for an idle machine: 2 s at d = 10, 20 s at d = 1,000, 1 s for ten runs; here with room for a busy one."""
    for events, seconds in [
        ([steps(6.4, 0.011, 4000, 10)], 2.0),
        ([steps(640.0, 0.011, 4000, 1000)], 20.0),
        ([steps(5.0 + i, 0.01 + 0.001 * i, 1000 + 300 * i, 10) for i in range(9)] + [GaussianRelease(0.1)], 1.0),
    ]:
        start = time.process_time()
        curve = privacy_curve(events)
        assert 0 < curve.success_bound() < 1
        assert curve.epsilon(1e-5) < 20
        assert time.process_time() - start < 3 * seconds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 0.1, 5, 1, "replace"), "noise_multiplier is 0.0"),
        ((1e-160, 0.1, 5, 1, "replace"), "noise_multiplier is 1e-160, but must lie between"),
        ((1.0, 0.0, 5, 1, "replace"), "rate is 0.0"),
        ((1.0, 0.1, -1, 1, "replace"), "num_steps is -1"),
        ((1.0, 0.1, 5, 0, "replace"), "num_differing is 0"),
        ((1.0, 0.1, 5, 1, "other"), "adjacency is 'other'"),
        ((1.0, 0.1, 5, 1, "replace", True, "third"), "holder is 'third'"),
    ],
)
def test_steps_that_are_none(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PoissonSteps(*arguments)
