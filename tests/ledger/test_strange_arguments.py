"""Paths that are no ledger's, names that are no text, and copies that are another's: refused, and left as they were."""

import functools
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.ledger import PrivacyLedger, backup_ledger, restore_ledger


def charge(path: Path, cost: float = 1.0) -> None:
    with PrivacyLedger(path) as ledger:
        ledger.account("fit", "rpp").charge(cost)


def bind(path: Path) -> None:
    socket.socket(socket.AF_UNIX).bind(str(path))


@pytest.mark.skipif(os.name != "posix", reason="pipes and modes are POSIX")
@pytest.mark.parametrize("make", [os.mkfifo, bind], ids=["pipe", "socket"])
@pytest.mark.parametrize("open_ledger", [PrivacyLedger, PrivacyLedger.read_only])
def test_a_device_or_a_pipe_is_refused_before_it_is_opened(
    tmp_path: Path, make: Callable[[Path], None], open_ledger: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a pipe waits for ever, and /dev/null was made private."""
    monkeypatch.chdir(tmp_path)  # the path of a socket has about a hundred characters
    make(Path("strange"))
    mode = os.stat("strange").st_mode
    with pytest.raises(LedgerError, match="is a device or a pipe: name a file"):
        open_ledger(Path("strange"))
    assert (os.listdir(), os.stat("strange").st_mode) == (["strange"], mode)


@pytest.mark.parametrize("open_ledger", [PrivacyLedger, PrivacyLedger.read_only])
def test_a_path_that_cannot_be_reached_is_told_in_a_sentence(
    tmp_path: Path, open_ledger: Callable[[Path], Any]
) -> None:
    with pytest.raises(LedgerError, match=r"cannot be reached \(File name too long\)"):
        open_ledger(tmp_path / ("a" * 300))


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_the_file_of_another_program_keeps_its_mode(tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"\x89PNG" + bytes(100))
    photo.chmod(0o644)
    with pytest.raises(LedgerError, match="is not a privacy ledger"):
        PrivacyLedger(photo)
    assert stat.S_IMODE(photo.stat().st_mode) == 0o644


@pytest.mark.parametrize("argument", ["name", "currency"])
@pytest.mark.parametrize("value", [5, None, b"fit", "\ud800"])
def test_what_is_no_text_names_nothing(tmp_path: Path, argument: str, value: Any) -> None:
    """SQLite kept another text under it than the marks did, and the ledger was refused from then on."""
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        with pytest.raises((TypeError, ValueError), match=f"^{argument} (is|must be)"):
            ledger.account(**{"name": "fit", "currency": "rpp", argument: value})
        if argument == "currency":
            with pytest.raises((TypeError, ValueError), match=r"^currency (is|must be)"):
                ledger.set_budget(value, 1.0)
        assert not ledger.accounts()
    charge(tmp_path / "study.db")


@pytest.mark.parametrize("cost", ["8", True, None, 1j, [1.0], 10**400, -1, float("nan")])
def test_what_is_no_amount_costs_nothing(tmp_path: Path, cost: Any) -> None:
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        with pytest.raises(ValueError, match=r"^cost must be finite and at least 0, got "):
            ledger.account("fit").charge(cost)
        assert ledger.account("fit").spent == 0


def nested(depth: int) -> dict[str, Any]:
    event: dict[str, Any] = {}
    for _ in range(depth):
        event = {"a": event}
    return event


@pytest.mark.parametrize("event", ["x", [1], {"a": {1}}, {"a": float("inf")}, nested(100_000)], ids=range(5))
def test_what_is_no_event_is_named(tmp_path: Path, event: Any) -> None:
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        account = ledger.account("fit")
        with pytest.raises(TypeError, match=r"^event must be"):
            account.charge(1.0, event)
        assert account.spent == 0


def test_a_backup_of_another_ledger_is_not_put_in_the_place_of_this_one(tmp_path: Path) -> None:
    path, other = tmp_path / "study.db", tmp_path / "other.db"
    charge(path)
    charge(other)
    backup_ledger(other, tmp_path / "other.backup")
    files = sorted(os.listdir(tmp_path))
    with pytest.raises(LedgerMismatchError, match="is of another ledger"):
        restore_ledger(path, {}, tmp_path / "other.backup", otherwise=5.0)
    with pytest.raises(LedgerError, match="cannot be put in its own place"):
        restore_ledger(path, {}, path, otherwise=5.0)
    assert sorted(set(os.listdir(tmp_path)) - {"study.db-wal", "study.db-shm"}) == files
    charge(path)


def test_what_is_set_aside_by_restoring_twice_in_a_second_is_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    charge(path)
    backup_ledger(path, tmp_path / "backup.db")
    for count in range(1, 4):
        charge(path, 2.0**count)
        restore_ledger(path, {}, tmp_path / "backup.db", otherwise=10.0 ** (count + 1))
    kept = []
    for file in tmp_path.glob("study.db.before-*"):
        if not file.name.endswith(("-wal", "-shm")):
            with PrivacyLedger.read_only(file) as ledger:
                kept.append(ledger.spent("rpp"))
    assert sorted(kept) == [3.0, 105.0, 1009.0]


def test_an_account_whose_mark_found_no_room_goes_on_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "study.db"
    with PrivacyLedger(path) as ledger:
        account = ledger.account("fit", "rpp")
        with monkeypatch.context() as full:
            full.setattr("lightning_pac.ledger.files.marks._write_at", lambda *_: 0)
            for action in (lambda: ledger.account("late", "rpp"), lambda: account.charge(1.0)):
                with pytest.raises(LedgerError, match=r"mark in .* could not be written \(No space left"):
                    action()
        assert ledger.account("late", "rpp").charge(0.5) == 0.5
    assert b"late" in (tmp_path / "study.db-mark").read_bytes()
    with PrivacyLedger(path) as ledger:
        assert ledger.spent("rpp") == 1.5


def test_totals_stay_finite(tmp_path: Path) -> None:
    """Two charges of 1e308 made an infinite total, and with it a ledger that was refused as damaged."""
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        account = ledger.account("fit", "rpp")
        step = functools.partial(account.start_attempt().start_step, step=0)
        for charging in (account.charge, lambda cost: account.charge_many([cost, cost]), step):
            with pytest.raises(ValueError, match=r"^cost is 1e\+308, and sums of such numbers overflow"):
                charging(1e308)
        assert account.spent == 0
    charge(tmp_path / "study.db")


def test_a_folder_is_not_moved_aside_for_a_ledger(tmp_path: Path) -> None:
    charge(tmp_path / "study.db")
    backup_ledger(tmp_path / "study.db", tmp_path / "study.backup")
    (tmp_path / "folder").mkdir()
    with pytest.raises(LedgerError, match="is a folder"):
        restore_ledger(tmp_path / "folder", {}, tmp_path / "study.backup", otherwise=0.0)
    assert (tmp_path / "folder").is_dir()
