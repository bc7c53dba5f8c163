"""Whether a dataset gives one row of a table that it holds under several indices."""

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from lightning_pac.data.records.copied_dataset import apart
from lightning_pac.data.records.record_digest import FIRST_SEED, load_alone, own_generators
from lightning_pac.data.records.rows_of_records import with_rows, with_table
from lightning_pac.data.records.shared_contents.arrays import arrays_in, largest_array
from lightning_pac.data.records.shared_contents.file_names import folders, is_file
from lightning_pac.data.scattered_rows import SparseRows, containers, sparse_rows
from lightning_pac.data.value_digest import digest

__all__ = ["row_read_again"]

_PARTS = 32  # of a row
_MOST_TIMES = 1000  # that a row of a table is read in a pass


def row_read_again(dataset: Any) -> tuple[str, int] | None:
    """The name of a table that a dataset holds, and under how many indices it gives one row, as to see it more often.

    Asked of tables with fewer rows than there are indices is whether the records at two of these, which would be of one
    row by `i % n` or `i // k`, both change where another row stands in place of that one, and a third does not. Parts
    that hold the records, as those of a `ConcatDataset` and files of several records, are no rows.

    Args:
        dataset: A map-style dataset.
    """
    indices = None
    while isinstance(dataset, Subset):
        indices = np.asarray(dataset.indices) if indices is None else np.asarray(dataset.indices)[indices]
        dataset = dataset.dataset
    if isinstance(dataset, ConcatDataset):
        return next(filter(None, map(row_read_again, dataset.datasets)), None)
    size = len(dataset)
    parts = [path for path, _ in containers(getattr(dataset, "__dict__", {}), size)]
    known = set(range(size)) if indices is None else set(indices.tolist())
    attributes = getattr(dataset, "__dict__", {})
    for path, table in (*arrays_in(attributes), *sparse_rows(attributes)):
        if 1 < len(table) < size <= _MOST_TIMES * len(table) and path not in parts and not _holds_parts(dataset, table):
            rows, times = len(table), -(-size // len(table))
            around = ((index % rows, index, index + rows, index + 1) for index in known)
            beside = ((index // times, index, index + 1, index + times) for index in known if (index + 1) % times)
            for ways in (around, beside):
                found = next((way for way in ways if known.issuperset(way[1:])), None)
                if found is not None and _decides(dataset, path, table, *found):
                    return str(path[0]), times
    return None


def _decides(dataset: Any, path: tuple[Any, ...], table: Any, row: int, one: int, same: int, other: int) -> bool:
    """Whether a row of a table that the dataset holds, or a part of it, decides the records at two indices alone.

    A row that decides a third record is no record: the entries of a mean to subtract are of all.
    """
    instead = (row + len(table) // 2) % len(table)
    order = np.arange(len(table))
    order[row] = instead
    before, after = (
        _loaded(changed, (one, same, other)) for changed in (dataset, with_rows(dataset, path, table, order))
    )
    if before is None or after is None or not _both_differ(before, after) or before[2] != after[2]:
        return False
    if isinstance(table, SparseRows) or not isinstance(table[row], Tensor | np.ndarray) or len(table[row].ravel()) < 2:
        return True
    for part in np.array_split(np.arange(len(table[row].ravel())), _PARTS):
        changed = table[row].clone() if isinstance(table[row], Tensor) else table[row].copy()
        changed.ravel()[part] = table[instead].ravel()[part]
        held = copy(table) if isinstance(table, list) else table + 0
        held[row] = changed
        if len(part) and _both_differ(before, _loaded(with_table(dataset, path, held), (one, same))):
            return True
    return False  # each is of a part of its own, as the steps of a series


def _loaded(dataset: Any, indices: tuple[int, ...]) -> list[bytes] | None:
    """Digests of the largest arrays of records; None where they cannot be loaded."""
    try:
        with apart(dataset) as fresh, own_generators():
            return [digest(largest_array(load_alone(fresh, index, FIRST_SEED))) for index in indices]
    except Exception:  # the loader will say so
        return None


def _both_differ(before: list[bytes], after: list[bytes] | None) -> bool:
    return after is not None and all(one != other for one, other in zip(before[:2], after, strict=False))


def _holds_parts(dataset: Any, table: Any) -> bool:
    """Whether the entries of a table hold records: datasets, or files that it names."""
    entry: Any = None if isinstance(table, SparseRows) else table[0]
    is_name = isinstance(entry, str | Path)
    return isinstance(entry, Dataset) or (is_name and any(is_file(folder / entry) for folder in folders(dataset)))
