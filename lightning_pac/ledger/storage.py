"""The SQLite file under a privacy ledger: durable transactions, one writer, many readers."""

import os
import shlex
import sqlite3
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from lightning_pac._mutex import Mutex
from lightning_pac.exceptions import LedgerError
from lightning_pac.ledger.connection import (
    SQLITE_ERRORS,
    damaged,
    explain,
    make_durable,
    open_database,
    roll_back,
)
from lightning_pac.ledger.files import (
    AccountMarks,
    Facts,
    FileSet,
    WriterLock,
    check_kind,
    check_place,
    create_private,
    digest_budgets,
    find_move,
    is_on_network,
    make_private,
    mark_path,
    place_of,
    prepare_place,
    write_home,
)
from lightning_pac.ledger.integrity import AccountRow, budget_state, compare, marks_of, migrate, read_state
from lightning_pac.ledger.schema import APPLICATION_ID, OLDEST_VERSION, SCHEMA_VERSION, create_schema, is_empty

__all__ = ["LedgerStorage"]


class LedgerStorage:
    """An open ledger file. Use it as `with storage.transaction() as connection: ...`.

    Every transaction is on the disk before its block is left (write-ahead log, `synchronous=FULL`; where the file
    system cannot hold a write-ahead log, a rollback journal with exclusive locking) and is serialized between threads.

    Args:
        path: The file. A new one gets mode 0600, since what it holds is for the keeper of the data.
        writable: False opens it beside a live writer and refuses every transaction.

    Raises:
        LedgerError: If the file is no ledger, is of a newer schema, cannot be opened, or has another writer.

    Attributes:
        path: The file, resolved.
        writable: Whether transactions are possible.
        version: Of the format that the file has now.
        marks: How far the accounts had come (see `AccountMarks`).
        mutex: Held by a thread over what it reads and then writes.
        problem: What is wrong with the files, raised by every transaction until it is mended.
    """

    def __init__(self, path: str | Path, writable: bool = True) -> None:
        self.path = place_of(path)
        self.writable = writable
        self.problem: LedgerError | None = None
        self.mutex = Mutex()
        self._process = os.getpid()
        self._lock: WriterLock | None = None
        self._files: FileSet | None = None
        self._charged: dict[int, tuple[int, float]] = {}
        self._after_commit: list[Callable[[], None]] = []
        check_kind(self.path)
        if writable:
            check_place(self.path)
            prepare_place(self.path)
            self._lock = WriterLock(
                self.path, "close it there, pass the open PrivacyLedger on, or use PrivacyLedger.read_only"
            )
        elif not self.path.exists():
            raise LedgerError(f"There is no ledger at {self.path}: check the path.")
        self.marks = self._read_marks()
        try:
            self._connection = self._connect()
        except BaseException:
            self.marks.close()
            if self._lock is not None:
                self._lock.release()
            raise
        self._finalizer = weakref.finalize(self, _close, self._connection, self._lock, self.marks, self._process)
        try:
            self._compare_with_marks()
        except BaseException:
            self._finalizer()
            raise
        if writable:
            self._files = FileSet(self.path, self.marks.files())

    def _read_marks(self) -> AccountMarks:
        # Before the ledger is read, which may be ahead of its marks and never behind them.
        try:
            return AccountMarks(self.path)
        except LedgerError as error:
            self.problem = error
            return AccountMarks(self.path, ignored=True)

    def _connect(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = None
        ledger_id = uuid.uuid4().hex
        try:
            if self.writable and not self.path.exists():
                self._check_that_nothing_is_lost()
                # The marks first, so that a file that holds nothing and has none was not left by a kill.
                self.marks.write(ledger_id, (0, digest_budgets(())), {})
                create_private(self.path)
            connection = open_database(self.path, self.writable)
            self.version = SCHEMA_VERSION
            is_new = self.writable and is_empty(connection)
            if not is_new:
                self.version = self._check_identity(connection)
                if self.writable:  # and not before it is known to be a ledger
                    make_private(self.path)
            else:
                self._check_that_nothing_is_lost()
            if self.writable:
                make_durable(connection, may_use_wal=not is_on_network(self.path))
            if is_new:
                create_schema(connection, self.marks.ledger_id, write_home(self.path))
        except SQLITE_ERRORS as error:
            if connection is not None:
                connection.close()
            raise explain(self.path, self.writable, error) from error
        except LedgerError:
            if connection is not None:
                connection.close()
            raise
        return connection

    def _check_that_nothing_is_lost(self) -> None:
        if self.problem is not None:
            raise self.problem
        if self.marks.accounts:
            raise LedgerError(
                f"{self.path} holds nothing, but {self.marks.path} knows of {len(self.marks.accounts)} accounts: put "
                "the newest ledger back, or a backup with `lightning-pac account restore`."
            )
        if self.path.exists() and not self.marks.exists:
            raise LedgerError(
                f"{self.path} is there and holds nothing, so it may be a ledger that was emptied: put it back from "
                "where it is whole, or remove it to begin a new one."
            )

    def _check_identity(self, connection: sqlite3.Connection) -> int:
        application_id = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application_id != APPLICATION_ID:
            raise LedgerError(f"{self.path} is not a privacy ledger: name another file.")
        if not OLDEST_VERSION <= version <= SCHEMA_VERSION:
            raise LedgerError(
                f"{self.path} has ledger format {version} and this version of lightning-pac reads formats "
                f"{OLDEST_VERSION} to {SCHEMA_VERSION}: use the version that wrote it."
            )
        return int(version)

    def _compare_with_marks(self) -> None:
        """Finds what is wrong, and raises it on the first use: `adopt_ledger` and `restore_ledger` mend it before."""
        try:
            ledger_id, rows, budgets, home = read_state(self)
            found = compare(self.path, self.marks, ledger_id, rows, budgets)
            if self.version < SCHEMA_VERSION and self.writable and found is None and self.problem is None:
                home = self._migrate(ledger_id, rows, budgets)
        except SQLITE_ERRORS as error:
            raise explain(self.path, self.writable, error) from error
        moved = find_move(self.path, home) if self.writable and self.version >= SCHEMA_VERSION else None
        self.problem = self.problem or moved or found
        if self.problem is None and self.writable and not self.marks.exists:
            self.problem = LedgerError(
                f"{self.marks.path} is missing, without which nobody can tell how far {self.path} had come: put it "
                f"back, or book what may be missing with `lightning-pac account restore {shlex.quote(str(self.path))}`."
            )
        if self.problem is None and self.writable:
            self.marks.open()
            self.bring_marks_up(ledger_id, rows, budgets)

    def _migrate(
        self, ledger_id: str, rows: Mapping[int, AccountRow], budgets: Sequence[tuple[Any, ...]]
    ) -> str | None:
        # The marks first: after a crash in between, a ledger of the new format without marks would be refused.
        if not self.marks.exists:
            self.marks.write(ledger_id, budget_state(budgets), marks_of(rows))
        try:
            with self.transaction() as connection:
                migrate(connection, self.path)
        except LedgerError as error:
            self.problem = error
            return None
        self.version = SCHEMA_VERSION
        return write_home(self.path)

    def bring_marks_up(
        self, ledger_id: str, rows: Mapping[int, AccountRow], budgets: Sequence[tuple[Any, ...]]
    ) -> None:
        """Lets the marks say what the ledger says, which a crash may have left some charges ahead."""
        if self.marks.ledger_id != ledger_id or (self.marks.accounts, self.marks.num_budgets) != (
            marks_of(rows),
            len(budgets),
        ):
            self.marks.write(ledger_id, budget_state(budgets), marks_of(rows))

    def note_charge(self, account: int, num_charges: int, spent: float) -> None:
        """Tells the transaction under way the new total of an account, for its mark."""
        self._charged[account] = num_charges, spent

    def note_account(self, account: int, facts: Facts) -> None:
        """Tells the transaction under way of a new account, for its mark."""
        self._after_commit.append(lambda: self.marks.add_account(account, facts))

    def note_budgets(self, connection: sqlite3.Connection) -> None:
        """Tells the transaction under way that a budget was set, for the marks."""
        state = budget_state(
            connection.execute("SELECT id, currency, account, amount FROM budgets ORDER BY id").fetchall()
        )
        self._after_commit.append(lambda: self.marks.set_budgets(*state))

    def keep_marks_at(self, witness: Path) -> None:
        """Moves the marks, if they are not there already.

        Raises:
            LedgerError: If what is there is no file of marks, or knows better than the ledger.
        """
        if self.marks.path != witness:
            self.check_witness(witness)
            ledger_id, rows, budgets, _ = read_state(self)
            self.marks.write(ledger_id, budget_state(budgets), marks_of(rows), witness)
            self._files = FileSet(self.path, self.marks.files())

    def check_witness(self, witness: Path) -> None:
        """Holds the ledger against what a file elsewhere knows of it: one that was put back as a whole is behind.

        Raises:
            LedgerError: If what is there is no file of marks, or knows better than the ledger.
        """
        check_kind(witness)
        if witness != mark_path(self.path):
            ledger_id, rows, budgets, _ = read_state(self)
            found = compare(self.path, AccountMarks(self.path, witness), ledger_id, rows, budgets)
            if found is not None:
                raise found

    @contextmanager
    def mending(self) -> Iterator[None]:
        """Takes the ledger as it stands for the newest, in the place where it is; the caller has seen to it.

        What is written in the block comes first: until it is left, and after a kill or an error in it, the marks refuse
        the ledger as before, so that nothing goes on without what was to be booked.
        """
        before = self.problem, self.marks.exists
        self.problem = None
        if self.version < SCHEMA_VERSION:
            self._accept()  # an old format has no place for what is booked, and no marks that could be ahead
        self.marks.exists = False
        try:
            yield
        except BaseException:
            self.problem, self.marks.exists = before
            raise
        self._accept()

    def _accept(self) -> None:
        """Lets marks and place say what the ledger says, in the format of now."""
        ledger_id, rows, budgets, _ = read_state(self)
        self.marks.write(ledger_id, budget_state(budgets), marks_of(rows))
        self._files = FileSet(self.path, self.marks.files())
        with self.transaction() as connection:
            home = write_home(self.path)
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('home', ?)", (home,))
            connection.execute("UPDATE transcripts SET home = ?", (home,))
        if self.version < SCHEMA_VERSION:
            self._migrate(ledger_id, rows, budgets)

    def check(self) -> None:
        """Raises what is wrong with the files of the ledger.

        Raises:
            LedgerError: If it was moved, copied, rolled back or changed by another hand.
        """
        if self.problem is not None:
            raise LedgerError(str(self.problem)) from self.problem

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"An open ledger cannot be copied or pickled, as {self.path} has one writer: give others its path as "
            "ledger=, and copy a callback before or after its run."
        )

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of the block's writes or none, on the disk when the block is left.

        Raises:
            LedgerError: If they cannot be written; the ledger is then as it was before.
        """
        with self.mutex:
            self._check_usable()
            if not self.writable:
                raise LedgerError(f"{self.path} was opened read-only: open it with PrivacyLedger(path) to write.")
            self.check()
            if self._connection.in_transaction:
                # What is nested would be reported as durable before the outer transaction is.
                raise LedgerError(f"A transaction of {self.path} is under way in this thread: end it first.")
            if self._files is not None:
                self._files.check("nothing was charged")
            self._charged, self._after_commit = {}, []
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                roll_back(self._connection)
                if isinstance(error, SQLITE_ERRORS):
                    raise explain(self.path, self.writable, error) from error
                raise
            if self.marks.exists:
                for write in self._after_commit:
                    write()
                self.marks.advance(self._charged)
            # What was moved while it was written must not be followed by a release.
            if self._files is not None:
                self._files.check("the last charge may be lost with it and nothing was released", written=True)

    def copy_to(self, connection: sqlite3.Connection) -> None:
        """Copies everything that is committed into another, empty database."""
        with self.mutex:
            self._check_usable()
            self._connection.backup(connection)

    def has_transcript(self, account: int) -> bool:
        """Whether an account holds answers about a secret that is kept in a file."""
        return bool(self.read("SELECT 1 FROM transcripts WHERE account = ?", (account,)))

    def behind(self) -> LedgerError | None:
        """The first contradiction between the ledger and its marks, None if there is none."""
        ledger_id, rows, budgets, _ = read_state(self)
        return compare(self.path, self.marks, ledger_id, rows, budgets)

    def read(self, statement: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        with self.mutex:
            self._check_usable()
            try:
                return self._connection.execute(statement, parameters).fetchall()
            except SQLITE_ERRORS as error:
                raise explain(self.path, self.writable, error) from error

    def read_row(self, statement: str, parameters: Any = ()) -> tuple[Any, ...]:
        """The one row of a query.

        Raises:
            LedgerError: If there is none, as where an index of a damaged file knows what its table does not.
        """
        rows = self.read(statement, parameters)
        if len(rows) != 1:
            raise damaged(self.path, "what one table names is not in another")
        return rows[0]

    def close(self) -> None:
        """Closes the file and gives the writer's lock back. Closing twice is harmless."""
        with self.mutex:
            self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._finalizer.alive

    def _check_usable(self) -> None:
        if self.closed:
            raise LedgerError(f"The ledger {self.path} is closed: open it again with PrivacyLedger(path).")
        if os.getpid() != self._process:
            raise LedgerError(
                f"The ledger {self.path} was opened by process {self._process} and is used in its fork {os.getpid()}: "
                "charge in the process that opened it."
            )


def _close(connection: sqlite3.Connection, lock: WriterLock | None, marks: AccountMarks, process: int) -> None:
    if os.getpid() != process:
        return
    connection.close()
    marks.close()
    if lock is not None:
        lock.release()
