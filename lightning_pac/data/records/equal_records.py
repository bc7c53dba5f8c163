"""Whether one record stands under several indices: as copies, as of evened-out classes, or read again from a table."""

import time
import warnings
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
from lightning_pac.data.records.rows_of_records import with_rows, with_table
from lightning_pac.data.scattered_rows import SparseRows, containers, sparse_rows
from lightning_pac.data.value_digest import digest

__all__ = ["check_columns", "check_file_names", "copies_of_a_record", "names_of_several", "row_read_again"]

_PARTS = 32  # of a row
_NAMES = 64  # of files, that are looked for
_LABELLED = 2  # parts of an entry that is a file and its class
_SHORT = 16  # tuples and dictionaries of tables
_MOST_TIMES = 1000  # that a row of a table is read in a pass
_LOADED, _SECONDS = 1000, 1.0
_PAIRS = 5  # of equal records, fewer of which may be chance
_KINDS = 16  # of records, without which all are alike and none is a copy
_COPIES = 0.5  # of a record on average, beside itself
_NAMED, _MOST_OF_ONE = 100, 20  # different names among the records, and other records of one name
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
    try:
        arrays = [_largest_array(record) for record in _some_of(dataset)]
        numbers = np.stack([array.ravel()[:: -(-array.size // _LOOKED_AT)] for array in arrays])
    except Exception:  # the loader will say so, or records differ in size and cannot be compared
        return 0.0
    own, counts, pairs, copies = _repeated([digest(array) for array in arrays], len(dataset))
    if pairs < _PAIRS or len(counts) < _KINDS or copies < _COPIES:
        return 0.0
    near = [((numbers[own != of] != row).sum(axis=1) <= _NEAR).sum() for of, row in zip(own, numbers, strict=True)]
    return copies if int(sum(near)) // 2 < pairs else 0.0


def names_of_several(dataset: Any) -> tuple[Any, float] | None:
    """Where a record holds a text that others hold as well, as the name of whom it is about, and how many others do.

    A class has fewer names, or more records of each, and a description is seldom the same.

    Args:
        dataset: A map-style dataset, of which up to 1,000 records are loaded.

    Example:
        >>> names_of_several([(1.0, f"patient {row // 3}") for row in range(900)])
        (1, 2.0)
    """
    try:
        places = [place for place, value in _fields(_some_of(dataset, 1)[0]).items() if isinstance(value, str)]
        fields = [_fields(record) for record in _some_of(dataset)] if places else []
    except Exception:  # records of another kind
        return None
    for place in places:
        texts = [str(of_record.get(place)).encode() for of_record in fields]
        _, counts, pairs, others = _repeated(texts, len(dataset))
        if pairs >= _PAIRS and len(counts) >= _NAMED and _COPIES <= others <= _MOST_OF_ONE:
            return place, round(others, 1)
    return None


def _fields(record: Any) -> dict[Any, Any]:
    return dict(record.items() if isinstance(record, dict) else enumerate(record))


def _some_of(dataset: Any, most: int = _LOADED) -> list[Any]:
    """So many records at most, loaded from a copy for at most a second."""
    chosen = np.random.default_rng(len(dataset)).permutation(len(dataset))[:most].tolist()
    records, started = list[Any](), time.monotonic()
    with apart(dataset) as fresh, own_generators():
        while chosen and time.monotonic() - started < _SECONDS:
            records.append(load_alone(fresh, chosen.pop(), FIRST_SEED))
    return records


def _repeated(values: list[bytes], size: int) -> tuple[NDArray[Any], NDArray[Any], int, float]:
    """The number of each value, how often each comes, pairs that are equal, and how many more a record has in all."""
    _, own, counts = np.unique(np.array(values), return_inverse=True, return_counts=True)
    pairs = int((counts * (counts - 1)).sum()) // 2
    share = 2 * pairs / (len(own) * (len(own) - 1)) if len(own) > 1 else 0.0
    return own, counts, pairs, share * (size - 1)


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
    as those of a `ConcatDataset` and files of several records, are no rows.

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
    for path, table in (*_tables(attributes), *sparse_rows(attributes)):
        if 1 < len(table) < size <= _MOST_TIMES * len(table) and path not in parts and not _holds_parts(dataset, table):
            rows, times = len(table), -(-size // len(table))
            around = ((index, index + rows, index % rows) for index in known)
            beside = ((index, index + 1, index // times) for index in known if (index + 1) % times)
            for pairs in (around, beside):
                pair = next((pair for pair in pairs if pair[1] in known), None)
                if pair is not None and _decides(dataset, path, table, pair[2], pair[:2]):
                    return str(path[0]), times
    return None


def _tables(attributes: Mapping[Any, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Tensors, arrays and lists in attributes, and in short tuples and dictionaries there, with where they are."""
    for name, value in list(attributes.items()):
        if isinstance(value, list) or (isinstance(value, Tensor | np.ndarray) and _has_rows(value)):
            yield (name,), value
        elif isinstance(value, tuple | dict) and len(value) <= _SHORT:
            entries = value.items() if isinstance(value, dict) else enumerate(value)
            yield from (
                ((name, key), one)
                for key, one in entries
                if isinstance(one, list) or (isinstance(one, Tensor | np.ndarray) and _has_rows(one))
            )


def _has_rows(value: Any) -> bool:
    return not getattr(value, "is_nested", False) and value.ndim > 0


def _decides(dataset: Any, path: tuple[Any, ...], table: Any, row: int, indices: tuple[int, ...]) -> bool:
    """Whether a row of a table that the dataset holds, or a part of it, decides the records at all of these indices."""
    other = (row + len(table) // 2) % len(table)
    order = np.arange(len(table))
    order[row] = other
    before = _loaded(dataset, indices)
    if before is None or not _all_differ(before, _loaded(with_rows(dataset, path, table, order), indices)):
        return False
    if isinstance(table, SparseRows) or not isinstance(table[row], Tensor | np.ndarray) or len(table[row].ravel()) < 2:
        return True
    for part in np.array_split(np.arange(len(table[row].ravel())), _PARTS):
        changed = table[row].clone() if isinstance(table[row], Tensor) else table[row].copy()
        changed.ravel()[part] = table[other].ravel()[part]
        held = copy(table) if isinstance(table, list) else table + 0
        held[row] = changed
        if len(part) and _all_differ(before, _loaded(with_table(dataset, path, held), indices)):
            return True
    return False  # each is of a part of its own, as the steps of a series


def _loaded(dataset: Any, indices: tuple[int, ...]) -> list[bytes] | None:
    """Digests of the largest arrays of records; None where they cannot be loaded."""
    try:
        with apart(dataset) as fresh, own_generators():
            return [digest(_largest_array(load_alone(fresh, index, FIRST_SEED))) for index in indices]
    except Exception:  # the loader will say so
        return None


def _all_differ(before: list[bytes], after: list[bytes] | None) -> bool:
    return after is not None and all(one != other for one, other in zip(before, after, strict=True))


def _holds_parts(dataset: Any, table: Any) -> bool:
    """Whether the entries of a table hold records: datasets, or files that it names."""
    entry: Any = None if isinstance(table, SparseRows) else table[0]
    is_name = isinstance(entry, str | Path)
    return isinstance(entry, Dataset) or (is_name and any(_is_file(folder / entry) for folder in _folders(dataset)))


def _folders(dataset: Any) -> list[Path]:
    """The working folder, and those that a dataset names."""
    values = getattr(dataset, "__dict__", {}).values()
    return [Path(), *(Path(value) for value in values if isinstance(value, str | Path))]


def check_file_names(dataset: Any) -> None:
    """Refuse a dataset that lists a file twice, by itself or first in an entry.

    Entries that differ may name several records of one file, such as frames of a video: then these are loaded.

    Raises:
        ValueError: If it does.
    """
    folders = _folders(dataset)
    for value in vars(dataset).values():
        if not isinstance(value, list | tuple) or len(value) != len(dataset):
            continue
        listed: dict[str, list[int]] = {}
        for index, entry in enumerate(value):
            name = entry[0] if isinstance(entry, list | tuple) and entry else entry
            if isinstance(name, str | Path):
                listed.setdefault(str(name), []).append(index)
        again = [name for name, indices in listed.items() if len(indices) > 1][:_NAMES]
        for first, second, *_ in (listed[name] for name in again if any(_is_file(folder / name) for folder in folders)):
            entry, other = value[first], value[second]
            has_more = isinstance(entry, tuple | list) and len(entry) > _LABELLED  # as of questions on one picture
            if _is_same(entry, other) or _load_alike(dataset, first, second, in_all=has_more):
                raise ValueError(f"{type(dataset).__name__} {TWICE}")


def _is_same(entry: Any, other: Any) -> bool:
    return digest(entry) == digest(other)


def _load_alike(dataset: Any, first: int, second: int, in_all: bool) -> bool:
    """Whether the records at two indices are equal, in all or in their largest array, or cannot be loaded."""
    try:
        with apart(dataset) as fresh, own_generators():
            records = [load_alone(fresh, index, FIRST_SEED) for index in (first, second)]
            return _is_same(*(records if in_all else map(_largest_array, records)))
    except Exception:
        return True


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
