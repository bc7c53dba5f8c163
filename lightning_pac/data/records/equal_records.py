"""Whether one record stands under several indices: as copies, as of evened-out classes, or read again from a table."""

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from lightning_utilities.core.apply_func import apply_to_collection
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from lightning_pac.data.records.copied_dataset import apart
from lightning_pac.data.records.overlapping_windows import as_array
from lightning_pac.data.records.record_digest import FIRST_SEED, load_alone, own_generators
from lightning_pac.data.records.repeated_records import TWICE
from lightning_pac.data.scattered_rows import containers
from lightning_pac.data.value_digest import digest

__all__ = ["check_columns", "check_file_names", "copies_of_a_record", "row_read_again"]

_NAMES = 64  # of files, that are looked for
_SHORT = 16  # tuples and dictionaries of tables
_MOST_TIMES = 1000  # that a row of a table is read in a pass
_LOADED, _SECONDS = 1000, 1.0
_PAIRS = 5  # of equal records, fewer of which may be chance
_KINDS = 16  # of records, without which all are alike and none is a copy
_COPIES = 0.5  # of a record on average, beside itself
_LOOKED_AT, _NEAR = 256, 2  # numbers of a record, and how many differ where a category is another one


def copies_of_a_record(dataset: Any) -> float:
    """How many copies a record has on average; 0 if less than half a one, or less than records that are almost equal.

    Short descriptions, such as a few categories, coincide by chance; then many more differ in one or two places, and
    copies are not told apart from them. Up to 1,000 records are loaded for at most a second, from a copy of the dataset
    and each under the same random draws, and their largest arrays compared.

    Args:
        dataset: A map-style dataset.

    Example:
        >>> import torch
        >>> rows = torch.randn(400, 8)
        >>> copies_of_a_record(rows), round(copies_of_a_record(torch.cat([rows, rows[:40].repeat(9, 1)])), 1)
        (0.0, 4.7)
    """
    chosen = np.random.default_rng(len(dataset)).permutation(len(dataset))[:_LOADED].tolist()
    digests, looked_at = list[bytes](), list[NDArray[Any]]()
    started = time.monotonic()
    try:
        with apart(dataset) as fresh, own_generators():
            while chosen and time.monotonic() - started < _SECONDS:
                largest = _largest_array(load_alone(fresh, chosen.pop(), FIRST_SEED))
                digests.append(digest(largest))
                looked_at.append(largest.ravel()[:: -(-largest.size // _LOOKED_AT)])
        numbers = np.stack(looked_at)
    except Exception:  # the loader will say so, or records differ in size and cannot be compared
        return 0.0
    _, own, counts = np.unique(np.array(digests), return_inverse=True, return_counts=True)
    pairs = int((counts * (counts - 1)).sum()) // 2
    share = 2 * pairs / (len(own) * (len(own) - 1)) if len(own) > 1 else 0.0
    copies = share * (len(dataset) - 1)
    if pairs < _PAIRS or len(counts) < _KINDS or copies < _COPIES:
        return 0.0
    near = [((numbers[own != of] != row).sum(axis=1) <= _NEAR).sum() for of, row in zip(own, numbers, strict=True)]
    return copies if int(sum(near)) // 2 < pairs else 0.0


def _largest_array(record: Any) -> NDArray[Any]:
    """That of a record's tensors, arrays and numbers; the first of equal sizes."""
    found: list[NDArray[Any]] = []
    apply_to_collection(record, Tensor, lambda leaf: found.append(as_array(leaf)))
    apply_to_collection(record, np.ndarray, found.append)
    return max(found, key=np.size)


def row_read_again(dataset: Any) -> tuple[str, int] | None:
    """The name of a table that a dataset holds, and under how many indices it gives one row, as to see it more often.

    Asked of tables with fewer rows than there are indices is whether the records at two of these, which would be of one
    row by `i % n` or `i // k`, both change where another row stands in place of that one. Parts that hold the records,
    as those of a `ConcatDataset`, are no rows.

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
    for path, table in _tables(getattr(dataset, "__dict__", {})):
        if path in parts or isinstance(table[0] if len(table) else None, Dataset):
            continue
        if 1 < len(table) < size <= _MOST_TIMES * len(table):
            rows, times = len(table), -(-size // len(table))
            around = ((index, index + rows, index % rows) for index in known)
            beside = ((index, index + 1, index // times) for index in known if (index + 1) % times)
            for pairs in (around, beside):
                pair = next((pair for pair in pairs if pair[1] in known), None)
                if pair is not None and _decides(dataset, path, pair[2], pair[:2]):
                    return str(path[0]), times
    return None


def _tables(attributes: Mapping[Any, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Tensors, arrays and lists in attributes, and in short tuples and dictionaries there, with where they are."""
    for name, value in list(attributes.items()):
        if isinstance(value, list) or (isinstance(value, Tensor | np.ndarray) and value.ndim):
            yield (name,), value
        elif isinstance(value, tuple | dict) and len(value) <= _SHORT:
            entries = value.items() if isinstance(value, dict) else enumerate(value)
            yield from (
                ((name, key), one)
                for key, one in entries
                if isinstance(one, list) or (isinstance(one, Tensor | np.ndarray) and one.ndim)
            )


def _decides(dataset: Any, path: tuple[Any, ...], row: int, indices: tuple[int, int]) -> bool:
    """Whether a row of a table that the dataset holds decides the records at all of these indices."""
    found = []
    for changed in (False, True):
        try:
            with apart(dataset) as fresh, own_generators():
                if changed:
                    held = vars(fresh)
                    table = held[path[0]] if len(path) == 1 else held[path[0]][path[1]]
                    table = copy(table) if isinstance(table, list) else table + 0
                    table[row] = table[(row + len(table) // 2) % len(table)]
                    if len(path) == 1:
                        held[path[0]] = table
                    elif isinstance(held[path[0]], dict):
                        held[path[0]] = {**held[path[0]], path[1]: table}
                    else:
                        entries = [table if place == path[1] else one for place, one in enumerate(held[path[0]])]
                        held[path[0]] = tuple(entries)
                records = [load_alone(fresh, index, FIRST_SEED) for index in indices]
                found.append([digest(_largest_array(record)) for record in records])
        except Exception:  # the loader will say so
            return False
    return all(before != after for before, after in zip(*found, strict=True))


def check_file_names(dataset: Any) -> None:
    """Refuse a dataset that lists a file twice, by itself or first in an entry.

    Raises:
        ValueError: If it does.
    """
    values = vars(dataset).values()
    folders = [Path(), *(Path(value) for value in values if isinstance(value, str | Path))]
    for value in values:
        if not isinstance(value, list | tuple) or len(value) != len(dataset):
            continue
        first = (entry[0] if isinstance(entry, list | tuple) and entry else entry for entry in value)
        names = Counter(str(name) for name in first if isinstance(name, str | Path))
        again = [name for name, times in names.most_common(_NAMES) if times > 1]
        if any(_is_file(folder / name) for name in again for folder in folders):
            raise ValueError(f"{type(dataset).__name__} {TWICE}")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a text that is no name
        return False


def check_columns(dataset: Any, rows: Mapping[str, Mapping[int, int]]) -> None:
    """Refuse columns of which several records have one row, as features of the nearest neighbours of records are.

    Args:
        dataset: A map-style dataset.
        rows: By the names of its tables with a row for each record, the row that decides a record, by its index.

    Raises:
        ValueError: Names the table. Where no array of the dataset says which rows it reads, a warning does.
    """
    straight = [name for name, of_table in rows.items() if all(index == row for index, row in of_table.items())]
    for name, of_table in rows.items():
        if name in straight or not straight:
            continue
        listed = [values for _, values in _tables(vars(dataset)) if _lists(values, of_table)]
        if any(len(np.unique(np.asarray(values))) == len(values) for values in listed):
            continue  # each row goes to one record
        what = (
            f"{type(dataset).__name__} reads {name!r} at other rows than {straight[0]!r}, so that one may count for "
            "several records"
        )
        if listed or len(set(of_table.values())) < len(of_table):
            raise ValueError(f"{what}: let an index read all at one row, and take nothing of others but public data.")
        warnings.warn(f"{what}: make sure that each goes to one record only.", stacklevel=2)


def _lists(values: Any, rows: Mapping[int, int]) -> bool:
    """Whether an array names these rows."""
    try:
        return all(int(values[index]) == row for index, row in rows.items())
    except Exception:  # it holds no numbers
        return False
