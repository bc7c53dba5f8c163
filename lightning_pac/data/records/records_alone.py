"""Whether a record of a dataset is made of itself alone, asked by loading a few."""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from lightning_pac._validation import validated
from lightning_pac.data.records.copied_dataset import copy_of, datasets_inside
from lightning_pac.data.records.drawn_partners import LET_ONE, check_no_drawn_partners
from lightning_pac.data.records.record_digest import FIRST_SEED, digest_of, draws, load_alone, own_generators
from lightning_pac.data.records.remembered_records import check_memory
from lightning_pac.data.records.repeated_records import TWICE, is_same_record
from lightning_pac.data.records.rows_of_records import (
    SEVERAL,
    is_of_far_rows,
    reads,
    row_of,
    takes_others,
    with_rows,
    with_table,
)
from lightning_pac.data.records.shared_contents import check_columns, check_file_names
from lightning_pac.data.records.surroundings import Surroundings
from lightning_pac.data.scattered_rows import containers, linked_objects, sparse_rows, stretches
from lightning_pac.data.tables import offsets, reordered, tables
from lightning_pac.data.value_digest import digest
from lightning_pac.data.with_index import check_records

__all__ = ["check_records_alone"]

_BEFORE = 8  # records that are loaded before another


@validated
def check_records_alone(dataset: Any, of_persons: bool = False) -> None:
    """Refuse a dataset that puts other records into one, or lists one twice under the name of its file.

    A few of its records are loaded, under seeded generators. The index must choose the record, and no draw (a
    bootstrap). Other rows of the tensors, arrays, lists, dictionaries, pandas tables and sparse matrices that it keeps,
    as many as it has records, may not change them (mosaics, triplets, files of others), nor may other rows in many
    containers (`threads[name]["posts"]`) or objects that hold one another. Nor may what was loaded before (running
    statistics), nor may another dataset or index be asked that is not seen from outside (in a closure, a global
    variable, an attribute of an attribute). Datasets inside are checked in the same way.

    Args:
        dataset: A map-style dataset; what cannot be copied or loaded here is left out.
        of_persons: Whether whole persons are protected, so that rows below one key, such as a patient's visits, may go
            into one record.

    Raises:
        TypeError: If it is no map-style dataset.
        ValueError: Says what the dataset does.

    Example:
        >>> check_records_alone([1.0, 2.0, 3.0])
    """
    check_records(dataset, "dataset")
    with own_generators():
        for part in _with_all_inside(dataset):
            if not hasattr(part, "__dict__") or type(part) is TensorDataset or len(cast(Sized, part)) < 3:
                continue
            check_file_names(part)
            size, surroundings = len(cast(Sized, part)), Surroundings(part)
            three, spread = (0, size // 2, size - 1), sorted({size * number // _BEFORE for number in range(_BEFORE)})
            check_memory(part, surroundings)
            with surroundings.copied({}):
                for check, indices in ((_check_asked, three), (_check_chosen, three), (_check_rows, spread)):
                    check(part, indices)
                if not of_persons:
                    _check_containers(part, spread)
                _check_many(part, spread)
                _check_other_indices(part)
                check_no_drawn_partners(part)


def _with_all_inside(dataset: Any) -> list[Any]:
    found = [dataset]
    for part in found:
        found += [inner for inner in datasets_inside(part) if not any(inner is other for other in found)]
    return found[::-1]


def _check_asked(dataset: Any, indices: Sequence[int]) -> None:
    """Other datasets than those seen from outside, or another index of its own."""
    hidden: list[Any] = []
    for index in indices:
        fresh = copy_of(dataset)
        with _noting(fresh, index) as asked:
            digest_of(fresh, index)
        known = [*map(id, datasets_inside(fresh)), id(fresh)]  # it may have opened one just now
        if any(other is fresh for other in asked):
            raise ValueError(
                f"{type(dataset).__name__} asks itself for another index, so a record counts for two: let every "
                "index give a record of its own."
            )
        unknown = [other for other in asked if id(other) not in known]
        for other in unknown:
            if any(other is earlier for earlier in hidden):  # and none that is made anew for each record
                raise ValueError(
                    f"{type(dataset).__name__} loads its records from a {type(other).__name__} that is hidden in a "
                    "closure, a global variable or an attribute of an attribute, where repetitions are not seen: keep "
                    "it in an attribute."
                )
        hidden += unknown


def _check_chosen(dataset: Any, indices: Sequence[int]) -> None:
    """Records that are drawn at random, whatever the index."""
    found = [
        {digest_of(copy_of(dataset), index, seed) for index in indices} for seed in range(FIRST_SEED, FIRST_SEED + 3)
    ]
    drawn = set.union(*found)
    if all(len(outcomes) == 1 for outcomes in found) and len(drawn) > 1 and None not in drawn:
        raise ValueError(
            f"{type(dataset).__name__} draws a record at random, whatever the index, so one may come any number "
            f"of times in a pass: {LET_ONE}, and let sampling= draw."
        )


def _check_rows(dataset: Any, indices: Sequence[int]) -> None:
    """Other rows of its own tables, and rows that their own records have as well, as the captions of false pairs."""
    rows: dict[str, dict[int, int]] = {}
    kinds = (tables, offsets, sparse_rows, linked_objects)
    held = [table for kind in kinds for table in kind(vars(dataset), len(dataset))]
    for path, value in held:
        if with_table(dataset, path, reordered(value, np.arange(len(value)))) is None:
            continue
        for index in indices:
            found = {row_of(dataset, path, value, index, draw) for draw in (1, 2)} - {None}
            seldom = len(found) == 1 and index == indices[0] and takes_others(dataset, path, value, index, *found)
            shared = any(row == row_of(dataset, path, value, row or 0, 1) for row in found - {index, SEVERAL})
            if len(found) > 1 or SEVERAL in found or seldom or shared:
                raise ValueError(_of_several(dataset, path))
            if found and reads(dataset, path, value, index):
                rows.setdefault(str(path[0]), {})[index] = next(row for row in found if row is not None)
    check_columns(dataset, rows)


def _check_containers(dataset: Any, indices: Sequence[int]) -> None:
    """Other rows of containers that hold as many as there are records in all, other containers, and other stretches."""
    for path, found in containers(vars(dataset), len(dataset)):
        for index, draw in itertools.product(indices, (1, 2)):
            number = row_of(dataset, path, found, index, draw)
            if number not in (None, SEVERAL):
                number = row_of(dataset, path, found.rows_of(number), index, draw)
            if number == SEVERAL:
                raise ValueError(_of_several(dataset, path))
    for path, cut in stretches(vars(dataset), len(dataset)):
        if not all(reads(dataset, path, cut, index, own=True) for index in indices):
            continue  # a table of something else, such as of words
        for index, draw in itertools.product(indices, (1, 2)):
            terms = dataset, path, cut, index, draw
            if row_of(*terms) == SEVERAL and is_of_far_rows(*terms):
                raise ValueError(_of_several(dataset, path))


def _of_several(dataset: Any, path: tuple[Any, ...]) -> str:
    return (
        f"{type(dataset).__name__} makes a record of several rows of {path[0]!r}, or several of one, which then counts "
        f"more than once: {LET_ONE}. Where unit=Persons(...) protects whole persons, what is made of one person's rows "
        "alone may be computed before training."
    )


def _check_many(dataset: Any, indices: Sequence[int]) -> None:
    """Records that are asked for together."""
    # A flip may fall twice on the same side.
    if not hasattr(dataset, "__getitems__") or any(draws(copy_of(dataset), index) for index in indices):
        return
    alone = [digest_of(copy_of(dataset), index) for index in indices]
    again = [digest_of(copy_of(dataset), index, FIRST_SEED + 1) for index in indices]  # nor from a generator of its own
    together = []
    for chosen in (indices, indices[::-1]):
        try:
            found = copy_of(dataset).__getitems__(list(chosen))
            together.append([digest(record) for record in found])
        except Exception:  # if they cannot be loaded at all, the loader will say so
            return
    if None not in alone and alone == again and together != [alone, alone[::-1]]:
        raise ValueError(
            f"{type(dataset).__name__} gives other records when several are asked for together (__getitems__) than one "
            f"by one, so a record may count more than once: {LET_ONE}."
        )
    if None not in alone:
        _check_beside_outliers(dataset, list(indices))


def _check_beside_outliers(dataset: Any, indices: list[int]) -> None:
    """Records that are asked for together with one of extreme, missing or zero numbers."""
    *others, last = indices
    for path, value in tables(vars(dataset), len(dataset)):
        if not isinstance(value, torch.Tensor | np.ndarray) or not torch.as_tensor(value[:1]).is_floating_point():
            continue
        found = set()
        for row in (value[last], value[last] * 0 + 1e6, value[last] * 0 - 1e6, value[last] * 0, value[last] * math.nan):
            changed = value.clone() if isinstance(value, torch.Tensor) else value.copy()
            changed[last] = row
            own = with_table(dataset, path, changed)
            try:
                records = own.__getitems__([*others, last])[: len(others)]
            except Exception:  # it may refuse such numbers, or have no copy
                continue
            found.add(tuple(map(digest, records)))
        if len(found) > 1:
            raise ValueError(
                f"{type(dataset).__name__} gives other records beside one of extreme numbers (__getitems__), so that "
                f"one moves all that are loaded with it: {LET_ONE}."
            )


def _check_other_indices(dataset: Any) -> None:
    """Records under several indices: neighbours, or those a table's length or a fraction of all records apart."""
    size = len(dataset)
    held = {len(value) for _, value in tables(vars(dataset), None)}
    held |= {list.__len__(dataset)} if isinstance(dataset, list) else set()
    for distance in sorted({1, size // 2, size // 3, *held}):
        # Of twelve, so that whole divisions by 2, 3, 4 and 6 begin a new record there.
        unit, room = 12 if distance == 1 else 1, size - distance
        starts = sorted({unit * (number * room // (unit * _BEFORE)) for number in range(_BEFORE)}) if room > 0 else []
        if len(starts) > 1 and _repeats(dataset, [(start, start + distance) for start in starts]):
            raise ValueError(f"{type(dataset).__name__} {TWICE}")


def _repeats(dataset: Any, pairs: list[tuple[int, int]]) -> bool:
    """Whether each pair is one record; different records may be equal, also all at some distance, as in a full design.

    Those are made of rows of their own. What is the same is made of one place in memory, or of one row of a table.
    """
    contents, at_one_place = set[bytes](), []
    for pair in pairs:
        kept, records, digests = copy_of(dataset), [], set()
        try:
            for index in pair:
                # Both are held on to, so that what they are made of lies at two places unless it is the same.
                records.append(load_alone(kept, index, FIRST_SEED))
                digests.add(digest(records[-1]))
        except Exception:  # if they cannot be loaded at all, the loader will say so
            return False
        if len(digests) > 1 or digests <= contents:
            return False
        contents |= digests
        at_one_place.append(is_same_record(*records))
    return all(
        (at_one_place[number] or _share_a_row(dataset, *pair, pairs[number - 1][0]))
        and not all(_has_own_row(dataset, index) for index in pair)
        for number, pair in enumerate(pairs[:2])
    )


def _has_own_row(dataset: Any, index: int) -> bool:
    """Whether a record changes with the row of its own index, be it a number by which another row is looked up."""
    own = digest_of(copy_of(dataset), index)
    for path, value in tables(vars(dataset), len(dataset)):
        for number in range(_BEFORE):
            order = np.arange(len(value))
            order[index] = (index + 1 + number * len(value) // _BEFORE) % len(value)
            if digest_of(with_rows(dataset, path, value, order), index) != own:
                return True
    return False


def _share_a_row(dataset: Any, first: int, second: int, other: int) -> bool:
    """Whether one row of a table decides two records and not another, as a mean to subtract does."""
    for path, value in tables(vars(dataset), None):
        rows = len(value)

        def changes(index: int, start: int, stop: int, path: Any = path, value: Any = value, rows: int = rows) -> bool:
            order = np.arange(rows)
            order[start:stop] = np.roll(order, rows // 2)[start:stop]
            before = digest_of(copy_of(dataset), index)
            found = digest_of(with_rows(dataset, path, value, order), index)
            return before is not None and found is not None and found != before

        start, stop = 0, rows
        if not changes(first, start, stop):
            continue
        while stop - start > 1:
            middle = (start + stop) // 2
            start, stop = (start, middle) if changes(first, start, middle) else (middle, stop)
        if all(changes(index, start, stop) for index in (first, second)) and not changes(other, start, stop):
            return True
    return False


@contextmanager
def _noting(dataset: Any, index: int) -> Iterator[list[Any]]:
    """Note which datasets of torch are asked by this one for a record, itself if for another."""
    asked, depth = list[Any](), 0

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def getitem(self: Any, key: Any) -> Any:
            nonlocal depth
            if self is dataset and _is_only(key, index):
                return method(self, key)
            if not depth:
                asked.append(self)
            depth += 1
            try:
                return method(self, key)
            finally:
                depth -= 1

        return getitem

    names = "__getitem__", "__getitems__"  # a Subset asks another one for several at once
    kinds = _kinds(Dataset)
    methods = [(kind, name, vars(kind)[name]) for kind in kinds for name in names if callable(vars(kind).get(name))]
    try:
        for kind, name, method in methods:
            setattr(kind, name, noting(method))
        yield asked
    finally:
        for kind, name, method in methods:
            setattr(kind, name, method)


def _is_only(key: Any, index: int) -> bool:
    """Whether a key is that index, or all of several that are asked for at once."""
    if isinstance(key, list | tuple) or (isinstance(key, np.ndarray) and key.ndim == 1):
        return list(key) == [index]
    return hasattr(key, "__index__") and operator.index(key) == index


def _kinds(kind: type) -> set[type]:
    return {kind}.union(*map(_kinds, kind.__subclasses__()))
