"""Copies that stand for ledgers in a dry run, which may write to them as a run would."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from lightning_pac._durable_files import real_path

__all__ = ["copies_of_ledgers", "place_of"]

_folders: list[Path] = []
_copies: dict[Path, Path] = {}


@contextlib.contextmanager
def copies_of_ledgers(folder: Path) -> Iterator[dict[Path, Path]]:
    """Let everything in this process that opens a ledger meanwhile open a copy of it in a folder instead.

    Yields:
        The copies by the ledgers' paths, as they are made.
    """
    _folders.append(real_path(folder))
    try:
        yield _copies
    finally:
        _folders.pop()
        _copies.clear()


def place_of(path: str | Path, is_ledger: bool = True) -> Path:
    """The file that is opened for a ledger or its witness: its own, or in a dry run one that stands for it.

    Raises:
        ValueError: If the path cannot be followed.
    """
    place = real_path(path)
    if not _folders or _folders[-1] in place.parents:
        return place
    if place not in _copies:
        _copies[place] = _folders[-1] / str(len(_copies)) / place.name
        _copies[place].parent.mkdir()
        if is_ledger and place.is_file():
            _copy(place, _copies[place])
    return _copies[place]


def _copy(ledger: Path, copy: Path) -> None:
    from lightning_pac.ledger.recovery import restore_ledger

    copy.touch(mode=0o600)
    with (
        contextlib.closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    restore_ledger(copy, {}, otherwise=0.0)  # a copy is refused until somebody says that it may go on
