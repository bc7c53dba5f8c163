"""Statistics of records that were taken before training: columns scaled by themselves, means, and counts of classes."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from lightning_pac.data.tables import datasets_below, own_tables

__all__ = ["is_part_by_place", "is_scaled_by_itself", "statistics_among"]

_FEWEST = 32  # records, below which statistics of others may agree by chance
_MOST_CLASSES = 1000
# By how much a mean and a deviation may be off, in deviations: one, and several together, in units of its own error.
_EXACT, _NEAR = 1e-4, 0.05
_GLANCE = 2048  # rows of a table that are looked at first

_Table: TypeAlias = np.ndarray[Any, Any]


def is_scaled_by_itself(dataset: Any, others: Sequence[Any]) -> bool:
    """Whether columns have mean 0 and deviation 1, as after a scaler that was fitted to these very records.

    Of public records that others scaled, and after noised statistics, both are off by far more.

    Args:
        dataset: What is trained on.
        others: What is evaluated: a scaler may have seen both.
    """
    for table in _numbers_of(dataset, others):
        mean, deviation = (abs(found) for found in _moments(table[:: 1 + len(table) // _GLANCE]))
        if not ((mean < 0.5) & (deviation > 0.5) & (deviation < 2)).any():
            continue  # before all of a large table is read
        mean, deviation = _moments(table)
        off = np.maximum(abs(mean), abs(deviation - 1) - 1 / len(table))
        # Of the flags among the columns, many are left as they are; sums in single precision are less exact.
        exact = _EXACT if table.shape[1] > 1 else _EXACT / 10
        num_exact, num_near = (np.count_nonzero(off < bound) for bound in (exact, _NEAR / np.sqrt(len(table))))
        if num_exact >= min(max(2, table.shape[1] / 200), table.shape[1]) or num_near >= max(4, table.shape[1] / 10):
            return True
    return False


def statistics_among(numbers: Iterable[tuple[str, Any]], dataset: Any, others: Sequence[Any]) -> list[str]:
    """The names of numbers that are means, deviations or weights of classes of these very records.

    Weights are recognized as a power of the classes' counts times a factor, as inverse frequencies, `balanced` weights
    and their roots are. Round numbers are taken for chosen ones.

    Args:
        numbers: Candidates by name, such as a model's buffers.
        dataset: What is trained on.
        others: What is evaluated: the statistics may be of both.
    """
    vectors = {name: vector for name, value in numbers if (vector := _vector(value)) is not None}
    if not vectors:
        return []
    found: set[str] = set()
    for table in _numbers_of(dataset, others):
        if not any(len(vector) == table.shape[1] > 1 for vector in vectors.values()):
            continue
        mean, deviation = _moments(table)
        bound = _EXACT if table.shape[1] < 4 else max(_EXACT, _NEAR / np.sqrt(len(table)))
        for name, vector in vectors.items():
            if len(vector) == len(mean) > 1:
                near = bound * deviation + 1e-12
                is_mean = (abs(vector - mean) <= near).all()
                if is_mean or (abs(vector - deviation) <= near + deviation / len(table)).all():
                    found.add(name)
    for counts in _class_counts(dataset, others):
        found |= {name for name, vector in vectors.items() if _are_weights(vector, counts)}
    return [name for name in vectors if name in found]


def is_part_by_place(dataset: Any) -> bool:
    """Whether records are a part of others by their place, or drawn of them, so that another number moves some."""
    if not isinstance(dataset, Subset) or len(dataset) in (0, len(dataset.dataset)):  # type: ignore[arg-type]
        return False
    steps = np.diff(np.asarray(dataset.indices))
    return bool((steps == 1).all() or (steps < 0).any())


def _held(dataset: Any) -> Iterator[Any]:
    """Tables with a row for each record of a dataset; of a subset also only its rows."""
    for part in datasets_below(dataset):
        for table in own_tables(part):
            values = table.detach().cpu().numpy() if _is_plain(table) else table
            if hasattr(type(table), "iloc"):
                values = table.select_dtypes("number").to_numpy() if hasattr(table, "columns") else table.to_numpy()
            if isinstance(values, np.ndarray) and len(values) >= _FEWEST:
                yield values
                if isinstance(dataset, Subset) and part is dataset.dataset:
                    yield values[np.asarray(dataset.indices)]


def _is_plain(table: Any) -> bool:
    plain = isinstance(table, Tensor) and table.layout == torch.strided and not (table.is_meta or table.is_quantized)
    return plain and table.dtype != torch.bfloat16


def _with_others(tables: Sequence[_Table], others: Sequence[Any]) -> Iterator[_Table]:
    """Tables, and those of the same columns together with the tables of the others."""
    yield from tables
    for one, other in itertools.product(tables, [table for dataset in others for table in _held(dataset)]):
        if one.shape[1:] == other.shape[1:] and one.dtype == other.dtype:
            yield np.concatenate([one, other])


def _numbers_of(dataset: Any, others: Sequence[Any]) -> Iterator[_Table]:
    """Tables of real numbers with a row for each record: by column; of pictures and series by channel."""
    found = [table for table in _held(dataset) if table.dtype.kind == "f" and table.ndim > 1]
    for table in _with_others(found, [] if any(isinstance(each, Subset) for each in others) else others):
        yield table.reshape(-1, table.shape[-1])
        if table.ndim > 2:
            yield np.moveaxis(table, 1, -1).reshape(-1, table.shape[1])
            yield table.reshape(-1, 1)


def _class_counts(dataset: Any, others: Sequence[Any]) -> Iterator[_Table]:
    found = [table.reshape(-1) for table in _held(dataset) if table.size == len(table)]
    for table in _with_others(found, others):
        if table.dtype.kind in "iufb" and table.size:
            values, counts = np.unique(table, return_counts=True)
            if 2 <= len(values) <= min(_MOST_CLASSES, len(table) / 4) and (values == np.round(values)).all():
                yield counts.astype(float)


def _moments(table: _Table) -> tuple[_Table, _Table]:
    with np.errstate(all="ignore"):  # what is not finite has no moments
        return table.mean(0, dtype=float), table.std(0, dtype=float)


def _vector(value: Any) -> _Table | None:
    """Up to a thousand numbers as a vector, unless all are as round as ones that are chosen."""
    if type(value) is Tensor and _is_plain(value) and value.numel() <= _MOST_CLASSES:
        value = value.detach().cpu().numpy()
    is_list = type(value) in (list, tuple) and all(isinstance(number, int | float) for number in value)
    if not (is_list or isinstance(value, np.ndarray | float)) or not 0 < np.size(value) <= _MOST_CLASSES:
        return None
    vector = np.ravel(np.asarray(value))
    if vector.dtype.kind not in "iuf" or not np.isfinite(vector).all():
        return None
    vector = vector.astype(float)
    is_round = abs(vector - [float(f"{number:.3g}") for number in vector]) <= 1e-6 * abs(vector)
    return None if is_round.all() else vector


def _are_weights(vector: _Table, counts: _Table) -> bool:
    """Whether numbers are a power of the counts times a factor, or the ratio of two counts, or a fraction."""
    if (vector <= 0).any() or len(vector) not in (1, len(counts)) or (counts == counts[0]).all():
        return False
    logs = np.log(counts)
    if len(vector) == 1:
        between = [*(logs[:2] - logs[1::-1]), *(logs - np.log(counts.sum()))] if len(counts) == 2 else []
        powers = [abs(np.log(vector[0]) - power * log) for log in between for power in (-1, -0.5, 0.5, 1)]
        return bool(powers) and min(powers) < 1e-5
    ours = np.log(vector) - np.log(vector).mean()
    logs -= logs.mean()
    power = ours @ logs / (logs @ logs)
    if len(counts) == 2 and min(abs(power - likely) for likely in (-1, -0.5, 0.5, 1)) > 1e-5:
        return False
    return bool(1e-3 < abs(power) <= 2 and (abs(ours - power * logs) < 1e-5).all())
