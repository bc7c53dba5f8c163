"""The account of a run without a run: what the journal holds is what was started, whatever a checkpoint says.

A step that draws every record costs a kappa^2 d^2 / (2 sigma^2) with kappa = 2, the price of the Gaussian mechanism.
"""

from pathlib import Path

import pytest

from lightning_pac.accountants import SRPPAccountant
from lightning_pac.callbacks.shared import SharedAccount
from lightning_pac.callbacks.srpp_sgd.journal import RunJournal, open_account
from lightning_pac.exceptions import BudgetExceededError, LedgerError, LedgerMismatchError
from lightning_pac.ledger import LedgerHandle, PrivacyLedger, restore_ledger
from lightning_pac.scenarios import Poisson, TwoWorldScenario
from lightning_pac.strategies import Ranks

SCENARIO = TwoWorldScenario(num_differing=3, num_records=100)
ACCOUNTANT = SRPPAccountant(SCENARIO, Poisson(rate=1.0, batch_size=1, secret_draws=False), 8.0, "rpp")
NOISE = 40.0
COST = 8.0 * (2 * 3) ** 2 / (2 * NOISE**2)


def share(path: Path, name: str | None = None, budget: float | None = None) -> SharedAccount:
    return SharedAccount(
        Ranks(), lambda: LedgerHandle(path), lambda ledger: open_account(ledger, {}, "rpp", budget, name)
    )


def test_steps_are_on_record_before_they_return_and_cost_the_gaussian_price(tmp_path: Path) -> None:
    account = share(tmp_path / "run.db")
    journal = RunJournal(ACCOUNTANT, NOISE, account)
    journal.begin_stretch(0)
    for step in range(3):
        journal.start_step(step)
        with PrivacyLedger.read_only(tmp_path / "run.db") as seen:
            assert seen.spent("rpp") == pytest.approx((step + 1) * COST, rel=1e-12)
    assert journal.num_steps == 3
    assert journal.epsilon == journal.rpp_epsilon == pytest.approx(3 * COST, rel=1e-12)
    with pytest.raises(LedgerError, match=r"Step 7 .* expects step 3"):
        journal.start_step(7)
    assert journal.num_steps == 3
    account.close()


def test_a_restart_keeps_what_was_started_after_the_checkpoint(tmp_path: Path) -> None:
    account = share(tmp_path / "run.db")
    journal = RunJournal(ACCOUNTANT, NOISE, account)
    journal.begin_stretch(0)
    for step in range(5):
        journal.start_step(step)
        if step == 2:
            checkpoint = journal.state()
    account.close()
    assert checkpoint["num_steps"] == 3
    assert checkpoint["path"] == str(tmp_path / "run.db")
    account = share(tmp_path / "run.db", checkpoint["account"])
    again = RunJournal(ACCOUNTANT, NOISE, account, checkpoint)
    assert (again.num_steps, again.replayed) == (5, 2)
    again.begin_stretch(3)
    again.start_step(3)
    assert again.epsilon == pytest.approx(6 * COST, rel=1e-12)
    assert [(attempt.first_step, attempt.num_steps) for attempt in account.attempts()] == [(0, 5), (3, 1)]
    account.close()


def test_what_was_booked_for_lost_steps_counts(tmp_path: Path) -> None:
    account = share(tmp_path / "run.db")
    journal = RunJournal(ACCOUNTANT, NOISE, account)
    journal.begin_stretch(0)
    journal.start_step(0)
    pointer = journal.state()
    account.close()
    restore_ledger(tmp_path / "run.db", {pointer["account"]: 4.5 * COST})
    account = share(tmp_path / "run.db", pointer["account"])
    again = RunJournal(ACCOUNTANT, NOISE, account, {**pointer, "num_steps": 5})
    assert (again.num_steps, again.replayed) == (6, 5)  # of which none is gone on with in its pass
    assert again.epsilon == again.rpp_epsilon == pytest.approx(6 * COST, rel=1e-12)
    again.begin_stretch(5)
    again.start_step(5)
    assert again.epsilon == pytest.approx(7 * COST, rel=1e-12)
    account.close()


def test_an_older_ledger_than_the_checkpoint_is_refused(tmp_path: Path) -> None:
    account = share(tmp_path / "run.db")
    with pytest.raises(LedgerMismatchError, match=r"knows 4 steps, but account .* has only 0"):
        RunJournal(ACCOUNTANT, NOISE, account, {"num_steps": 4, "continuing": []})
    account.close()
    with pytest.raises(LedgerMismatchError, match="has no account 'gone'"):
        share(tmp_path / "run.db", "gone")
    PrivacyLedger(tmp_path / "run.db").close()  # a refusal leaves it open for the next


def test_a_step_past_the_budget_is_foreseen_and_refused(tmp_path: Path) -> None:
    account = share(tmp_path / "run.db", budget=2.5 * COST)
    journal = RunJournal(ACCOUNTANT, NOISE, account)
    journal.begin_stretch(0)
    afforded = []
    for step in range(2):
        journal.start_step(step)
        afforded.append(journal.can_afford_step())
    assert afforded == [True, False]
    with pytest.raises(BudgetExceededError):
        journal.start_step(2)
    assert (journal.num_steps, sum(attempt.num_steps for attempt in account.attempts())) == (2, 2)
    account.close()


class Second(Ranks):
    """Rank one, which hears from rank zero what it cannot see."""

    def __init__(self, heard: list[object]) -> None:
        super().__init__(rank=1, size=2)
        self.heard = heard

    def from_first(self, action):  # the type of `Ranks`
        value = self.heard.pop(0)
        if isinstance(value, Exception):
            raise value
        return value


def test_a_rank_without_the_ledger_opens_nothing_and_hears_the_error(tmp_path: Path) -> None:
    ranks = Second([("fit", tmp_path / "run.db", None), None, BudgetExceededError("spent")])

    def never(*_: object) -> None:
        raise AssertionError("only rank zero opens the ledger")

    account = SharedAccount(ranks, never, never)
    assert (account.name, account.path) == ("fit", tmp_path / "run.db")
    attempt = account.start_attempt()
    attempt.start_step(1.0, 0)
    assert attempt.num_steps == 1
    with pytest.raises(BudgetExceededError, match="spent"):
        attempt.start_step(1.0, 1)
    assert attempt.num_steps == 1
    account.close()
    assert not (tmp_path / "run.db").exists()
