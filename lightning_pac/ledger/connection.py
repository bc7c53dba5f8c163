"""Connections to the SQLite file of a ledger, and its errors in sentences."""

import os
import sqlite3
from pathlib import Path

from lightning_pac.exceptions import LedgerError
from lightning_pac.ledger.files import is_full

__all__ = ["SQLITE_ERRORS", "damaged", "explain", "make_durable", "open_database", "roll_back"]

# The second one is how a message that quotes bytes of a damaged schema ends.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)


def open_database(path: Path, writable: bool) -> sqlite3.Connection:
    """Open a file that exists; threads may share the connection, one at a time."""
    return sqlite3.connect(
        f"{path.as_uri()}?mode={'rw' if writable else _read_mode(path)}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=5.0,
    )


def make_durable(connection: sqlite3.Connection, may_use_wal: bool) -> None:
    """Let every commit be on the disk before it returns: a write-ahead log, or else a journal and exclusive locking."""
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


def roll_back(connection: sqlite3.Connection) -> None:
    """Undo the transaction under way, if SQLite did not do so by itself when its commit failed."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _read_mode(path: Path) -> str:
    # Where no writer left a write-ahead log, a folder without write permission can still be read as it stands.
    if os.access(path.parent, os.W_OK) or path.with_name(path.name + "-wal").exists():
        return "ro"
    return "ro&immutable=1"


def explain(path: Path, writable: bool, error: Exception) -> LedgerError:
    """The error of a ledger for one of SQLite.

    Args:
        path: The ledger.
        writable: Whether it is open for writing.
        error: One of `SQLITE_ERRORS`.
    """
    text = " ".join(str(error).split())  # SQLite quotes a broken schema with its lines
    if "not a database" in text:
        return LedgerError(f"{path} is not a privacy ledger: name another file.")
    if "malformed" in text or "decode" in text or "no such" in text or not text:  # Python 3.10 says nothing of texts
        return damaged(path, text or "it has a name that is no text")
    if "full" in text or ("I/O" in text and is_full(path)):
        return LedgerError(f"{path} could not be written because the disk is full: nothing was charged; free space.")
    if "locked" in text:
        return LedgerError(f"{path} is locked by another process: nothing was charged; wait until it ends.")
    if not writable and "unable to open" in text:
        return LedgerError(f"{path} cannot be read ({text}): get the right to read it and its folder.")
    if "readonly" in text or "unable to open" in text:
        return LedgerError(
            f"{path} cannot be opened or written ({text}): nothing was charged; make the file, those beside it "
            "and its folder writable, or open it with PrivacyLedger.read_only."
        )
    return LedgerError(f"{path} could not be used ({text}): nothing was charged; check the disk.")


def damaged(path: Path, what: str) -> LedgerError:
    """The error of a ledger whose file is not what was written."""
    return LedgerError(f"{path} is damaged ({what}): restore its files together from where they are whole.")
