"""Whether a dataset gives a record under two indices, whatever is wrapped around the records."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from lightning_pac.data.quiet_copies import shallow_copied
from lightning_pac.data.records.copied_dataset import apart, datasets_in, datasets_inside

__all__ = [
    "TWICE",
    "check_each_record_once",
    "check_map_style",
    "is_same_record",
    "load_records",
    "positions_of_records",
]

TWICE = "holds records twice, so a record counts more than once in a pass: list each once."

_Keys = NDArray[np.uint64]

LOADED = 8

# Odd, so that products modulo 2^64 of what differs differ; two keys meet by chance once in 2^64 pairs.
_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F, 0xE7037ED1A0B428DB)


def check_map_style(dataset: Any) -> None:
    """Refuse a dataset whose records have no numbers.

    Raises:
        TypeError: If it is iterable, or has no length.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        kind = "is an iterable dataset" if isinstance(dataset, IterableDataset) else "has no length"
        raise TypeError(
            f"{type(dataset).__name__} {kind}, and nothing bounds how often it yields a record: use a map-style "
            "dataset, with __getitem__ and __len__."
        )


def check_each_record_once(dataset: Any) -> None:
    """Refuse a dataset that gives some record under two indices.

    Wrappers of any kind are followed to what they are made of: an inner dataset is replaced by one that only notes
    which index it is asked for, so no record is loaded. Rows of a `TensorDataset` are told apart by where they lie in
    memory, and so are tensors and arrays in a list. Equal values at different places are different records.

    Args:
        dataset: A map-style dataset.

    Raises:
        TypeError: If it, or one inside, is iterable or has no length.
        ValueError: Names the dataset that repeats a record.

    Example:
        >>> check_each_record_once(Subset(range(10), [3, 4]))
        >>> check_each_record_once(Subset(range(10), [3, 3]))
        Traceback (most recent call last):
        ...
        ValueError: Subset holds records twice, so a record counts more than once in a pass: list each once.
    """
    _keys(dataset, _own_keys)


def positions_of_records(dataset: Any) -> _Keys:
    """A number for each index that says which record of which inner dataset it gives; shape (records,).

    It is the same in every process in which datasets are built alike, and another where a `Subset` has other indices.

    Args:
        dataset: A map-style dataset.

    Raises:
        ValueError: If it repeats a record.
    """
    places: dict[int, int] = {}

    def own_keys(inner: Any) -> _Keys:
        place = places.setdefault(id(inner), len(places))
        return _mixed(np.arange(len(inner), dtype=np.uint64), np.uint64(place))

    return _keys(dataset, own_keys)


def _keys(dataset: Any, own_keys: Callable[[Any], _Keys]) -> _Keys:
    """A number for each index, equal where the record is the same; shape (records,)."""
    if isinstance(dataset, ConcatDataset) and type(dataset).__getitem__ is ConcatDataset.__getitem__:
        keys = np.concatenate([_keys(inner, own_keys) for inner in dataset.datasets])
    elif isinstance(dataset, Subset) and _is_stock(type(dataset)):
        keys = _keys(dataset.dataset, own_keys)[np.asarray(dataset.indices, dtype=np.int64).reshape(-1)]
    else:
        keys = _keys_of_wrapper(dataset, own_keys)
    if len(np.unique(keys)) < len(keys):
        raise ValueError(f"{type(dataset).__name__} {TWICE}")
    return keys


def _is_stock(kind: type[Subset[Any]]) -> bool:
    return kind.__getitem__ is Subset.__getitem__ and kind.__getitems__ is Subset.__getitems__


def _keys_of_wrapper(dataset: Any, own_keys: Callable[[Any], _Keys]) -> _Keys:
    """Those of the records that the wrapper asks the datasets inside for, or its own if it asks for none."""
    check_map_style(dataset)
    inside = {name: value for name, value in getattr(dataset, "__dict__", {}).items() if datasets_in(name, value)}
    asked = _asked_for(dataset, inside) if inside else None
    if asked is None:
        return own_keys(dataset)
    sources = datasets_inside(dataset)
    places = set(asked[:, 0].tolist())
    keys_of = {place: _keys(sources[place], own_keys) for place in places}
    keys = np.empty(len(asked), dtype=np.uint64)
    for place in places:
        mine = asked[:, 0] == place
        keys[mine] = keys_of[place][asked[mine, 1]]
    for place, source in enumerate(sources):  # one that is seldom asked, or asked second, may hold the same records
        if place not in places:
            with suppress(TypeError, ValueError):  # it may repeat its own
                keys_of[place] = _keys(source, own_keys)
    _check_no_partners(dataset, inside, keys, keys_of)
    return keys


def _asked_for(dataset: Any, inside: dict[str, Any]) -> NDArray[np.int64] | None:
    """The inner dataset, and the record of it, that each index asks for first; None if some index asks for none."""
    probed = _with_notes(dataset, inside, [])
    asked = np.empty((len(dataset), 2), dtype=np.int64)
    for index in range(len(dataset)):
        try:
            load_records(probed, [index])
        except _AskedForError as answer:
            asked[index] = answer.place, answer.index
        except Exception:
            return None
        else:
            return None
    return asked


def _check_no_partners(dataset: Any, names: Iterable[str], keys: _Keys, keys_of: dict[int, _Keys]) -> None:
    """Refuse records that are made of another index's record, too, as MixUp in a dataset does; some are loaded."""
    first = set(keys.tolist())
    chosen = sorted({len(keys) * number // LOADED for number in range(LOADED)})
    for indices in [[index] for index in chosen] + [chosen]:
        loaded: list[tuple[int, int]] = []
        try:
            with apart(dataset) as fresh:
                inside = {name: vars(fresh)[name] for name in names}
                load_records(_with_notes(fresh, inside, loaded, answers=True), indices)
        except Exception:  # the loader will say so
            continue
        own = set(keys[indices].tolist())
        found = {int(keys_of[place][row]) for place, row in loaded if place in keys_of}
        if (found & first) - own or not own <= found:
            raise ValueError(
                f"{type(dataset).__name__} makes a record of several that have indices of their own, so each of those "
                "counts more than once in a pass: let an index give one record (MixUp does not)."
            )


def _with_notes(dataset: Any, inside: dict[str, Any], loaded: list[tuple[int, int]], answers: bool = False) -> Any:
    """The wrapper around datasets that note what they are asked for."""
    probed, number = shallow_copied(dataset), itertools.count()
    for name, value in inside.items():
        notes = [_Note(inner, next(number), loaded, answers) for inner in datasets_in(name, value)]
        if type(value) is dict:
            probed.__dict__[name] = dict(zip(value, notes, strict=True))
        else:
            probed.__dict__[name] = type(value)(notes) if type(value) in (list, tuple) else notes[0]
    return probed


def load_records(dataset: Any, indices: list[int]) -> list[Any]:
    """Load records in the way of torch's loaders."""
    if callable(getattr(dataset, "__getitems__", None)):
        return list(dataset.__getitems__(indices))
    return [dataset[index] for index in indices]


class _AskedForError(BaseException):
    """Ends the loading of a record as soon as its index is known; no handler of ordinary errors catches it."""

    def __init__(self, place: int, index: int) -> None:
        super().__init__()
        self.place, self.index = place, index


class _Note(Dataset[Any]):
    """Stands for an inner dataset; all but its records is its own."""

    def __init__(self, inner: Any, place: int, loaded: list[tuple[int, int]], answers: bool) -> None:
        self._inner, self._place, self._loaded, self._answers = inner, place, loaded, answers

    def __getitem__(self, index: Any) -> Any:
        position = int(index) % len(self._inner)  # a negative index counts from the end
        if not self._answers:
            raise _AskedForError(self._place, position)
        self._loaded.append((self._place, position))
        return self._inner[index]

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._inner, name)


def _own_keys(dataset: Any) -> _Keys:
    """Those of a dataset of which nothing is known but its length, and sometimes where its records lie."""
    if type(dataset) is TensorDataset:
        return _mixed(*map(_addresses, dataset.tensors))
    if _is_sequence(dataset):
        identities = [_identity(record) for record in dataset]
        if all(map(_holds_place, identities)):
            return np.asarray([hash(identity) % 2**64 for identity in identities], dtype=np.uint64)
    return _mixed(np.arange(len(dataset), dtype=np.uint64), np.uint64(id(dataset)))


def _mixed(*columns: Any) -> _Keys:
    keys: _Keys = np.zeros(1, dtype=np.uint64)
    for place, column in enumerate(columns):
        multiplier = pow(_MULTIPLIERS[place % len(_MULTIPLIERS)], 1 + place // len(_MULTIPLIERS), 2**64)
        with np.errstate(over="ignore"):
            keys = keys + column * np.uint64(multiplier)
    return keys


def _addresses(tensor: Tensor) -> _Keys:
    step = tensor.stride(0) * tensor.element_size()
    return np.uint64(tensor.data_ptr()) + np.arange(len(tensor), dtype=np.uint64) * np.uint64(step)


def _is_sequence(dataset: Any) -> bool:
    """Whether it gives its records as a list does, and not in a way of its own."""
    kinds = (list, tuple, deque)
    return isinstance(dataset, kinds) and any(type(dataset).__getitem__ is kind.__getitem__ for kind in kinds)


def is_same_record(first: Any, second: Any) -> bool:
    """Whether two records that are equal lie at the same place in memory.

    Args:
        first: A record, as it was loaded.
        second: Another one, loaded while the first is held.
    """
    identity = _identity(first)
    return _holds_place(identity) and identity == _identity(second)


def _identity(record: Any) -> tuple[Any, ...]:
    """Where tensors and arrays lie, the identity of lists and other objects, and the values of scalars.

    Python may keep one scalar or string for many equal ones.
    """
    if isinstance(record, Tensor) and record.numel():
        return "place", record.data_ptr(), tuple(record.shape)
    if isinstance(record, np.ndarray) and record.size:
        return "place", record.__array_interface__["data"][0], record.shape
    if isinstance(record, tuple):
        return "parts", *map(_identity, record)
    if isinstance(record, list | dict):
        return "place", id(record)
    return "value", record if isinstance(record, str | bytes | int | float | complex) else id(record)


def _holds_place(identity: tuple[Any, ...]) -> bool:
    return identity[0] == "place" or (identity[0] == "parts" and any(map(_holds_place, identity[1:])))
