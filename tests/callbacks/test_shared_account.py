"""One account for several ranks: rank zero alone has it open, and what happens to it there happens on all of them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lightning_pac.callbacks.shared import SharedAccount
from lightning_pac.exceptions import BudgetExceededError
from lightning_pac.ledger import LedgerHandle, PrivacyLedger
from lightning_pac.strategies import Ranks


class Threads(Ranks):
    """Ranks that are threads of this process, and exchange values through a list."""

    def __init__(self, rank: int, barrier: threading.Barrier, outcome: list[Any]) -> None:
        super().__init__(rank, barrier.parties)
        self.barrier, self.outcome = barrier, outcome

    def from_first(self, action: Callable[[], Any]) -> Any:
        if self.is_first:
            try:
                self.outcome[:] = [action(), None]
            except Exception as error:
                self.outcome[:] = [None, error]
        self.barrier.wait(10)
        value, problem = self.outcome
        self.barrier.wait(10)
        if problem is not None:
            raise problem
        return value


def on_ranks(function: Callable[[Ranks], Any], size: int = 3) -> list[Any]:
    barrier, outcome = threading.Barrier(size), [None, None]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(function, [Threads(rank, barrier, outcome) for rank in range(size)]))


def share(ranks: Ranks, path: Path, budget: float) -> SharedAccount:
    def find() -> LedgerHandle:
        assert ranks.is_first
        return LedgerHandle(path)

    return SharedAccount(ranks, find, lambda ledger: ledger.account("run", "rpp", budget=budget))


def test_a_step_of_three_ranks_is_charged_once_and_known_to_all(tmp_path: Path) -> None:
    def run(ranks: Ranks) -> tuple[Any, ...]:
        account = share(ranks, tmp_path / "run.db", 1.0)
        attempt = account.start_attempt()
        attempt.start_step(0.25, 0)
        attempts = account.attempts()
        name, path = account.name, account.path
        account.close()
        return name, path, len(attempts), attempts[0].num_steps

    assert on_ranks(run) == [("run", tmp_path / "run.db", 1, 1)] * 3
    with PrivacyLedger.read_only(tmp_path / "run.db") as ledger:
        assert ledger.spent("rpp") == 0.25


def test_a_refusal_of_rank_zero_is_raised_on_every_rank_and_charges_nothing(tmp_path: Path) -> None:
    def run(ranks: Ranks) -> bool:
        account = share(ranks, tmp_path / "run.db", 1.0)
        account.check(0.75)
        with pytest.raises(BudgetExceededError, match="run"):
            account.check(1.25)
        account.close()
        return True

    assert on_ranks(run) == [True] * 3
    with PrivacyLedger.read_only(tmp_path / "run.db") as ledger:
        assert ledger.spent("rpp") == 0


def test_a_ledger_whose_account_cannot_be_opened_is_closed_again(tmp_path: Path) -> None:
    def run(ranks: Ranks) -> bool:
        with pytest.raises(ValueError, match="no account"):
            SharedAccount(ranks, lambda: LedgerHandle(tmp_path / "run.db"), fail)
        return True

    def fail(ledger: PrivacyLedger) -> Any:
        raise ValueError("no account")

    assert on_ranks(run) == [True] * 3
    PrivacyLedger(tmp_path / "run.db").close()  # no other writer has it
