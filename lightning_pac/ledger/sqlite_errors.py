"""Errors of SQLite, in sentences."""

import sqlite3
from pathlib import Path

from lightning_pac.exceptions import LedgerError
from lightning_pac.ledger.files import is_full

__all__ = ["SQLITE_ERRORS", "damaged", "explain"]

# The second one is how a message that quotes bytes of a damaged schema ends.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)


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
    if "malformed" in text or "decode" in text or "no such" in text:
        return damaged(path, text)
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
