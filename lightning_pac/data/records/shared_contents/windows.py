"""Whether records are windows of one series that overlap, so that what is said of one stands in others as well."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Subset

from lightning_pac.data.records.copied_dataset import apart
from lightning_pac.data.records.repeated_records import load_records
from lightning_pac.data.records.shared_contents.arrays import arrays_of

__all__ = ["are_overlapping_windows"]

_PAIRS, _ALIKE = 4, 3  # one pair may lie where a series ends
_SHORTEST = 8  # numbers of a window, whose half two neighbours share by chance in none of many pairs
_VALUES = 4  # that differ in what they share, since zeros of padding are shared by all


def are_overlapping_windows(dataset: Any) -> bool:
    """Whether most neighbours in a dataset share half of their values or more, moved on along an axis.

    Neighbours are those of the dataset below any `Subset`, in which a random split has mixed them. Up to eight records
    are loaded, from a copy of the dataset.

    Args:
        dataset: A map-style dataset.

    Example:
        >>> import torch
        >>> series = torch.randn(100)
        >>> are_overlapping_windows([(series[start : start + 24], series[start + 24]) for start in range(0, 76, 6)])
        True
        >>> are_overlapping_windows([(series[start : start + 24], series[start + 24]) for start in range(0, 76, 24)])
        False
        >>> rows = torch.randn(100, 6)
        >>> are_overlapping_windows([(rows[day], rows[day + 1]) for day in range(99)])
        True
    """
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    found = 0
    for number in range(_PAIRS):
        place = (len(dataset) - 1) * number // _PAIRS
        try:
            with apart(dataset) as fresh:
                first, second = map(_arrays, load_records(fresh, [place, place + 1]))
        except Exception:  # the loader will say so
            return False
        pairs = list(zip(first, second, strict=False))
        found += any(_moved_on(one, other) or _moved_on(other, one) for one, other in pairs) or _hand_on(first, second)
        if found + _PAIRS - 1 - number < _ALIKE:
            return False
    return True


def _arrays(record: Any) -> list[NDArray[Any]]:
    """Those of numbers, where a record has any."""
    return [array for array in arrays_of(record) if array.ndim and array.dtype.kind in "biuf"]


def _hand_on(first: list[NDArray[Any]], second: list[NDArray[Any]]) -> bool:
    """Whether an array of one record is another array of the next, as today's values and tomorrow's are."""
    return any(
        place != of and array.shape == other.shape and np.array_equal(array, other) and len(np.unique(array)) >= _VALUES
        for place, array in enumerate(first)
        for of, other in enumerate(second)
    )


def _moved_on(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Whether the second array begins, along some axis, with at least the later half of the first."""
    if first.shape != second.shape:
        return False
    for axis, length in enumerate(first.shape):
        if length < _SHORTEST:
            continue
        one, other = (np.moveaxis(array, axis, 0).reshape(length, -1) for array in (first, second))
        begins = np.flatnonzero((one[1 : length // 2 + 1] == other[0]).all(axis=1)) + 1
        for shift in begins.tolist():
            shared = one[shift:]
            if np.array_equal(shared, other[: length - shift]) and len(np.unique(shared)) >= _VALUES:
                return True
    return False
