"""Whether records come with others that are drawn, wherever a dataset reads them from."""

import time
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_pac.data.records.copied_dataset import copy_of
from lightning_pac.data.records.record_digest import load_alone
from lightning_pac.data.value_digest import digest

__all__ = ["LET_ONE", "check_no_drawn_partners"]

_NUMBERS = 4  # that an array has at least, so that it is not another record's by chance
_MOST, _SECONDS = 4000, 1.0  # records that are loaded, and processor time that this may take
_FEW = 3
LET_ONE = "let an index give one record, and compute what all have in common from public data"


def check_no_drawn_partners(dataset: Any) -> None:
    """Refuse a dataset in which arrays that change with the draws are arrays of other records.

    A file or a database that is opened for each record shows nothing of its rows, but a negative that is drawn from it
    is another record, number for number. Of records that are too many to be loaded, some meet.

    Args:
        dataset: A map-style dataset with attributes; a copy of it is asked.

    Raises:
        ValueError: Says what it does.
    """
    if _draws_partners(dataset):
        raise ValueError(
            f"{type(dataset).__name__} draws other records to go with one, so each of those counts more than once in a "
            f"pass: {LET_ONE}."
        )


def _draws_partners(dataset: Any) -> bool:
    own, size = copy_of(dataset), len(dataset)
    held: dict[bytes, int] = {}
    drawn: list[tuple[bytes, int]] = []
    started, loaded, repeated = time.process_time(), 0, set[bytes]()
    try:
        changing = _changing(own, (0, size // 2, size - 1))
        for index in sorted({size * number // _MOST for number in range(_MOST)}) if changing else ():
            if time.process_time() - started > _SECONDS:
                break
            loaded += 1
            for place, value in enumerate(_arrays(own, index, seed=index)):  # under one seed, all would draw one
                if place in changing:
                    drawn.append((value, index))
                elif held.setdefault(value, index) != index:
                    repeated.add(value)
    except Exception:  # if they cannot be loaded at all, the loader will say so
        return False
    if len(repeated) * 20 > loaded:  # of few different values, of which drawn ones may be any
        return False
    met = sum(held.get(value, index) != index for value, index in drawn if value not in repeated)
    return met >= max(_FEW, len(drawn) * loaded / size / 4)


def _changing(dataset: Any, indices: tuple[int, ...]) -> set[int]:
    """Places of a record's arrays that change with the draws; none if no other of the same kind stays as it is."""
    kinds = [(tuple(array.shape), array.dtype) for array in _of_record(load_alone(dataset, indices[0], 0))]
    if len(set(kinds)) == len(kinds):
        return set()
    found = set()
    for index in indices:
        columns = zip(*(_arrays(dataset, index, seed) for seed in range(_FEW)), strict=True)
        found |= {place for place, column in enumerate(columns) if len(set(column)) > 1}
    stay = {kind for place, kind in enumerate(kinds) if place not in found}
    return {place for place in found if kinds[place] in stay}


def _arrays(dataset: Any, index: int, seed: int) -> list[bytes]:
    return [digest(array) for array in _of_record(load_alone(dataset, index, seed))]


def _of_record(record: Any) -> list[Any]:
    leaves = [leaf for leaf in tree_leaves(record) if isinstance(leaf, Tensor | np.ndarray)]
    return [leaf for leaf in leaves if leaf.ndim and np.prod(leaf.shape) >= _NUMBERS]
