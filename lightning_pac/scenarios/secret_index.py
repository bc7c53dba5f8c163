"""The secret index and the file that keeps it."""

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.randomness import secure_generator

if TYPE_CHECKING:
    from lightning_pac.scenarios.secret_space import SecretSpace

__all__ = ["SecretIndex"]

KEY_BYTES = 32


class SecretIndex:
    """The index of the secret subset, as read from its file; it never shows itself.

    `operator.index(secret)` gives the number to the code that needs it. `repr`, `str` and formatting do not, and it
    cannot be pickled, so it reaches no log, checkpoint or worker process by accident.

    Attributes:
        space: The public space that the index was drawn from.
        path: The file, readable by its owner only.
        key: 32 random bytes that key the chain of the ledger.
    """

    def __init__(self, index: int, space: "SecretSpace", key: bytes, path: Path) -> None:
        self._index = index
        self.space = space
        self.key = key
        self.path = path

    def __index__(self) -> int:
        return self._index

    def __repr__(self) -> str:
        return f"SecretIndex(path={str(self.path)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A SecretIndex cannot be pickled: open its file with load_secret where it is needed.")


def create_secret(path: Path, space: "SecretSpace") -> SecretIndex:
    """Draw an index from the prior of `space` and write it to a file that did not exist."""
    generator = secure_generator()
    index = generator.choice(space.prior)
    key = generator.bytes(KEY_BYTES)
    try:
        _create_durably(path, _encode(index, space, key))
    except FileExistsError as error:
        raise FileExistsError(
            f"{path} exists, and a secret is drawn only once: open it with load_secret, or name another file."
        ) from error
    return SecretIndex(index, space, key, path)


def read_secret(path: Path, space: "SecretSpace") -> SecretIndex:
    """Read a secret file and check that it belongs to the table of `space`."""
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise LedgerError(f"{path} may be read by other users: make it private with `chmod 600 {path}`.")
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        index = int(content["index"])
        key, written_hash = bytes.fromhex(content["key"]), str(content["table_hash"])
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path} is no secret file or is damaged: restore it from a copy.") from error
    if written_hash != space.table_hash:
        raise LedgerMismatchError(
            f"{path} belongs to the table {written_hash[:12]}, not to {space.table_hash[:12]}: use the pool it was "
            "drawn for."
        )
    if not 0 <= index < space.num_secrets or len(key) != KEY_BYTES:
        raise LedgerError(f"{path} is no secret file or is damaged: restore it from a copy.")
    return SecretIndex(index, space, key, path)


def _encode(index: int, space: "SecretSpace", key: bytes) -> str:
    # Whoever may list the folder sees the size of the file, which must not tell how many digits the index has.
    digits = str(index).zfill(len(str(space.num_secrets - 1)))
    # The ledger of the answers keeps its high-water mark beside the secret.
    content = {"index": digits, "table_hash": space.table_hash, "key": key.hex(), "high_water_mark": 0}
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
