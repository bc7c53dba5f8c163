import math
import warnings

import numpy as np
import pytest

from lightning_pac.accountants import GroupDPAccountant, SliceCoefficients, SRPPAccountant, SRPPRun, compose
from lightning_pac.scenarios import EpochShuffle, FixedSize, Poisson, Sequential, TwoWorldScenario

SCENARIO = TwoWorldScenario(10, 50_000, "zero_out")
AMPLIFIED = SRPPAccountant(SCENARIO, Poisson(0.01))
SHUFFLED = SRPPAccountant(SCENARIO, EpochShuffle(512))


def test_runs_under_one_declaration_add() -> None:
    runs = [SRPPRun(AMPLIFIED, 8.0, 1000), SRPPRun(SHUFFLED, 200.0, (98, 10)), SRPPRun(AMPLIFIED, 9.0, 50)]
    together = compose(runs)
    assert together.epsilon == pytest.approx(
        AMPLIFIED.epsilon(8.0, 1000) + SHUFFLED.epsilon(200.0, [98, 10]) + AMPLIFIED.epsilon(9.0, 50)
    )
    assert together.world_success_bound() > AMPLIFIED.world_success_bound(8.0, 1000)
    epsilon, _ = together.epsilon_at_delta(1e-5)
    alone, _ = AMPLIFIED.epsilon_at_delta(8.0, 1000, 1e-5)
    assert epsilon > alone


def test_one_run_in_two_halves_costs_what_it_costs() -> None:
    halves = compose([SRPPRun(AMPLIFIED, 8.0, 500), SRPPRun(AMPLIFIED, 8.0, 500)])
    assert halves.epsilon == pytest.approx(AMPLIFIED.epsilon(8.0, 1000))
    assert halves.world_success_bound() == pytest.approx(AMPLIFIED.world_success_bound(8.0, 1000))
    assert halves.epsilon_at_delta(1e-6) == pytest.approx(AMPLIFIED.epsilon_at_delta(8.0, 1000, 1e-6))


def test_the_counterexample_to_adding_across_couplings() -> None:
    """Two fair bits, secret their exclusive or: a release alone has one law in both worlds, both tell all."""
    bits = [(a, b) for a in (0, 1) for b in (0, 1)]
    for position in (0, 1):
        laws = [sorted(pair[position] for pair in bits if pair[0] ^ pair[1] == secret) for secret in (0, 1)]
        assert laws[0] == laws[1]
    joint = [{pair for pair in bits if pair[0] ^ pair[1] == secret} for secret in (0, 1)]
    assert not joint[0] & joint[1]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (SRPPAccountant(TwoWorldScenario(11, 50_000, "zero_out"), Poisson(0.01)), "scenarios"),
        (SRPPAccountant(SCENARIO, Poisson(0.01), 8.0), "Rényi orders"),
        (SRPPAccountant(SCENARIO, Poisson(0.01), 16.0, "ms-ave"), "notions"),
    ],
)
def test_runs_that_differ_are_refused(other: SRPPAccountant, what: str) -> None:
    with pytest.raises(ValueError, match=f"different {what} do not compose.*exclusive or of two bits"):
        compose([SRPPRun(AMPLIFIED, 8.0, 10), SRPPRun(other, 8.0, 10)])


def test_slices_and_nothing_are_refused() -> None:
    sliced = SRPPAccountant(SCENARIO, Poisson(0.01), 16.0, "ave", SliceCoefficients((0.5, 0.5), (0.5, 0.5)))
    with pytest.raises(ValueError, match="leave slices out"):
        compose([SRPPRun(sliced, 8.0, 10)])
    with pytest.raises(ValueError, match="pass at least one"):
        compose([])
    averaged = SRPPAccountant(SCENARIO, FixedSize(512), 16.0, "ms-ave")
    with pytest.raises(ValueError, match="An average over batches"):
        compose([SRPPRun(averaged, 8.0, 10)]).epsilon_at_delta()


def test_group_baseline_warns_scales_and_misses_the_secret() -> None:
    with pytest.warns(UserWarning, match="does not bound what is learned about the secret"):
        group = GroupDPAccountant(TwoWorldScenario(5000, 50_000), FixedSize(512))
    assert group.group_size == pytest.approx(math.sqrt(FixedSize(512).expected_square_sum(5000, 50_000, 1)))
    record = SRPPAccountant(TwoWorldScenario.differential_privacy(), Poisson(1 / 98))
    epsilon, _ = record.epsilon_at_delta(2.0, 100, 1e-5)
    assert group.epsilon(2.0, 100) == pytest.approx(group.group_size * epsilon)
    noise = group.noise_multiplier(8.0, 100)
    assert group.epsilon(noise, 100) <= 8.0 < group.epsilon(noise / 1.0001, 100)


def test_group_baseline_can_be_beaten_by_an_attack_it_does_not_cover() -> None:
    """d records, group size one: the sum of aligned gradients tells the worlds apart better than claimed."""
    scenario = TwoWorldScenario(40, 400, "zero_out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group = GroupDPAccountant(scenario, FixedSize(8))
    assert group.group_size < 2
    rng = np.random.default_rng(0)
    steps, noise, runs = 400, 6.0, 2000
    sums = [
        rng.hypergeometric(40, 360, 8, size=(runs, steps)).sum(axis=1) * present
        + noise * math.sqrt(steps) * rng.normal(size=runs)
        for present in (0, 1)
    ]
    middle = steps * 0.8 / 2
    success = ((sums[0] < middle).mean() + (sums[1] > middle).mean()) / 2
    epsilon = group.epsilon(noise, steps)
    claimed = 1 - (1 - 1e-5) / (1 + math.exp(epsilon))
    assert success > claimed


def test_group_baseline_refuses_what_has_no_average() -> None:
    with pytest.raises(ValueError, match="The order of the records is public"):
        GroupDPAccountant(SCENARIO, Sequential(512))
    with pytest.raises(ValueError, match=r"delta is 0\.0, but"):
        GroupDPAccountant(SCENARIO, FixedSize(512), delta=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group = GroupDPAccountant(SCENARIO, FixedSize(512))
    with pytest.raises(ValueError, match=r"epsilon is 0.0, but must lie"):
        group.noise_multiplier(0.0, 1)
