"""A ledger as arguments give it: whose it is to close, and that nobody leaves it open."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lightning_pac.accountants import PlannedLedger
from lightning_pac.exceptions import LedgerError
from lightning_pac.ledger import LedgerHandle, PrivacyLedger


def test_a_ledger_that_was_given_open_stays_open(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        with LedgerHandle(ledger) as opened:
            assert opened is ledger
        assert not ledger.closed


def test_a_path_is_opened_once_and_closed_by_the_last(tmp_path: Path) -> None:
    first, second = LedgerHandle(tmp_path / "study.db"), LedgerHandle(str(tmp_path / "study.db"))
    ledger = first.open()
    assert second.open() is first.open() is ledger
    first.close()
    first.close()  # gives back what it holds, and not what the other does
    assert second.ledger.account("a").charge(1.0) == 1.0
    second.close()
    assert ledger.closed
    with first as again:
        assert again.account("a").spent == 1.0


def test_a_handle_that_is_not_open_says_so(tmp_path: Path) -> None:
    handle = LedgerHandle(tmp_path / "study.db")
    with pytest.raises(LedgerError, match=r"study\.db is not open"):
        _ = handle.ledger
    handle.close()
    assert not (tmp_path / "study.db").exists()


def test_handles_of_equal_arguments_are_written_alike_on_every_rank(tmp_path: Path) -> None:
    arguments = {"witness": tmp_path / "marks", "share": "fit"}
    first, second = (LedgerHandle(tmp_path / "study.db", **arguments) for _ in range(2))
    assert repr(first) == repr(second) != repr(LedgerHandle(tmp_path / "study.db"))
    assert "share='fit'" in repr(first)
    planned = [PlannedLedger(tmp_path / "study.db", epsilon=epsilon, delta=1e-5) for epsilon in (3.0, 3.0, 4.0)]
    assert repr(planned[0]) == repr(planned[1]) != repr(planned[2])


def test_threads_that_ask_at_once_share_a_ledger(tmp_path: Path) -> None:
    start = threading.Barrier(8)

    def charge(number: int) -> float:
        start.wait()
        with LedgerHandle(tmp_path / "study.db") as ledger:
            return ledger.account(f"of {number}").charge(1.0)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(charge, range(8))) == [1.0] * 8
