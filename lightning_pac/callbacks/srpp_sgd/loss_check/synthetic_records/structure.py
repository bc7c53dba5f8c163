"""Where the numbers of a record are, and its other parts."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.leaves import is_leaf

__all__ = ["MISSING", "Path", "leaves_of", "mapped", "name_of", "part_at", "paths_of"]

Path = tuple[Any, ...]
"""Keys and positions that lead to a part of a record."""

MISSING: Any = object()


def mapped(
    record: Any,
    change: Callable[[Any, int], Any],
    apart: Collection[Path] = (),
    change_apart: Callable[[Any, Path], Any] = lambda part, _: part,
) -> Any:
    """Change every tensor, array, number and list of numbers; what is none stays as it is.

    Args:
        record: Nested mappings, lists and tuples.
        change: Called with such a part, and how many came before it.
        apart: Where other parts are, which do not count as numbers.
        change_apart: Called with each of these, and where it is.
    """
    numbers = itertools.count()

    def visit(value: Any, path: Path) -> Any:
        if path in apart:
            return change_apart(value, path)
        if is_leaf(value):
            return change(value, next(numbers))
        if isinstance(value, Mapping):
            entries = {key: visit(entry, (*path, key)) for key, entry in value.items()}
            return type(value)(entries)  # type: ignore[call-arg]
        if isinstance(value, list | tuple):
            parts = [visit(entry, (*path, place)) for place, entry in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return value

    return visit(record, ())


def leaves_of(record: Any, apart: Collection[Path] = ()) -> list[Any]:
    """All that are changed by `mapped`."""
    found: list[Any] = []
    mapped(record, lambda leaf, _: found.append(leaf), apart)
    return found


def paths_of(record: Any, path: Path = ()) -> Iterator[Path]:
    """Where the parts of a record are that hold no others."""
    if isinstance(record, Mapping) and record:
        entries: list[tuple[Any, Any]] = list(record.items())
    elif isinstance(record, list | tuple) and record and not is_leaf(record):
        entries = list(enumerate(record))
    else:
        yield path
        return
    for key, entry in entries:
        yield from paths_of(entry, (*path, key))


def part_at(record: Any, path: Path) -> Any:
    """The part of a record that is there; `MISSING` if it has none."""
    for key in path:
        try:
            record = record[key]
        except Exception:  # of whatever kind: another record has no such parts
            return MISSING
    return record


def name_of(path: Path) -> str:
    """How one writes it in a program."""
    return f"record{''.join(f'[{key!r}]' for key in path)}"
