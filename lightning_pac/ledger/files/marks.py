"""High-water marks: how far each account of a ledger had come, in a file of their own."""

import contextlib
import hashlib
import json
import os
import shlex
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_pac._durable_files import real_path, replace_file
from lightning_pac.exceptions import LedgerError

__all__ = ["AccountMarks", "Facts", "Mark", "digest_budgets", "mark_path"]

# Numbers stand in the last 64 bytes of a line, and lines are multiples of that: no disk tears a number in two.
BLOCK = 64
_DAMAGED = "is no file of marks or is damaged"


@dataclass(frozen=True)
class Facts:
    """The part of an account that never changes.

    Attributes:
        name: Its name.
        currency: What is charged.
        declaration: The JSON text of what its costs rest on.
    """

    name: str
    currency: str
    declaration: str

    def digest(self) -> str:
        """A fingerprint, so that a changed bit shows."""
        return hashlib.sha256(json.dumps([self.name, self.currency, self.declaration]).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Mark:
    """The state of an account, as last marked.

    Attributes:
        name: Its name.
        currency: What is charged.
        digest: Of its facts.
        num_charges: At least so many were made.
        spent: They cost so much.
    """

    name: str
    currency: str
    digest: str
    num_charges: int
    spent: float


class AccountMarks:
    """The marks of a ledger, beside it in `<ledger>-mark`, or at a witness elsewhere that the file beside it names.

    An account's mark is written after the transaction is on the disk and before the charge returns, so that it is never
    ahead of the ledger, and a ledger that is behind it has lost a charge. The write is left to the operating system to
    flush: a kill loses nothing of it, and after a power failure the mark may be some seconds behind, which is no error.

    Args:
        path: The ledger.
        witness: The file to read instead of the one beside the ledger, and what that names.
        ignored: Whether to begin as if there were no file.

    Raises:
        LedgerError: If the marks cannot be read, or are damaged.
    """

    def __init__(self, path: Path, witness: Path | None = None, ignored: bool = False) -> None:
        self._beside = mark_path(path)
        self.path = witness or self._beside
        self._descriptor = -1
        header, lines = (None, []) if ignored else _read(self.path)
        if header is not None and "witness" in header:
            self.path = Path(header["witness"])
            header, lines = _read(self.path)
            if header is None:
                raise LedgerError(
                    f"{self.path}, where the marks of {path} are kept, is not there: mount it or put it back, or book "
                    f"what may be missing with `lightning-pac account restore {shlex.quote(str(path))}`."
                )
        self.exists = header is not None
        self.ledger_id = "" if header is None else str(header["ledger"])
        self.num_budgets, self.budgets = 0, digest_budgets(())
        self.accounts: dict[int, Mark] = {}
        # Where the last block of each account's line is, all that a charge overwrites, and the check of what is before.
        self._tails: dict[int, tuple[int, int]] = {}
        offset = 0
        for prefix, number, value, length in lines:
            account_line = offset > 0
            if not account_line:
                self.num_budgets, self.budgets = number, value
            else:
                account = int(prefix["account"])
                self.accounts[account] = Mark(
                    prefix["name"], prefix["currency"], prefix["digest"], number, float.fromhex(value)
                )
            offset += length
            if account_line:
                self._tails[account] = _find_tail(offset, account, self.accounts[account])
        self._end = offset

    def write(
        self,
        ledger_id: str,
        budgets: tuple[int, str],
        accounts: Mapping[int, Mark],
        witness: Path | None = None,
    ) -> None:
        """Writes all marks anew, durably, at the witness if one is named, and opens them for advancing.

        Raises:
            LedgerError: If they cannot be written.
        """
        self.close()
        header = {"ledger": ledger_id}
        parts = [_encode(header, budgets[0], budgets[1])]
        end = len(parts[0])
        self._tails = {}
        for account, mark in accounts.items():
            parts.append(_encode_mark(account, mark))
            end += len(parts[-1])
            self._tails[account] = _find_tail(end, account, mark)
        target = real_path(witness or self.path)
        try:
            replace_file(target, b"".join(parts).decode())
            if target != self._beside:
                pointer = _encode({**header, "witness": str(target)}, 0, "0")
                replace_file(self._beside, pointer.decode())
        except OSError as error:
            raise _unwritable(target, error) from error
        self.path, self.exists, self.ledger_id = target, True, ledger_id
        self.num_budgets, self.budgets = budgets
        self.accounts = dict(accounts)
        self._end = end
        self.open()

    def open(self) -> None:
        """Opens the file for advancing.

        Raises:
            LedgerError: If it cannot be written.
        """
        self.close()
        try:
            self._descriptor = os.open(self.path, os.O_RDWR)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def advance(self, totals: Mapping[int, tuple[int, float]]) -> None:
        """Raises the marks of accounts to their numbers of charges and sums.

        Raises:
            LedgerError: If they cannot be written.
        """
        for account, (num_charges, spent) in totals.items():
            if account not in self._tails:  # the disk was full when the account was opened
                self._append(account)
            offset, prefix_check = self._tails[account]
            self._overwrite(offset, _encode_tail(prefix_check, num_charges, spent.hex()))

    def add_account(self, account: int, facts: Facts) -> None:
        """Adds the line of a new account.

        Raises:
            LedgerError: If it cannot be written.
        """
        self.accounts[account] = Mark(facts.name, facts.currency, facts.digest(), 0, 0.0)
        self._append(account)

    def set_budgets(self, num_budgets: int, digest: str) -> None:
        """Notes the budgets that were set so far.

        Raises:
            LedgerError: If it cannot be written.
        """
        self.num_budgets, self.budgets = num_budgets, digest
        self._overwrite(0, _encode({"ledger": self.ledger_id}, num_budgets, digest))

    def close(self) -> None:
        """Flushes and closes the file."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # a mark may be behind
                os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def files(self) -> tuple[Path, ...]:
        """The path of the marks."""
        return tuple({self._beside, self.path})

    def _append(self, account: int) -> None:
        line = _encode_mark(account, self.accounts[account])
        self._overwrite(self._end, line)
        self._end += len(line)
        self._tails[account] = _find_tail(self._end, account, self.accounts[account])

    def _overwrite(self, offset: int, line: bytes) -> None:
        try:
            if _write_at(self._descriptor, line, offset) != len(line):
                raise OSError(28, "No space left on device")
        except OSError as error:
            raise LedgerError(
                f"The mark in {self.path} could not be written ({error.strerror}): what was charged is on record and "
                "nothing was released; free space or check the disk."
            ) from error


def mark_path(path: Path) -> Path:
    """The file of marks beside a ledger."""
    return path.with_name(path.name + "-mark")


def digest_budgets(rows: Iterable[tuple[Any, ...]]) -> str:
    """A fingerprint of budgets (id, currency, account, amount), in the order in which they were set."""
    return hashlib.sha256(json.dumps([list(row) for row in rows]).encode()).hexdigest()[:32]


def _encode_mark(account: int, mark: Mark) -> bytes:
    prefix = {"account": account, "name": mark.name, "currency": mark.currency, "digest": mark.digest}
    return _encode(prefix, mark.num_charges, mark.spent.hex())


def _encode(prefix: Mapping[str, Any], number: int, value: str) -> bytes:
    padded = _pad(prefix)
    return padded + _encode_tail(zlib.crc32(padded), number, value)


def _pad(prefix: Mapping[str, Any]) -> bytes:
    text = json.dumps(prefix)
    return text.ljust(-(-len(text) // BLOCK) * BLOCK).encode()


def _find_tail(end: int, account: int, mark: Mark) -> tuple[int, int]:
    return end - BLOCK, zlib.crc32(_encode_mark(account, mark)[:-BLOCK])


def _encode_tail(prefix_check: int, number: int, value: str) -> bytes:
    text = b" %20d %32b " % (number, value.encode())
    return text + b"%08x\n" % zlib.crc32(text, prefix_check)


def _read(path: Path) -> tuple[dict[str, Any] | None, list[tuple[dict[str, Any], int, str, int]]]:
    """The header, None where there is no file, and every line as its prefix, number, value and length."""
    for attempt in range(3):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None, []
        except OSError as error:
            raise LedgerError(f"{path} cannot be read ({error.strerror}): get the right to read it.") from error
        try:
            # A line without its end is of an account that was opened when the process was killed.
            lines = [_decode(line) for line in content.split(b"\n")[:-1]]
            if not lines or "ledger" not in lines[0][0]:
                raise ValueError("no header")
            return lines[0][0], lines
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if attempt == 2:  # a writer may have been at it, twice
                raise LedgerError(
                    f"{path} {_DAMAGED}: put it back from where it is whole, or book what may be missing with "
                    "`lightning-pac account restore`."
                ) from error
    raise AssertionError("unreachable")


def _decode(line: bytes) -> tuple[dict[str, Any], int, str, int]:
    text, code = line[:-8].decode("ascii"), int(line[-8:], 16)
    if zlib.crc32(text.encode()) != code:
        raise ValueError("a line fails its check")
    prefix = json.loads(text[: -BLOCK + 9])
    number, value = text[-BLOCK + 9 :].split()
    return dict(prefix), int(number), value, len(line) + 1


def _seek_and_write(descriptor: int, data: bytes, offset: int) -> int:
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, data)


_write_at = getattr(os, "pwrite", _seek_and_write)


def _unwritable(path: Path, error: OSError) -> LedgerError:
    return LedgerError(
        f"{path}, which marks how far the ledger has come, cannot be written ({error.strerror}): make it and its "
        "folder writable, and free space if the disk is full."
    )
