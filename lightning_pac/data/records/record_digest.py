"""The meaning of a dataset's indices, as digests that several processes can compare."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from lightning_pac.data.records.repeated_records import load_records, positions_of_records
from lightning_pac.data.value_digest import digest

__all__ = [
    "FIRST_SEED",
    "RECORDS_COMPARED",
    "digest_loaded_records",
    "digest_of",
    "digest_positions",
    "digest_together",
    "draws",
    "load_alone",
    "own_generators",
    "seed_globally",
]

FIRST_SEED = 1
RECORDS_COMPARED = 64


def digest_positions(dataset: Any, key: bytes) -> bytes:
    """Digest of how many records there are and which inner record each index gives; none is loaded.

    Args:
        dataset: A map-style dataset.
        key: 32 bytes that the processes share and keep to themselves.

    Raises:
        ValueError: If the dataset repeats a record.

    Example:
        >>> from torch.utils.data import Subset
        >>> len({digest_positions(Subset(range(9), [1, last]), bytes(32)) for last in (2, 2, 3)})
        2
    """
    return digest(positions_of_records(dataset), key)


def digest_loaded_records(
    dataset: Any, key: bytes, count: int = RECORDS_COMPARED, view: Callable[[list[Any]], Any] = list
) -> bytes | None:
    """Digest of up to 64 records at indices that are drawn with the key, so that all processes load the same.

    Augmentations that draw from the global generators are the same in all processes, too: each record is loaded under
    a seed of its own, and the generators are put back.

    Args:
        dataset: A map-style dataset.
        key: 32 bytes that the processes share and keep to themselves.
        count: How many records are loaded.
        view: What is made of each record, given as the only one of a list.

    Returns:
        None if records differ from themselves when they are loaded twice, or cannot be loaded or looked into.
    """
    drawn = np.random.default_rng(list(key))
    indices = drawn.permutation(len(dataset))[:count].tolist()
    seeds = drawn.integers(2**32, size=len(indices)).tolist()
    digests = []
    with own_generators():
        for index, seed in zip(indices, seeds, strict=True):
            try:
                first, second = (digest(view([load_alone(dataset, index, seed)]), key) for _ in range(2))
            except Exception:  # if it cannot be loaded at all, the loader will say so
                return None
            if first != second:
                return None
            digests.append(first)
    return digest(digests, key)


def digest_together(dataset: Any, key: bytes, count: int, view: Callable[[list[Any]], Any]) -> bytes | None:
    """Digest of records that are drawn with the key, loaded as one batch; None as for `digest_loaded_records`."""
    indices = np.random.default_rng(list(key)).permutation(len(dataset))[:count].tolist()
    with own_generators():
        try:
            first, second = (digest(view(_load(dataset, indices, 0)), key) for _ in range(2))
        except Exception:
            return None
    return first if first == second else None


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


def load_alone(dataset: Any, index: int, seed: int) -> Any:
    """A record, loaded under a seed of its own."""
    return _load(dataset, [index], seed)[0]


def _load(dataset: Any, indices: list[int], seed: int) -> list[Any]:
    seed_globally(seed)
    return load_records(dataset, indices)


def seed_globally(seed: int) -> None:
    """Seed the global generators of torch, NumPy and Python."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


@contextmanager
def own_generators() -> Iterator[None]:
    """Put the global generators back afterwards."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
