"""Records with the structure of real ones and none of their values."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["GROUP", "Variation", "synthetic_records", "varied_records"]

GROUP = 4
"""Records in each of the four groups that are compared."""

# Upper ends for synthetic integers: the first that the model accepts (a class index or token must exist) is taken.
INTEGER_RANGES = (1000, 100, 10, 5, 3, 2)

# What libraries and people give targets that are to be ignored, and the usual padding last.
SPECIAL_INTEGERS = (-100, -1, 255, 0)

# Eighths of a row that are kept, by record: the groups differ in their longest, and no group is in order of length.
KEPT_EIGHTHS = (8, 5, 7, 6, 6, 3, 5, 4, 2, 5, 3, 4, 1, 4, 2, 3)


def synthetic_records(template: Any, accepts: Callable[[list[Any]], object]) -> list[Any]:
    """Four groups of records like the template, with the widest range of integers that the model accepts.

    Args:
        template: A record, of which only the structure is looked at: shapes and types.
        accepts: Called with records; raises where they are no input for the model.

    Raises:
        ValueError: If the template holds no number that could be replaced.
        Exception: Whatever `accepts` raises for the narrowest range.
    """
    if not _leaves(template):
        raise ValueError(f"a record of type {type(template).__name__} holds no numbers that could be replaced")
    for high in INTEGER_RANGES:
        records = [_map(template, lambda leaf, _: _random(leaf, high)) for _ in KEPT_EIGHTHS]  # noqa: B023
        try:
            accepts(records)
        except Exception:
            if high == INTEGER_RANGES[-1]:
                raise
            continue
        return records
    raise AssertionError("INTEGER_RANGES is empty")


@dataclass(frozen=True)
class Variation:
    """Records in a circumstance that equal ones do not show; a model need not accept them.

    Attributes:
        circumstance: What is varied, in words.
        records: Four groups of records.
        occurs: Whether such records are to be expected; otherwise they are what a loss function would take as well.
    """

    circumstance: str
    records: list[Any]
    occurs: bool = True


def varied_records(records: list[Any], examples: Sequence[Any]) -> Iterator[Variation]:
    """The records in different lengths, and, for each of their integers, with some of them ignored or padding.

    Args:
        records: What `synthetic_records` returned.
        examples: Real records, which are only asked for the negative integers that mark what is to be ignored.
    """
    leaves = _leaves(records[0])
    length = next((_length(leaf) for leaf in leaves if _length(leaf) > 1), 0)
    if length:

        def cut(kept: int) -> Callable[[Any, int], Any]:
            return lambda leaf, _: leaf[: -(-length * kept // 8)] if _length(leaf) == length else leaf

        different = [_map(record, cut(kept)) for record, kept in zip(records, KEPT_EIGHTHS, strict=True)]
        yield Variation("of different lengths", different)
    for place, leaf in enumerate(leaves):
        marked = {value for example in examples for value in _negative_integers(_leaves(example)[place])}
        for special in sorted({*marked, *SPECIAL_INTEGERS}):
            if not _holds(leaf, special):
                continue

            def ignore(index: int, place: int = place, special: int = special) -> Callable[[Any, int], Any]:
                return lambda entry, number: _with_special(entry, special, index) if number == place else entry

            if special >= 0 or special in marked or _length(leaf):
                ignored = [_map(record, ignore(index)) for index, record in enumerate(records)]
                occurs = special >= 0 or special in marked
                yield Variation(f"of which some hold the integer {special}", ignored, occurs)


def _map(record: Any, change: Callable[[Any, int], Any]) -> Any:
    """Change every tensor, array, number and list of numbers; what is none stays as it is."""
    numbers = itertools.count()

    def visit(value: Any) -> Any:
        if _is_leaf(value):
            return change(value, next(numbers))
        if isinstance(value, Mapping):
            return type(value)({key: visit(entry) for key, entry in value.items()})  # type: ignore[call-arg]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(visit(entry) for entry in value))
        if isinstance(value, list | tuple):
            return type(value)(visit(entry) for entry in value)
        return value

    return visit(record)


def _leaves(record: Any) -> list[Any]:
    found: list[Any] = []
    _map(record, lambda leaf, _: found.append(leaf))
    return found


def _is_leaf(value: Any) -> bool:
    if isinstance(value, Tensor | np.generic | bool | int | float):
        return not (isinstance(value, np.generic) and value.dtype.kind not in "biuf")
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    return isinstance(value, list) and bool(value) and all(isinstance(entry, int | float) for entry in value)


def _length(leaf: Any) -> int:
    """Entries along the first dimension; 0 for a single number."""
    if isinstance(leaf, Tensor | np.ndarray):
        return len(leaf) if leaf.ndim else 0
    return len(leaf) if isinstance(leaf, list) else 0


def _negative_integers(leaf: Any) -> set[int]:
    """The few different negative integers of a leaf, none if it holds something else."""
    if not _holds(leaf, 0):
        return set()
    values = torch.as_tensor(leaf).reshape(-1)
    found = set(values[values < 0].tolist()) if values.dtype != torch.uint8 else set()
    return found if len(found) <= 2 else set()


def _random(leaf: Any, high: int) -> Any:
    if isinstance(leaf, Tensor):
        return _random_like(leaf, high)
    if isinstance(leaf, np.ndarray | np.generic):
        values = _random_like(torch.as_tensor(np.asarray(leaf)), high).numpy()
        return values if isinstance(leaf, np.ndarray) else leaf.dtype.type(values)
    if isinstance(leaf, list):
        return [_random(entry, high) for entry in leaf]
    if isinstance(leaf, bool):
        return bool(torch.rand(()) < 0.5)
    return int(torch.randint(high, ())) if isinstance(leaf, int) else float(torch.rand(()))


def _random_like(leaf: Tensor, high: int) -> Tensor:
    if leaf.is_floating_point():
        return torch.rand(leaf.shape).to(leaf.dtype)
    if leaf.dtype == torch.bool:
        return torch.rand(leaf.shape) < 0.5
    if leaf.is_complex():
        return torch.rand(leaf.shape).to(leaf.dtype)
    return torch.randint(min(high, torch.iinfo(leaf.dtype).max), leaf.shape).to(leaf.dtype)


def _holds(leaf: Any, special: int) -> bool:
    """Whether the leaf is made of integers of which one can have that value."""
    if isinstance(leaf, list):
        return all(isinstance(entry, int) and not isinstance(entry, bool) for entry in leaf)
    if isinstance(leaf, Tensor | np.ndarray | np.generic):
        dtype = torch.as_tensor(np.asarray(leaf)).dtype if not isinstance(leaf, Tensor) else leaf.dtype
        if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
            return False
        return torch.iinfo(dtype).min <= special <= torch.iinfo(dtype).max
    return isinstance(leaf, int) and not isinstance(leaf, bool)


def _with_special(leaf: Any, special: int, index: int) -> Any:
    """The record's integers, the last of them special; of single numbers and short rows all, in some records."""
    if isinstance(leaf, list):
        return _with_special(torch.tensor(leaf), special, index).tolist()
    if isinstance(leaf, np.ndarray | np.generic):
        values = _with_special(torch.as_tensor(np.asarray(leaf)), special, index).numpy()
        return values if isinstance(leaf, np.ndarray) else leaf.dtype.type(values)
    if isinstance(leaf, int):
        return int(_with_special(torch.tensor(leaf), special, index))
    group, place = divmod(index, GROUP)
    values = leaf.clone().reshape(-1)
    size = len(values)
    number = size - -(-size * KEPT_EIGHTHS[index] // 8) if size >= 8 else size * (place < group)
    if number:
        values[-number:] = special
    return values.reshape(leaf.shape)
