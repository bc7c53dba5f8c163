"""The SQLite file under a privacy ledger: durable transactions, one writer, many readers."""

import os
import sqlite3
import threading
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning_pac.exceptions import LedgerError
from lightning_pac.ledger.file_system import is_on_network
from lightning_pac.ledger.writer_lock import WriterLock

__all__ = ["LedgerStorage"]

APPLICATION_ID = 0x50414331  # "PAC1", where `file` and SQLite look for it
SCHEMA_VERSION = 1

_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # Amounts are only ever added, so that a raised budget stays visible; the latest one holds.
    """CREATE TABLE budgets (
        id INTEGER PRIMARY KEY, currency TEXT, account INTEGER REFERENCES accounts (id), amount REAL NOT NULL,
        time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')))""",
    """CREATE TABLE accounts (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, currency TEXT NOT NULL, declaration TEXT NOT NULL,
        spent REAL NOT NULL DEFAULT 0.0, num_charges INTEGER NOT NULL DEFAULT 0,
        time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')))""",
    """CREATE TABLE charges (
        id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts (id), cost REAL NOT NULL, event TEXT,
        time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')))""",
    "CREATE INDEX charges_of_account ON charges (account)",
    """CREATE TABLE attempts (
        id INTEGER PRIMARY KEY, account INTEGER NOT NULL REFERENCES accounts (id), first_step INTEGER NOT NULL,
        num_steps INTEGER NOT NULL, cost REAL NOT NULL,
        time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')))""",
    """CREATE TABLE transcripts (
        account INTEGER PRIMARY KEY REFERENCES accounts (id), secret TEXT NOT NULL UNIQUE, home TEXT NOT NULL)""",
    """CREATE TABLE entries (
        account INTEGER NOT NULL REFERENCES accounts (id), sequence INTEGER NOT NULL, num_answers INTEGER NOT NULL,
        cost REAL NOT NULL, payload BLOB NOT NULL, tag BLOB NOT NULL,
        PRIMARY KEY (account, sequence)) WITHOUT ROWID""",
    """CREATE TABLE snapshots (
        account INTEGER PRIMARY KEY REFERENCES accounts (id), sequence INTEGER NOT NULL, num_answers INTEGER NOT NULL,
        spent REAL NOT NULL, state BLOB NOT NULL, chain BLOB NOT NULL, tag BLOB NOT NULL)""",
    """CREATE TABLE requests (
        account INTEGER NOT NULL REFERENCES accounts (id), request TEXT NOT NULL, sequence INTEGER NOT NULL,
        position INTEGER NOT NULL, PRIMARY KEY (account, request)) WITHOUT ROWID""",
)


class LedgerStorage:
    """An open ledger file. Use it as `with storage.transaction() as connection: ...`.

    Every transaction is on the disk before its block is left (write-ahead log, `synchronous=FULL`; where the file
    system cannot hold a write-ahead log, a rollback journal with exclusive locking) and is serialized between threads.

    Args:
        path: The file. A new one gets mode 0600, since what it holds is for the keeper of the data.
        writable: False opens it beside a live writer and refuses every transaction.

    Raises:
        LedgerError: If the file is no ledger, is of a newer schema, cannot be opened, or has another writer.
    """

    def __init__(self, path: str | Path, writable: bool = True) -> None:
        self.path = Path(path).expanduser().resolve()
        self.writable = writable
        self._mutex = threading.RLock()
        self._process = os.getpid()
        self._lock: WriterLock | None = None
        if self.path.is_dir():
            raise LedgerError(
                f"{self.path} is a folder: name a file for the ledger, for instance {self.path}/ledger.db."
            )
        if writable:
            _create_private_file(self.path)
            self._lock = WriterLock(
                self.path, "close it there, pass the open PrivacyLedger on, or use PrivacyLedger.read_only"
            )
        elif not self.path.exists():
            raise LedgerError(f"There is no ledger at {self.path}: check the path.")
        try:
            self._connection = self._connect()
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise
        self._finalizer = weakref.finalize(self, _close, self._connection, self._lock, self._process)

    def _connect(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = None
        try:
            connection = _open_database(self.path, "rw" if self.writable else _read_mode(self.path))
            is_new = self.writable and _is_empty(connection)
            if not is_new:
                self._check_identity(connection)
            if self.writable:
                _make_durable(connection, may_use_wal=not is_on_network(self.path))
            if is_new:
                _create_schema(connection)
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise self._explain(error) from error
        except LedgerError:
            if connection is not None:
                connection.close()
            raise
        return connection

    def _check_identity(self, connection: sqlite3.Connection) -> None:
        application_id = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application_id != APPLICATION_ID:
            raise LedgerError(f"{self.path} is not a privacy ledger: name another file.")
        if version != SCHEMA_VERSION:
            raise LedgerError(
                f"{self.path} has ledger format {version} and this version of lightning-pac reads format "
                f"{SCHEMA_VERSION}: use the version that wrote it."
            )

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of the block's writes or none, on the disk when the block is left.

        Raises:
            LedgerError: If they cannot be written; the ledger is then as it was before.
        """
        with self._mutex:
            self._check_usable()
            if not self.writable:
                raise LedgerError(f"{self.path} was opened read-only: open it with PrivacyLedger(path) to write.")
            if self._connection.in_transaction:
                # What is nested would be reported as durable before the outer transaction is.
                raise LedgerError(f"A transaction of {self.path} is under way in this thread: end it first.")
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                _roll_back(self._connection)
                if isinstance(error, sqlite3.Error):
                    raise self._explain(error) from error
                raise

    def read(self, statement: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        with self._mutex:
            self._check_usable()
            try:
                return self._connection.execute(statement, parameters).fetchall()
            except sqlite3.Error as error:
                raise self._explain(error) from error

    def close(self) -> None:
        """Closes the file and gives the writer's lock back. Closing twice is harmless."""
        with self._mutex:
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

    def _explain(self, error: sqlite3.Error) -> LedgerError:
        text = str(error)
        if "not a database" in text:
            return LedgerError(f"{self.path} is not a privacy ledger: name another file.")
        if "malformed" in text:
            return LedgerError(f"{self.path} is damaged ({text}): restore its folder as a whole from a backup.")
        if "full" in text:
            return LedgerError(
                f"{self.path} could not be written because the disk is full: nothing was charged; free space."
            )
        if "locked" in text:
            return LedgerError(f"{self.path} is locked by another process: nothing was charged; wait until it ends.")
        if not self.writable and "unable to open" in text:
            return LedgerError(f"{self.path} cannot be read ({text}): get the right to read it and its folder.")
        if "readonly" in text or "unable to open" in text:
            return LedgerError(
                f"{self.path} cannot be opened or written ({text}): nothing was charged; make the file and its folder "
                "writable, or open it with PrivacyLedger.read_only."
            )
        return LedgerError(f"{self.path} could not be used ({text}): nothing was charged; check the disk.")


def _create_private_file(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be opened for writing ({error.strerror}): choose a writable path, or open it with "
            "PrivacyLedger.read_only."
        ) from error


def _open_database(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False, timeout=5.0
    )


def _read_mode(path: Path) -> str:
    # Where no writer left a write-ahead log, a folder without write permission can still be read as it stands.
    if os.access(path.parent, os.W_OK) or path.with_name(path.name + "-wal").exists():
        return "ro"
    return "ro&immutable=1"


def _make_durable(connection: sqlite3.Connection, may_use_wal: bool) -> None:
    mode = ""
    try:
        if may_use_wal:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "readonly" in str(error) or "full" in str(error):
            raise
    if mode != "wal":
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _is_empty(connection: sqlite3.Connection) -> bool:
    return not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()


def _create_schema(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute("INSERT INTO meta VALUES ('ledger_id', ?)", (uuid.uuid4().hex,))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _roll_back(connection: sqlite3.Connection) -> None:
    # SQLite undoes some failed commits by itself.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _close(connection: sqlite3.Connection, lock: WriterLock | None, process: int) -> None:
    if os.getpid() != process:
        return
    connection.close()
    if lock is not None:
        lock.release()
