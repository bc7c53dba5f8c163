"""The files of a ledger under faults: what was charged is on the account, or the ledger is refused in a sentence."""

import errno
import json
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_pac.cli import main
from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.ledger import LedgerAccount, PrivacyLedger, adopt_ledger, backup_ledger, restore_ledger
from lightning_pac.ledger.files import file_system, writer_lock

FORMAT_1 = Path(__file__).parent / "format_1.sql"
PARTS = ("", "-wal", "-shm", "-mark")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.db"


def charge(path: Path, times: int = 1) -> None:
    with PrivacyLedger(path) as ledger:
        for _ in range(times):
            ledger.account("fit", "rpp", budget=100.0).charge(0.5, {"release": "x"})


def part(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def copy_parts(source: Path, target: Path, parts: tuple[str, ...] = PARTS) -> None:
    for suffix in parts:
        if part(source, suffix).exists():
            shutil.copy(part(source, suffix), part(target, suffix))


CRASHED = """
import os, sys
from lightning_pac.ledger import PrivacyLedger
ledger = PrivacyLedger(sys.argv[1])
account = ledger.account("fit", "rpp", budget=100.0)
for _ in range(int(sys.argv[2])):
    account.charge(0.5, {"release": "x"})
os._exit(9)
"""


def crash(path: Path, times: int) -> None:
    """A writer that is killed: what it has charged is in the log beside the ledger."""
    subprocess.run([sys.executable, "-c", CRASHED, str(path), str(times)], check=False)
    assert part(path, "-wal").stat().st_size > 0


@pytest.fixture(params=["busy", "quiet"])
def folder_is(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after which the ledger's folder is busy, so that each file is looked at, or quiet."""
    if request.param == "quiet":
        monkeypatch.setattr(file_system, "_NANOSECONDS_UNTIL_SETTLED", 0)
        return lambda: time.sleep(0.02)  # some ticks of the clock that stamps folders
    return lambda: None


@pytest.mark.parametrize("suffix", ["", "-wal", "-mark", "-writer"])
@pytest.mark.parametrize("fault", ["deleted", "renamed", "replaced"])
def test_a_file_that_goes_while_it_is_open_ends_the_charges(
    path: Path, suffix: str, fault: str, folder_is: Callable[[], None]
) -> None:
    with PrivacyLedger(path) as ledger:
        account = ledger.account("fit", "rpp")
        folder_is()
        account.charge(0.5)
        folder_is()
        file = part(path, suffix)
        aside = file.with_name("aside")
        if fault == "replaced":
            shutil.copy(file, aside)
            aside.replace(file)
        elif fault == "renamed":
            file.rename(aside)
        else:
            file.unlink()
        for _ in range(2):
            with pytest.raises(LedgerError, match=r"was deleted, moved or replaced .* nothing was charged"):
                account.charge(0.5)
        assert account.spent == 0.5
        if fault == "renamed":
            aside.rename(file)
            assert account.charge(0.5) == 1.0


def test_a_ledger_that_goes_during_a_charge_releases_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, folder_is: Callable[[], None]
) -> None:
    with PrivacyLedger(path) as ledger:
        account = ledger.account("fit", "rpp")
        folder_is()
        account.charge(0.0)
        folder_is()
        add = account._add
        monkeypatch.setattr(account, "_add", lambda *charged: (add(*charged), path.rename(path.with_name("aside")))[0])
        with pytest.raises(LedgerError, match="the last charge may be lost with it and nothing was released"):
            account.charge(0.5)
    with pytest.raises(LedgerError, match=r"holds nothing, but .*-(mark knows of 1 accounts|wal holds charges)"):
        PrivacyLedger(path)


def lose_log(path: Path) -> None:
    part(path, "-wal").unlink()


def restore_older(path: Path) -> None:
    shutil.copy(path.with_name("older"), path)
    part(path, "-wal").unlink()


def truncate(path: Path) -> None:
    os.truncate(path, 0)
    part(path, "-wal").unlink()


def truncate_beside_its_log(path: Path) -> None:
    os.truncate(path, 0)


def delete(path: Path) -> None:
    path.unlink()
    part(path, "-wal").unlink()


@pytest.mark.parametrize("fault", [lose_log, restore_older, truncate, truncate_beside_its_log, delete])
def test_a_ledger_that_lost_charges_is_refused(path: Path, fault: Callable[[Path], None]) -> None:
    charge(path)
    shutil.copy(path, path.with_name("older"))
    crash(path, 6)
    part(path, "-shm").unlink()
    fault(path)
    with pytest.raises(LedgerError, match=r"was rolled back|holds nothing") as error, PrivacyLedger(path) as ledger:
        ledger.account("fit", "rpp")
    assert "\n" not in str(error.value)
    if path.exists() and path.stat().st_size:
        with pytest.raises(LedgerError, match="was rolled back"):
            PrivacyLedger.read_only(path)
        with PrivacyLedger(path) as ledger, pytest.raises(LedgerError, match="was rolled back"):
            adopt_ledger(ledger)


def test_a_crash_loses_nothing_and_is_no_fault(path: Path) -> None:
    crash(path, 6)
    with PrivacyLedger(path) as ledger:
        assert ledger.account("fit", "rpp").charge(0.5) == 3.5


@pytest.mark.parametrize("lag", [0, 1])
def test_a_ledger_ahead_of_its_marks_is_an_honest_crash(path: Path, lag: int) -> None:
    charge(path)
    marks = part(path, "-mark").read_bytes()
    charge(path, lag)
    with PrivacyLedger(path) as ledger:
        ledger.account("new", "other").charge(1.0)
        ledger.set_budget("other", 2.0)
    part(path, "-mark").write_bytes(marks)
    with PrivacyLedger(path) as ledger:
        assert (ledger.spent("rpp"), ledger.spent("other")) == (0.5 + 0.5 * lag, 1.0)
    assert part(path, "-mark").read_bytes() != marks


def test_a_renamed_ledger_goes_on_and_a_copy_needs_a_word(path: Path, tmp_path: Path) -> None:
    charge(path)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for suffix in PARTS:
        if part(path, suffix).exists():
            part(path, suffix).rename(moved / part(path, suffix).name)
    charge(moved / "study.db")
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "study.db"
    copy_parts(moved / "study.db", copy)
    with PrivacyLedger(copy) as ledger, pytest.raises(LedgerError, match="was copied, restored or moved from"):
        ledger.account("fit", "rpp")
    assert main(["account", "adopt", str(copy)]) == 0
    charge(copy)
    with PrivacyLedger.read_only(copy) as ledger:
        assert ledger.spent("rpp") == 1.5


def test_a_copy_without_its_marks_is_not_adopted(path: Path, tmp_path: Path) -> None:
    charge(path)
    copy_parts(path, tmp_path / "copy.db", ("",))
    with PrivacyLedger(tmp_path / "copy.db") as ledger, pytest.raises(LedgerError, match="copy it, too"):
        adopt_ledger(ledger)
    part(path, "-mark").unlink()
    with PrivacyLedger(path) as ledger, pytest.raises(LedgerError, match="nobody can tell how far"):
        ledger.account("fit", "rpp").charge(0.5)


def test_the_marks_of_another_ledger_are_noticed(path: Path, tmp_path: Path) -> None:
    charge(path)
    charge(tmp_path / "other.db")
    copy_parts(tmp_path / "other.db", path, ("",))
    with PrivacyLedger(path) as ledger, pytest.raises(LedgerError, match=r"copied|was replaced"):
        ledger.account("fit", "rpp")
    with pytest.raises(LedgerError, match="was replaced"):
        PrivacyLedger.read_only(path)


def test_all_files_put_back_together_show_in_the_last_charge_or_at_a_witness(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    charge(path)
    older = tmp_path / "older.db"
    copy_parts(path, older)
    with PrivacyLedger.read_only(path) as ledger:
        assert ledger.last_charge is not None
        last, name = ledger.last_charge
    charge(path)
    copy_parts(older, path)
    charge(path, 0)  # no file can tell
    assert main(["account", str(path)]) == 0
    assert f"Its last charge was made on {last} (UTC) to account '{name}'." in capsys.readouterr().out
    witness = tmp_path / "safe" / "study.mark"
    witness.parent.mkdir()
    assert main(["account", "adopt", str(path), "--witness", str(witness)]) == 0
    copy_parts(path, older)
    charge(path)
    copy_parts(older, path)
    with PrivacyLedger(path) as ledger, pytest.raises(LedgerError, match=r"was rolled back: .*study\.mark knows of 2"):
        ledger.account("fit", "rpp")
    witness.rename(tmp_path / "gone")
    with PrivacyLedger(path) as ledger, pytest.raises(LedgerError, match=r"study\.mark, where the marks .* not there"):
        ledger.account("fit", "rpp")


def test_a_backup_is_whole_and_going_on_with_it_takes_an_amount(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = tmp_path / "backup.db"
    with PrivacyLedger(path) as ledger:
        account = ledger.account("fit", "rpp", budget=4.0)
        account.charge(0.5)
        assert main(["account", "backup", str(path), str(backup)]) == 0  # beside the live writer
        account.charge(1.0)
        ledger.account("late", "rpp").charge(0.25)
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.glob("backup*")] == ["backup.db"]
    with PrivacyLedger.read_only(backup) as ledger:
        assert ledger.spent("rpp") == 0.5
    assert main(["account", "backup", str(path), str(backup)]) == 1
    assert "overwrites nothing" in capsys.readouterr().err
    shutil.copy(path, tmp_path / "lost.db")
    assert main(["account", "restore", str(path), str(backup)]) == 1
    assert "at least 1.0 is known to be missing; give it as --amount fit=1.0 or more" in capsys.readouterr().err
    assert main(["account", "restore", str(path), "--amount", "fit=0.5", "--amount", "1"]) == 1
    assert "of whose charges 1.0 are known to be missing" in capsys.readouterr().err
    assert main(["account", "restore", str(path), "--amount", "fit=3.75", "--amount", "late=0.25"]) == 0
    with PrivacyLedger(path) as ledger:
        account = ledger.account("fit", "rpp")
        assert (account.spent, account.remaining, ledger.spent("rpp")) == (4.25, 0.0, 4.5)
        event = account.events()[-1].event
        assert event is not None
        assert event["unknown"] == "lost with a part of the ledger"
    assert len(list(tmp_path.glob("study.db.before-*"))) >= 1


def test_restoring_an_unnamed_or_strange_amount_is_refused(path: Path) -> None:
    charge(path)
    part(path, "-mark").unlink()
    for amounts, error, words in (
        ({}, LedgerError, "is for you to say"),
        ({"fit": float("nan")}, ValueError, r"^amounts\['fit'\] is nan"),
        ({"fit": 0.0, "nobody": 1.0}, ValueError, "has no account 'nobody'"),
    ):
        with pytest.raises(error, match=words):
            restore_ledger(path, amounts)
    assert restore_ledger(path, {"fit": 0.0}) == {"fit": 0.0}
    charge(path)


def test_what_ends_a_restore_early_leaves_the_ledger_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    charge(path)
    part(path, "-mark").unlink()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LedgerAccount, "book", interrupted)
        with pytest.raises(KeyboardInterrupt):
            restore_ledger(path, {"fit": 3.0})
    with pytest.raises(LedgerError, match="is missing, without which nobody can tell"):
        charge(path)
    restore_ledger(path, {"fit": 3.0})
    charge(path)
    with PrivacyLedger.read_only(path) as ledger:
        assert ledger.spent("rpp") >= 3.0


def test_a_second_name_is_refused(path: Path, tmp_path: Path) -> None:
    charge(path)
    os.link(path, tmp_path / "second.db")
    for name in (path, tmp_path / "second.db"):
        with pytest.raises(LedgerError, match="has 2 names"):
            PrivacyLedger(name)
    (tmp_path / "second.db").unlink()
    charge(path)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE accounts SET spent = 0", "was rolled back"),
        ("UPDATE accounts SET spent = spent + 1", "the total of account 'fit'"),
        ("UPDATE accounts SET spent = spent + 1, num_charges = num_charges + 1", "where its charges cost 1"),
        ("UPDATE accounts SET currency = 'rpq'", "name, currency or declaration"),
        ("UPDATE accounts SET declaration = '{'", "does not read as JSON"),
        ("UPDATE accounts SET declaration = '[]'", "is not a mapping"),
        ("UPDATE accounts SET spent = 'much'", "is damaged"),
        ("UPDATE budgets SET currency = 'rpq' WHERE currency NOT NULL", "a budget"),
        ("UPDATE budgets SET amount = 1e9", "a budget"),
        ("DELETE FROM budgets", "a budget"),
        ("DELETE FROM charges WHERE id = 1", "where its charges cost 0.5"),
        ("UPDATE charges SET account = 7 WHERE id = 1", "where its charges cost 0.5"),
        ("DELETE FROM accounts", "was rolled back"),
        ("DROP TABLE charges", "is damaged"),
    ],
)
def test_another_hand_is_noticed_when_a_training_account_opens(path: Path, statement: str, words: str) -> None:
    with PrivacyLedger(path, budget={"rpp": 5.0}):
        pass
    charge(path, 2)
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(LedgerError, match=words) as error, PrivacyLedger(path) as ledger:
        ledger.account("fit", "rpp")
    assert "\n" not in str(error.value)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position // 8] ^= 1 << position % 8
    path.write_bytes(content)


def check_flips(path: Path, num_flips: int, seed: int) -> dict[str, int]:
    """Flips one bit at a time, anywhere in a ledger or its marks: the totals stand, or one sentence is raised."""
    with PrivacyLedger(path, budget={"rpp": 50.0}) as ledger:
        account = ledger.account("fit", "rpp", {"coupling": {"x": 1}}, budget=20.0)
        for step in range(40):
            account.charge(0.125, {"step": step})
        attempt = account.start_attempt()
        for step in range(10):
            attempt.start_step(0.25, step)
    whole = {suffix: part(path, suffix).read_bytes() for suffix in ("", "-mark")}
    generator = random.Random(seed)
    outcomes = {"refused": 0, "stands": 0}
    sentences = []
    for _ in range(num_flips):
        for suffix, content in whole.items():
            part(path, suffix).write_bytes(content)
        suffix = generator.choice(["", "", "", "-mark"])
        position = generator.randrange(8 * len(whole[suffix]))
        flip(part(path, suffix), position)
        try:
            with PrivacyLedger(path) as ledger:
                account = ledger.account("fit", "rpp", {"coupling": {"x": 1}}, budget=20.0)
                seen = (account.spent, account.num_charges, ledger.budget("rpp"), account.budget)
                account.events(), account.attempts()
            assert seen == (7.5, 50, 50.0, 20.0), (suffix, position, seen)
            outcomes["stands"] += 1
        except (LedgerError, LedgerMismatchError) as error:
            outcomes["refused"] += 1
            sentences.append(str(error))
    assert not [text for text in sentences if "\n" in text or "Error(" in text]
    return outcomes


def test_thirty_flipped_bits(path: Path) -> None:
    assert sum(check_flips(path, 30, seed=0).values()) == 30


@pytest.mark.slow
def test_four_hundred_flipped_bits(path: Path) -> None:
    outcomes = check_flips(path, 400, seed=1)
    assert outcomes["refused"] > 50
    print(outcomes)


@pytest.mark.parametrize("suffix", ["", "-wal", "-mark"])
def test_what_others_could_read_of_a_ledger_is_made_private(path: Path, suffix: str) -> None:
    crash(path, 3)
    part(path, suffix).chmod(0o644)
    with (
        pytest.warns(UserWarning, match=rf"db{suffix} could be read by other users \(mode 644\) and is private now"),
        PrivacyLedger(path),
    ):
        assert stat.S_IMODE(part(path, suffix).stat().st_mode) == 0o600


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_a_file_system_without_locks_is_no_other_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(writer_lock.fcntl, "flock", refuse)
    with pytest.raises(LedgerError, match=r"cannot be locked \(No locks available\).*on a local disk"):
        PrivacyLedger(path)


def test_a_ledger_of_format_1_keeps_every_charge(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(FORMAT_1.read_text())
    connection.close()
    expected = [("fit", "training", 1.0, 4), ("clusters", "charges", 0.5, 1), ("key a", "api_key", 0.25, 3)]

    def shown(ledger: PrivacyLedger) -> list[tuple[str, str, float, int]]:
        return [(account.name, account.kind, account.spent, account.num_charges) for account in ledger.accounts()]

    with PrivacyLedger.read_only(path) as ledger:
        assert shown(ledger) == expected
        assert ledger.budget("rpp") == 8.0
    for _ in range(2):
        with PrivacyLedger(path) as ledger:
            assert shown(ledger) == expected
            assert ledger.account("fit", "rpp", budget=8.0).remaining == 7.0
            assert ledger.storage.read("PRAGMA user_version") == [(2,)]
    assert json.loads(part(path, "-mark").read_text().splitlines()[1][:-64])["name"] == "fit"


def test_a_backup_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="There is no ledger at"):
        backup_ledger(tmp_path / "none.db", tmp_path / "copy.db")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_a_closed_ledger_holds_no_file(path: Path) -> None:
    def held() -> list[str]:
        return [name for file in Path("/proc/self/fd").iterdir() if str(path) in (name := str(file.resolve()))]

    for _ in range(2):
        charge(path)
        assert held() == []
    part(path, "-mark").unlink()
    with pytest.raises(LedgerError):
        charge(path)
    assert held() == []


def test_damage_that_sqlite_does_not_name_is_a_sentence(path: Path) -> None:
    """A row that an index has and its table has not, and a table's name that is no text."""
    charge(path)
    with PrivacyLedger(path) as ledger, pytest.raises(LedgerError, match=r"damaged \(what one table names is not in"):
        LedgerAccount(ledger.storage, 99)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"TABLE charges", b"TA\xe5LE charges"))
    for opened in (PrivacyLedger, PrivacyLedger.read_only):
        with pytest.raises(LedgerError, match="is damaged"):
            opened(path)
    path.write_bytes(whole)
    charge(path)


def test_a_ledger_that_was_put_back_prints_no_sum(path: Path, tmp_path: Path) -> None:
    """Half of what had been spent was printed, and refused only when something was to be charged."""
    with PrivacyLedger(path, budget={"rpp": 100.0}) as ledger:
        ledger.account("fit", "rpp").charge(5.0)
    older = tmp_path / "older"
    shutil.copy(path, older)
    with PrivacyLedger(path) as ledger:
        ledger.account("fit", "rpp").charge(5.0)
    shutil.copy(older, path)
    with PrivacyLedger(path) as ledger:
        for read in (lambda: ledger.spent("rpp"), lambda: ledger.remaining("rpp"), lambda: ledger.accounts()[0].spent):
            with pytest.raises(LedgerError, match="rolled back"):
                read()
        assert "refused=True" in repr(ledger)
