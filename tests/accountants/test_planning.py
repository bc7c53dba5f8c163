"""What a project may release: shares that keep one promise, no run past its share, and selections among them."""

import itertools
import math
import os
import random
import signal
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_pac import plan
from lightning_pac.accountants import (
    Allowance,
    GaussianCurve,
    GaussianRelease,
    LedgerPlan,
    NumberOfRuns,
    PlannedAnswers,
    PlannedTraining,
    PlannedValues,
    PoissonSteps,
    SelectionPrice,
    SRPPAccountant,
    ledger_total,
    membership_success_bound,
    privacy_curve,
    share_terms,
    taken_of_shares,
)
from lightning_pac.exceptions import BudgetExceededError, LedgerMismatchError
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.scenarios import Poisson, TwoWorldScenario

SCENARIO = TwoWorldScenario(num_differing=1, num_records=1000)


@pytest.mark.parametrize(("alone", "rest"), [((0.5,), 0.25), ((0.3, 1.0), 0.0), ((2.0,), 1.0)])
def test_a_curve_composes_as_the_releases_behind_it(alone: tuple[float, ...], rest: float) -> None:
    # Of Gaussians everything is known: mu^2 adds.
    curve = privacy_curve([GaussianRelease(rest)], [GaussianCurve(mu) for mu in alone])
    truth = GaussianCurve(math.sqrt(rest + math.fsum(mu**2 for mu in alone)))
    for epsilon in (0.0, 0.2, 1.0, 2.5):
        assert truth.delta(epsilon) <= curve.delta(epsilon) <= truth.delta(epsilon) * 1.0001
    assert truth.epsilon(1e-9) <= curve.epsilon(1e-9) <= truth.epsilon(1e-9) * 1.0001


def _enumerated_selection(first: Any, second: Any, runs: NumberOfRuns) -> tuple[Any, Any]:
    """The laws of the best outcome of K runs of a finite mechanism, K summed term by term; the largest index wins."""
    masses = np.array([runs.probability(number) for number in range(1, runs.most + 1)])
    laws = []
    for law in (first, second):
        below = np.append(0.0, np.cumsum(law))
        laws.append(np.diff(masses @ below[None, :] ** np.arange(1, len(masses) + 1)[:, None]))
    return laws[0], laws[1]


def test_a_selection_beside_a_gaussian_is_never_below_the_enumerated_truth() -> None:
    rng, runs, mu = np.random.default_rng(3), NumberOfRuns.expecting(6), 0.4
    # A run tells one of seven cells in which a Gaussian lies, so that its curve is below the Gaussian's.
    edges = np.concatenate([[-np.inf], np.sort(rng.normal(size=6)), [np.inf]])
    from scipy import stats

    first, second = np.diff(stats.norm.cdf(edges)), np.diff(stats.norm.cdf(edges - 0.7))
    price = SelectionPrice([GaussianRelease(0.49)], runs)
    curve = privacy_curve([GaussianRelease(mu**2)], [price.curve])
    one, other = _enumerated_selection(first, second, runs)
    x = np.linspace(-9.0, 9.0 + mu, 20_001)
    weight, shifted = stats.norm.pdf(x) * (x[1] - x[0]), stats.norm.pdf(x - mu) * (x[1] - x[0])
    for (p, q), (f, g) in itertools.product([(one, other), (other, one)], [(weight, shifted), (shifted, weight)]):
        for epsilon in (0.0, 0.5, 1.5, 3.0):
            truth = np.maximum(p[:, None] * f - math.exp(epsilon) * q[:, None] * g, 0.0).sum()
            assert truth <= curve.delta(epsilon) * (1 + 1e-9)
    assert price.curve.delta(1.0) < curve.delta(1.0) < 20 * price.curve.delta(1.0)


def test_everything_planned_keeps_the_promise_and_uses_it_up(tmp_path: Path) -> None:
    releases = {
        "model": PlannedTraining([50, 200], epochs=5, parameters=100, weight=8),
        "metrics": PlannedValues(10),
        "labels": PlannedAnswers(10**6, 0.6),
    }
    project = plan(1000, releases, epsilon=3.0, delta=1e-5, scenario=SCENARIO)
    assert [option.runs["model"].batch_size for option in project.options] == [50, 200]
    for option in project.options:
        run, shares = option.runs["model"], option.shares
        assert shares is not None
        # Composed anew from the numbers that a user types.
        steps = PoissonSteps(run.figures.noise_multiplier, run.batch_size / 1000, run.num_steps, 1, "replace")
        values = GaussianRelease(10 * 2**2 / option.noise_of_values["metrics"] ** 2)  # each moves by at most two
        told = privacy_curve([steps, values]).epsilon(1e-5)
        assert 2.995 < told <= 3.0
        assert run.num_steps == 5 * 1000 / run.batch_size
        alone = run.batch_size * math.sqrt(run.num_steps) / (run.figures.noise_multiplier * 100**0.25)
        assert run.figures.signal_of_run == pytest.approx(alone)
    labels = project.answers["labels"]
    assert membership_success_bound(10**6 * labels.budget_per_response) <= 0.6
    assert membership_success_bound(10**6 * labels.budget_per_response * 1.0001) > 0.6
    project.declare(tmp_path / "study.db")
    project.declare(tmp_path / "study.db")
    more = plan(1000, {**releases, "labels": PlannedAnswers(10**6, 0.7)}, epsilon=3.0, delta=1e-5, scenario=SCENARIO)
    with pytest.raises(LedgerMismatchError, match=r"has a budget of 0\.0201355 nats for answers, and the plan 0\.08"):
        more.declare(tmp_path / "study.db")
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        assert LedgerPlan.of(ledger) == project.best.shares
        assert ledger.budget("mutual_information") == labels.mutual_information
        assert ledger_total(ledger).epsilon_at_delta <= 3.0
    project.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 10_000


def test_a_proxy_chooses_among_the_options() -> None:
    releases = {"model": PlannedTraining([50, 200], epochs=2)}
    project = plan(1000, releases, world_success_bound=0.7, proxy=lambda run: -run.batch_size)
    assert [option.score for option in project.options] == [-50, -200]
    assert project.best.runs["model"].batch_size == 50
    assert plan(1000, releases, world_success_bound=0.7).best.runs["model"].batch_size == 200


def test_a_selection_draws_on_a_share_once(tmp_path: Path) -> None:
    runs = NumberOfRuns.expecting(5)
    releases = {"model": PlannedTraining(100, epochs=2, runs=runs), "metrics": PlannedValues(3, weight=0.2)}
    shares = plan(1000, releases, world_success_bound=0.7, scenario=SCENARIO).best.shares
    assert shares is not None
    assert LedgerPlan.from_dict(shares.to_dict()) == shares
    assert 0.699 < shares.curve.success_bound() <= 0.7
    best = shares.by_name["model"]
    assert isinstance(best, SelectionPrice)
    assert shares.share_for(best) == "model"
    fit, score = best.one_run
    louder = SelectionPrice([PoissonSteps(1.0, 0.1, 20, 1, "replace"), score], runs, best.draws)
    longer = SelectionPrice([fit, GaussianRelease(1.01 * score.mu_squared)], runs, best.draws)
    for other in (louder, longer, SelectionPrice(best.one_run, NumberOfRuns.expecting(6), best.draws)):
        with pytest.raises(ValueError, match=r"share 'model' is .* which does not cover"):
            shares.share_for(other)
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        shares.declare(ledger)
        coupling = {"scenario": SCENARIO.coupling(), "renyi_order": 16.0}
        for name in ("first", "second"):
            declared = {"coupling": coupling, "selection": best.to_dict(), **share_terms(ledger, [best])}
            account = ledger.account(name, "rpp", declared)
            allowed = Allowance(ledger, account, [best])
            if name == "second":
                with pytest.raises(BudgetExceededError, match="has 1 selections: other accounts took 1"):
                    allowed.check(1, 0)
                break
            allowed.check(1, 0)
            account.charge(best.renyi(16.0), {"release": "selection"})
        assert taken_of_shares(ledger, shares) == {"metrics": 0.0, "model": 1.0}
        total = ledger_total(ledger)
        assert (total.basis, total.world_success_bound <= 0.7) == ("plan", True)


def _charge_until_killed(path: Path, seed: int, told: int) -> None:
    """Charge steps and values to shares at random, more than there is, and tell of every try; never returns."""
    draw = random.Random(seed)
    with PrivacyLedger(path) as ledger:
        shares = LedgerPlan.of(ledger)
        assert shares is not None
        while True:
            os.write(told, b".")
            share = draw.choice(list(shares.by_name))
            unit = shares.by_name[share]
            terms = {"coupling": {"scenario": SCENARIO.coupling(), "renyi_order": 16.0}}
            name = f"{share} {draw.randrange(3)}"
            if isinstance(unit, PoissonSteps):
                accountant = SRPPAccountant(SCENARIO, Poisson(unit.rate))
                kind = accountant.to_dict()
                kind.pop("renyi_order")
                account = ledger.account(
                    name,
                    "rpp",
                    {**terms, **kind, "noise_multiplier": 3.0, **share_terms(ledger, [unit], share)},
                    None,
                    "training",
                )
                allowed, attempt = Allowance(ledger, account, [PoissonSteps.of(SCENARIO, unit.rate, 3.0, 1)]), None
                for _ in range(draw.randrange(1, 6)):
                    os.write(told, b".")
                    taken = sum(one.num_steps for one in account.attempts())
                    try:
                        allowed.check(taken + 1, 0)
                    except BudgetExceededError:
                        break
                    attempt = attempt or account.start_attempt(taken)
                    attempt.start_step(0.01, taken)
            else:
                each = GaussianRelease(0.01)
                account = ledger.account(
                    name, "rpp", {**terms, "epsilon_of_each": 0.08, **share_terms(ledger, [each], share)}
                )
                try:
                    Allowance(ledger, account, [each]).check(account.num_charges + 1, 0)
                except BudgetExceededError:
                    continue
                account.charge(0.08, {"mu_squared": 0.01})


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_no_run_passes_its_share_under_kills(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "study.db"
    steps = PoissonSteps.of(SCENARIO, 0.1, 3.0, 150)
    values = GaussianRelease(0.2)
    shares = LedgerPlan({"a": steps, "b": steps, "c": values, "d": values, "e": steps})  # no promise to compose for
    with PrivacyLedger(path) as ledger:
        shares.declare(ledger)
    before, waits = dict.fromkeys(shares.by_name, 0.0), random.Random(7)
    for kill in range(kills):
        tries, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                _charge_until_killed(path, kill, told)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        os.close(told)
        for _ in range(waits.randrange(1, 60)):
            assert os.read(tries, 1), "a charge failed"
        time.sleep(waits.uniform(0.0, 0.002))  # in the midst of the next one
        os.kill(child, signal.SIGKILL)
        os.close(tries)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "a charge failed"
        with PrivacyLedger.read_only(path) as ledger:
            taken = taken_of_shares(ledger, shares)
        assert all(shares.holds(name, amount) for name, amount in taken.items())
        assert all(taken[name] >= before[name] for name in taken), "what was charged is never forgotten"
        before = taken
    assert any(amount > 0 for amount in before.values())
    if kills == 50:
        assert any(amount > 0.9 * shares.size(name) for name, amount in before.items()), "no share came near its end"
    with PrivacyLedger.read_only(path) as ledger:
        assert ledger_total(ledger).basis == "plan"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"releases": {}}, "releases is empty"),
        ({"epsilon": None}, "delta is 1e-05, but belongs to an epsilon"),
        ({"delta": None}, "keeps one promise"),
        ({"releases": {"a": PlannedTraining(2000, 1)}}, "batch_size of 'a' is 2000, but there are 1000"),
        ({"releases": {"a": PlannedTraining([10] * 65, 1)}}, "has 65 combinations"),
        ({"releases": {"a": PlannedValues(1, 1e-12), "b": PlannedTraining(10, 1)}}, None),
        ({"releases": {"a": PlannedTraining(10, 1, weight=1e-12), "b": PlannedValues(1)}}, "weight of 'a'"),
        ({"epsilon": 1e-9}, "finite random bits"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_sentence(changed: dict[str, Any], words: str | None) -> None:
    given = {"num_records": 1000, "releases": {"m": PlannedValues(3)}, "epsilon": 3.0, "delta": 1e-5, **changed}
    if words is None:
        assert plan(**given).best.shares is not None
        return
    with pytest.raises(ValueError, match=words) as told:
        plan(**given)
    assert str(told.value).count(". ") == 0


def test_a_ledger_with_charges_takes_no_plan(tmp_path: Path) -> None:
    project = plan(1000, {"m": PlannedValues(3)}, epsilon=3.0, delta=1e-5)
    other = plan(1000, {"m": PlannedValues(3)}, epsilon=2.0, delta=1e-5)
    project.declare(tmp_path / "study.db")
    with pytest.raises(LedgerMismatchError, match="another plan"):
        other.declare(tmp_path / "study.db")


@pytest.mark.parametrize("prior", [0.5, 0.01])
def test_answers_near_the_prior_are_planned_at_once(prior: float) -> None:
    for gain in (1e-2, 1e-8, 1e-11):
        answers = PlannedAnswers(1000, prior * (1 + gain), prior)
        exact = prior * gain**2 / (2 * (1 - prior))  # of kl, whose next term is about `gain` of it
        assert answers.mutual_information == pytest.approx(exact, rel=2 * gain + 1e-3)
        assert membership_success_bound(answers.mutual_information, prior) <= answers.membership_success_bound
    with pytest.raises(ValueError, match="so close to the prior"):
        PlannedAnswers(1000, math.nextafter(prior, 1.0), prior)
