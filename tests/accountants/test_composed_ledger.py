"""What a ledger's runs and metrics tell together, and which figure is in force."""

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from lightning_pac.accountants import (
    EpsilonDelta,
    GaussianRelease,
    LedgerBudget,
    LedgerPlan,
    PlannedLedger,
    PoissonSteps,
    SRPPAccountant,
    SuccessBound,
    epsilon_at_delta,
    ledger_events,
    ledger_order,
    ledger_total,
    privacy_curve,
)
from lightning_pac.accountants.bounds import world_success_bound
from lightning_pac.cards import PrivacyCard
from lightning_pac.exceptions import BudgetExceededError, LedgerError, LedgerMismatchError
from lightning_pac.ledger import LedgerHandle, PrivacyLedger, restore_ledger
from lightning_pac.scenarios import EpochShuffle, Poisson, TwoWorldScenario

SCENARIO = TwoWorldScenario(num_differing=5, num_records=1000, adjacency="zero_out")


def test_costs_of_another_kind_alone_have_no_figure_between_worlds(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "responses.db") as ledger:
        assert ledger_total(ledger).world_success_bound == 0.5
        account = ledger.account("responses", "mutual_information")
        assert ledger_total(ledger).epsilon_at_delta == 0.0, "nothing is released yet"
        account.charge(0.01)
        total = ledger_total(ledger)
    assert (total.basis, total.world_success_bound, total.epsilon_at_delta) == ("none", 1.0, math.inf)
    assert "responses" in total.reason


def charge_run(
    ledger: PrivacyLedger,
    name: str,
    accountant: SRPPAccountant,
    noise: float,
    steps: int,
    planned: int | None = None,
    **terms_of_plan: str,
) -> None:
    """A run as `SRPPSGD` declares and journals it; with a card if it says how many steps were planned."""
    terms = accountant.to_dict()
    coupling = {"scenario": accountant.scenario.coupling(), "renyi_order": terms.pop("renyi_order")}
    declaration = {"coupling": coupling, **terms, "noise_multiplier": noise, **terms_of_plan}
    account = ledger.account(name, accountant.currency, declaration, None, "training")
    running, attempt = accountant.track(noise), account.start_attempt()
    for step in range(steps):
        attempt.start_step(running.start_step(), step)
    if planned is not None:
        account.attach_card(PrivacyCard("a run", "a secret", (), (), details={"planned_steps": planned}))


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
    shares = {f"run {n}": accountant.events(noise, steps)[0] for n, (accountant, noise, steps) in enumerate(runs)}
    plan = LedgerPlan({**shares, "metrics": GaussianRelease(10 * 2 * 0.01 / 16)}, SuccessBound(0.9))
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        plan.declare(ledger)
        for index, (accountant, noise, steps) in enumerate(runs):
            charge_run(ledger, f"run {index}", accountant, noise, steps, share=f"run {index}")
        charge_metric(ledger, 0.01, times=10, share="metrics")
        started = time.process_time()
        total = ledger_total(ledger)
        assert time.process_time() - started < 1.0
    assert total.basis == "plan"
    # The two shuffled runs (three passes of 5 records in one batch each) and the metrics are one Gaussian.
    mu_squared = 3 * 25 * (1 / 60**2 + 1 / 61**2) + 10 * 2 * 0.01 / 16
    steps = [PoissonSteps(8.0 + index, 0.02 * (1 + index % 3), 40, 5, "zero_out") for index in range(7)]
    curve = privacy_curve([*steps, GaussianRelease(mu_squared)])
    nats, tail = 2.0**-15 + 2.0**-20, 2.0**-32  # of the four billion values of noise that a plan pays for
    assert total.world_success_bound == pytest.approx(curve.success_bound() + nats + tail, rel=2e-9)
    assert total.epsilon_at_delta == pytest.approx(curve.epsilon(1e-5 - tail) + nats, rel=2e-9)
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
    bits = 2.0**-15 + 2.0**-20 + 2.0**-32
    assert total.world_success_bound == pytest.approx(stats.norm.cdf(math.sqrt(0.05) / 2) + bits, rel=1e-9)


def test_without_a_plan_a_budget_of_before_is_what_holds(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "study.db", budget={"rpp": 2.0}) as ledger:
        charge_run(ledger, "first", poisson(), 30.0, 20, planned=20)
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
    assert "of 2 at order 16 for everything together, set before the first charge, is what to quote" in both.reason


def test_a_run_that_ended_early_has_the_figures_of_its_plan(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        charge_run(ledger, "fit", poisson(), 30.0, 7, planned=20)
        total = ledger_total(ledger)
    assert total.basis == "run"
    assert total.world_success_bound == pytest.approx(poisson().world_success_bound(30.0, 20), rel=1e-9)
    assert total.world_success_bound > poisson().world_success_bound(30.0, 7)


@pytest.mark.parametrize("budget", [None, 2.0])
def test_what_may_have_decided_its_own_end_is_bounded_by_the_budget(tmp_path: Path, budget: float | None) -> None:
    with PrivacyLedger(tmp_path / "study.db", budget=budget and {"rpp": budget}) as ledger:
        charge_metric(ledger, 0.1, 3)
        total = ledger_total(ledger)
    if budget is None:
        assert total.basis == "run"
        assert "if nothing that it showed decided how much it releases" in total.reason
    else:
        assert (total.basis, total.renyi_epsilon) == ("cap", 2.0)
        assert "how much it releases was not fixed beforehand" in total.reason


def test_what_was_not_bounded_beforehand_is_bounded_by_nothing(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        charge_run(ledger, "first", poisson(), 30.0, 20)
        charge_run(ledger, "second", poisson(), 30.0, 20)
        assert ledger_total(ledger).basis == "none"
        with ledger.storage.transaction() as connection:
            connection.execute("UPDATE attempts SET time = '2999-12-31T23:59:59.999Z'")  # the clock was put back since
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
    ],
)
def test_a_step_is_covered_by_a_dearer_one_only(steps: dict[str, Any], covered: bool) -> None:
    terms = {"noise_multiplier": 8.0, "rate": 0.02, "num_steps": 100, "num_differing": 5, "adjacency": "zero_out"}
    plan = LedgerPlan({"fit": PoissonSteps(**terms), "rest": GaussianRelease(2 * (5 / 100) ** 2)})
    taken = PoissonSteps(**{**terms, **steps})
    if covered or steps == {"num_steps": 101}:
        assert plan.share_for(taken) == "fit"
        assert plan.holds("fit", plan.amount("fit", [taken])) == covered
    else:
        for named in ("fit", None):
            with pytest.raises(ValueError, match=r"share 'fit' is .* which does not cover"):
                plan.share_for(taken, named)
    # As Gaussians, two steps of mu^2 = (5 / 100)^2 each, which is what the other share holds.
    dearer = PoissonSteps(**{**terms, "noise_multiplier": 100.0, "num_steps": 2})
    assert plan.holds(plan.share_for(dearer, "rest"), plan.amount("rest", [dearer]))
    assert not plan.holds("rest", plan.amount("rest", [dearer, GaussianRelease(1e-6)]))


def test_steps_that_are_set_against_a_plan_afterwards_pass_it() -> None:
    """The reason why an account names its share when it is opened, by exact enumeration.

    A plan holds a noisy coin (right 95 times in 100) and a leak (with chance 0.4 all is told). A third mechanism, the
    coin tossed rarely, tells less than either: after it, either might still stand in the plan. Who chooses between
    them by its outcome learns more than the plan composes to.
    """

    def delta(first: npt.ArrayLike, second: npt.ArrayLike, gamma: float) -> float:
        return float(np.maximum(np.asarray(first) - gamma * np.asarray(second), 0.0).sum())

    right = math.exp(3) / (1 + math.exp(3))
    coin, leak = ((right, 1 - right), (1 - right, right)), ((0.4, 0.0, 0.6), (0.0, 0.4, 0.6))
    share = 0.4 / (2 * right - 1)
    rare = tuple((share * p, share * q, 1 - share) for p, q in ((right, 1 - right), (1 - right, right)))
    for gamma in np.geomspace(1e-3, 1e3, 301):
        assert delta(*rare, gamma) <= min(delta(*coin, gamma), delta(*leak, gamma)) + 1e-12
    gamma = 20.4
    plan = delta(np.outer(coin[0], leak[0]), np.outer(coin[1], leak[1]), gamma)
    chosen = sum(p * max(delta(*coin, gamma * q / p), delta(*leak, gamma * q / p)) for p, q in zip(*rare, strict=True))
    assert plan == pytest.approx(0.4)
    assert chosen > 0.6


def test_a_step_that_two_shares_could_pay_for_is_to_name_one() -> None:
    often, near = (PoissonSteps(noise, rate, 5, 5, "zero_out") for noise, rate in ((9.0, 0.05), (8.0, 0.02)))
    plan = LedgerPlan([often, near, often])
    assert plan.by_name == {"1": PoissonSteps(9.0, 0.05, 10, 5, "zero_out"), "2": near}
    cheap = PoissonSteps(9.5, 0.01, 1, 5, "zero_out")
    with pytest.raises(ValueError, match="2 of the shares '1', '2' could pay"):
        plan.share_for(cheap)
    assert plan.share_for(cheap, "2") == "2"
    with pytest.raises(ValueError, match="None of the shares '1', '2' could pay"):
        plan.share_for(GaussianRelease(0.1))
    with pytest.raises(ValueError, match="share is 'fit', but the plan has '1', '2'"):
        plan.share_for(cheap, "fit")


def test_costs_of_another_kind_are_named_and_not_composed(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        charge_run(ledger, "run", poisson(), 30.0, 2)
        ledger.account("table", "static_pufferfish", {}).charge(1.0)
        total = ledger_total(ledger)
        assert total.world_success_bound == pytest.approx(poisson().world_success_bound(30.0, 2), rel=1e-9)
        assert "of another kind: table." in total.reason
    with PrivacyLedger(tmp_path / "bare.db") as ledger:
        ledger.account("own", "rpp", {}).charge(1.0)
        total = ledger_total(ledger)
        assert (total.basis, total.world_success_bound) == ("none", 1.0)
        assert "'own' does not declare which two worlds" in total.reason


def test_a_plan_that_breaks_its_promise_is_refused() -> None:
    with pytest.raises(ValueError, match=r"promise SuccessBound.* is not kept"):
        LedgerPlan([GaussianRelease(1.0)], SuccessBound(0.6))
    with pytest.raises(ValueError, match="shares is empty"):
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
        total = ledger_total(ledger)
        assert (total.basis, total.epsilon_at_delta) == ("none", math.inf)
        assert "speak of different worlds" in total.reason


@pytest.mark.parametrize(
    "promise",
    [
        {"epsilon": 3.0, "delta": 1e-5},
        {"world_success_bound": 0.6},
        {"world_success_bound": 0.85, "prior": 0.3},
        {"world_success_bound": 0.9999, "renyi_order": 100.0},
        {"epsilon": 8.0, "renyi_order": 16.0},
        {"epsilon": 1.0, "delta": 1e-6, "renyi_order": 32.0},
    ],
)
def test_a_promise_is_the_largest_cap_that_keeps_it(promise: dict[str, float]) -> None:
    budget = LedgerBudget(**promise)

    def kept(cap: float) -> bool:
        if "world_success_bound" in promise:
            bound = world_success_bound([budget.renyi_order], [cap], budget.prior)
            return bound <= promise["world_success_bound"]
        epsilon = cap if budget.delta is None else epsilon_at_delta([budget.renyi_order], [cap], budget.delta)[0]
        return epsilon <= promise["epsilon"]

    assert kept(budget.cap)
    assert not kept(budget.cap * (1 + 1e-4))
    if "renyi_order" not in promise:  # no other order lets more mu^2 in
        others = [LedgerBudget(**promise, renyi_order=order) for order in (5.0, 7.0, 10.0, 20.0)]
        assert budget.cap / budget.renyi_order >= max(other.cap / other.renyi_order for other in others) * (1 - 1e-3)


def test_a_promise_stands_before_the_first_charge_and_is_raised_by_itself(tmp_path: Path) -> None:
    first = LedgerBudget(epsilon=1.0, delta=1e-5)
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        first.declare(ledger)
        first.declare(ledger)
        assert LedgerBudget.of(ledger) == first
        assert ledger.budget("rpp") == first.cap
        accountant = SRPPAccountant(SCENARIO, Poisson(0.05), ledger_order(ledger))
        charge_run(ledger, "first", accountant, 40.0, 20)
        charge_run(ledger, "second", accountant, 41.0, 20)
        total = ledger_total(ledger)
        assert (total.basis, total.renyi_order) == ("cap", first.renyi_order)
        assert 1 - 1e-5 < total.epsilon_at_delta <= 1.0, "less what finite bits may take of delta"
        with pytest.raises(BudgetExceededError, match="would exceed the budget"):
            charge_run(ledger, "another notion", SRPPAccountant(SCENARIO, Poisson(0.05), notion="ave"), 41.0, 1)
        with pytest.raises(LedgerError, match="holds charges already"):
            LedgerPlan([GaussianRelease(0.1)]).declare(ledger)
        LedgerBudget(epsilon=2.0, delta=1e-5).declare(ledger)
        assert LedgerBudget.of(ledger) == LedgerBudget(epsilon=2.0, delta=1e-5, renyi_order=first.renyi_order)
        assert 2 - 1e-5 < ledger_total(ledger).epsilon_at_delta <= 2.0
        with pytest.raises(LedgerMismatchError, match="state epsilon at that order"):
            LedgerBudget(epsilon=2.0, renyi_order=16.0).declare(ledger)
        with pytest.raises(ValueError, match=r"is a cap of .* is spent from .*study\.db"):
            LedgerBudget(epsilon=0.9 * ledger.spent("rpp"), renyi_order=first.renyi_order).declare(ledger)
        with pytest.raises(LedgerError, match=r"keeps a promise: .* --epsilon EPSILON --delta 1e-05"):
            ledger.set_budget("rpp", 9.0)
        ledger.set_budget("mutual_information", 9.0)
    with pytest.raises(LedgerMismatchError, match=r"promises epsilon 2 at delta 1e-05, and your code epsilon 1"):
        PlannedLedger(tmp_path / "study.db", epsilon=1.0, delta=1e-5).open()
    PlannedLedger(tmp_path / "study.db", epsilon=2.0, delta=1e-5).open().close()
    with PrivacyLedger(tmp_path / "late.db") as ledger:
        charge_run(ledger, "first", poisson(), 40.0, 20)
        with pytest.raises(LedgerError, match="a promise bounds only what it was declared before"):
            first.declare(ledger)


def test_a_planned_ledger_is_declared_where_it_is_opened(tmp_path: Path) -> None:
    plan = LedgerPlan({"fit": PoissonSteps(9.0, 0.05, 10, 5, "zero_out")}, SuccessBound(0.8))
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_dict()))
    handle = LedgerHandle(PlannedLedger(tmp_path / "study.db", plan=tmp_path / "plan.json", share="fit"))
    for _ in range(2):
        with handle as ledger:
            assert LedgerPlan.of(ledger) == plan
    assert handle.share == "fit"
    with pytest.raises(LedgerMismatchError, match="another plan"):
        PlannedLedger(tmp_path / "study.db", plan=LedgerPlan([GaussianRelease(0.1)])).open()
    PrivacyLedger(tmp_path / "study.db").close()  # nothing keeps it open
    with pytest.raises(ValueError, match="plan is given beside a promise"):
        PlannedLedger(tmp_path / "study.db", plan=plan, epsilon=3.0, delta=1e-5)
    with pytest.raises(ValueError, match="exactly one of"):
        PlannedLedger(tmp_path / "study.db")
    for broken in ({}, {"shares": {}}, {"shares": {"a": {"kind": "laplace"}}}, {"events": []}):
        with pytest.raises(ValueError, match=r"plan|shares|kind"):
            LedgerPlan.from_dict(broken)


@pytest.mark.parametrize("has_budget", [False, True])
def test_what_a_ledger_has_lost_is_in_no_figure(tmp_path: Path, has_budget: bool) -> None:
    """Of a hundred steps, ten are known, and ninety were lost and booked by their price."""
    path, accountant = tmp_path / "study.db", poisson()
    with PrivacyLedger(path, budget={"rpp": accountant.epsilon(20.0, 50)} if has_budget else None) as ledger:
        charge_run(ledger, "fit", accountant, 20.0, 10, planned=10)
        before = ledger_total(ledger)
    restore_ledger(path, {"fit": accountant.epsilon(20.0, 90)})
    with PrivacyLedger.read_only(path) as ledger:
        total = ledger_total(ledger)
    assert before.basis == "run"
    assert math.isfinite(before.epsilon_at_delta)
    assert total.basis == "none", "also where the budget was passed, which a booking does"
    assert (total.world_success_bound, total.epsilon_at_delta) == (1.0, math.inf)
    assert "is not known" in total.reason
