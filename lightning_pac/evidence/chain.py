"""The journal as lines of text, each of which names the hash of the line before it, and JSON that reads in one way."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["decode_chain", "digest", "encode_chain", "read_json"]

_START = "0" * 64


def encode_chain(entries: Iterable[Mapping[str, Any]]) -> bytes:
    """Entries as JSON, one a line.

    No line can be changed, left out, added or put elsewhere without changing the hash of the last one.
    """
    previous, lines = _START, []
    for entry in entries:
        text = json.dumps({"previous": previous, **entry}, sort_keys=True, allow_nan=False, ensure_ascii=False)
        line = text.encode() + b"\n"
        lines.append(line)
        previous = digest(line)
    return b"".join(lines)


def decode_chain(content: bytes) -> list[dict[str, Any]]:
    """The entries that `encode_chain` wrote.

    Raises:
        ValueError: If a line is none, or names another line before it; says which.
    """
    previous, entries = _START, []
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        try:
            entry = read_json(line)
            named = entry.pop("previous")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"line {number} is not an entry of a journal") from None
        if named != previous:
            raise ValueError(f"line {number} does not follow the line before it: one was changed, moved or removed")
        previous = digest(line)
        entries.append(entry)
    return entries


def read_json(content: bytes) -> Any:
    """Values that every reader finds in a text.

    Raises:
        ValueError: If it is no JSON, names a key twice, of which readers take the first or the last, or holds what is
            no number of a ledger.
    """
    return json.loads(content, object_pairs_hook=_mapping, parse_constant=_refuse, parse_int=_whole)


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _whole(digits: str) -> int:
    if len(digits) > 300:  # no float holds it, to be compared
        raise ValueError("a whole number has more than 300 digits")
    return int(digits)


def digest(content: bytes) -> str:
    """SHA-256 of a file or a line, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
