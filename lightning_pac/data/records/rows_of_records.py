"""Which rows of its dataset's tables a record is made of, asked by loading it from copies with other rows."""

import bisect
import functools
from collections.abc import Collection
from typing import Any

import numpy as np

from lightning_pac.data.quiet_copies import shallow_copied
from lightning_pac.data.records.copied_dataset import copy_of
from lightning_pac.data.records.partial_copies import copied_apart
from lightning_pac.data.records.record_digest import FIRST_SEED, digest_of
from lightning_pac.data.tables import holds_integers, reordered, replaced

__all__ = ["SEVERAL", "is_of_far_rows", "reads", "row_of", "takes_others", "with_rows", "with_table"]

SEVERAL = -1
"""In place of the number of a row: a record is made of more than one."""

_DRAWS = 24  # loads of a record that may be mixed with others now and then


def row_of(dataset: Any, path: tuple[Any, ...], value: Any, index: int, draw: int) -> int | None:
    """The row of a table that a record is made of; `SEVERAL`, or None where it is not made twice in the same way.

    Args:
        dataset: A dataset.
        path: Where it keeps the table.
        value: The table.
        index: That of the record.
        draw: Number of the draw, from 1, by the global generators and by those of the dataset.
    """
    loaded = functools.partial(_drawn, index=index, draw=draw)
    rows, own = len(value), loaded(copy_of(dataset))
    if own is None or own != loaded(copy_of(dataset)):
        return None

    def same_with(kept: range) -> bool:
        """Whether the record stays what it is where these rows stay, and all others become copies of one."""
        return loaded(with_rows(dataset, path, value, _order_with(value, index, kept))) == own

    if index < rows and same_with(range(index, index + 1)):
        return index
    start, stop = 0, rows
    while stop - start > 1:
        middle = (start + stop) // 2
        if same_with(range(start, middle)):
            stop = middle
        elif same_with(range(middle, stop)):
            start = middle
        else:
            return SEVERAL
    return start


def _drawn(dataset: Any, index: int, draw: int) -> bytes | None:
    """A digest of a record as it is drawn at that time."""
    return [digest_of(dataset, index, FIRST_SEED + draw - 1) for _ in range(draw)][-1]


def is_of_far_rows(dataset: Any, path: tuple[Any, ...], value: Any, index: int, draw: int) -> bool:
    """Whether a record of several rows is made of some that are not beside each other, or of most: not of a window.

    Arguments are those of `row_of`.
    """
    loaded = functools.partial(_drawn, index=index, draw=draw)
    rows, own = len(value), loaded(copy_of(dataset))
    filling = _order_with(value, index, range(0))

    def same_with(kept: Collection[int]) -> bool:
        order = filling.copy()
        order[list(kept)] = list(kept)
        return loaded(with_rows(dataset, path, value, order)) == own

    first = bisect.bisect_left(range(rows), True, key=lambda start: not same_with(range(start, rows))) - 1
    last = bisect.bisect_left(range(rows), True, key=lambda end: same_with(range(end + 1)))
    if last - first >= rows // 2:
        return True
    return last - first > 1 and same_with({first, last, index})


def takes_others(dataset: Any, path: tuple[Any, ...], value: Any, index: int, row: Any) -> bool:
    """Whether a record that is made of one row takes others in, too, in some of many draws."""

    def loaded(fresh: Any) -> list[bytes | None]:
        return [digest_of(fresh, index, FIRST_SEED + number) for number in range(_DRAWS)]

    own = loaded(copy_of(dataset))
    if row == SEVERAL or len(set(own)) == 1 or own != loaded(copy_of(dataset)):
        return False
    found = loaded(with_rows(dataset, path, value, _order_with(value, index, range(row, row + 1))))
    return any(other not in (one, None) for one, other in zip(own, found, strict=True))


def reads(dataset: Any, path: tuple[Any, ...], value: Any, index: int, own: bool = False) -> bool:
    """Whether a record is made of any row of the table, or of its own."""
    order = _order_with(value, index, range(0))
    if own:
        order = np.where(np.arange(len(value)) == index, order, np.arange(len(value)))
    without = with_rows(dataset, path, value, order)
    return digest_of(without, index, FIRST_SEED) != digest_of(copy_of(dataset), index, FIRST_SEED)


def _order_with(value: Any, index: int, kept: range) -> np.ndarray[Any, Any]:
    """An order in which some rows of a table stay, for the record with an index, and all others are copies of one."""
    rows = len(value)
    another = (3 * index + rows // 3) % rows  # no partner at one distance is spared at every index
    order = np.full(rows, another if another != index else (index + rows // 2) % rows)
    order[kept.start : kept.stop] = kept
    if index in kept:
        # Where a record's numbers begin and end may be two rows of integers.
        beside = [row % rows for row in (index - 1, index, index + 1)] if holds_integers(value) else [index]
        order[beside] = beside
    return order


def with_rows(dataset: Any, path: tuple[Any, ...], value: Any, order: np.ndarray[Any, Any]) -> Any:
    """A copy of the dataset in which row i of a table is the row that order says."""
    return with_table(dataset, path, reordered(value, order))


def with_table(dataset: Any, path: tuple[Any, ...], table: Any) -> Any:
    """A copy of the dataset with another table, None where it has none, as behind an object that gives itself."""
    memo: dict[int, Any] = {}
    name, *below = path
    try:
        changed = copy_of(dataset, memo)
        changed = shallow_copied(dataset) if changed is dataset else changed
        try:
            part = replaced(vars(changed)[name], tuple(below), table)
        except Exception:  # a file that its copies open anew
            part = replaced(copied_apart(vars(dataset)[name], memo), tuple(below), table)
    except Exception:
        return None
    if changed is dataset:
        return None
    changed.__dict__[name] = part
    return changed
