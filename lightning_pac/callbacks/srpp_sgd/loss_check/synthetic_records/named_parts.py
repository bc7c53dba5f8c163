"""Parts of a record that are no numbers, but may become some: texts, members of an `Enum`, dates, None."""

import datetime
import sys
import types
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.leaves import (
    holds,
    integers_of,
    is_leaf,
    random_like,
    size_of,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.structure import (
    MISSING,
    Path,
    mapped,
    part_at,
    paths_of,
)

__all__ = ["EXAMPLES", "MOST_VALUES", "NamedPart", "Unknown", "few_values", "key_of", "named_parts"]

Key = Any
"""Of a value: something that can be the key of a dictionary."""

EXAMPLES = 32
"""Records from all over a dataset that are looked at first."""

_FEW = 16  # values of one type in these: of more, as captions and names have, there are too many to try
MOST_VALUES = 64
"""Of a part, that are tried."""

_MOST_PARTS = 256  # of a record, among which those of few values are looked for
_SIMPLE = (str, bytes, int, Enum, datetime.date, type(None))


def key_of(part: Any) -> Key:
    """By what values of a part are told apart; of numbers that are no integer, and of objects, only the type counts."""
    if is_leaf(part):
        return int(integers_of(part)) if holds(part, 0) and size_of(part) == 1 else type(part)
    try:
        hash(part)
    except TypeError:
        return type(part)
    return type(part), part


def few_values(examples: Sequence[Any]) -> dict[Path, dict[Key, Any]]:
    """The values of parts of which the first examples have few: single integers, and parts that are no numbers.

    A type of which they have many, beside another one (None), has one value that stands for all.

    Args:
        examples: Records, of which the first `EXAMPLES` are from all over the data.
    """
    first, found = examples[:EXAMPLES], dict[Path, dict[Key, Any]]()
    paths = {path: None for record in first for path in _named_or_integer(record)}
    for path in paths:
        in_first = [part_at(record, path) for record in first]
        if not path or any(path[:end] in paths for end in range(len(path))) or any(one is MISSING for one in in_first):
            continue
        kinds = Counter(type(part) for part in {key_of(part): part for part in in_first}.values())
        many = {kind for kind, count in kinds.items() if count > _FEW}
        if not many or len(kinds) > 1:
            parts = [part for part in (part_at(record, path) for record in examples) if part is not MISSING]
            found[path] = {type(part) if type(part) in many else key_of(part): part for part in parts}
    return found


def _named_or_integer(record: Any) -> list[Path]:
    paths = list(paths_of(record))[:_MOST_PARTS]
    return [path for path in paths if not isinstance(key_of(part := part_at(record, path)), type) or not is_leaf(part)]


class Unknown:
    """Stands for a value that no record shows, and notes what it is used for.

    Attributes:
        compared: Values that it was compared with, which other records may hold.
        tables: Dictionaries by the names of which it may have been looked up.
        is_used: Whether something else was done with it than to compare it.
    """

    def __init__(self) -> None:
        self.compared: list[Any] = []
        self.tables: list[dict[Any, Any]] = []
        self.is_used = False

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _SIMPLE):
            self.compared += [other] * (other not in self.compared and len(self.compared) < _FEW)
        else:
            self.is_used = True
        return self is other

    def __hash__(self) -> int:
        self.is_used = True
        self.tables += _tables_near(sys._getframe(1))
        return id(self)

    def __bool__(self) -> bool:
        self.is_used = True
        return True

    def __repr__(self) -> str:
        self.is_used = True
        return "unknown"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what libraries ask of any object
            raise AttributeError(name)
        self.is_used = True
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> "Unknown":
        """What a method of it returns."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Unknown":
        return self


def _tables_near(frame: types.FrameType) -> list[dict[Any, Any]]:
    """Dictionaries that code in a function names: variables, and attributes of those."""
    names, local = frame.f_code.co_names, list(frame.f_locals.values())
    found = [*local, *(frame.f_globals.get(name) for name in names)]
    found += [getattr(holder, "__dict__", {}).get(name) for holder in local for name in names]
    return [table for table in found if isinstance(table, dict)]


default_collate_fn_map[Unknown] = lambda batch, *, collate_fn_map=None: batch  # as of texts


class NamedPart:
    """A part of records that is no number, in some at least, of which few values are known.

    Args:
        values: Those of real records, by what tells them apart.
        all_seen: Whether all records were looked at.

    Attributes:
        values: Those that synthetic records hold.
        is_open: Whether other records may hold others.
        is_used: Whether the code that runs makes something of it, of which not all is known.
    """

    def __init__(self, values: dict[Key, Any], all_seen: bool) -> None:
        kinds = {type(part) for part in values.values() if isinstance(part, Enum)}
        values = values | {key_of(member): member for kind in kinds for member in kind}
        # Of numbers, and of objects that cannot be told apart, others of their kind are made.
        self._shown = values
        self.values: list[Callable[[torch.Generator], Any]] = [
            _like(part) if isinstance(key, type) else _always(part) for key, part in values.items()
        ]
        self.is_open = not kinds and (len(values) == 1 or not all_seen)
        self.is_used = False

    def try_others(self, accepts_with: Callable[[Any], bool]) -> None:
        """Let records hold what the code compares the part with, and a value of no known kind, where it takes them.

        Args:
            accepts_with: Says whether the code takes records that hold a value alone, and may raise.
        """
        unknown, found = Unknown(), list[Any]()
        try:
            accepts_with(unknown)
            found.append(unknown)
        except Exception:
            self.is_used = True
        self.is_used |= unknown.is_used
        known = [part for key, part in self._shown.items() if not isinstance(key, type)]
        tables = (table for table in unknown.tables if len(table) <= MOST_VALUES and any(one in table for one in known))
        found += {key_of(name): name for names in (unknown.compared, *tables) for name in names}.values()
        for value in found:
            if key_of(value) in self._shown:
                continue
            try:
                accepts_with(value)
            except Exception:  # this is none that records may hold
                continue
            self.values.append(_always(value))


def named_parts(examples: Sequence[Any], all_seen: bool) -> dict[Path, NamedPart]:
    """Those parts of records that are no numbers and have few values."""
    found = {path: values for path, values in few_values(examples).items() if not all(map(is_leaf, values.values()))}
    return {
        path: NamedPart(values, all_seen)
        for path, values in found.items()
        if not any(hasattr(part, "__array_interface__") for part in values.values())  # pictures, which are no names
    }


def _always(part: Any) -> Callable[[torch.Generator], Any]:
    return lambda _: part


def _like(part: Any) -> Callable[[torch.Generator], Any]:
    return lambda generator: mapped(part, lambda leaf, _: random_like(leaf, torch.arange(2), generator))
