"""Whether one record stands under several indices: as copies, as of evened-out classes, or read again from a table."""

import time
from copy import copy
from typing import Any

import numpy as np
from lightning_utilities.core.apply_func import apply_to_collection
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset

from lightning_pac.data.records.copied_dataset import apart
from lightning_pac.data.records.record_digest import FIRST_SEED, load_alone, own_generators
from lightning_pac.data.records.value_digest import digest

__all__ = ["holds_copies", "row_read_again"]

_MOST_TIMES = 1000  # that a row of a table is read in a pass
_LOADED, _SECONDS = 1000, 1.0
_PAIRS = 5  # of equal records, fewer of which may be chance
_KINDS = 16  # of records, without which all are alike and none is a copy
_COPIES = 0.5  # of a record on average, beside itself
_LOOKED_AT, _NEAR = 256, 2  # numbers of a record, and how many differ where a category is another one


def holds_copies(dataset: Any) -> bool:
    """Whether a record has half a copy or more on average, and copies are more than records that are almost equal.

    Short descriptions, such as a few categories, coincide by chance; then many more differ in one or two places, and
    copies are not told apart from them. Up to 1,000 records are loaded for at most a second, from a copy of the dataset
    and each under the same random draws, and their largest arrays compared.

    Args:
        dataset: A map-style dataset.

    Example:
        >>> import torch
        >>> rows = torch.randn(400, 8)
        >>> holds_copies(rows), holds_copies(torch.cat([rows, rows[:40].repeat(9, 1)]))
        (False, True)
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
        return False
    _, own, counts = np.unique(np.array(digests), return_inverse=True, return_counts=True)
    pairs = int((counts * (counts - 1)).sum()) // 2
    share = 2 * pairs / (len(own) * (len(own) - 1)) if len(own) > 1 else 0.0
    if pairs < _PAIRS or len(counts) < _KINDS or share * (len(dataset) - 1) < _COPIES:
        return False
    near = [((numbers[own != of] != row).sum(axis=1) <= _NEAR).sum() for of, row in zip(own, numbers, strict=True)]
    return int(sum(near)) // 2 < pairs


def _largest_array(record: Any) -> NDArray[Any]:
    """That of a record's tensors, arrays and numbers; the first of equal sizes."""
    found: list[NDArray[Any]] = []
    apply_to_collection(record, Tensor, lambda leaf: found.append(leaf.detach().cpu().double().numpy()))
    apply_to_collection(record, np.ndarray, found.append)
    return max(found, key=np.size)


def row_read_again(dataset: Any) -> str | None:
    """The name of a table that a dataset holds, of which it gives one row under several indices, as to see it twice.

    Asked of tables with fewer rows than there are indices is whether the records at two of these, which would be of one
    row by `i % n` or `i // k`, both change where another row stands in place of that one.

    Args:
        dataset: A map-style dataset.
    """
    indices = None
    while isinstance(dataset, Subset):
        indices = np.asarray(dataset.indices) if indices is None else np.asarray(dataset.indices)[indices]
        dataset = dataset.dataset
    size = len(dataset)
    known = set(range(size)) if indices is None else set(indices.tolist())
    for name, table in list(getattr(dataset, "__dict__", {}).items()):
        if isinstance(table, Tensor | np.ndarray | list) and 1 < len(table) < size <= _MOST_TIMES * len(table):
            rows, times = len(table), -(-size // len(table))
            around = ((index, index + rows, index % rows) for index in known)
            beside = ((index, index + 1, index // times) for index in known if (index + 1) % times)
            for pairs in (around, beside):
                pair = next((pair for pair in pairs if pair[1] in known), None)
                if pair is not None and _decides(dataset, name, pair[2], pair[:2]):
                    return str(name)
    return None


def _decides(dataset: Any, name: str, row: int, indices: tuple[int, int]) -> bool:
    """Whether a row of a table that the dataset holds decides the records at all of these indices."""
    found = []
    for changed in (False, True):
        try:
            with apart(dataset) as fresh, own_generators():
                if changed:
                    table = copy(vars(fresh)[name]) if isinstance(vars(fresh)[name], list) else vars(fresh)[name] + 0
                    table[row] = table[(row + len(table) // 2) % len(table)]
                    vars(fresh)[name] = table
                records = [load_alone(fresh, index, FIRST_SEED) for index in indices]
                found.append([digest(_largest_array(record)) for record in records])
        except Exception:  # the loader will say so
            return False
    return all(before != after for before, after in zip(*found, strict=True))
