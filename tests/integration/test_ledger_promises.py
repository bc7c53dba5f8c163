"""A plan or a promise of a ledger lets no run pass it: at the start, before a step, beside others, after kills."""

import math
import re
import shlex
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from prepared import prepared_context
from slow_cases import slow
from tiny_fits import RECORDS, Classifier, Validated, make_loader, make_private, make_trainer

from lightning_pac import DPSGD, SRPPSGD, Poisson, PrivateMetrics, TwoWorldScenario
from lightning_pac.accountants import (
    GaussianRelease,
    LedgerPlan,
    PlannedLedger,
    PoissonSteps,
    SRPPAccountant,
    SuccessBound,
    ledger_total,
)
from lightning_pac.callbacks.shared import SharedAccount
from lightning_pac.callbacks.srpp_sgd.journal import RunJournal, open_account
from lightning_pac.cli import main
from lightning_pac.exceptions import BudgetExceededError, LedgerMismatchError
from lightning_pac.ledger import LedgerHandle, PrivacyLedger
from lightning_pac.strategies import Ranks

pytestmark = pytest.mark.metrics_asked_once

SCENARIO = TwoWorldScenario(num_differing=2, num_records=RECORDS)
SAMPLING = Poisson(1 / 6)
STEPS = PoissonSteps.of(SCENARIO, 1 / 6, 8.0, 10)
SHARES = {"fit": STEPS, "metrics": GaussianRelease(0.02)}


def planned(path: Path, share: str | None = None, **shares: Any) -> PlannedLedger:
    return PlannedLedger(path, share=share, plan=LedgerPlan({**SHARES, **shares}, SuccessBound(0.9)))


def private_run(ledger: Any, noise: float = 8.0, **arguments: Any) -> SRPPSGD:
    terms = {"noise_multiplier": noise, "sampling": SAMPLING, "scenario": SCENARIO, "renyi_order": None}
    return make_private(**{**terms, **arguments}, ledger=ledger)


def test_a_run_that_is_planned_past_its_share_is_refused_before_its_first_step(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    make_trainer(tmp_path, private_run(planned(path)), max_steps=6, max_epochs=-1).fit(Classifier(), make_loader())
    second = private_run(LedgerHandle(path, share="fit"), noise=9.0)
    trainer = make_trainer(tmp_path, second, max_steps=5, max_epochs=-1)
    sentence = r"Share 'fit' .* 10 steps: other accounts took 6 and this one, 'training-\w+', needs 5 in all"
    with pytest.raises(BudgetExceededError, match=sentence):
        trainer.fit(Classifier(), make_loader())
    third = private_run(path, noise=9.0)
    make_trainer(tmp_path, third, max_steps=4, max_epochs=-1).fit(Classifier(), make_loader())
    with PrivacyLedger.read_only(path) as ledger:
        total, plan = ledger_total(ledger), LedgerPlan.of(ledger)
        assert [account.num_charges for account in ledger.accounts()] == [6, 0, 4]
    assert plan is not None
    assert total.basis == "plan"
    assert total.world_success_bound == pytest.approx(plan.curve.success_bound() + sum(plan.arithmetic))


def test_a_run_without_end_ends_before_the_step_that_passes_its_share(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    run = private_run(planned(path))
    trainer = make_trainer(tmp_path, run, max_epochs=-1, max_time="00:00:05:00")
    trainer.fit(Classifier(), make_loader())
    assert trainer.global_step == run.account.num_steps == 10


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"share": "fit", "noise": 7.9}, r"share 'fit' is .* which does not cover"),
        ({"share": "other"}, r"share is 'other', but the plan has 'fit', 'metrics'"),
        ({"share": None, "notion": "ms-joint"}, r"averages over batches draw on no share"),
    ],
)
def test_what_the_plan_does_not_hold_is_refused(arguments: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    given = dict(arguments)
    run = private_run(planned(tmp_path / "study.db", given.pop("share")), **given)
    with pytest.raises(LedgerMismatchError, match=sentence):
        make_trainer(tmp_path, run).fit(Classifier(), make_loader())
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        assert not ledger.accounts()


@pytest.mark.parametrize("ends", [{"max_epochs": 3}, {"max_steps": 9, "max_epochs": -1}])
def test_values_and_steps_draw_on_their_own_shares(ends: dict[str, int], tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    # Three values of mu^2 = 0.008 do not fit into 0.02.
    metrics = PrivateMetrics(["accuracy"], SCENARIO, epsilon=16 * 0.008 / 2, renyi_order=16, ledger=planned(path))
    run = private_run(planned(path))
    options = {"num_sanity_val_steps": 0, "limit_train_batches": 3}
    with pytest.raises(BudgetExceededError, match=r"pays for 2 of the 3 evaluations that this run plans, and nothing"):
        make_trainer(tmp_path, run, metrics, **ends, **options).fit(
            Validated(), make_loader(), make_loader(shuffle=False)
        )
    fewer = {name: number * 2 // 3 for name, number in ends.items() if number > 0}
    trainer = make_trainer(tmp_path, run, metrics, **{**ends, **fewer}, **options)
    trainer.fit(Validated(), make_loader(), make_loader(shuffle=False))
    with pytest.warns(UserWarning, match=r"an older value of accuracy is shown.* Share 'metrics' .* has 0.02 of mu"):
        trainer.validate(trainer.lightning_module, make_loader(shuffle=False), verbose=False)
    with PrivacyLedger.read_only(path) as ledger:
        charges = {account.name.split()[0]: account.num_charges for account in ledger.accounts()}
        assert ledger_total(ledger).basis == "plan"
    assert charges == {"metrics": 2, run_name(path): 6}


def test_a_run_that_leaves_nothing_for_its_metrics_is_refused_before_its_first_step(tmp_path: Path) -> None:
    """It trained, was charged, and ended with nan for an accuracy."""
    ledger = PlannedLedger(tmp_path / "study.db", epsilon=3.0, delta=1e-5)

    def fit(of_value: float) -> Any:
        private = make_private(
            renyi_order=None, epsilon=2.5, delta=1e-5, sampling=Poisson(0.5), scenario=SCENARIO, ledger=ledger
        )
        metrics = PrivateMetrics(["accuracy"], SCENARIO, epsilon=of_value, delta=1e-5, ledger=ledger)
        trainer = make_trainer(tmp_path, private, metrics, max_epochs=1)
        trainer.fit(Validated(), make_loader(), make_loader(shuffle=False))
        return trainer.callback_metrics["accuracy"]

    with pytest.raises(BudgetExceededError, match=r"One evaluation of the metrics costs .* beside this run") as told:
        fit(1.5)
    with PrivacyLedger.read_only(tmp_path / "study.db") as found:
        assert found.spent("rpp") == 0
    # The promise of a new ledger that it names is enough for the run and for the value.
    ledger = PlannedLedger(tmp_path / "new-study.db", epsilon=new_promise(str(told.value)), delta=1e-5)
    assert fit(1.5).isfinite()
    ledger = PlannedLedger(tmp_path / "study.db", epsilon=3.0, delta=1e-5)
    for path in tmp_path.glob("study.db*"):
        path.unlink()
    assert fit(0.2).isfinite()


def new_promise(refusal: str) -> float:
    """The epsilon of the new ledger that a refusal names."""
    (epsilon,) = re.findall(r"new ledger, .* PlannedLedger\('new-study\.db', epsilon=(.*?), delta=1e-05\)", refusal)
    return float(epsilon)


def test_a_first_run_is_let_in_by_the_new_ledger_that_its_refusal_names(tmp_path: Path) -> None:
    """At the order of a promise of 0.4, the run would need one that is 30 times as large."""

    def fit(name: str, epsilon: float) -> None:
        ledger = PlannedLedger(tmp_path / name, epsilon=epsilon, delta=1e-5)
        private = DPSGD(3.0, 1e-5, Poisson(0.1, batch_size=64), ledger=ledger)
        make_trainer(tmp_path, private, max_steps=10, max_epochs=-1).fit(Classifier(), make_loader())

    with pytest.raises(BudgetExceededError, match="is planned") as told:
        fit("study.db", 0.4)
    promise = new_promise(str(told.value))
    assert promise < 6
    with pytest.raises(BudgetExceededError, match="is planned"):
        fit("less.db", 0.98 * promise)
    fit("new-study.db", promise)


def run_name(path: Path) -> str:
    with PrivacyLedger.read_only(path) as ledger:
        return next(account.name for account in ledger.accounts() if account.name.startswith("training"))


def test_a_second_run_is_told_that_nothing_bounds_both(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    def fit(ledger: Any) -> list[str]:
        recwarn.clear()
        make_trainer(tmp_path, private_run(ledger), max_steps=2, max_epochs=-1).fit(Classifier(), make_loader())
        return [str(warning.message) for warning in recwarn if "nothing bounds" in str(warning.message)]

    assert fit(tmp_path / "open.db") == []
    (told,) = fit(tmp_path / "open.db")
    assert "holds 1 other release about these data" in told
    assert "PlannedLedger('new-open.db', epsilon=..., delta=...)" in told
    with PrivacyLedger.read_only(tmp_path / "open.db") as ledger:
        assert ledger_total(ledger).basis == "none"
    promised = PlannedLedger(tmp_path / "promised.db", epsilon=8.0, delta=1e-5)
    assert fit(promised) == fit(promised) == []
    with PrivacyLedger.read_only(tmp_path / "promised.db") as ledger:
        assert ledger_total(ledger).basis == "cap"


@pytest.mark.parametrize(
    "promise", [{"epsilon": 2.0, "delta": 1e-5}, {"world_success_bound": 0.7}, {"epsilon": 1.0, "renyi_order": 4.0}]
)
def test_a_promise_of_the_ledger_in_any_form_stops_runs(promise: dict[str, float], tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    handle = PlannedLedger(path, **promise)
    first = private_run(handle)
    make_trainer(tmp_path, first, max_steps=5, max_epochs=-1).fit(Classifier(), make_loader())
    with PrivacyLedger.read_only(path) as ledger:
        cost, cap = ledger.spent("rpp") / 5, ledger.budget("rpp")
    affordable = int(cap / cost) - 5
    assert affordable > 0
    second = private_run(path)
    trainer = make_trainer(tmp_path, second, max_steps=affordable + 2, max_epochs=-1)
    with pytest.raises(BudgetExceededError, match=r"promises .* is spent, and .* is planned.* account budget"):
        trainer.fit(Classifier(), make_loader())
    third = private_run(path)
    make_trainer(tmp_path, third, max_epochs=-1, max_time="00:00:05:00").fit(Classifier(), make_loader())
    assert third.account.num_steps == affordable
    with PrivacyLedger.read_only(path) as ledger:
        total = ledger_total(ledger)
    assert total.basis == "cap"
    assert total.renyi_epsilon == pytest.approx(cap)
    if "delta" in promise:
        assert total.epsilon_at_delta <= promise["epsilon"]
    if "world_success_bound" in promise:
        assert total.world_success_bound <= promise["world_success_bound"]


@pytest.mark.parametrize(
    "asked",
    [
        {"epsilon": 3.0, "delta": 1e-5},
        {"epsilon": 3.0, "delta": 1e-6},
        {"world_success_bound": 0.9},
        {"epsilon": 2.0, "renyi_order": 7.5},
        {"noise_multiplier": 2.0},
    ],
)
@pytest.mark.parametrize("sampling", [SAMPLING, None])
def test_a_refused_run_is_told_what_fits_and_is_let_in_with_it(
    asked: dict[str, float], sampling: Poisson | None, tmp_path: Path
) -> None:
    handle = PlannedLedger(tmp_path / "study.db", epsilon=3.0, delta=1e-5)

    def fit(**promise: Any) -> None:
        private = make_private(**{"renyi_order": None, **promise}, sampling=sampling, scenario=SCENARIO, ledger=handle)
        make_trainer(tmp_path, private, max_epochs=2).fit(Classifier(), make_loader())

    fit(epsilon=2.0, delta=1e-5)
    with pytest.raises(BudgetExceededError, match="is planned") as refused:
        fit(**asked)
    found = re.search(r"\((\w+)=(\S+) fits\)", str(refused.value))
    assert found is not None
    name, value = found[1], float(found[2])
    assert name in asked
    one_digit_more = value * (0.98 if name == "noise_multiplier" else 1.02)
    with pytest.raises(BudgetExceededError, match="is planned"):
        fit(**{**asked, name: one_digit_more})
    fit(**{**asked, name: value})


@pytest.mark.parametrize(
    ("promise", "times"), [({"epsilon": 1.0, "delta": 1e-5}, 1.2), *slow(({"world_success_bound": 0.55}, 1.5))]
)
def test_metrics_of_another_ledger_are_told_what_fits(promise: dict[str, float], times: float, tmp_path: Path) -> None:
    """They were told to plan fewer steps, which this ledger does not pay for."""
    ((name, asked),) = ((name, value) for name, value in promise.items() if name != "delta")
    blind = 0.5 if name == "world_success_bound" else 0.0

    def fit(value: float) -> float:
        handle = PlannedLedger(tmp_path / "held_out.db", **{**promise, name: blind + times * (asked - blind)})
        private = make_private(epsilon=3.0, delta=1e-5, renyi_order=None, ledger=tmp_path / "training.db")
        metrics = PrivateMetrics(["accuracy"], SCENARIO, **{**promise, name: value}, ledger=handle)
        trainer = make_trainer(tmp_path, private, metrics, max_epochs=1)
        trainer.fit(Validated(), make_loader(), make_loader(shuffle=False))
        return float(trainer.callback_metrics["accuracy"])

    assert math.isfinite(fit(asked))
    with pytest.raises(BudgetExceededError, match=r"has .* left for it: give PrivateMetrics a smaller") as refused:
        fit(asked)
    assert "fewer steps" not in str(refused.value)
    fitting = re.search(rf"\({name}=(\S+) fits\)", str(refused.value))
    assert fitting is not None
    with pytest.raises(BudgetExceededError):
        fit(blind + 1.03 * (float(fitting[1]) - blind))
    assert math.isfinite(fit(float(fitting[1])))


def test_metrics_are_told_what_pays_for_all_evaluations_of_a_run(tmp_path: Path) -> None:
    """With the epsilon that one evaluation had room for, the second and third repeated its value."""

    def fit(value: float, epochs: int) -> None:
        handle = PlannedLedger(tmp_path / "held_out.db", epsilon=1.4, delta=1e-5)
        private = make_private(epsilon=3.0, delta=1e-5, renyi_order=None, ledger=tmp_path / "training.db")
        metrics = PrivateMetrics(["accuracy"], SCENARIO, epsilon=value, delta=1e-5, ledger=handle)
        trainer = make_trainer(tmp_path, private, metrics, max_epochs=epochs, num_sanity_val_steps=0)
        trainer.fit(Validated(), make_loader(), make_loader(shuffle=False))

    fit(1.0, epochs=1)
    with pytest.raises(BudgetExceededError, match="left for it") as refused:
        fit(1.0, epochs=3)
    one, several = re.findall(r"epsilon=(\S+) fits", str(refused.value))
    assert "for all 3 of this run" in str(refused.value)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(older value|evaluations that this run plans)")
        fit(float(several), epochs=3)
    with PrivacyLedger.read_only(tmp_path / "held_out.db") as ledger:
        assert sorted(account.num_charges for account in ledger.accounts()) == [1, 3]
    assert float(several) < float(one)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_epochs": 3, "val_check_interval": 0.25}, True),
        ({"max_epochs": 5, "val_check_interval": 3, "check_val_every_n_epoch": None}, True),
        ({"max_steps": 20, "max_epochs": -1, "val_check_interval": 4, "check_val_every_n_epoch": None}, True),
        ({"max_steps": 20, "max_epochs": -1, "val_check_interval": 2, "check_val_every_n_epoch": 2}, True),
        ({"max_steps": 7, "max_epochs": -1, "accumulate_grad_batches": 3}, True),
        ({"max_epochs": 5, "check_val_every_n_epoch": 5}, False),
        ({"max_steps": 7, "max_epochs": -1}, False),
        ({"max_steps": 5, "max_epochs": -1}, False),  # none
        ({"max_epochs": 2, "check_val_every_n_epoch": 3}, False),
        ({"max_epochs": 3, "val_check_interval": "00:01:00:00"}, False),
    ],
)
def test_the_evaluations_that_a_run_plans_are_those_that_it_makes(
    options: dict[str, Any], told: bool, tmp_path: Path
) -> None:
    class Counted(Validated):
        count = 0

        def on_validation_start(self) -> None:
            self.count += 1

    metrics = PrivateMetrics(["accuracy"], SCENARIO, 0.01, renyi_order=16, budget=0.01001, ledger=tmp_path / "m.db")
    private = make_private(ledger=tmp_path / "training.db")
    trainer = make_trainer(tmp_path, private, metrics, num_sanity_val_steps=0, limit_train_batches=6, **options)
    model = Counted()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, make_loader(), make_loader(shuffle=False))
    found = [re.search(r"pays for 1 of the (\d+) evaluations", str(each.message)) for each in caught]
    assert [int(match[1]) for match in found if match] == [model.count] * told
    assert told == (model.count > 1)
    by_clock = isinstance(options.get("val_check_interval"), str)
    early = any("ends before its first validation" in str(each.message) for each in caught)
    assert early == (model.count == 0 and not by_clock)


class OfTwo(Validated):
    """Is evaluated on two loaders, after each of which it has a value, or one after both."""

    def __init__(self, at_end: bool = False) -> None:
        super().__init__()
        self.at_end = at_end

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.accuracy(self.network(batch[0]), batch[1])
        if not self.at_end:
            self.log("accuracy", self.accuracy)

    def on_validation_epoch_end(self) -> None:
        if self.at_end:
            self.log("accuracy", self.accuracy)


@pytest.mark.parametrize(
    ("at_end", "checks", "sentence"),
    [
        (False, 2, "pays for 1 of the 2 evaluations that this run plans, and"),
        (
            False,
            0,
            "pays for 1 of the 2 evaluations that this run plans if each of its 2 loaders logs all metrics, and",
        ),
        *slow((True, 2, None)),
    ],
)
def test_values_of_each_loader_are_counted(at_end: bool, checks: int, sentence: str | None, tmp_path: Path) -> None:
    def fit(value: float) -> tuple[int, list[str]]:
        """Charges of two epochs with a budget of two values, and what was told at the start and within."""
        folder = tmp_path / f"{value:g}"
        metrics = PrivateMetrics(
            ["accuracy"], SCENARIO, value, renyi_order=16, budget=0.1 * (1 + 1e-6), ledger=folder / "held_out.db"
        )
        trainer = make_trainer(
            tmp_path,
            make_private(ledger=folder / "training.db"),
            metrics,
            max_epochs=2,
            num_sanity_val_steps=checks,
            limit_train_batches=1,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaders = [make_loader(shuffle=False), make_loader(20, shuffle=False)]
            trainer.fit(OfTwo(at_end), make_loader(), loaders)
        told = [text for each in caught if re.search("evaluations that|older value of", text := str(each.message))]
        with PrivacyLedger.read_only(folder / "held_out.db") as ledger:
            return sum(account.num_charges for account in ledger.accounts()), told

    charged, told = fit(0.05)
    assert charged == 2
    if sentence is None:  # two values for two evaluations
        assert not told
        return
    first, *later = told
    assert sentence in first
    assert len(later) == 2  # of the evaluation that is not paid for
    (fits,) = re.findall(r"epsilon=(\S+) fits for all", first)
    assert fit(float(fits)) == (4, [])


class Tested(Validated):
    test_step = Validated.validation_step


@pytest.mark.parametrize("name", ["validate", *slow("test")])
def test_an_evaluation_that_nothing_is_left_for_is_told_what_fits(name: str, tmp_path: Path) -> None:
    """It ended with nan, after all records were evaluated, and named no epsilon that fits."""

    def measure(*values: float) -> float:
        handle = PlannedLedger(tmp_path / "study.db", epsilon=1.0, delta=1e-5)
        for value in values:
            metrics = PrivateMetrics(["accuracy"], SCENARIO, epsilon=value, delta=1e-5, ledger=handle)
            trainer = make_trainer(tmp_path, metrics, logger=False)
            evaluate = getattr(trainer, name)
            evaluate(Tested(), make_loader(shuffle=False), verbose=False)
        for _ in range(20):  # past the promise it repeats the value that it has
            evaluate(Tested(), make_loader(shuffle=False), verbose=False)
        return float(trainer.callback_metrics["accuracy"])

    assert math.isfinite(measure(0.5))
    before = (tmp_path / "study.db").read_bytes()
    with pytest.raises(BudgetExceededError, match=r"has .* left for it: give PrivateMetrics a smaller") as refused:
        measure(0.5)
    assert (tmp_path / "study.db").read_bytes() == before
    fitting = re.search(r"\(epsilon=(\S+) fits\)", str(refused.value))
    assert fitting is not None
    with pytest.raises(BudgetExceededError):
        measure(1.02 * float(fitting[1]))
    assert math.isfinite(measure(float(fitting[1])))


def test_metrics_with_the_path_alone_open_the_ledger_as_the_run_declares_it(tmp_path: Path) -> None:
    """A sanity check opened it at order 16, at which the run was then refused."""
    ledger = PlannedLedger(tmp_path / "study.db", epsilon=3.0, delta=1e-5)
    private = DPSGD(1.7, 1e-5, Poisson(0.1, batch_size=64), ledger=ledger)
    metrics = PrivateMetrics(
        ["accuracy"], private.arguments.scenario, epsilon=0.2, delta=1e-5, ledger=f"{tmp_path}/./study.db"
    )
    terms = {"max_steps": 10, "max_epochs": -1, "num_sanity_val_steps": 1, "val_check_interval": 10}
    trainer = make_trainer(tmp_path, private, metrics, **terms, check_val_every_n_epoch=None)
    trainer.fit(Validated(), make_loader(), make_loader(shuffle=False))
    with PrivacyLedger.read_only(tmp_path / "study.db") as found:
        charges = {account.name: account.num_charges for account in found.accounts()}
    assert charges["metrics accuracy"] == 1


@pytest.mark.parametrize("metrics_first", [True, *slow(False)])
def test_what_fits_leaves_room_for_the_metrics(metrics_first: bool, tmp_path: Path) -> None:
    """It was what fits without them, with which the run was refused again."""

    def fit(promise: float, epsilon: float) -> float:
        ledger = PlannedLedger(tmp_path / "study.db", epsilon=promise, delta=1e-5)
        private = make_private(epsilon=epsilon, delta=1e-5, renyi_order=None, scenario=SCENARIO, ledger=ledger)
        metrics = PrivateMetrics(["accuracy"], SCENARIO, epsilon=1.0, delta=1e-5, ledger=ledger)
        callbacks = [metrics, private] if metrics_first else [private, metrics]
        trainer = make_trainer(tmp_path, *callbacks, max_epochs=2, check_val_every_n_epoch=2)
        trainer.fit(Validated(), make_loader(), make_loader(shuffle=False))
        return float(trainer.callback_metrics["accuracy"])

    fit(3.0, 1.6)
    with pytest.raises(BudgetExceededError, match="is planned") as refused:
        fit(3.0, 3.0)
    fitting = re.search(r"\(epsilon=(\S+) fits\)", str(refused.value))
    assert fitting is not None
    with pytest.raises(BudgetExceededError):
        fit(3.0, 1.02 * float(fitting[1]))
    assert math.isfinite(fit(3.0, float(fitting[1])))


@pytest.mark.parametrize(
    ("promised", "asked"),
    [
        ({"epsilon": 3.0, "delta": 1e-5}, {"epsilon": 2.5, "delta": 1e-5}),
        ({"world_success_bound": 0.66}, {"world_success_bound": 0.6}),
    ],
)
def test_a_refused_run_is_let_in_by_the_larger_promise_that_it_names(
    promised: dict[str, float], asked: dict[str, float], tmp_path: Path
) -> None:
    """It named the promise that stood, by which nothing changes."""
    name = next(iter(promised))

    def fit(value: float) -> None:
        ledger = PlannedLedger(tmp_path / "study.db", **{**promised, name: value})
        private = make_private(scenario=SCENARIO, ledger=ledger, **{"renyi_order": None, **asked})
        make_trainer(tmp_path, private, max_epochs=2).fit(Classifier(), make_loader())

    fit(promised[name])
    with pytest.raises(BudgetExceededError, match="is planned") as refused:
        fit(promised[name])
    (command,) = re.findall("`lightning-pac (.*?)`", str(refused.value))
    option = f"--{name.replace('_', '-')}"
    largest = float(shlex.split(command)[shlex.split(command).index(option) + 1])
    too_little = promised[name] + 0.98 * (largest - promised[name])
    assert main(shlex.split(command.replace(f"{option} {largest:g}", f"{option} {too_little}"))) == 0
    with pytest.raises(BudgetExceededError, match="is planned"):
        fit(too_little)
    assert main(shlex.split(command)) == 0
    fit(largest)


def declared_run() -> dict[str, Any]:
    terms = SRPPAccountant(SCENARIO, SAMPLING).to_dict()
    coupling = {"scenario": SCENARIO.coupling(), "renyi_order": terms.pop("renyi_order")}
    return {**terms, "coupling": coupling, "noise_multiplier": 8.0, "share": "fit"}


def _steps_until_killed(end: Connection, path: str) -> None:
    """A run as the callback makes it, restarted where the journal has it; the parent kills it somewhere."""
    accountant = SRPPAccountant(SCENARIO, SAMPLING)
    account = SharedAccount(
        Ranks(),
        lambda: LedgerHandle(path),
        lambda ledger: open_account(ledger, declared_run(), "rpp", None, "fit"),
        accountant.events_of_units(8.0, 1),
    )
    journal = RunJournal(accountant, 8.0, account, planned_steps=1)
    journal.begin_stretch(0)
    step = 0
    while journal.can_afford_step():
        end.send(step)
        if step == 5:  # however slow the parent is, it kills before the share is spent
            end.recv()
        journal.start_step(step)
        step += 1
    account.close()


def test_no_kill_lets_a_run_pass_its_share(tmp_path: Path) -> None:
    context = prepared_context()
    path = tmp_path / "study.db"
    with planned(path) as ledger:
        ledger.account("fit", "rpp", declared_run(), None, "training")
    for kill in range(6):
        ours, theirs = context.Pipe()
        process = context.Process(target=_steps_until_killed, args=(theirs, str(path)))
        process.start()
        theirs.close()
        try:
            for _ in range(3):
                ours.recv()
            if kill < 5:
                time.sleep(0.002 * kill)
                process.kill()
            else:
                ours.send("go on")
        except EOFError:  # it ended by itself
            pass
        process.join(30)
        with PrivacyLedger.read_only(path) as ledger:
            (account,) = ledger.accounts()
            steps = [attempt.num_steps for attempt in account.attempts()]
        assert sum(steps) <= 10
    assert sum(steps) == 10
    assert len(steps) > 1, "it was killed between steps"
