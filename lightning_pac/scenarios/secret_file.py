"""The file that keeps a secret index: drawn once, private, bound to its table."""

import hmac
import json
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_pac._durable_files import create_file
from lightning_pac.exceptions import LedgerError, LedgerMismatchError

__all__ = ["KEY_BYTES", "SecretContent", "create_secret_file", "read_secret_file"]

KEY_BYTES = 32


@dataclass(frozen=True, repr=False)
class SecretContent:
    """The contents of a secret file.

    Attributes:
        index: The secret.
        key: Random bytes that key the chain of the ledger.
        table_hash: Name of the table that the index was drawn for.
    """

    index: int
    key: bytes
    table_hash: str

    def seal(self) -> str:
        """A code over index and table, under the key: one digit changed in the file, and it fits no longer."""
        return hmac.digest(self.key, f"lightning-pac seal {self.index} {self.table_hash}".encode(), "sha256").hex()


def create_secret_file(path: Path, content: SecretContent, num_secrets: int) -> None:
    """Write a file that did not exist, whole or not at all.

    Raises:
        FileExistsError: If the file exists.
        LedgerError: If it cannot be written.
    """
    # Anyone who may list the folder sees the size of the file, which must not tell how many digits the index has.
    digits = str(content.index).zfill(len(str(num_secrets - 1)))
    # The ledger of the answers keeps its high-water mark beside the secret.
    written = {
        "index": digits,
        "table_hash": content.table_hash,
        "key": content.key.hex(),
        "seal": content.seal(),
        "high_water_mark": 0,
    }
    try:
        create_file(path, json.dumps(written) + "\n")
    except FileExistsError as error:
        raise FileExistsError(
            f"{path} exists, and a secret is drawn only once: open it with load_secret, or name another file."
        ) from error
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be written ({error.strerror}), so no secret was drawn: choose a writable folder with room "
            "for it."
        ) from error


def read_secret_file(path: Path, table_hash: str, num_secrets: int) -> SecretContent:
    """Read a secret file and check that it belongs to the table.

    Files that were written before there were seals are read without one; the ledger remembers their index from the
    first time that it sees it (see `ResponseTranscript`).

    Raises:
        LedgerError: If the file is damaged, or others may read it.
        LedgerMismatchError: If it belongs to another table.
    """
    damaged = f"{path} is damaged or not a secret file: restore it from a copy."
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise LedgerError(damaged) from error
    if not text:
        raise LedgerError(
            f"{path} is empty: restore it from a copy if it ever held a secret, or else remove it and draw one."
        )
    if stat.S_IMODE(mode) & 0o077:
        raise LedgerError(f"{path} may be read by other users: make it private with `chmod 600 {path}`.")
    try:
        written: dict[str, Any] = json.loads(text)
        content = SecretContent(int(written["index"]), bytes.fromhex(written["key"]), str(written["table_hash"]))
        seal = str(written.get("seal", content.seal()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LedgerError(damaged) from error
    if content.table_hash != table_hash:
        raise LedgerMismatchError(
            f"{path} belongs to the table {content.table_hash[:12]}, not to {table_hash[:12]}: use the pool it was "
            "drawn for."
        )
    sealed = hmac.compare_digest(seal.encode(errors="replace"), content.seal().encode())
    if not (0 <= content.index < num_secrets and len(content.key) == KEY_BYTES and sealed):
        raise LedgerError(damaged)
    return content
