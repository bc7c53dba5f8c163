"""Records that belong together by what one of their parts says, such as the patient of several images."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.leaves import (
    filled,
    holds,
    is_leaf,
    length_of,
    size_of,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.structure import Path, mapped, part_at, paths_of
from lightning_pac.data.records import digest

__all__ = [
    "emptied",
    "naming_parts",
    "number_parts",
    "parts_of_one_length",
    "short_parts",
    "unlike_in",
    "with_number",
    "with_parts_of",
]

_SHORT = 256  # numbers, as of the row of a table in which the group is one of them, or has a place of its own


def naming_parts(record: Any) -> list[Path]:
    """Where the single integers and the texts of a record are."""
    parts = [(path, part_at(record, path)) for path in paths_of(record)]
    return [path for path, part in parts if isinstance(part, str) or (holds(part, 0) and size_of(part) == 1)]


def short_parts(record: Any) -> list[Path]:
    """Where other parts of few numbers are: a group may be a float, two integers or a place among zeros."""
    parts = [(path, part_at(record, path)) for path in paths_of(record)]
    few = [path for path, part in parts if is_leaf(part) and size_of(part) <= _SHORT]
    return [path for path in few if path not in naming_parts(record)]


def number_parts(record: Any) -> list[Path]:
    """Where the parts of a record are that are made of numbers."""
    return [path for path in paths_of(record) if is_leaf(part_at(record, path))]


def with_number(record: Any, value: float, path: Path) -> Any:
    """The record with this number alone in a part of numbers, such as a mask that marks nothing."""
    return mapped(record, lambda leaf, _: leaf, [path], lambda part, _: filled(part, value))


def parts_of_one_length(record: Any) -> list[list[Path]]:
    """Where numbers and lists are that are equally long, such as the boxes of an image and their labels, and each."""
    found: dict[int, list[Path]] = {}
    for path in _long_parts(record, ()):
        found.setdefault(len(part_at(record, path)), []).append(path)
    alone = ([path] for paths in found.values() if len(paths) > 1 for path in paths)
    return [*found.values(), *alone]


def _long_parts(record: Any, path: Path) -> Iterator[Path]:
    part = part_at(record, path)
    if is_leaf(part) or (isinstance(part, list) and path):  # a record may be a list of fields, all needed
        if length_of(part):
            yield path
    elif isinstance(part, Mapping | list | tuple):
        for key in part if isinstance(part, Mapping) else range(len(part)):
            yield from _long_parts(record, (*path, key))


def emptied(record: Any, is_empty: bool, paths: Sequence[Path]) -> Any:
    """The record with nothing in these parts, if that is asked for."""
    return mapped(record, lambda leaf, _: leaf, paths, lambda part, _: part[:0] if is_empty else part)


def unlike_in(records: Sequence[Any], paths: Sequence[Path], most: int) -> list[Any]:
    """Records of which these parts are not the same, so many at most."""
    found: dict[bytes, Any] = {}
    for record in records:
        found.setdefault(digest([part_at(record, path) for path in paths]), record)
    return list(found.values())[:most]


def with_parts_of(record: Any, other: Any, paths: Sequence[Path]) -> Any:
    """The record with these parts of another one.

    Example:
        >>> with_parts_of({"image": [0.5], "patient": 3}, {"image": [0.1], "patient": 8}, [("patient",)])
        {'image': [0.5], 'patient': 8}
    """
    return mapped(record, lambda leaf, _: leaf, paths, lambda _, path: part_at(other, path))
