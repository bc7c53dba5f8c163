"""What the numbers of a field are in the records that are looked at."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.leaves import (
    holds,
    integers_of,
    is_floating,
    length_of,
    size_of,
)
from lightning_pac.data.records import digest

__all__ = [
    "constants_of",
    "different_leaves",
    "halves_of",
    "integers_between",
    "length_fields",
    "marks_of",
    "range_up_to",
    "recurring_in",
    "shown_range",
]

_MOST_NUMBERS = 4096  # of a record, among which one that recurs is looked for


def marks_of(field: Sequence[Any]) -> set[int]:
    """The few different negative integers of a field, none if it holds something else or many of them."""
    found = {value for leaf in field for value in np.unique(integers_of(leaf).numpy()).tolist() if value < 0}
    return found if len(found) <= 2 else set()


def shown_range(field: Sequence[Any], marks: set[int]) -> tuple[int, int] | None:
    """The least and the greatest integer of a field but for marks; None if it holds something else."""
    if not all(holds(leaf, 0) for leaf in field):
        return None
    ends = [part.aminmax() for part in map(integers_of, field) if part.numel()]
    least, greatest = (min(int(end.min) for end in ends), max(int(end.max) for end in ends)) if ends else (0, 0)
    return (min(0, greatest) if marks else least), greatest


def recurring_in(field: Sequence[Any]) -> float | None:
    """Of the numbers that come in several records of a field, the one that is farthest from zero, beside 1 and -1."""
    rows = [torch.as_tensor(leaf).reshape(-1)[:_MOST_NUMBERS] for leaf in field if is_floating(leaf)]
    times = Counter(number for row in rows if not row.is_complex() for number in set(row.tolist()))
    found = [number for number, count in times.items() if count > 1 and abs(number) not in (0, 1, math.inf)]
    return max(found, key=abs, default=None)


def constants_of(field: Sequence[Any], shown: tuple[int, int] | None) -> list[float]:
    """The two numbers that most records of a field hold alone, as an empty mask does.

    Where records lack some integers of others, the least: what is drawn lacks none.
    """
    size = max(map(size_of, field))
    sampled = [torch.as_tensor(leaf).reshape(-1)[:: 1 + size_of(leaf) // _MOST_NUMBERS] for leaf in field]
    if sampled[0].is_complex() or (size == 1 and shown):
        return []  # single integers are of different classes in the groups
    rows = [row.unique() for row in sampled]  # type: ignore[no-untyped-call]
    times = Counter(float(row[0]) for row in rows if len(row) == 1 and bool(row.isfinite()))
    found = [value for value, count in times.most_common(2) if size > 1 or count > 1]
    return [float(shown[0])] if shown and not found and len(set(map(len, rows))) > 1 else found


def range_up_to(least: int, greatest: int, end: int | None) -> tuple[int, int]:
    """The least and the greatest synthetic integer, at least two different ones unless nothing else is accepted."""
    if end is None:
        return least, greatest
    least = min(least, 0)
    return least, min(max(greatest, least + 1), least + end - 1)


def length_fields(fields: Sequence[Sequence[Any]]) -> dict[int, int]:
    """Places of single integers that are the length of another field in every record, and the places of those."""
    found: dict[int, int] = {}
    for place, field in enumerate(fields):
        if all(holds(leaf, 0) and integers_of(leaf).numel() == 1 for leaf in field):
            values = [int(integers_of(leaf)) for leaf in field]
            for other, measured in enumerate(fields):
                if len(set(values)) > 1 and other != place and values == [length_of(leaf) for leaf in measured]:
                    found[place] = other
    return found


def different_leaves(field: Sequence[Any]) -> list[Any]:
    """Those of a field that are like the first in type and shape, each once."""
    alike = [leaf for leaf in field if type(leaf) is type(field[0]) and np.shape(leaf) == np.shape(field[0])]
    return list({digest(leaf): leaf for leaf in alike}.values())


def integers_between(least: int, greatest: int, generator: torch.Generator) -> Tensor:
    """All integers between these, or some of many."""
    if greatest - least < _MOST_NUMBERS:
        return torch.arange(least, greatest + 1)
    return torch.randint(least, greatest, (_MOST_NUMBERS,), generator=generator).unique()  # type: ignore[no-untyped-call,no-any-return]


def halves_of(values: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two parts of different values, without one in common if there are two."""
    order = values[torch.randperm(len(values), generator=generator)]
    middle = len(order) // 2
    return order[middle:], order[: max(middle, 1)]
