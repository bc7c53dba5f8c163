"""Rows that a dataset keeps in several containers, in sparse matrices, or in objects that name one another."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from lightning_pac.data.quiet_copies import shallow_copied
from lightning_pac.data.tables import LARGEST, holds_integers, is_sparse, reordered, tables

__all__ = [
    "Containers",
    "LinkedObjects",
    "RowsOfOne",
    "SparseRows",
    "Stretches",
    "containers",
    "linked_objects",
    "sparse_rows",
    "stretches",
]

_DEPTH = 3  # of containers below one another
_MOST = 2**14  # containers, or objects
_LOOKED_AT = 64  # objects that may name one another
_EACH = None  # in a pattern: all entries of a container
_FLAT = (str, bytes, range, nn.Module, Dataset)

Pattern = tuple[Any, ...]


class SparseRows:
    """The rows of a sparse matrix of SciPy or torch.

    Args:
        matrix: The matrix.
    """

    def __init__(self, matrix: Any) -> None:
        self._matrix: Any = matrix

    def __len__(self) -> int:
        return int(self._matrix.shape[0])

    def reordered(self, order: NDArray[Any]) -> Any:
        """The matrix whose row number i is the row that order says for i."""
        matrix = self._matrix
        if not is_sparse(matrix):
            return type(matrix)(matrix.tocsr()[order])
        moved = matrix.to_sparse_coo().index_select(0, torch.from_numpy(order))
        return moved.to_sparse_csr() if matrix.layout == torch.sparse_csr else moved


class Stretches:
    """Stretches of one length of a table or of bytes, one for each record, behind a header and before what is left.

    Args:
        table: The table or bytes.
        rows: How many records there are.
        header: How many rows of the table come before them.
        length: Of each, in rows of the table.
    """

    def __init__(self, table: Any, rows: int, header: int, length: int) -> None:
        self._table, self._rows, self._header, self._length = table, rows, header, length

    def __len__(self) -> int:
        return self._rows

    def reordered(self, order: NDArray[Any]) -> Any:
        """The table whose stretch number i is the one that order says for i."""
        places, first = np.arange(len(self._table)), self._header
        stretches = places[first : first + self._rows * self._length].reshape(self._rows, -1)
        places[first : first + stretches.size] = stretches[order].ravel()
        if isinstance(self._table, bytes | bytearray):
            return type(self._table)(np.frombuffer(self._table, np.uint8)[places].tobytes())
        return reordered(self._table, places)


class LinkedObjects:
    """Objects in a list or a dictionary, of which some lead to others: a comment to its parent, a frame to its scene.

    Args:
        holder: The list or dictionary.
    """

    def __init__(self, holder: Any) -> None:
        self._holder, self._entries = holder, list(_children(holder))

    def __len__(self) -> int:
        return len(self._entries)

    def reordered(self, order: NDArray[Any]) -> Any:
        """A copy in which the object number i holds what the one that order says for i held."""
        fresh = {id(entry): shallow_copied(entry) for entry in self._entries}

        def own(value: Any, depth: int = _DEPTH) -> Any:
            if id(value) in fresh or not depth:
                return fresh.get(id(value), value)
            if type(value) in (list, tuple):
                return type(value)(own(part, depth - 1) for part in value)
            if _has_attributes(value):  # between two of the objects
                fresh[id(value)] = between = shallow_copied(value)
                vars(between).update({name: own(part, depth - 1) for name, part in vars(value).items()})
                return between
            return value

        for entry, row in zip(self._entries, order, strict=True):
            vars(fresh[id(entry)]).update({name: own(part) for name, part in vars(self._entries[row]).items()})
        copies = [fresh[id(entry)] for entry in self._entries]
        is_dict = isinstance(self._holder, dict)
        return dict(zip(self._holder, copies, strict=True)) if is_dict else type(self._holder)(copies)


class Containers:
    """Containers in which the rows of a dataset lie, such as a list of posts in each of many threads.

    Args:
        holder: What they lie in.
        pattern: The keys that lead to them; None for all.
    """

    def __init__(self, holder: Any, pattern: Pattern) -> None:
        self._holder, self._pattern, self._found = holder, pattern, list(_at(holder, pattern))

    def __len__(self) -> int:
        return len(self._found)

    def reordered(self, order: NDArray[Any]) -> Any:
        """A copy in which the container number i is the one that order says for i."""
        return _with(self._holder, self._pattern, iter([self._found[row] for row in order]))

    def rows_of(self, number: int) -> "RowsOfOne":
        """The rows of one container."""
        return RowsOfOne(self._holder, self._pattern, self._found, number)


class RowsOfOne:
    """The rows of one of several containers.

    Args:
        holder: What they lie in.
        pattern: The keys that lead to them.
        found: The containers.
        number: Of the one that is meant.
    """

    def __init__(self, holder: Any, pattern: Pattern, found: Sequence[Any], number: int) -> None:
        self._holder, self._pattern, self._found, self._number = holder, pattern, found, number

    def __len__(self) -> int:
        return len(self._found[self._number])

    def reordered(self, order: NDArray[Any]) -> Any:
        """A copy in which row i of that container is the row that order says for i."""
        moved = reordered(self._found[self._number], order)
        others = [moved if number == self._number else other for number, other in enumerate(self._found)]
        return _with(self._holder, self._pattern, iter(others))


def sparse_rows(held: Mapping[str, Any], rows: int | None = None) -> Iterator[tuple[tuple[Any, ...], SparseRows]]:
    """The sparse matrices among some attributes with that many rows, or any, with their places."""
    for name, value in held.items():
        is_matrix = (hasattr(type(value), "tocsr") or is_sparse(value)) and len(value.shape) == 2
        if is_matrix and rows in (None, value.shape[0]):
            yield (name,), SparseRows(value)


def stretches(held: Mapping[str, Any], rows: int) -> Iterator[tuple[tuple[Any, ...], Stretches]]:
    """The tables and bytes among some attributes that are longer than so many records, with their places.

    What more they hold may be a header, the rows of another part before or behind those of the records, or a place at
    the start: each is tried.
    """
    found = [((name,), value) for name, value in held.items() if isinstance(value, bytes | bytearray)]
    starts = {value for value in held.values() if type(value) is int}
    for path, value in (*found, *tables(held, range(rows + 1, LARGEST))):
        size, is_bytes = len(value), isinstance(value, bytes | bytearray)
        are_indices = not is_bytes and getattr(value, "ndim", 1) == 1 and holds_integers(value)
        if are_indices or not rows < size <= LARGEST:
            continue
        if not is_bytes:
            for header in sorted(start for start in {0, 1, size - rows, *starts} if 0 <= start <= size - rows):
                yield path, Stretches(value, rows, header, 1)
        if size >= 2 * rows:
            yield path, Stretches(value, rows, size % rows, size // rows)


def linked_objects(held: Mapping[str, Any], rows: int) -> Iterator[tuple[tuple[Any, ...], LinkedObjects]]:
    """The lists and dictionaries among some attributes of so many objects that hold one another, with their places."""
    for name, value in held.items():
        if type(value) not in (list, tuple, dict) or len(value) != rows or rows > _MOST:
            continue
        entries = list(_children(value))
        known = set(map(id, entries))
        if len(known) == rows and all(_has_attributes(entry) for entry in entries):
            parts = entries[:: -(-rows // _LOOKED_AT)]
            for _ in range(_DEPTH):
                parts = [inner for part in parts for inner in _inside(part)][:_MOST]
                if not known.isdisjoint(map(id, parts)):
                    yield (name,), LinkedObjects(value)
                    break


def _inside(value: Any) -> list[Any]:
    """What a list or an object holds."""
    if type(value) in (list, tuple):
        return list(value)
    return list(vars(value).values()) if _has_attributes(value) else []


def containers(held: Mapping[str, Any], rows: int) -> Iterator[tuple[tuple[Any, ...], Containers]]:
    """Several containers below one attribute with that many rows in all, with the place of the attribute."""
    for name, value in held.items():
        groups = [((), [value])] if _is_holder(value) else []
        for _ in range(_DEPTH):
            groups = [below for pattern, holders in groups for below in _below(pattern, holders)]
            for pattern, found in groups:
                if len(found) > 1 and not _are_records(found) and sum(map(len, found)) == rows:
                    yield (name,), Containers(value, pattern)


def _below(pattern: Pattern, holders: Sequence[Any]) -> Iterator[tuple[Pattern, list[Any]]]:
    """What lies in holders: what has one name in each of several, or all of it."""
    first = holders[0]
    if not all(_is_holder(holder) for holder in holders):
        return
    named = [vars(holder) if _has_attributes(holder) else holder for holder in holders]
    is_named = len(holders) > 1 and all(isinstance(one, dict) and one.keys() == named[0].keys() for one in named)
    keys = list(named[0]) if is_named or _has_attributes(first) else [_EACH]
    for key in keys:
        found = [part for holder in holders for part in _at(holder, (key,))]
        if 0 < len(found) <= _MOST and all(_is_container(part) for part in found):
            yield (*pattern, key), found


def _are_records(found: Sequence[Any]) -> bool:
    """Whether these are no containers of one kind, or are records: tuples, like fields, and vectors of one length."""
    first = found[0]
    if len({type(one) for one in found}) > 1:
        return True
    is_named = isinstance(first, dict) and all(one.keys() == first.keys() for one in found)
    are_vectors = isinstance(first, Tensor | np.ndarray) and len({one.shape for one in found}) == 1 == first.ndim
    return isinstance(first, tuple) or is_named or are_vectors or _has_attributes(first)


def _at(holder: Any, pattern: Pattern) -> Iterator[Any]:
    if not pattern:
        yield holder
        return
    key, *below = pattern
    for part in _children(holder) if key is _EACH else [(vars(holder) if _has_attributes(holder) else holder)[key]]:
        yield from _at(part, tuple(below))


def _with(holder: Any, pattern: Pattern, parts: Iterator[Any]) -> Any:
    """A copy of a holder in which others lie at the places of a pattern, in their order."""
    if not pattern:
        return next(parts)
    key, *below = pattern
    if isinstance(holder, dict):
        return {
            name: _with(part, tuple(below), parts) if key in (_EACH, name) else part for name, part in holder.items()
        }
    if type(holder) in (list, tuple):
        return type(holder)(_with(part, tuple(below), parts) for part in holder)
    fresh = shallow_copied(holder)
    vars(fresh)[key] = _with(vars(holder)[key], tuple(below), parts)
    return fresh


def _children(holder: Any) -> Any:
    return holder.values() if isinstance(holder, dict) else holder


def _is_holder(value: Any) -> bool:
    return isinstance(value, dict) or type(value) in (list, tuple) or _has_attributes(value)


def _is_container(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return not is_sparse(value) and not getattr(value, "is_nested", False) and value.ndim > 0
    return _is_holder(value) or hasattr(type(value), "iloc")


def _has_attributes(value: Any) -> bool:
    """Whether it is an object of a class that was written for a purpose, with what it holds in attributes."""
    known = isinstance(value, (*_FLAT, Tensor, np.ndarray, type)) or hasattr(type(value), "iloc") or callable(value)
    return not known and hasattr(value, "__dict__") and not isinstance(value, dict | list | tuple)
