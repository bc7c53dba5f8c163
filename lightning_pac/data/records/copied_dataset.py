"""Copies of a dataset, from which records are loaded of which nothing is to remain."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from lightning_pac.data.records.partial_copies import copied_apart, copied_once, taken_out_again
from lightning_pac.data.records.surroundings import Surroundings

__all__ = ["apart", "copy_of", "datasets_in", "datasets_inside"]

_LARGE = 2**16  # values of state that is not copied


def copy_of(dataset: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy that shares datasets inside, entries of long containers, large arrays and what cannot be copied.

    Args:
        dataset: A dataset with attributes.
        memo: Copies of other objects, as in `copy.deepcopy`.
    """
    memo = {} if memo is None else memo
    for key, part in _shared(vars(dataset)):
        memo.setdefault(key, part)
    return copied_apart(dataset, memo)


@contextmanager
def apart(dataset: Any) -> Iterator[Any]:
    """A copy of a dataset and of those inside, among copies of the state beside them.

    Whatever is loaded before memories are asked for must be loaded from it: one that holds all names already, as codes
    that names get as they come, shows nothing.
    """
    memo: dict[int, Any] = {}
    parts = [dataset]
    for part in parts:
        parts += [inner for inner in datasets_inside(part) if not any(inner is other for other in parts)]
    for part in reversed(parts):
        memo[id(part)] = copy_of(part, memo) if hasattr(part, "__dict__") else part
    with Surroundings(*parts).copied(memo), taken_out_again(memo):
        yield memo[id(dataset)]


def datasets_inside(dataset: Any) -> list[Any]:
    """The datasets in a wrapper's attributes."""
    return [inner for name, value in getattr(dataset, "__dict__", {}).items() for inner in datasets_in(name, value)]


def datasets_in(name: str, value: Any) -> Sequence[Any]:
    """The datasets in an attribute of a wrapper: itself, or all entries of a list or a dictionary."""
    if type(value) is dict:
        value = list(value.values())
    sized = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    if isinstance(value, Dataset) or (name == "dataset" and sized):
        return [value]
    if type(value) in (list, tuple) and value and all(isinstance(entry, Dataset) for entry in value):
        return list(value)
    return []


def _shared(value: Any, depth: int = 4) -> Iterator[tuple[int, Any]]:
    """What stands for datasets and for what is large in the parts of a value, each with the identity of these."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for part in parts or getattr(value, "__dict__", {}).values():
        if isinstance(part, Dataset) or _size(part) > _LARGE:
            is_container = isinstance(part, dict | list | set) and not isinstance(part, Dataset)
            yield id(part), copied_once(part) if is_container else part
        elif depth:
            yield from _shared(part, depth - 1)


def _size(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel()
    if isinstance(value, np.ndarray):
        return value.size
    try:
        return 64 * len(value)
    except Exception:  # has no length, or is a class, of which the objects have one
        return 0
