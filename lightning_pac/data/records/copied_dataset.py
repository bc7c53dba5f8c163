"""Copies of a dataset, and records that they give under a seed."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_pac.data.records.partial_copies import copied_apart, copied_once
from lightning_pac.data.records.record_digest import load_alone
from lightning_pac.data.records.value_digest import digest

__all__ = ["FIRST_SEED", "copy_of", "digest_of", "draws"]

FIRST_SEED = 1

_LARGE = 2**16  # values of state that is not copied


def copy_of(dataset: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy that shares datasets inside, entries of long containers, large arrays and what cannot be copied.

    Args:
        dataset: A dataset with attributes.
        memo: Copies of other objects, as in `copy.deepcopy`.
    """
    memo = {} if memo is None else memo
    memo.update(_shared(vars(dataset)))
    return copied_apart(dataset, memo)


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


def digest_of(dataset: Any, index: int, seed: int = FIRST_SEED) -> bytes | None:
    """A digest of a record that is loaded under a seed; None if it cannot be."""
    try:
        return digest(load_alone(dataset, index, seed))
    except Exception:  # if it cannot be loaded at all, the loader will say so
        return None


def draws(dataset: Any, index: int) -> bool:
    """Whether a record draws from the global generators."""
    states = []
    for records, place in (([0], 0), (dataset, index)):
        digest_of(records, place)
        of_numpy: Any = np.random.get_state()  # noqa: NPY002
        states.append((torch.get_rng_state().tolist(), of_numpy[1].tolist(), of_numpy[2:], random.getstate()))
    return states[0] != states[1]
