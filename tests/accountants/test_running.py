import math

import numpy as np
import pytest
from scipy.stats import norm

from lightning_pac.accountants import EpsilonDelta, Notion, Promise, RunningAccount, SRPPAccountant, SuccessBound
from lightning_pac.scenarios import EpochShuffle, FixedSize, Poisson, Sampling, TwoWorldScenario

SCENARIO = TwoWorldScenario(10, 5_000)
CASES: list[tuple[Sampling, Notion]] = [
    (EpochShuffle(64), "joint"),
    (EpochShuffle(4), "ave"),
    (EpochShuffle(64), "ms-joint"),
    (FixedSize(64), "rpp"),
    (Poisson(0.01), "rpp"),
]


@pytest.mark.parametrize(("sampling", "notion"), CASES)
def test_a_running_account_is_the_account_of_its_stretches(sampling: Sampling, notion: Notion) -> None:
    accountant = SRPPAccountant(SCENARIO, sampling, 8.0, notion)
    account = accountant.track(20.0)
    total = 0.0
    rng = np.random.default_rng(0)
    for _ in range(400):
        if rng.random() < 0.02:
            account.begin_stretch()
        announced = account.next_epsilon
        total += account.start_step()
        assert account.epsilon == announced
        assert account.epsilon == pytest.approx(accountant.epsilon(20.0, account.stretches))
    assert total == pytest.approx(account.epsilon)
    assert account.num_steps == sum(account.stretches) == 400
    assert len(account.stretches) > 1
    resumed = accountant.track(20.0, account.stretches)
    assert resumed.epsilon == pytest.approx(account.epsilon)
    assert resumed.open_steps == account.open_steps
    assert resumed.next_cost == pytest.approx(account.next_cost)


@pytest.mark.parametrize(("sampling", "notion"), CASES)
def test_success_of_a_running_account_is_a_bound_and_a_close_one(sampling: Sampling, notion: Notion) -> None:
    accountant = SRPPAccountant(SCENARIO, sampling, 8.0, notion)
    account = accountant.track(30.0, planned_steps=2_000)
    assert account.world_success_bound() == pytest.approx(0.5, abs=1e-12)
    last = accountant.world_success_bound(30.0, 2_000)
    for step in range(1, 2_001):
        account.start_step()
        running, epsilon = account.world_success_bound(), account.epsilon_at_delta()
        if step % 97 == 1:
            exact = accountant.world_success_bound(30.0, step)
            # Figures are computed after parts of the units whose roots are even.
            soon = math.ceil((math.sqrt(accountant.units(step)) + math.sqrt(accountant.units(2_000)) / 31) ** 2)
            assert exact * (1 - 1e-9) <= running <= accountant.success_of_units(30.0, soon) + 1e-9
            if not accountant.is_mean_square:
                assert accountant.epsilon_at_delta(30.0, step)[0] * (1 - 1e-9) <= epsilon
    assert account.world_success_bound() == pytest.approx(last, rel=1e-9)
    account.start_step()  # beyond the plan, the next figures are computed
    assert account.world_success_bound() >= last


@pytest.mark.parametrize("promise", [SuccessBound(0.6), SuccessBound(0.85, prior=0.8), EpsilonDelta(2.0, 1e-5)])
@pytest.mark.parametrize("sampling", [Poisson(0.01), FixedSize(64), EpochShuffle(64)])
def test_a_promise_lasts_for_the_planned_steps_and_no_unit_more(sampling: Sampling, promise: Promise) -> None:
    accountant = SRPPAccountant(SCENARIO, sampling)
    planned = 790  # ten passes
    noise = accountant.noise_for(promise, planned)
    for plan in (planned, 2 * planned):  # a resumed run may plan for more than its noise pays for
        account = accountant.track(noise, planned_steps=plan, promise=promise)
        while account.next_keeps_promise():
            account.start_step()
        assert account.num_steps == planned
        is_epsilon = isinstance(promise, EpsilonDelta)
        figure, exact = (
            (account.epsilon_at_delta(), account.exact_epsilon_at_delta())
            if is_epsilon
            else (account.world_success_bound(), account.exact_success_bound())
        )
        assert exact <= figure <= promise.limit, "the next figure that is computed was above the promise"
        if plan == planned:  # asking for a step beyond the plan leaves the figures of the steps taken exact
            assert account.epsilon_at_delta() == pytest.approx(account.exact_epsilon_at_delta(), rel=1e-9)
            assert account.world_success_bound() == pytest.approx(account.exact_success_bound(), rel=1e-9)
    again = accountant.track(noise, [planned], planned, promise)
    assert again.world_success_bound() == pytest.approx(again.exact_success_bound(), rel=1e-9)
    assert accountant.track(noise).next_keeps_promise()


def test_success_survives_a_hopeless_account() -> None:
    account = SRPPAccountant(SCENARIO, FixedSize(64)).track(0.01)
    for _ in range(5):
        account.start_step()
        assert account.world_success_bound() == 1.0


def test_first_step_of_a_pass_pays_for_it() -> None:
    account = SRPPAccountant(SCENARIO, EpochShuffle(64)).track(20.0)
    costs = [account.start_step() for _ in range(2 * 79)]
    assert [step for step, cost in enumerate(costs) if cost > 0] == [0, 79]
    assert [SRPPAccountant(SCENARIO, EpochShuffle(64)).step_cost(20.0, step) > 0 for step in (0, 1, 79)] == [
        True,
        False,
        True,
    ]


def spend(account: RunningAccount, steps: int) -> float:
    for _ in range(steps):
        account.next_epsilon
        account.start_step()
        account.epsilon
        account.world_success_bound()
        account.epsilon_at_delta()
        account.next_keeps_promise()
    return account.epsilon


@pytest.mark.parametrize(("sampling", "notion"), CASES)
def test_steps_look_up_what_the_first_one_computed(
    sampling: Sampling, notion: Notion, monkeypatch: pytest.MonkeyPatch
) -> None:
    promise = None if notion.startswith("ms-") else SuccessBound(0.6)
    account = SRPPAccountant(SCENARIO, sampling, 8.0, notion).track(20.0, planned_steps=10_000, promise=promise)
    spend(account, 1)
    for name in ("_compute_figures", "_most_units"):
        monkeypatch.delattr(RunningAccount, name)
    spend(account, 2_000)


def test_finite_bits_cost_more_at_orders_near_one() -> None:
    """Both worlds move by c, whose price at order a is (2a - 1) c / (a - 1): 3 c at two, 22 c at 1.05."""
    scenario = TwoWorldScenario(num_differing=1, num_records=100)
    charged = []
    for order in (2.0, 1.05):
        accountant = SRPPAccountant(scenario, FixedSize(10), order)
        account = accountant.track(4.0, draws_per_step=1000)
        account.start_step()
        charged.append(account.epsilon - accountant.epsilon(4.0, 1))
    assert charged[1] / charged[0] == pytest.approx(22 / 3, rel=1e-6)


def test_a_run_that_ends_by_what_it_shows_is_bounded_by_its_plan_only() -> None:
    """The worlds are told apart by likelihood, and the run ends once that is decisive; false alarm rate below 1e-6."""
    accountant = SRPPAccountant(TwoWorldScenario(num_differing=1, num_records=10), FixedSize(10))
    account, taken, bounds = accountant.track(4.0, planned_steps=16), [], []
    for _ in range(16):
        account.start_step()
        taken.append(account.exact_success_bound())
        bounds.append(account.of_plan().exact_success_bound())
    assert bounds == pytest.approx([taken[-1]] * 16, rel=1e-12)
    shift = 2 * norm.ppf(taken[0])  # of a Gaussian of deviation 1 in the first step
    assert taken[-1] == pytest.approx(norm.cdf(4 * shift / 2), rel=1e-9)
    generator, num_runs = np.random.default_rng(0), 200_000
    world = generator.integers(0, 2, num_runs)
    released = shift * world[:, None] + generator.standard_normal((num_runs, 16))
    ratios = np.cumsum(shift * released - shift**2 / 2, axis=1)
    decisive = np.abs(ratios) > 1.5
    ends = np.where(decisive.any(axis=1), decisive.argmax(axis=1), 15)
    right = (ratios[np.arange(num_runs), ends] > 0) == world
    assert right.mean() > np.mean(np.take(taken, ends)) + 0.03
    assert right.mean() < bounds[0] + 5 / math.sqrt(4 * num_runs)
