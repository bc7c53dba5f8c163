"""API keys of a server: named, hashed, each with a share of the privacy budget."""

import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lightning_pac._durable_files import real_path, replace_file
from lightning_pac._mutex import Mutex
from lightning_pac._validation import NonNegative, validated

__all__ = ["APIKey", "APIKeys"]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}")
_SECONDS_FOR_THE_LOCK = 30.0
# Two changes this close may leave the same times on a file; file systems stamp in steps of up to two seconds.
_NANOSECONDS_UNTIL_SETTLED = 2_500_000_000


@validated
@dataclass(frozen=True)
class APIKey:
    """A key as the server keeps it.

    Attributes:
        name: Whose it is; letters, digits, `_`, `.` and `-`.
        sha256: Hash of the key. Keys are drawn with 256 bits, so a plain hash cannot be searched.
        budget: The most that its answers may cost in nats; None leaves it to the budget of all answers.
    """

    name: str
    sha256: str = field(repr=False)
    budget: NonNegative | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name is {self.name!r}, but must be 1 to 64 letters, digits, '_', '.' or '-'.")


@validated
class APIKeys:
    """The keys of a file, which holds hashes only and is readable by its owner only.

    Every change is made to what the file holds at that moment, under a lock that all processes share, and is on the
    disk when the call returns: changes made at the same time are all kept, and a key that was removed stays removed.
    The lock is a file of its own, `<path>.lock`.

    Args:
        path: The file; none yet means no keys.

    Raises:
        ValueError: If the file is not a list of keys, or may be changed by others.
        OSError: If the path leads to no file.

    Example:
        >>> import tempfile
        >>> keys = APIKeys(tempfile.mkdtemp() + "/keys.json")
        >>> text = keys.add("alice", budget=1e-6)
        >>> keys.find(text).name, keys.find("guess")
        ('alice', None)
    """

    def __init__(self, path: str | Path) -> None:
        real_path(path)
        self.path = Path(path).expanduser()  # and not where a link leads, which may change
        self._mutex = Mutex()
        self._stamp: tuple[int, ...] | None = None
        self._keys: dict[str, APIKey] = {}
        self.refresh()

    def __iter__(self) -> Iterator[APIKey]:
        return iter(self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, name: str, budget: NonNegative | None = None) -> str:
        """Draw a key and keep its hash.

        Returns:
            The key, which is shown this once and cannot be found out later.

        Raises:
            OSError: If the file cannot be written; it is then as it was.
            ValueError: If the name is taken or not allowed, or the budget is negative or not finite.
        """
        text = "pac_" + secrets.token_urlsafe(32)
        key = APIKey(name, _hash(text), budget)
        with self._change() as keys:
            if name in keys:
                raise ValueError(f"{self.path} has a key {name!r} already: remove it first, or choose another name.")
            keys[name] = key
        return text

    def remove(self, name: str) -> None:
        """Forget a key. What its answers cost stays on record.

        Raises:
            OSError: If the file cannot be written; it is then as it was.
            ValueError: If there is no such key.
        """
        with self._change() as keys:
            _check_known(self.path, keys, name)
            del keys[name]

    def set_budget(self, name: str, budget: NonNegative) -> APIKey:
        """Let a key's answers cost more, or less, than before; what they have cost counts.

        Returns:
            The key as it was before.

        Raises:
            OSError: If the file cannot be written; it is then as it was.
            ValueError: If there is no such key, or the budget is negative or not finite.
        """
        with self._change() as keys:
            _check_known(self.path, keys, name)
            before = keys[name]
            keys[name] = replace(before, budget=budget)
        return before

    def find(self, text: str) -> APIKey | None:
        """The key that hashes to what is on record, None if there is none."""
        hashed = _hash(text)
        found = [key for key in self._keys.values() if secrets.compare_digest(key.sha256, hashed)]
        return found[0] if found else None

    def refresh(self) -> None:
        """Read the file again if it may have changed since it was read.

        Raises:
            OSError: If it cannot be read.
            ValueError: If it is not a list of keys.
        """
        with self._mutex:  # or a thread that read the file before a change could put its keys over those of another
            stamp = _stamp(self.path)
            if stamp is None or stamp != self._stamp:
                self._keys = {} if stamp is None else _read(self.path)
                self._stamp = stamp if stamp is not None and _is_settled(stamp) else None

    @contextmanager
    def _change(self) -> Iterator[dict[str, APIKey]]:
        """The keys that the file holds now, to be changed; they are written when the block ends without an error."""
        path = real_path(self.path)  # what a link names, and not the link, is replaced
        try:
            with FileLock(path.with_name(path.name + ".lock"), _SECONDS_FOR_THE_LOCK, mode=0o600):
                stamp = _stamp(path)
                if stamp is not None and path.stat().st_nlink > 1:
                    raise ValueError(
                        f"{self.path} has {path.stat().st_nlink} names, and a change would reach only this one: remove "
                        "the other hard links, or let them be symbolic links."
                    )
                keys = {} if stamp is None else _read(path)
                yield keys
                entries = [asdict(key) | {"check": _check_of(key)} for key in keys.values()]
                replace_file(path, json.dumps(entries, indent=2))
        except Timeout as error:
            raise OSError(
                f"{self.path} was locked for {_SECONDS_FOR_THE_LOCK:g} s by another process that changes keys: try "
                "again when it is done."
            ) from error
        self.refresh()


def _check_known(path: Path, keys: dict[str, APIKey], name: str) -> None:
    if name not in keys:
        raise ValueError(f"name is {name!r}, and {path} has {', '.join(keys) or 'no keys'}.")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _is_settled(stamp: tuple[int, ...]) -> bool:
    return time.time_ns() - max(stamp[1:3]) > _NANOSECONDS_UNTIL_SETTLED


def _read(path: Path) -> dict[str, APIKey]:
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(f"{path} is a folder, a device or a pipe: name a file for the keys.")
    if os.name == "posix" and mode & 0o022:
        raise ValueError(
            f"{path} may be changed by other users (mode {stat.S_IMODE(mode):o}), who could add keys of their own: see "
            f"what it holds by `lightning-pac keys list` after `chmod 600 {path}`."
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, list):
            raise ValueError("no list")
        entries = [_decode(**entry) for entry in found]
        keys = {entry.name: entry for entry in entries}
        if len(keys) != len(entries) or not all(_HASH.fullmatch(entry.sha256) for entry in entries):
            raise ValueError("a name comes twice, or a hash is none")
        return keys
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is not a file of API keys ({error}): `lightning-pac keys add` writes one.") from error


def _decode(check: str | None = None, **fields: Any) -> APIKey:
    key = APIKey(**fields)
    if check not in (None, _check_of(key)):  # earlier versions wrote none
        raise ValueError(f"the entry of {key.name!r} fails its check, so something else has changed it")
    return key


def _check_of(key: APIKey) -> str:
    """What a flipped bit changes: under another name, a key would begin anew with its whole budget."""
    return _hash(json.dumps(asdict(key)))[:8]
