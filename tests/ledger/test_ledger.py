import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lightning_pac._mutex import Mutex
from lightning_pac.accountants import storage as storage_module
from lightning_pac.exceptions import BudgetExceededError, LedgerError, LedgerMismatchError
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.ledger.files import is_on_network
from lightning_pac.scenarios import TwoWorldScenario


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def read_with_sqlite(path: Path, query: str) -> list[tuple]:
    """What another program sees: the file itself, not our objects."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_a_charge_is_in_the_file_when_it_returns(path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        account = ledger.account("a")
        for cost in (0.25, 0.5, 0.125):
            account.charge(cost, {"cost": cost})
        assert read_with_sqlite(path, "SELECT spent, num_charges FROM accounts") == [(0.875, 3)]
        assert [event.event for event in account.events()] == [{"cost": cost} for cost in (0.25, 0.5, 0.125)]
        assert read_with_sqlite(path, "PRAGMA journal_mode") == [("wal",)]
        assert ledger.storage.read("PRAGMA synchronous") == [(2,)]


def test_it_is_all_there_after_reopening(path: Path) -> None:
    with PrivacyLedger(path, budget={"mutual_information": 1.0}) as ledger:
        ledger.account("a", declaration={"rule": "logdet", "sizes": (1, 2)}, budget=0.5).charge_many([0.125] * 3)
    with PrivacyLedger(path, budget={"mutual_information": 1.0}) as ledger:
        account = ledger.account("a", declaration={"rule": "logdet", "sizes": (1, 2)}, budget=0.5)
        assert (account.spent, account.num_charges, account.remaining) == (0.375, 3, 0.125)
        assert ledger.remaining("mutual_information") == 0.625


def test_accounts_come_in_the_order_they_were_opened(path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        for name in "cab":
            ledger.account(name)
        assert [account.name for account in ledger.accounts()] == ["c", "a", "b"]


def test_currencies_do_not_mix(path: Path) -> None:
    with PrivacyLedger(path, budget={"mutual_information": 0.5}) as ledger:
        ledger.account("a", "mutual_information").charge(0.25)
        ledger.account("b", "mutual_information").charge(0.125)
        ledger.account("c", "rpp").charge(7.0)
        assert (ledger.spent("mutual_information"), ledger.spent("rpp"), ledger.spent("time")) == (0.375, 7.0, 0.0)
        assert ledger.currencies() == ("mutual_information", "rpp")
        assert ledger.remaining("rpp") == float("inf")
        with pytest.raises(LedgerMismatchError, match=r"currency \('rpp', now 'mutual_information'\)"):
            ledger.account("c", "mutual_information")


def test_a_charge_past_a_budget_is_refused_and_changes_nothing(path: Path) -> None:
    with PrivacyLedger(path, budget={"mutual_information": 1.0}) as ledger:
        small, large = ledger.account("small", budget=0.25), ledger.account("large")
        small.charge(0.125)
        large.charge(0.5)
        before = list(ledger.storage._connection.iterdump())
        with pytest.raises(BudgetExceededError, match=r"account 'small' of .*: 0\.125 of 0\.25 is spent"):
            small.charge(0.2)
        with pytest.raises(BudgetExceededError, match="budget of the ledger"):
            large.charge(0.4)
        with pytest.raises(BudgetExceededError):
            large.charge_many([0.1] * 4, [{"part": part} for part in range(4)])
        with pytest.raises(BudgetExceededError):
            small.start_attempt().start_step(0.2, step=0)
        assert list(ledger.storage._connection.iterdump()) == before
        assert small.charge(0.125) == 0.25
        assert small.remaining == 0.0


def test_a_budget_can_be_spent_exactly(path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        account = ledger.account("a", budget=0.3)
        for _ in range(3):
            account.charge(0.1)  # 0.1 + 0.1 + 0.1 > 0.3 in floating point
        with pytest.raises(BudgetExceededError):
            account.charge(1e-6)


@pytest.mark.parametrize("cost", [-0.1, float("nan"), float("inf")])
def test_a_cost_that_is_none_is_refused(path: Path, cost: float) -> None:
    with PrivacyLedger(path) as ledger:
        account = ledger.account("a")
        with pytest.raises(ValueError, match="cost must be finite and at least 0"):
            account.charge(cost)
        with pytest.raises(ValueError, match="cost must be finite and at least 0"):
            account.start_attempt().start_step(cost, step=0)
        assert (account.spent, account.num_charges, account.attempts()) == (0.0, 0, ())
    with pytest.raises(ValueError, match=r"^budget\["):
        PrivacyLedger(path, budget={"mutual_information": cost})


def test_another_declaration_is_an_error_that_names_the_keys(path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        ledger.account(
            "fit", "rpp", {"noise_multiplier": 1.0, "coupling": {"num_differing": 1, "order": 16}}, budget=8.0
        )
        with pytest.raises(LedgerMismatchError) as error:
            ledger.account(
                "fit", "rpp", {"noise_multiplier": 2.0, "coupling": {"num_differing": 5, "order": 16}}, budget=9.0
            )
        for words in ("noise_multiplier (1.0, now 2.0)", "coupling.num_differing (1, now 5)", "budget (8.0, now 9.0)"):
            assert words in str(error.value)
        assert "order" not in str(error.value)
        with pytest.raises(TypeError, match="declaration must be JSON"):
            ledger.account("other", "rpp", {"noise_multiplier": float("nan")})
        assert len(ledger.accounts()) == 1


def test_an_account_without_a_coupling_adds_to_none_that_has_one_whichever_came_first(path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        ledger.account("by hand", "rpp").charge(1.0)
        with pytest.raises(LedgerMismatchError, match="same two worlds only"):
            ledger.account("run", "rpp", {"coupling": {"num_differing": 1}})
        ledger.account("also by hand", "rpp", {"note": "same"})


def test_runs_add_up_under_one_coupling_only(path: Path) -> None:
    with PrivacyLedger(path, budget={"rpp": 8.0}) as ledger:
        ledger.account("run 1", "rpp", {"coupling": {"num_differing": 1}, "noise_multiplier": 1.0}).charge(3.0)
        ledger.account("run 2", "rpp", {"coupling": {"num_differing": 1}, "noise_multiplier": 2.0}).charge(4.0)
        for coupling in ({"coupling": {"num_differing": 2}}, {}):
            with pytest.raises(LedgerMismatchError, match="same two worlds only"):
                ledger.account("run 3", "rpp", coupling)
        with pytest.raises(BudgetExceededError):
            ledger.account("run 3", "rpp", {"coupling": {"num_differing": 1}}).charge(2.0)


def test_the_worlds_of_one_record_are_the_same_however_they_were_declared(path: Path) -> None:
    scenario = TwoWorldScenario(num_differing=1, adjacency="add_remove")
    assert scenario == TwoWorldScenario.differential_privacy()
    unnamed = {**scenario.coupling(), "secret": TwoWorldScenario(num_differing=1).secret}  # as 0.1.0 wrote it
    with PrivacyLedger(path) as ledger:
        ledger.account("run", "rpp", {"coupling": {"scenario": unnamed}}).charge(1.0)
        for name in ("run", "metrics"):
            ledger.account(name, "rpp", {"coupling": {"scenario": scenario.coupling()}}).charge(1.0)
        for other in (
            TwoWorldScenario(num_differing=1, adjacency="add_remove", secret="who is ill"),
            TwoWorldScenario(num_differing=2, adjacency="add_remove"),
        ):
            with pytest.raises(LedgerMismatchError, match="same two worlds only"):
                ledger.account("other", "rpp", {"coupling": {"scenario": other.coupling()}})


def test_another_budget_needs_a_decision(path: Path) -> None:
    PrivacyLedger(path, budget={"rpp": 8.0}).close()
    with pytest.raises(LedgerMismatchError, match="rpp budget of 8 and 9 was given"):
        PrivacyLedger(path, budget={"rpp": 9.0})
    with PrivacyLedger(path) as ledger:
        ledger.set_budget("rpp", 9.0)
        assert ledger.budget("rpp") == 9.0
        account = ledger.account("fit", "rpp", budget=1.0)
        account.set_budget(2.0)
        assert account.charge(1.5) == 1.5
        with pytest.raises(BudgetExceededError):
            account.charge(1.0)
        with pytest.raises(LedgerMismatchError, match=r"budget \(2.0, now 1.0\)"):
            ledger.account("fit", "rpp", budget=1.0)
        changes = [(change.account, change.currency, change.amount) for change in ledger.budget_changes()]
        assert changes == [(None, "rpp", 8.0), (None, "rpp", 9.0), ("fit", "rpp", 1.0), ("fit", "rpp", 2.0)]
        history = "SELECT amount FROM budgets WHERE currency = 'rpp' ORDER BY id"
        assert read_with_sqlite(path, history) == [(8.0,), (9.0,)]


def test_steps_are_journalled_in_one_row_an_attempt(path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        account = ledger.account("fit", "rpp")
        first = account.start_attempt()
        for step in range(5):
            first.start_step(0.5, step=step)
            assert read_with_sqlite(path, "SELECT num_steps FROM attempts") == [(step + 1,)]
        account.start_attempt(first_step=3)  # a restart that never came to a step
        second = account.start_attempt(first_step=3)
        second.start_step(0.25, step=3)
        found = [
            (attempt.first_step, attempt.num_steps, attempt.next_step, attempt.cost) for attempt in account.attempts()
        ]
        assert found == [(0, 5, 5, 2.5), (3, 1, 4, 0.25)]
        assert (account.spent, account.num_charges) == (2.75, 6)
        with pytest.raises(LedgerError, match=r"Step 7 .* expects step 4"):
            second.start_step(0.25, step=7)
        assert account.num_charges == 6


def hold(path: str, opened: "multiprocessing.synchronize.Event", done: "multiprocessing.synchronize.Event") -> None:
    with PrivacyLedger(path):
        opened.set()
        done.wait(30)


def test_a_second_writer_is_told_at_once_who_holds_the_ledger(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    opened, done = context.Event(), context.Event()
    process = context.Process(target=hold, args=(str(path), opened, done))
    process.start()
    assert opened.wait(30)
    with pytest.raises(LedgerError, match=f"has another writer .process {process.pid} on "):
        PrivacyLedger(path)
    with PrivacyLedger.read_only(path) as ledger:
        assert ledger.accounts() == ()
    process.kill()
    process.join()
    PrivacyLedger(path).close()  # the lock died with the process


def test_a_second_writer_in_the_same_process_is_refused_until_the_first_is_gone(path: Path, tmp_path: Path) -> None:
    ledger = PrivacyLedger(path)
    link = tmp_path / "link.db"
    link.symlink_to(path)
    for name in (path, link):
        with pytest.raises(LedgerError, match="already open for writing in this process"):
            PrivacyLedger(name)
    del ledger  # garbage collected without close, as in a notebook
    PrivacyLedger(path).close()


def test_an_interrupt_leaves_no_lock_taken() -> None:
    """Ctrl-C at any moment, here within Python code of the lock itself: another thread would wait for ever."""
    mutex = Mutex()

    def interrupt(frame: Any, event: str, value: Any) -> Any:
        if event == "return" and frame.f_globals.get("__name__") == Mutex.__module__:
            raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        with contextlib.suppress(KeyboardInterrupt), mutex:
            pass
    finally:
        sys.settrace(None)
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(mutex.acquire(blocking=False)))
    thread.start()
    thread.join()
    assert taken == [True]


def charge_in_fork(ledger: PrivacyLedger, results: "multiprocessing.Queue[str]") -> None:
    try:
        ledger.account("a").charge(1.0)
        results.put("charged")
    except LedgerError as error:
        results.put(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_neither_charges_nor_keeps_the_lock(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ledger = PrivacyLedger(path)
    ledger.account("a")
    results = context.Queue()
    process = context.Process(target=charge_in_fork, args=(ledger, results))
    process.start()
    assert "charge in the process that opened it" in results.get(timeout=30)
    process.join()
    assert ledger.account("a").charge(1.0) == 1.0
    ledger.close()
    PrivacyLedger(path).close()


OPEN_AND_FORK = """
import os, sys, time
from lightning_pac.accountants import PrivacyLedger

ledger = PrivacyLedger(sys.argv[1])
if os.fork() == 0:
    print("forked", flush=True)  # by the fork, which lets go of the lock before it comes here
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_worker_that_outlives_a_killed_writer_does_not_keep_the_lock(path: Path) -> None:
    arguments = [sys.executable, "-c", OPEN_AND_FORK, str(path)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"forked\n"
        with pytest.raises(LedgerError, match="has another writer"):
            PrivacyLedger(path)
        process.kill()
        process.wait()
        PrivacyLedger(path).close()  # the fork is still asleep
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


def test_a_process_that_copies_its_folder_keeps_the_lock(path: Path, tmp_path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        ledger.account("a").charge(1.0)
        shutil.copytree(tmp_path, tmp_path.with_name(tmp_path.name + "-copy"))
        code = "import sys; from lightning_pac.accountants import PrivacyLedger; PrivacyLedger(sys.argv[1])"
        result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
        assert f"has another writer (process {os.getpid()} " in result.stderr
        assert ledger.account("a").charge(1.0) == 2.0


def test_threads_are_serialised(path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        account = ledger.account("a", budget=100.0)
        refused = []

        def charge() -> None:
            for _ in range(50):
                try:
                    account.charge(0.5)
                except BudgetExceededError:
                    refused.append(1)

        threads = [threading.Thread(target=charge) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (account.spent, account.num_charges, len(refused)) == (100.0, 200, 200)


def test_threads_that_open_one_account_at_once_share_it(path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        for number in range(20):
            barrier, found = threading.Barrier(4), list[float]()

            def charge(name: str = f"a{number}", barrier: Any = barrier, found: list[float] = found) -> None:
                barrier.wait()
                found.append(ledger.account(name).charge(1.0))

            threads = [threading.Thread(target=charge) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(found) == [1.0, 2.0, 3.0, 4.0], "one was told that the disk is broken"


def test_readers_see_charges_of_a_live_writer(path: Path) -> None:
    with PrivacyLedger(path) as ledger, PrivacyLedger.read_only(path) as reader:
        account = ledger.account("a")
        for total in (1.0, 2.0):
            account.charge(1.0)
            assert reader.spent("mutual_information") == total
        with pytest.raises(LedgerError, match="opened read-only"):
            reader.account("a").charge(1.0)


@pytest.mark.parametrize("content", [b"hello", b"x" * 5000])
def test_a_file_that_is_no_ledger_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for open_it in (PrivacyLedger, PrivacyLedger.read_only):
        with pytest.raises(LedgerError, match="is not a privacy ledger: name another file"):
            open_it(path)
    assert path.read_bytes() == content


def test_another_database_is_left_alone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE photos (id)")
    connection.commit()
    connection.close()
    content = path.read_bytes()
    with pytest.raises(LedgerError, match="is not a privacy ledger: name another file"):
        PrivacyLedger(path)
    assert path.read_bytes() == content


def test_a_ledger_of_a_later_format_is_refused(path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        ledger.storage._connection.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="ledger format 99"):
        PrivacyLedger(path)


def test_a_damaged_ledger_is_refused(path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        ledger.account("a").charge(1.0)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"ledger\.db is damaged"):
        PrivacyLedger(path).account("a")


def test_a_folder_a_missing_file_and_a_closed_ledger_are_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="is a folder"):
        PrivacyLedger(tmp_path)
    with pytest.raises(LedgerError, match="There is no ledger at"):
        PrivacyLedger.read_only(tmp_path / "missing.db")
    ledger = PrivacyLedger(path)
    account = ledger.account("a")
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="is closed"):
        account.charge(1.0)


def test_only_the_owner_may_read_the_ledger(path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        ledger.account("a").charge(1.0)
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_a_disk_that_is_full_is_one_error_and_changes_nothing(path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        account = ledger.account("a")
        account.charge(1.0)
        pages = ledger.storage.read("PRAGMA page_count")[0][0]
        ledger.storage._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(LedgerError, match="the disk is full: nothing was charged"):
            account.charge(1.0, {"text": "x" * 100_000})
        assert (account.spent, account.num_charges) == (1.0, 1)
        ledger.storage._connection.execute("PRAGMA max_page_count = 1000000")
        assert account.charge(1.0) == 2.0


LIMITED = """
import resource, sys
from lightning_pac.accountants import PrivacyLedger
from lightning_pac.exceptions import LedgerError

ledger = PrivacyLedger(sys.argv[1])
account = ledger.account("a")
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
charged = 0
try:
    while charged < 1000:
        account.charge(1.0, {"text": "x" * 5000})
        charged += 1
except LedgerError as error:
    assert account.spent == charged, (account.spent, charged)
    print(charged, str(error), sep="|")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_a_write_that_the_system_refuses_changes_nothing(path: Path) -> None:
    output = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=True
    ).stdout
    charged, message = output.strip().split("|")
    assert 0 < int(charged) < 1000
    assert "nothing was charged" in message
    with PrivacyLedger(path) as ledger:
        assert ledger.account("a").spent == int(charged)


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be opened for writing"):
        PrivacyLedger(tmp_path / "file" / "ledger.db")


def test_a_folder_without_write_permission_can_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PrivacyLedger(path) as ledger:
        ledger.account("a").charge(1.0)
    monkeypatch.setattr(os, "access", lambda folder, mode: False)  # permissions do not bind the superuser
    with PrivacyLedger.read_only(path) as ledger:
        assert ledger.spent("mutual_information") == 1.0
    assert not path.with_name(path.name + "-shm").exists()


def test_a_ledger_that_may_not_be_read_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PrivacyLedger(path).close()

    def refuse(*arguments: object, **options: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr("lightning_pac.ledger.connection.sqlite3.connect", refuse)
    with pytest.raises(LedgerError, match=r"cannot be read .*: get the right to read it"):
        PrivacyLedger.read_only(path)
    with pytest.raises(LedgerError, match="make the file, those beside it and its folder writable"):
        PrivacyLedger(path)


def test_without_shared_memory_a_rollback_journal_with_exclusive_locking_is_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_without_shared_memory(file: Path, writable: bool) -> sqlite3.Connection:
        # SQLite's lock-file access layer cannot map memory, as on a network file system: WAL is refused.
        uri = f"{file.as_uri()}?mode={'rw' if writable else 'ro'}&vfs=unix-dotfile"
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=0.1)

    monkeypatch.setattr(storage_module, "open_database", open_without_shared_memory)
    with PrivacyLedger(path) as ledger:
        account = ledger.account("a")
        account.charge(1.0)
        assert ledger.storage.read("PRAGMA journal_mode") == [("delete",)]
        assert ledger.storage.read("PRAGMA locking_mode") == [("exclusive",)]
        assert ledger.storage.read("PRAGMA synchronous") == [(2,)]
        with pytest.raises(LedgerError):
            PrivacyLedger.read_only(path).accounts()
    with PrivacyLedger.read_only(path) as ledger:
        assert ledger.spent("mutual_information") == 1.0


MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/vdb /home/local ext4 rw 0 0
//server/my\\040share /mnt/my\\040share cifs rw 0 0
tmpfs /home/local/tmp tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/var/ledger.db", False),
        ("/home/me/ledger.db", True),
        ("/homeless/ledger.db", False),
        ("/home/local/ledger.db", False),
        ("/mnt/my share/ledger.db", True),
    ],
)
def test_network_file_systems_are_known_by_their_mount(tmp_path: Path, file: str, expected: bool) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert is_on_network(Path(file), mounts) == expected
    assert not is_on_network(Path(file), tmp_path / "missing")


def test_on_a_network_a_rollback_journal_is_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PrivacyLedger(path).close()  # made on a local disk, then opened over the network
    monkeypatch.setattr(storage_module, "is_on_network", lambda file: True)
    with PrivacyLedger(path) as ledger:
        assert ledger.storage.read("PRAGMA journal_mode") == [("delete",)]
        assert ledger.storage.read("PRAGMA locking_mode") == [("exclusive",)]
        assert ledger.account("a").charge(1.0) == 1.0


def test_the_declaration_is_plain_json_in_the_file(path: Path) -> None:
    with PrivacyLedger(path) as ledger:
        ledger.account("a", "rpp", {"b": 1, "a": [0.1, None]})
    assert json.loads(read_with_sqlite(path, "SELECT declaration FROM accounts")[0][0]) == {"a": [0.1, None], "b": 1}


def test_a_path_that_is_open_in_this_process_is_shared_until_its_last_holder_closes_it(path: Path) -> None:
    first = PrivacyLedger(path, budget={"rpp": 1.0})
    second = PrivacyLedger.ensure(str(path))
    assert second is first
    assert PrivacyLedger.ensure(first) is first  # whoever holds the object itself does not close it
    first.close()
    second.account("run", "rpp").charge(0.25)
    second.close()
    assert second.closed
    with PrivacyLedger.ensure(path) as third:
        assert third is not first
        assert third.spent("rpp") == 0.25
