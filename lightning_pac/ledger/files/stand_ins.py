"""Copies that stand for ledgers in a dry run, which may write to them as a run would."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from lightning_pac._durable_files import real_path

__all__ = ["place_of", "use_stand_ins"]

_folders: list[tuple[Path, Callable[[Path, Path], None]]] = []
_copies: dict[Path, Path] = {}


@contextlib.contextmanager
def use_stand_ins(folder: Path, make: Callable[[Path, Path], None]) -> Iterator[dict[Path, Path]]:
    """Let everything in this process that opens a ledger meanwhile open a copy of it in a folder instead.

    Args:
        folder: Where copies are made.
        make: Makes the copy of the first path at the second.

    Yields:
        The copies by the ledgers' paths, as they are made.
    """
    _folders.append((real_path(folder), make))
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
    if not _folders or _folders[-1][0] in place.parents:
        return place
    folder, make = _folders[-1]
    if place not in _copies:
        _copies[place] = folder / str(len(_copies)) / place.name
        _copies[place].parent.mkdir()
        if is_ledger and place.is_file():
            make(place, _copies[place])
    return _copies[place]
