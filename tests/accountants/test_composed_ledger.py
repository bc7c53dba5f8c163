"""What a ledger's runs and metrics tell together, and which figure is in force."""

import math
import time
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from lightning_pac.accountants import (
    EpsilonDelta,
    GaussianRelease,
    LedgerPlan,
    PoissonSteps,
    SRPPAccountant,
    SuccessBound,
    ledger_events,
    ledger_total,
    privacy_curve,
)
from lightning_pac.accountants.bounds import world_success_bound
from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.scenarios import EpochShuffle, Poisson, TwoWorldScenario

SCENARIO = TwoWorldScenario(num_differing=5, num_records=1000, adjacency="zero_out")


def charge_run(ledger: PrivacyLedger, name: str, accountant: SRPPAccountant, noise: float, steps: int) -> None:
    """A run as `SRPPSGD` declares and journals it."""
    terms = accountant.to_dict()
    coupling = {"scenario": accountant.scenario.coupling(), "renyi_order": terms.pop("renyi_order")}
    declaration = {"coupling": coupling, **terms, "noise_multiplier": noise}
    account = ledger.account(name, accountant.currency, declaration, None, "training")
    running, attempt = accountant.track(noise), account.start_attempt()
    for step in range(steps):
        attempt.start_step(running.start_step(), step)


def charge_metric(ledger: PrivacyLedger, epsilon: float, times: int, **event: Any) -> None:
    coupling = {"scenario": SCENARIO.coupling(), "renyi_order": 16.0}
    account = ledger.account("metrics a", "rpp", {"coupling": coupling, "epsilon_of_each": epsilon, **event})
    account.charge_many([epsilon] * times)


def poisson(rate: float = 0.05) -> SRPPAccountant:
    return SRPPAccountant(SCENARIO, Poisson(rate))


def test_ten_mixed_runs_compose_within_a_second_in_all_three_promises(tmp_path: Path) -> None:
    shuffled = SRPPAccountant(SCENARIO, EpochShuffle(50))
    runs = [(poisson(0.02 * (1 + index % 3)), 8.0 + index, 40) for index in range(7)]
    runs += [(shuffled, 60.0 + index, 60) for index in range(2)]
    planned = [event for accountant, noise, steps in runs for event in accountant.events(noise, steps)]
    plan = LedgerPlan([*planned, GaussianRelease(10 * 2 * 0.01 / 16)], SuccessBound(0.9))
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        plan.declare(ledger)
        for index, (accountant, noise, steps) in enumerate(runs):
            charge_run(ledger, f"run {index}", accountant, noise, steps)
        charge_metric(ledger, 0.01, times=10)
        started = time.process_time()
        total = ledger_total(ledger)
        assert time.process_time() - started < 1.0
    assert total.basis == "plan"
    # The two shuffled runs (three passes of 5 records in one batch each) and the metrics are one Gaussian.
    mu_squared = 3 * 25 * (1 / 60**2 + 1 / 61**2) + 10 * 2 * 0.01 / 16
    steps = [PoissonSteps(8.0 + index, 0.02 * (1 + index % 3), 40, 5, "zero_out") for index in range(7)]
    curve = privacy_curve([*steps, GaussianRelease(mu_squared)])
    assert total.world_success_bound == pytest.approx(curve.success_bound(), rel=1e-9)
    assert total.epsilon_at_delta == pytest.approx(curve.epsilon(1e-5), rel=1e-9)
    assert total.renyi_epsilon == pytest.approx(math.fsum(a.epsilon(n, s) for a, n, s in runs) + 0.1, rel=1e-9)
    assert total.world_success_bound < world_success_bound([16.0], [total.renyi_epsilon])


def test_metrics_and_unamplified_runs_are_one_gaussian(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        LedgerPlan([GaussianRelease(0.05)]).declare(ledger)
        charge_run(ledger, "run", SRPPAccountant(SCENARIO, EpochShuffle(50), notion="joint"), 60.0, 20)
        charge_metric(ledger, 0.04, times=3)
        (run, metrics) = ledger_events(ledger)
        total = ledger_total(ledger)
    assert run == GaussianRelease(25 / 60**2)
    assert metrics.mu_squared == pytest.approx(3 * 2 * 0.04 / 16)
    # The plan is what holds, since how much of it would be used could depend on what was seen.
    assert total.basis == "plan"
    assert total.world_success_bound == pytest.approx(stats.norm.cdf(math.sqrt(0.05) / 2), rel=1e-9)


def test_without_a_plan_a_budget_of_before_is_what_holds(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "study.db", budget={"rpp": 2.0}) as ledger:
        charge_run(ledger, "first", poisson(), 30.0, 20)
        alone = ledger_total(ledger)
        charge_run(ledger, "second", poisson(), 30.0, 20)
        both = ledger_total(ledger)
        ledger.set_budget("rpp", 3.0)
        raised = ledger_total(ledger)
        ledger.set_budget("rpp", 2.5)
        assert ledger_total(ledger) == raised, "the largest that ever held"
    assert alone.basis == "run"
    assert alone.world_success_bound == pytest.approx(poisson().world_success_bound(30.0, 20), rel=1e-9)
    assert (both.basis, both.renyi_epsilon) == ("cap", 2.0)
    assert both.world_success_bound == world_success_bound([16.0], [2.0])
    assert raised.renyi_epsilon == 3.0
    assert "set before the first charge, is what holds" in both.reason


def test_what_was_not_bounded_beforehand_is_bounded_by_nothing(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        charge_run(ledger, "first", poisson(), 30.0, 20)
        charge_run(ledger, "second", poisson(), 30.0, 20)
        assert ledger_total(ledger).basis == "none"
        ledger.set_budget("rpp", 9.0)
        late = ledger_total(ledger)
        with pytest.raises(LedgerError, match="holds charges already"):
            LedgerPlan([GaussianRelease(0.1)]).declare(ledger)
    assert (late.basis, late.world_success_bound, late.epsilon_at_delta) == ("none", 1.0, math.inf)
    assert "declare a plan or a budget before the first charge" in late.reason


def test_more_than_was_planned_falls_back_on_the_budget(tmp_path: Path) -> None:
    plan = LedgerPlan(poisson().events(30.0, 20), EpsilonDelta(1.0, 1e-5))
    with PrivacyLedger(tmp_path / "study.db", budget={"rpp": 2.0}) as ledger:
        plan.declare(ledger)
        plan.declare(ledger)
        assert LedgerPlan.of(ledger) == plan
        with pytest.raises(LedgerMismatchError, match="another plan"):
            LedgerPlan([GaussianRelease(0.1)]).declare(ledger)
        charge_run(ledger, "cheaper", poisson(0.03), 31.0, 12)
        assert ledger_total(ledger).basis == "plan"
        charge_run(ledger, "more", poisson(), 30.0, 9)
        assert ledger_total(ledger).basis == "cap"


@pytest.mark.parametrize(
    ("steps", "covered"),
    [
        ({}, True),
        ({"noise_multiplier": 9.0}, True),
        ({"noise_multiplier": 7.9}, False),
        ({"rate": 0.01}, True),
        ({"rate": 0.021}, False),
        ({"num_differing": 4}, True),
        ({"num_differing": 6}, False),
        ({"num_steps": 101}, False),
        ({"adjacency": "replace"}, False),
        ({"nested": False}, False),
        ({"holder": "second"}, False),
        # As Gaussians, two steps of mu^2 = (5 / 100)^2 each, which is what the plan has left.
        ({"noise_multiplier": 100.0, "holder": "second", "num_steps": 2}, True),
    ],
)
def test_a_step_is_covered_by_a_dearer_one_only(steps: dict[str, Any], covered: bool) -> None:
    terms = {"noise_multiplier": 8.0, "rate": 0.02, "num_steps": 100, "num_differing": 5, "adjacency": "zero_out"}
    plan = LedgerPlan([PoissonSteps(**terms), GaussianRelease(2 * (5 / 100) ** 2)])
    assert plan.covers([PoissonSteps(**{**terms, **steps})]) == covered


def test_costs_of_another_kind_are_named_and_not_composed(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        charge_run(ledger, "run", poisson(), 30.0, 2)
        ledger.account("table", "static_pufferfish", {}).charge(1.0)
        total = ledger_total(ledger)
        assert total.world_success_bound == pytest.approx(poisson().world_success_bound(30.0, 2), rel=1e-9)
        assert "of another kind: table." in total.reason
    with PrivacyLedger(tmp_path / "bare.db") as ledger:
        ledger.account("own", "rpp", {}).charge(1.0)
        with pytest.raises(ValueError, match="'own' does not declare which two worlds"):
            ledger_total(ledger)


def test_a_plan_that_breaks_its_promise_is_refused() -> None:
    with pytest.raises(ValueError, match=r"promise SuccessBound.* is not kept"):
        LedgerPlan([GaussianRelease(1.0)], SuccessBound(0.6))
    with pytest.raises(ValueError, match="events is empty"):
        LedgerPlan([])


def test_averages_over_batches_do_not_compose(tmp_path: Path) -> None:
    averaged = SRPPAccountant(SCENARIO, EpochShuffle(50), notion="ms-joint")
    with PrivacyLedger(tmp_path / "study.db", budget={"ms_srpp_joint": 5.0}) as ledger:
        charge_run(ledger, "run", averaged, 60.0, 20)
        total = ledger_total(ledger)
    assert (total.basis, total.world_success_bound) == ("none", 1.0)
    assert "An average over batches" in total.reason


def test_accounts_of_different_worlds_do_not_compose(tmp_path: Path) -> None:
    other = TwoWorldScenario(num_differing=6, num_records=1000, adjacency="zero_out")
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        charge_run(ledger, "one", poisson(), 30.0, 2)
        charge_run(ledger, "two", SRPPAccountant(other, EpochShuffle(50), notion="joint"), 60.0, 2)
        with pytest.raises(ValueError, match="speak of different worlds"):
            ledger_total(ledger)
