"""Whether records are copies of one another, or hold a name that others hold as well."""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_pac.data.records.copied_dataset import apart
from lightning_pac.data.records.record_digest import FIRST_SEED, load_alone, own_generators
from lightning_pac.data.records.shared_contents.arrays import largest_array
from lightning_pac.data.value_digest import digest

__all__ = ["copies_of_a_record", "names_of_several", "some_records"]

_LOADED, _SECONDS = 1000, 1.0
_PAIRS = 5  # of equal records, fewer of which may be chance
_KINDS = 16  # of records, without which all are alike and none is a copy
_COPIES = 0.5  # of a record on average, beside itself
_NAMED, _MOST_OF_ONE = 100, 20  # different names among the records, and other records of one name
_LOOKED_AT, _NEAR = 256, 2  # numbers of a record, and how many differ where a category is another one


def some_records(dataset: Any) -> list[Any]:
    """Up to 1,000 records, loaded for at most a second, from a copy of a dataset and each under the same random draws.

    Args:
        dataset: A map-style dataset.

    Returns:
        The records; none where the dataset fails, which its loader will say.
    """
    chosen = np.random.default_rng(len(dataset)).permutation(len(dataset))[:_LOADED].tolist()
    records, started = list[Any](), time.monotonic()
    try:
        with apart(dataset) as fresh, own_generators():
            while chosen and time.monotonic() - started < _SECONDS:
                records.append(load_alone(fresh, chosen.pop(), FIRST_SEED))
    except Exception:
        return []
    return records


def copies_of_a_record(records: list[Any], size: int) -> float:
    """How many copies a record has on average; 0 if less than half a one, or less than records that are almost equal.

    Short descriptions, such as a few categories, coincide by chance; then many more differ in one or two places, and
    copies are not told apart from them. Compared are the largest arrays of the records.

    Args:
        records: Some of a dataset, as `some_records` loads them.
        size: How many the dataset has.

    Example:
        >>> import torch
        >>> rows = torch.randn(400, 8)
        >>> copied = torch.cat([rows, rows[:40].repeat(9, 1)])
        >>> copies_of_a_record(list(rows), 400), round(copies_of_a_record(list(copied), 760), 1)
        (0.0, 4.7)
    """
    try:
        arrays = [largest_array(record) for record in records]
        numbers = np.stack([array.ravel()[:: -(-array.size // _LOOKED_AT)] for array in arrays])
    except ValueError:  # records without arrays, or of several sizes, cannot be compared
        return 0.0
    own, counts, pairs, copies = _repeated([digest(array) for array in arrays], size)
    if pairs < _PAIRS or len(counts) < _KINDS or copies < _COPIES:
        return 0.0
    near = [((numbers[own != of] != row).sum(axis=1) <= _NEAR).sum() for of, row in zip(own, numbers, strict=True)]
    return copies if int(sum(near)) // 2 < pairs else 0.0


def names_of_several(records: list[Any], size: int) -> tuple[Any, float] | None:
    """Where a record holds a text that others hold as well, as the name of whom it is about, and how many others do.

    A class has fewer names, or more records of each, and a description is seldom the same.

    Args:
        records: Some of a dataset, as `some_records` loads them.
        size: How many the dataset has.

    Example:
        >>> names_of_several([(1.0, f"patient {row // 3}") for row in range(900)], 900)
        (1, 2.0)
    """
    fields = [_fields(record) for record in records]
    for place in [place for place, value in (fields[0] if fields else {}).items() if isinstance(value, str)]:
        texts = [str(of_record.get(place)).encode() for of_record in fields]
        _, counts, pairs, others = _repeated(texts, size)
        if pairs >= _PAIRS and len(counts) >= _NAMED and _COPIES <= others <= _MOST_OF_ONE:
            return place, round(others, 1)
    return None


def _fields(record: Any) -> dict[Any, Any]:
    if isinstance(record, dict):
        return record
    return dict(enumerate(record)) if isinstance(record, list | tuple) else {}


def _repeated(values: list[bytes], size: int) -> tuple[NDArray[Any], NDArray[Any], int, float]:
    """The number of each value, how often each comes, pairs that are equal, and how many more a record has in all."""
    _, own, counts = np.unique(np.array(values), return_inverse=True, return_counts=True)
    pairs = int((counts * (counts - 1)).sum()) // 2
    share = 2 * pairs / (len(own) * (len(own) - 1)) if len(own) > 1 else 0.0
    return own, counts, pairs, share * (size - 1)
