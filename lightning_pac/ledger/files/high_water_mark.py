"""The high-water mark: how far the ledger had come when the last answer left, kept beside the secret."""

import json
import os
from pathlib import Path
from typing import Any

from lightning_pac._durable_files import real_path, replace_file
from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.ledger.files.writer_lock import WriterLock

__all__ = ["HighWaterMark"]

# As wide as the largest entry number that SQLite can hold, so that the file never changes its size.
WIDTH = 20


class HighWaterMark:
    """The mark in a secret file, opened for writing.

    The mark is advanced after the ledger's transaction is on the disk and before the answer is returned: an answer
    that was seen is always at or below the mark, so a ledger that is behind it has lost an answer. A crash between the
    two writes leaves the ledger one entry *ahead*, which is an answer that nobody saw and that was paid for. (The other
    order would make an honest crash look like a ledger that was rolled back.)

    The number is overwritten in place, in one write that is shorter than a disk sector.

    Args:
        path: The secret file: a JSON mapping, to which `ledger` and `high_water_mark` are added.
        ledger_id: The ledger that the secret answers through. The first one is remembered.

    Raises:
        LedgerError: If the file is damaged, cannot be written, or another responder has it open.
        LedgerMismatchError: If the secret answers through another ledger.
    """

    def __init__(self, path: Path, ledger_id: str) -> None:
        self._path = real_path(path)
        self._lock = WriterLock(self._path, "close the responder that uses this secret")
        try:
            content = self._read()
            self._value = int(content.pop("high_water_mark", 0))
            if content.setdefault("ledger", ledger_id) != ledger_id:
                raise LedgerMismatchError(
                    f"{self._path} answers through another ledger ({content['ledger']}): open that one; a ledger that "
                    "was deleted cannot be replaced, because its answers are still known."
                )
            self._prefix = json.dumps(content)[:-1] + ', "high_water_mark": '
            self._rewrite()
            self._descriptor = os.open(self._path, os.O_RDWR)
        except OSError as error:
            self._lock.release()
            raise LedgerError(
                f"{self._path} cannot be read and written ({error.strerror}): the secret file keeps the high-water "
                "mark of its ledger, so make it and its folder writable."
            ) from error
        except BaseException:
            self._lock.release()
            raise

    @property
    def value(self) -> int:
        """Number of ledger entries that are known to exist."""
        return self._value

    def advance(self, value: int) -> None:
        """Raises the mark, durably before it returns.

        Raises:
            LedgerError: If it cannot be written.
        """
        try:
            os.lseek(self._descriptor, len(self._prefix), os.SEEK_SET)
            os.write(self._descriptor, str(value).rjust(WIDTH).encode())
            _flush(self._descriptor)
        except OSError as error:
            raise LedgerError(
                f"The high-water mark in {self._path} could not be written ({error.strerror}): the answer is charged "
                "and was not given; check the disk."
            ) from error
        self._value = value

    @property
    def closed(self) -> bool:
        """Whether the file was closed."""
        return self._descriptor < 0

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._lock.release()

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self._path.read_text())
            int(content.get("high_water_mark", 0))
        except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
            raise LedgerError(f"{self._path} is damaged or not a secret file: restore it from a copy.") from error
        assert isinstance(content, dict)
        return content

    def _rewrite(self) -> None:
        text = f"{self._prefix}{str(self._value).rjust(WIDTH)}}}\n"
        if self._path.read_text() == text:
            return
        replace_file(self._path, text)


def _flush(descriptor: int) -> None:
    # The size does not change, so the data are all there is to flush.
    getattr(os, "fdatasync", os.fsync)(descriptor)
