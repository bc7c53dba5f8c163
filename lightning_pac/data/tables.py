"""Rows of the tables that a dataset keeps in its attributes, and copies in which they are others."""

import array
import copy
from collections import UserDict, deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler

from lightning_pac.data.quiet_copies import shallow_copied

__all__ = [
    "LARGEST",
    "attributes",
    "datasets_below",
    "holds_integers",
    "is_of",
    "is_sparse",
    "offsets",
    "others_of",
    "own_tables",
    "reordered",
    "repeat_rows",
    "repeat_rows_held",
    "replaced",
    "tables",
    "tables_of",
]

_DEPTH = 3  # of attributes and keys below one another
_FEW = 16  # tables in a list of them
_ARCHIVE = 2**24  # bytes of an archive that is looked into
LARGEST = 2**28
"""Bytes of a table of which a second one is made."""


def tables(value: Any, rows: int | range | None, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Everything in a dictionary with that many rows, or two and more, and its place: attributes and keys.

    Args:
        value: The attributes of a dataset.
        rows: How many rows a table has, or may have; None for any number.
        path: Where the dictionary lies.
    """
    parts = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, part in list(parts):
        if isinstance(part, Dataset):
            continue
        if _is_table(part, rows):
            yield (*path, key), part
        elif len(path) < _DEPTH:
            yield from tables(_parts_of(part), rows, (*path, key))


def _parts_of(value: Any) -> Any:
    """The entries of a short list, or by their names those of a mapping and the attributes of an object."""
    if type(value) in (list, tuple):
        return value if len(value) <= _FEW else ()
    if isinstance(value, tuple):
        return dict(zip(getattr(type(value), "_fields", ()), value, strict=False))
    if isinstance(value, dict | UserDict | MappingProxyType):
        return value
    if isinstance(value, NpzFile):  # it loads all of an array each time
        files: list[Any] = [] if value.zip is None else value.zip.infolist()
        return value if files and sum(file.file_size for file in files) <= _ARCHIVE else {}
    return {} if type(value).__module__ == "builtins" else attributes(value)


def attributes(value: Any) -> dict[str, Any]:
    """What an object holds in its dictionary and its slots.

    Args:
        value: Of any kind.
    """
    slots = [name for kind in type(value).__mro__ for name in _names(vars(kind).get("__slots__", ()))]
    held = {}
    for name in slots:
        with suppress(Exception):  # it was never set, or has another name there
            held[name] = object.__getattribute__(value, name)
    return held | getattr(value, "__dict__", {})


def _names(slots: Any) -> Collection[str]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def offsets(value: Any, rows: int) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The tables of where so many records begin, and the last one ends, in a buffer that holds all."""
    for path, table in tables(value, rows + 1):
        if holds_integers(table) and np.ndim(table) == 1 and bool((np.diff(np.asarray(table)) >= 0).all()):
            yield path, table


def replaced(holder: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a dictionary, a list or an object in which what lies at a path is another value.

    Raises:
        Exception: If there is nothing at the path, or an object on it cannot be copied.
    """
    if not path:
        return value
    key, *below = path
    if isinstance(holder, Mapping):
        return {**holder, key: replaced(holder[key], tuple(below), value)}
    if isinstance(holder, tuple) and hasattr(type(holder), "_replace"):
        named: Any = holder
        return named._replace(**{key: replaced(getattr(named, key), tuple(below), value)})
    if type(holder) in (list, tuple):
        return type(holder)([*holder[:key], replaced(holder[key], tuple(below), value), *holder[key + 1 :]])
    found = shallow_copied(holder)
    if found is holder:
        raise TypeError(f"A {type(holder).__name__} has no copies.")
    part = replaced(attributes(holder)[key], tuple(below), value)
    if key in getattr(found, "__dict__", {}):
        vars(found)[key] = part
    else:
        object.__setattr__(found, key, part)
    return found


def reordered(value: Any, order: np.ndarray[Any, Any]) -> Any:
    """A table whose row number i is the row that order says for i."""
    if hasattr(value, "reordered"):
        return value.reordered(order)
    if isinstance(value, Tensor | np.ndarray):
        return value[order if isinstance(value, np.ndarray) else torch.from_numpy(order)]
    if isinstance(value, dict):
        entries = list(value.values())
        return dict(zip(value, (entries[row] for row in order), strict=True))
    if hasattr(type(value), "iloc"):  # a table of pandas, whose rows keep their names
        moved = value.iloc[order]
        moved.index = value.index
        return moved
    entries = [value[row] for row in order]
    return array.array(value.typecode, entries) if isinstance(value, array.array) else type(value)(entries)


def is_sparse(value: Any) -> bool:
    """Whether it is a sparse tensor."""
    return isinstance(value, Tensor) and value.layout in (torch.sparse_coo, torch.sparse_csr)


def _is_table(value: Any, rows: int | range | None) -> bool:
    """Whether it is a tensor, an array, a list, a queue, a dictionary or a table of pandas with that many rows."""
    if is_sparse(value) or (isinstance(value, Tensor) and value.is_nested):
        return False
    if isinstance(value, Tensor | np.ndarray):
        return bool(value.ndim) and _has_rows(value, rows) and value.nbytes <= LARGEST
    plain = type(value) in (list, tuple, dict, deque, array.array) or hasattr(type(value), "iloc")
    return plain and _has_rows(value, rows) and 256 * len(value) <= LARGEST


def _has_rows(value: Any, rows: int | range | None) -> bool:
    if isinstance(rows, range):
        return len(value) in rows
    return len(value) == rows if rows is not None else len(value) > 1


def holds_integers(value: Any) -> bool:
    """Whether its rows are integers, which may be indices."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() and value.dtype != torch.uint8
    if isinstance(value, np.ndarray):
        return value.dtype.kind not in "f" and value.dtype != np.uint8
    if hasattr(type(value), "iloc") or hasattr(value, "reordered"):
        return False
    entry = next(iter(value.values() if isinstance(value, dict) else value), None)
    return isinstance(entry, int | np.integer)


def datasets_below(dataset: Any) -> list[Any]:
    """A dataset and those that it takes its records from, whatever their attributes are called."""
    found: list[Any] = []
    waiting = [dataset]
    while waiting:
        part = waiting.pop(0)
        if not any(part is other for other in found):
            found.append(part)
            for value in getattr(part, "__dict__", {}).values():
                several = list(value) if type(value) in (list, tuple) and len(value) <= _FEW else [value]
                waiting += [inner for inner in several if isinstance(inner, Dataset)]
    return found


def tables_of(dataset: Any) -> list[Any]:
    """What has a row for each record of a dataset, or of one below it, and can be written to; a table itself.

    The positions that a `Subset` keeps are no data.
    """
    if isinstance(dataset, Tensor | np.ndarray):
        return [dataset]
    return [value for part in datasets_below(dataset) for value in own_tables(part)]


def repeat_rows(dataset: Any) -> None:
    """Make every second row of a dataset's tables a copy of the first, in place."""
    for value in tables_of(dataset):
        _repeat(value)


def repeat_rows_held(holder: Any, rows: int) -> None:
    """The same for what an object holds with so many rows, also in datasets.

    Args:
        holder: The object.
        rows: How many rows a table has.
    """
    held = [part for value in vars(holder).values() for part in (value if type(value) in (list, tuple) else (value,))]
    found = [value for _, value in tables(vars(holder), rows) if type(value) is not tuple]
    found += [value for part in held if isinstance(part, Dataset) for value in tables_of(part) if len(value) == rows]
    for value in {id(value): value for value in found}.values():
        _repeat(value)


def _repeat(value: Any) -> None:
    order = [row - row % 2 * row for row in range(len(value))]
    if hasattr(value, "isetitem"):
        for number in range(value.shape[1]):
            value.isetitem(number, value.iloc[:, number].array.take(order))
    elif hasattr(type(value), "iloc"):
        value.iloc[:] = value.array.take(order)
    elif isinstance(value, dict):
        first = next(iter(value.values()))
        value.update(dict.fromkeys(list(value)[1::2], first))
    else:
        with torch.no_grad():
            value[1::2] = [value[0]] * (len(value) // 2) if isinstance(value, list) else copy.deepcopy(value[0])


def is_of(dataset: Any, trained: Any) -> bool:
    """Whether a dataset gives records of one that is trained on as a whole."""
    whole = [part for part in datasets_below(trained) if len(part) == len(trained)]
    held = [*whole, *(value for part in whole for value in own_tables(part))]
    given = [part for below in datasets_below(dataset) for part in (below, *own_tables(below))]
    return any(one is other or _is_same_memory(one, other) for one in given for other in held)


def own_tables(dataset: Any) -> list[Any]:
    """What of a dataset itself has a row for each record, and can be written to."""
    held = {name: value for name, value in getattr(dataset, "__dict__", {}).items() if name != "indices"}
    found = tables(held, len(dataset)) if held and hasattr(dataset, "__len__") else ()
    return [value for _, value in found if type(value) is not tuple]


def _is_same_memory(one: Any, other: Any) -> bool:
    both = isinstance(one, Tensor) and isinstance(other, Tensor)
    return both and one.numel() > 0 and one.shape == other.shape and one.data_ptr() == other.data_ptr()


def others_of(loader: Any, holders: Collection[Any]) -> list[Any]:
    """Datasets of the loader's records that some objects hold, alone or in loaders.

    Args:
        loader: Of the records.
        holders: The objects, of which attributes and lists in them are looked at.
    """
    if isinstance(getattr(loader.batch_sampler, "sampler", None), SubsetRandomSampler):
        return []
    found = []
    for holder in holders:
        for value in vars(holder).values():
            for part in value if type(value) in (list, tuple) else (value,):
                dataset = part.dataset if isinstance(part, DataLoader) else part
                if isinstance(dataset, Dataset) and dataset is not loader.dataset and _is_same(dataset, loader.dataset):
                    found.append(dataset)
    return found


def _is_same(dataset: Any, trained: Any) -> bool:
    """Whether two datasets have tables in common, or differ in their transforms only."""
    names, other = (_plain_values(part) for part in (dataset, trained))
    is_twin = (
        type(dataset) is type(trained) and names == other and any(isinstance(v, str | Path) for v in names.values())
    )
    return is_twin or is_of(dataset, trained)


def _plain_values(dataset: Any) -> dict[str, Any]:
    return {
        name: value for name, value in getattr(dataset, "__dict__", {}).items() if isinstance(value, str | Path | int)
    }
