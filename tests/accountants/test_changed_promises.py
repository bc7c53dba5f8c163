"""A ledger's promise where it is changed, stated beside something else, or broken by what was lost."""

from pathlib import Path

import pytest

from lightning_pac.accountants import (
    GaussianRelease,
    LedgerBudget,
    LedgerPlan,
    NumberOfRuns,
    PlannedLedger,
    SelectionPrice,
    account_total,
    ledger_order,
    ledger_total,
)
from lightning_pac.cli import main
from lightning_pac.evidence import verify_evidence, write_evidence
from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.ledger import PrivacyLedger, backup_ledger, public_journal, replay_journal, restore_ledger
from lightning_pac.scenarios import TwoWorldScenario

SCENARIO = TwoWorldScenario(num_differing=5, num_records=1000, adjacency="zero_out")


def charge_twice(ledger: PrivacyLedger) -> None:
    for name in ("a", "b"):
        coupling = {"scenario": SCENARIO.coupling(), "renyi_order": 20.0}
        ledger.account(name, "rpp", {"coupling": coupling, "epsilon_of_each": 0.05}).charge(0.05)


@pytest.mark.parametrize("currency", ["rpp", "srpp_joint"])
def test_a_total_that_was_raised_beside_its_promise_voids_it(tmp_path: Path, currency: str) -> None:
    """As earlier versions allowed."""
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        LedgerBudget(epsilon=1.0, delta=1e-5).declare(ledger)
        with ledger.storage.transaction() as connection:
            connection.execute("INSERT INTO budgets (currency, amount) VALUES (?, 9.0)", (currency,))
            ledger.storage.note_budgets(connection)
        charge_twice(ledger)
        assert LedgerBudget.of(ledger) is None
        assert f"its {currency} total was set to 9 beside it" in str(LedgerBudget.lost(ledger))
    for epsilon in (1.0, 30.0):
        with pytest.raises(
            LedgerError, match=r"promise of epsilon 1 at delta 1e-05 does not hold: .* Begin a new ledger"
        ):
            PlannedLedger(tmp_path / "study.db", epsilon=epsilon, delta=1e-5).open()


@pytest.mark.parametrize("stated", ["a promise", "a total"])
def test_a_budget_that_was_raised_after_the_first_charge_is_not_said_to_be_of_before(
    tmp_path: Path, stated: str
) -> None:
    path = tmp_path / "study.db"

    def state(ledger: PrivacyLedger, epsilon: float) -> None:
        if stated == "a total":
            ledger.set_budget("rpp", epsilon)
        else:
            LedgerBudget(epsilon=epsilon, delta=1e-5).declare(ledger)

    with PrivacyLedger(path) as ledger:
        state(ledger, 2.0)
        state(ledger, 3.0)
        charge_twice(ledger)
        assert "before the first charge, is what to quote" in ledger_total(ledger).reason
        state(ledger, 2.5)
        assert "before the first charge, is what to quote" in ledger_total(ledger).reason
        state(ledger, 4.0)
        assert "raised after the first charge, which holds if no other result would have" in ledger_total(ledger).reason
    page = write_evidence(path, tmp_path / "evidence").read_text()
    assert "raised after the first charge, which holds if no other" in page
    assert "declared before the first charge" not in page


@pytest.mark.parametrize("stated", ["a promise", "a total", "nothing"])
def test_a_backup_of_before_a_raise_states_no_budget(tmp_path: Path, stated: str) -> None:
    path, copy = tmp_path / "study.db", tmp_path / "backup.db"
    with PrivacyLedger(path) as ledger:
        if stated == "a total":
            ledger.set_budget("rpp", 1.0)
        if stated == "a promise":
            LedgerBudget(epsilon=1.0, delta=1e-5).declare(ledger)
        charge_twice(ledger)
        backup_ledger(path, copy)
        if stated == "a promise":
            LedgerBudget(epsilon=3.0, delta=1e-5).declare(ledger)
        elif stated == "a total":
            ledger.set_budget("rpp", 3.0)
    if stated == "nothing":
        restore_ledger(path, {"a": 0.01, "b": 0.0}, copy)
    else:
        for _ in range(2):  # the second time from a backup that does not know of the first
            with pytest.warns(
                UserWarning, match=r"Budgets of .*study\.db that were set after the backup are not in it"
            ):
                restore_ledger(path, {"a": 0.01, "b": 0.0}, copy)
    with PrivacyLedger.read_only(path) as ledger:
        total = ledger_total(ledger)
        assert total.basis == "none"
        assert LedgerBudget.of(ledger) is None
        assert ("set after the backup" in total.reason) == (stated != "nothing")
        replayed = replay_journal(public_journal(ledger), tmp_path / "again.db")
        assert ledger_total(replayed) == total


def test_a_promise_does_not_hold_where_more_was_drawn_than_it_pays_for(tmp_path: Path) -> None:
    coupling = {"scenario": SCENARIO.coupling(), "renyi_order": 20.0}
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        LedgerBudget(epsilon=1.0, delta=1e-5).declare(ledger)
        account = ledger.account("a", "rpp", {"coupling": coupling, "epsilon_of_each": 0.05})
        account.charge(0.05, {"draws": 2**32})
        assert LedgerBudget.lost(ledger) is None
        account.charge(0.05, {"draws": 1})
        assert "4.295e+09 values of noise were drawn" in str(LedgerBudget.lost(ledger))
        assert ledger_total(ledger).reason.startswith("The promise of epsilon 1 at delta 1e-05 does not hold: ")


def test_what_was_set_before_the_first_charge_and_replaced_limits_nothing(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "total.db", budget={"rpp": 9.0}) as ledger:
        LedgerBudget(epsilon=1.0, delta=1e-5).declare(ledger)
        charge_twice(ledger)
        assert 0.9 < ledger_total(ledger).epsilon_at_delta <= 1.0
        assert ledger_total(replay_journal(public_journal(ledger), tmp_path / "again.db")) == ledger_total(ledger)
    with PrivacyLedger(tmp_path / "promise.db") as ledger:
        LedgerBudget(world_success_bound=0.8).declare(ledger)
        LedgerBudget(epsilon=5.0, delta=1e-5).declare(ledger)
        LedgerBudget(epsilon=3.0, delta=1e-5).declare(ledger)
        assert ledger_order(ledger) == 7.5, "nothing counts at another one yet"
        charge_twice(ledger)
        assert LedgerBudget.largest(ledger) == LedgerBudget(epsilon=3.0, delta=1e-5)
        assert ledger_total(ledger).epsilon_at_delta <= 3.0
        LedgerBudget(epsilon=5.0, delta=1e-5).declare(ledger)
        LedgerBudget(epsilon=3.0, delta=1e-5).declare(ledger)
        assert LedgerBudget.largest(ledger) == LedgerBudget(epsilon=5.0, delta=1e-5, renyi_order=7.5)
        assert 4 < ledger_total(ledger).epsilon_at_delta <= 5.0
        ledger.account("a", "rpp").book(9.0, {"unknown": "lost"})
        assert LedgerBudget.of(ledger) is None, "more was lost than it allows"


def test_a_promise_is_kept_at_the_order_at_which_it_was_made(tmp_path: Path) -> None:
    low = {"coupling": {"scenario": SCENARIO.coupling(), "renyi_order": 4.0}}
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        LedgerBudget(epsilon=3.0, delta=1e-5).declare(ledger)
        with pytest.raises(LedgerMismatchError, match=r"keeps its promise at order 7\.5, and costs at order 4"):
            ledger.account("fit", "rpp", low)
    with PrivacyLedger(tmp_path / "opened.db") as ledger:
        account = ledger.account("fit", "rpp", low)
        with pytest.raises(ValueError, match="kept by no cost at all at order 4, at which"):
            LedgerBudget(epsilon=3.0, delta=1e-5).declare(ledger)
        LedgerBudget(epsilon=6.0, delta=1e-5).declare(ledger)
        account.charge(1.0)
        assert LedgerBudget.of(ledger).renyi_order == 4.0
    with pytest.raises(ValueError, match=r"epsilon is 0\.001, which no cost at all keeps at any order up to 1024"):
        LedgerBudget(epsilon=0.001, delta=1e-5)
    with pytest.raises(ValueError, match=r"world_success_bound is 0\.500000001, which no cost at all keeps"):
        LedgerBudget(world_success_bound=0.500000001)


def test_commands_of_a_promise_say_it_exactly_and_as_a_shell_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "a study.db"
    with PlannedLedger(path, epsilon=1.2345678, delta=1.2345678e-5):
        pass
    with pytest.raises(LedgerMismatchError, match=r"epsilon 1\.2345678 at .*'.*a study\.db' --epsilon 3\.14159265 --"):
        PlannedLedger(path, epsilon=3.14159265, delta=1e-5).open()
    with pytest.raises(LedgerMismatchError, match=r"by `lightning-pac account budget '.* --delta 1\.2345678e-05`"):
        PrivacyLedger(path, budget={"rpp": 9.0})
    with PrivacyLedger(path) as ledger:
        ledger.account("a fit").charge(0.5)
    backup_ledger(path, tmp_path / "a copy.db")
    with PrivacyLedger(tmp_path / "a copy.db") as copy, pytest.raises(LedgerError, match=r"adopt '.*a copy\.db'`"):
        copy.account("b")
    with pytest.raises(LedgerError, match=r"give it as --amount 'a fit=0\.0' or more"):
        restore_ledger(path, {})


def test_a_plan_that_was_passed_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.db"
    with PrivacyLedger(path) as ledger:
        LedgerPlan({"fit": GaussianRelease(0.1), "m": GaussianRelease(0.1)}).declare(ledger)
        charge_twice(ledger)
    assert main(["account", "total", str(path)]) == 0
    assert "Plan of" in capsys.readouterr().out
    page = write_evidence(path, tmp_path / "evidence")
    assert "It is not kept: the total says why." in page.read_text()
    assert not verify_evidence(tmp_path / "evidence").findings


def test_evidence_states_no_promise_that_was_broken(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with PrivacyLedger(path) as ledger:
        LedgerBudget(epsilon=5.0, delta=1e-5).declare(ledger)
        charge_twice(ledger)
        LedgerBudget(epsilon=3.0, delta=1e-5).declare(ledger)
    page = write_evidence(path, tmp_path / "lowered")
    assert "Everything together keeps epsilon 5 at delta 1e-05" in page.read_text()
    with PrivacyLedger(path) as ledger:
        ledger.account("a", "rpp").book(9.0, {"unknown": "lost"})
    page = write_evidence(path, tmp_path / "broken")
    assert "The promise of epsilon 3 at delta 1e-05 does not hold: 9.1 is spent" in page.read_text()
    assert not verify_evidence(tmp_path / "broken").findings


@pytest.mark.parametrize("event", [{"unknown": "lost"}, {"release": "selection"}])
def test_a_selection_pays_for_one_and_for_nothing_that_was_lost(tmp_path: Path, event: dict[str, str]) -> None:
    price = SelectionPrice((GaussianRelease(0.05),), NumberOfRuns(gamma=0.2))
    coupling = {"scenario": SCENARIO.coupling(), "renyi_order": 16.0}
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        account = ledger.account("tune", "rpp", {"coupling": coupling, "selection": price.to_dict()})
        account.charge(price.renyi(16.0), {"release": "selection"})
        account.charge(0.0, {"release": "nothing: the draw is on the disk"})
        assert ledger_total(ledger).basis == "run"
        account.book(5.0, event)
        assert ledger_total(ledger).basis == "none"
        with pytest.raises(ValueError, match=r"has lost|more than one selection"):
            account_total(account)


def test_a_promise_pays_for_what_was_drawn_and_for_no_other_promise(tmp_path: Path) -> None:
    first = PlannedLedger(tmp_path / "study.db", epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="given keeps epsilon 1 at delta 1e-05 already"):
        PlannedLedger(first, epsilon=3.0, delta=1e-5)
    with PlannedLedger(first, epsilon=1.0, delta=1e-5) as ledger:
        charge_twice(ledger)
        LedgerBudget(epsilon=2.0, delta=1e-5, num_draws=100.0).declare(ledger)
        stands = LedgerBudget.of(ledger)
        assert stands is not None
        assert stands.num_draws == 2.0**32


@pytest.mark.parametrize("event", [{"mu_squared": 0.001}, {"mu_squared": -0.01}])
def test_a_release_is_not_said_to_be_less_than_was_paid_for(tmp_path: Path, event: dict[str, float]) -> None:
    """Of 0.05 nats at order 7.5, mu^2 is 0.0133: a note of 0.001 took epsilon from 0.40 to 0.10."""
    coupling = {"scenario": SCENARIO.coupling(), "renyi_order": 7.5}
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        account = ledger.account("a", "rpp", {"coupling": coupling, "epsilon_of_each": 0.05})
        account.charge(0.05, {"mu_squared": 2 * 0.05 / 7.5})
        assert ledger_total(ledger).basis == "run"
        account.charge(0.05, event)
        assert ledger_total(ledger).basis == "none"
        assert "states a mu^2 of" in ledger_total(ledger).reason


def test_a_larger_bound_that_is_advised_is_enough_and_short() -> None:
    for cap in (0.2, 0.5, 1.1, 2.5):  # that of 1.1 was 0.7889999999999999
        advised = LedgerBudget(world_success_bound=0.6).raised_to(cap)
        assert advised is not None
        assert advised.cap >= cap
        assert len(advised.as_options()) <= len("--world-success-bound 0.1234")
