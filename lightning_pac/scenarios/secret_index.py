"""The secret index and the file that keeps it."""

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.randomness import secure_generator

__all__ = ["SecretIndex"]

KEY_BYTES = 32


class SecretIndex:
    """The index of the secret subset, as read from its file; it never shows itself.

    `operator.index(secret)` gives the number to the code that needs it. `repr`, `str` and formatting do not, and it
    cannot be pickled, so it reaches no log, checkpoint or worker process by accident.

    Attributes:
        path: The file, readable by its owner only.
        table_hash: Hash of the secret space that the index belongs to.
        key: 32 random bytes that key the chain of the ledger.
        high_water_mark: Number of ledger entries that are known to exist; a ledger with fewer was rolled back.
    """

    def __init__(self, index: int, table_hash: str, key: bytes, path: Path, high_water_mark: int = 0) -> None:
        self._index = index
        self.table_hash = table_hash
        self.key = key
        self.path = path
        self.high_water_mark = high_water_mark

    def advance(self, high_water_mark: int) -> None:
        """Write a larger high-water mark to the file, durably and atomically.

        Raises:
            ValueError: If the mark is smaller than the one on file.
        """
        if high_water_mark < self.high_water_mark:
            raise ValueError(f"high-water mark {high_water_mark} is behind the {self.high_water_mark} on file.")
        replacement = self.path.with_name(f"{self.path.name}.new")
        with contextlib.suppress(FileNotFoundError):
            replacement.unlink()
        content = _encode(self._index, self.table_hash, self.key, high_water_mark)
        _create_durably(replacement, content)
        os.replace(replacement, self.path)
        _flush_directory(self.path.parent)
        self.high_water_mark = high_water_mark

    def __index__(self) -> int:
        return self._index

    def __repr__(self) -> str:
        return f"SecretIndex(path={str(self.path)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SecretIndex cannot be pickled: open its file with load_secret where it is needed.")


def create_secret(path: Path, prior: npt.NDArray[np.float64], table_hash: str) -> SecretIndex:
    """Draw an index from `prior` and write it to a file that did not exist."""
    generator = secure_generator()
    index = generator.choice(prior)
    key = generator.bytes(KEY_BYTES)
    try:
        _create_durably(path, _encode(index, table_hash, key, 0))
    except FileExistsError as error:
        raise FileExistsError(
            f"{path} exists, and a secret is drawn only once: open it with load_secret, or name another file."
        ) from error
    return SecretIndex(index, table_hash, key, path)


def read_secret(path: Path, num_secrets: int, table_hash: str) -> SecretIndex:
    """Read a secret file and check that it belongs to the table."""
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise LedgerError(f"{path} may be read by other users: make it private with `chmod 600 {path}`.")
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        index, mark = int(content["index"]), int(content["high_water_mark"])
        key, written_hash = bytes.fromhex(content["key"]), str(content["table_hash"])
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path} is no secret file or is damaged: restore it from a copy.") from error
    if written_hash != table_hash:
        raise LedgerMismatchError(
            f"{path} belongs to the table {written_hash[:12]}, not to {table_hash[:12]}: use the pool it was drawn for."
        )
    if not 0 <= index < num_secrets or len(key) != KEY_BYTES or mark < 0:
        raise LedgerError(f"{path} is no secret file or is damaged: restore it from a copy.")
    return SecretIndex(index, table_hash, key, path, mark)


def _encode(index: int, table_hash: str, key: bytes, high_water_mark: int) -> str:
    content = {"index": index, "table_hash": table_hash, "key": key.hex(), "high_water_mark": high_water_mark}
    return json.dumps(content) + "\n"


def _create_durably(path: Path, content: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    _flush_directory(path.parent)


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
