"""API keys of a server: named, hashed, each with a share of the privacy budget."""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lightning_pac.ledger import check_amount

__all__ = ["APIKey", "APIKeys"]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class APIKey:
    """What the server keeps of a key.

    Attributes:
        name: Whose it is; letters, digits, `_`, `.` and `-`.
        sha256: Hash of the key. Keys are drawn with 256 bits, so a plain hash cannot be searched.
        budget: The most that its answers may cost in nats; None leaves it to the budget of all answers.
    """

    name: str
    sha256: str
    budget: float | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"The name of a key is 1 to 64 letters, digits, '_', '.' or '-', got {self.name!r}.")
        if self.budget is not None:
            check_amount(self.budget, "the budget of a key")


class APIKeys:
    """The keys of a file, which holds hashes only and is readable by its owner only.

    Args:
        path: The file; none yet means no keys.

    Raises:
        ValueError: If the file is not a list of keys.

    Example:
        >>> import tempfile
        >>> keys = APIKeys(tempfile.mkdtemp() + "/keys.json")
        >>> text = keys.add("alice", budget=1e-6)
        >>> keys.find(text).name, keys.find("guess")
        ('alice', None)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self._stamp: tuple[int, ...] | None = None
        self._keys: dict[str, APIKey] = {}
        self.refresh()

    def __iter__(self) -> Iterator[APIKey]:
        return iter(self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, name: str, budget: float | None = None) -> str:
        """Draw a key and keep its hash.

        Returns:
            The key, which is shown this once and cannot be found out later.

        Raises:
            ValueError: If the name is taken or not allowed, or the budget is negative or not finite.
        """
        if name in self._keys:
            raise ValueError(f"{self.path} has a key {name!r} already: remove it first, or choose another name.")
        text = "pac_" + secrets.token_urlsafe(32)
        self._write({**self._keys, name: APIKey(name, _hash(text), budget)})
        return text

    def remove(self, name: str) -> None:
        """Forget a key. What its answers cost stays on record.

        Raises:
            ValueError: If there is no such key.
        """
        self._check_known(name)
        self._write({other: key for other, key in self._keys.items() if other != name})

    def set_budget(self, name: str, budget: float) -> APIKey:
        """Let a key's answers cost more, or less, than before; what they have cost counts.

        Returns:
            The key as it was before.

        Raises:
            ValueError: If there is no such key, or the budget is negative or not finite.
        """
        self._check_known(name)
        before = self._keys[name]
        self._write({**self._keys, name: replace(before, budget=budget)})
        return before

    def find(self, text: str) -> APIKey | None:
        """The key that hashes to what is on record, None if there is none."""
        hashed = _hash(text)
        found = [key for key in self._keys.values() if secrets.compare_digest(key.sha256, hashed)]
        return found[0] if found else None

    def refresh(self) -> None:
        """Read the file again if it has changed since it was read.

        Raises:
            OSError: If it cannot be read.
            ValueError: If it is not a list of keys.
        """
        stamp = _stamp(self.path)
        if stamp != self._stamp:
            self._keys = {} if stamp is None else _read(self.path)
            self._stamp = stamp

    def _check_known(self, name: str) -> None:
        if name not in self._keys:
            raise ValueError(f"{self.path} has no key {name!r}: it has {', '.join(self._keys) or 'none'}.")

    def _write(self, keys: dict[str, APIKey]) -> None:
        partial = self.path.with_name(self.path.name + ".partial")
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump([asdict(key) for key in keys.values()], file, indent=2)
        os.replace(partial, self.path)
        self._keys, self._stamp = keys, _stamp(self.path)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read(path: Path) -> dict[str, APIKey]:
    try:
        return {entry["name"]: APIKey(**entry) for entry in json.loads(path.read_text())}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a file of API keys ({error}): `lightning-pac keys add` writes one.") from error
