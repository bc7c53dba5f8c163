"""Runs, metrics, answers and static releases in one ledger: what adds, what is kept apart, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_pac.accountants import SRPPAccountant, SRPPRun, compose
from lightning_pac.callbacks import PrivateMetrics
from lightning_pac.cli import main
from lightning_pac.exceptions import LedgerMismatchError, PrivacyError
from lightning_pac.ledger import PrivacyLedger, describe_currency
from lightning_pac.mechanisms import PACResponder, SlicedWassersteinMechanism
from lightning_pac.scenarios import AttributeScenario, BalancedSubsets, FixedSize, SliceProfile, TwoWorldScenario

SCENARIO = TwoWorldScenario(num_differing=3)


def coupling(scenario: TwoWorldScenario = SCENARIO, order: float = 16.0) -> dict[str, Any]:
    return {"coupling": {"scenario": scenario.coupling(), "renyi_order": order}}


def make_static(ledger: PrivacyLedger, shift: float = 1.0) -> SlicedWassersteinMechanism:
    scenario = AttributeScenario.from_shifts({"a": [0.0, 0.0], "b": [shift, 0.0]})
    return SlicedWassersteinMechanism(scenario, None, SliceProfile.coordinate(2), epsilon=0.5, ledger=ledger)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """One study: two runs, one of them averaged, a metric, a static release and an answer."""
    path = tmp_path / "study.db"
    pool = BalancedSubsets(num_records=10, num_subsets=4)
    with PrivacyLedger(path, budget={"rpp": 8.0}) as ledger:
        ledger.account("run", "rpp", coupling()).charge(3.0)
        metrics = PrivateMetrics(["val/accuracy"], SCENARIO, epsilon=0.25, renyi_order=16.0, ledger=ledger)
        metrics._open_account()
        assert metrics._charge("accuracy")
        ledger.account("averaged run", "ms_srpp_joint", coupling()).charge(1.5)
        make_static(ledger).release([1.0, 0.0])
        PACResponder(np.asarray, pool.draw_secret(tmp_path / "secret.key"), 0.125, ledger)([0, 1, 1, 1])
    return path


def test_the_table_says_what_was_spent_in_which_currency(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PrivacyLedger.read_only(path) as ledger:
        spent = {currency: ledger.spent(currency) for currency in ledger.currencies()}
    assert spent == {"rpp": 3.25, "ms_srpp_joint": 1.5, "static_pufferfish": 0.5, "mutual_information": 0.125}
    assert main(["account", str(path)]) == 0
    table = capsys.readouterr().out.partition("What was spent in which currency")[2]
    lines = {currency: next(line for line in table.splitlines() if f" {currency} " in line) for currency in spent}
    assert all(words in lines["rpp"] for words in ("3.25", "8", "4.75", "under one coupling"))
    assert "adds to its own kind only" in lines["ms_srpp_joint"]
    assert "one joint release" in lines["static_pufferfish"]
    assert "Currencies do not add up to one another." in table


@pytest.mark.parametrize(
    "declaration",
    [coupling(TwoWorldScenario(num_differing=4)), coupling(order=8.0), coupling(TwoWorldScenario(3, secret="sex")), {}],
)
def test_another_coupling_is_refused(path: Path, declaration: dict[str, Any]) -> None:
    with PrivacyLedger(path) as ledger:
        with pytest.raises(
            LedgerMismatchError, match=r"Costs add for the same two worlds only, and account .* is about others"
        ) as refusal:
            ledger.account("second run", "rpp", declaration)
        assert "may be deleted" not in str(refusal.value)
        assert ledger.spent("rpp") == 3.25
        assert ledger.account("second run", "rpp", coupling()).charge(1.0) == 1.0


def test_a_release_about_persons_does_not_add_to_one_about_records(path: Path) -> None:
    """It was told by the keys of a declaration, from which nobody saw that another ledger is the only way."""
    persons = coupling()
    persons["coupling"]["scenario"]["unit"] = "person by customer"
    told = "is about a record, and this about a person by customer, which do not add: give this another ledger"
    with PrivacyLedger(path) as ledger, pytest.raises(LedgerMismatchError, match=told):
        ledger.account("persons", "rpp", persons)


def test_a_ledger_that_a_refused_start_left_behind_may_be_deleted(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "new.db") as ledger:
        ledger.account("metrics", "rpp", coupling())
        with pytest.raises(LedgerMismatchError, match="nothing is charged to this ledger yet, so it may be deleted"):
            ledger.account("run", "rpp", coupling(order=8.0))


def test_metrics_under_another_coupling_than_the_run_are_refused(path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        metrics = PrivateMetrics(["val/recall"], SCENARIO, epsilon=0.25, renyi_order=4.0, ledger=ledger)
        with pytest.raises(LedgerMismatchError, match=r"coupling.renyi_order \(16.0, now 4.0\)"):
            metrics._open_account()


@pytest.mark.parametrize("shift", [1.0, 0.0])
def test_a_second_static_release_is_refused_also_if_it_would_cost_nothing(path: Path, shift: float) -> None:
    with PrivacyLedger(path) as ledger:
        with pytest.raises(PrivacyError, match=r"X1 xor X2.*into one vector"):
            make_static(ledger, shift).release([0.0, 0.0])
        assert ledger.spent("static_pufferfish") == 0.5


def test_averages_add_to_averages_only() -> None:
    scenario = TwoWorldScenario(3, 100)
    worst, averaged = (SRPPAccountant(scenario, FixedSize(10), 16.0, notion) for notion in ("joint", "ms-joint"))
    assert compose([SRPPRun(averaged, 5.0, 4)] * 2).epsilon == pytest.approx(averaged.epsilon(5.0, 8))
    with pytest.raises(ValueError, match="different notions do not compose"):
        compose([SRPPRun(worst, 5.0, 4), SRPPRun(averaged, 5.0, 4)])
    # Drawing every differing record each time costs a hundred-fold what the average says: added, it would be hidden.
    assert worst.epsilon(5.0, 4) > 20 * averaged.epsilon(5.0, 4)
    assert worst.metric_name != averaged.metric_name, "one name would be one currency"


def test_every_currency_that_is_charged_is_described(path: Path) -> None:
    with PrivacyLedger.read_only(path) as ledger:
        assert all(describe_currency(currency) != describe_currency("x") for currency in ledger.currencies())
    for notion in ("rpp", "ave", "joint", "ms-ave", "ms-joint"):
        name = SRPPAccountant(TwoWorldScenario(3, 100), FixedSize(10), 16.0, notion).metric_name
        currency = name.removeprefix("privacy/").removesuffix("_epsilon")
        assert describe_currency(currency) != describe_currency("x")
