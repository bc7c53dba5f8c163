"""Connections to the SQLite file of a ledger."""

import os
import sqlite3
from pathlib import Path

__all__ = ["make_durable", "open_database", "roll_back"]


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
