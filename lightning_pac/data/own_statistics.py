"""Statistics of records that were taken before training: columns scaled by themselves, means, and counts of classes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor
from torch.nn import Parameter
from torch.utils.data import Subset

from lightning_pac.data.tables import datasets_below, own_tables

__all__ = ["is_part_by_place", "is_scaled_by_itself", "statistics_among"]

_MATRIX = 2  # axes
_FEWEST = 32  # records, below which statistics of others may agree by chance
_MOST = 1000  # numbers that are looked at, of a model's or a dataset's
# By how much a mean and a deviation may be off, in deviations: one, and several together, in units of its own error.
_EXACT, _NEAR = 1e-4, 0.05
_AT_END, _CLOSE = 1e-6, 1e-5
_TOGETHER = 1e-3  # the mean of a picture, below which it was scaled by itself
_ROUGHLY = 0.1  # by which some pictures are off that stand for all
_DISTINCT = 16  # values of a column, fewer of which may be a design: classes of one size, or a full factorial
_ROUND = 1000  # of records, as 55,000 of 60,000
_GLANCE = 2048  # rows of a table that are looked at first
_FRACTION = 12  # largest denominator of a number that is taken for chosen
_BLOCK = 2**16  # rows that are widened to double precision at once

_Table: TypeAlias = np.ndarray[Any, Any]


def is_scaled_by_itself(dataset: Any, others: Sequence[Any]) -> bool:
    """Whether columns have mean 0 and deviation 1, or median 0 and quartiles 1 apart, or end at 0 and 1.

    So they are after a scaler that was fitted to these very records.

    Of public records that others scaled, and after noised statistics, they are off by far more. Where a declared range
    clips, many records stand at its ends, and a scaler of ranges leaves one at either.

    Args:
        dataset: What is trained on.
        others: What is evaluated: a scaler may have seen both.
    """
    scaled = _are_standard, _are_robust, _are_ranges
    return any(by(table) for table in _numbers_of(dataset, others) for by in scaled) or any(
        _is_standard_throughout(table) for table in _held(dataset) if table.ndim > _MATRIX and table.dtype.kind == "f"
    )


def statistics_among(numbers: Iterable[tuple[str, Any]], dataset: Any, others: Sequence[Any]) -> list[str]:
    """The names of numbers that are means, deviations or weights of classes of these very records.

    Weights are recognized as a power of the classes' counts times a factor, as inverse frequencies, `balanced` weights
    and their roots are, or as its logarithm. Round numbers and plain fractions are taken for chosen ones.

    Args:
        numbers: Candidates by name, such as a model's buffers.
        dataset: What is trained on.
        others: What is evaluated: the statistics may be of both.
    """
    vectors = {name: vector for name, value in numbers if (vector := _vector(value)) is not None}
    told = ["a column of the training data"] if _are_weighted_by_class(dataset) else []
    if not vectors:
        return told
    found: set[str] = set()
    sizes = {len(vector) for vector in vectors.values()} - {1}
    for table, scale in _channels_of(dataset, others):
        if table.shape[1] not in sizes:
            continue
        mean, deviation = (moment / scale for moment in _moments(table))
        bound = _EXACT if table.shape[1] < 4 else max(_EXACT, _NEAR / np.sqrt(len(table)))
        near = bound * deviation + 1e-12
        for name, vector in vectors.items():
            if len(vector) == len(mean):
                is_mean = (abs(vector - mean) <= near).all()
                if is_mean or (abs(vector - deviation) <= near + deviation / len(table)).all():
                    found.add(name)
    for counts in _class_counts(dataset, others, max(2, *map(len, vectors.values()))):
        found |= {name for name, vector in vectors.items() if _are_weights(vector, counts)}
    return [name for name in vectors if name in found] + told


def is_part_by_place(dataset: Any) -> bool:
    """Whether records are a share of others by their place or at random, so that another number of those moves some.

    Recognized are shares of whole twentieths or thousands, in rows that follow one another or come in no order. A part
    that each record decides for itself seldom has such a size.
    """
    if not isinstance(dataset, Subset):
        return False
    size, whole = len(dataset), len(dataset.dataset)  # type: ignore[arg-type]
    if size in (0, whole) or (abs(20 * size - whole * round(20 * size / whole)) > 20 and size % _ROUND):
        return False
    steps = np.diff(np.asarray(dataset.indices))
    return bool((steps == 1).all() or (steps < 0).any())


def _are_standard(table: _Table) -> bool:
    glance = table[:: 1 + len(table) // _GLANCE]
    mean, deviation = _moments(glance)
    likely = np.flatnonzero((abs(mean) < 0.5) & (deviation > 0.5) & (deviation < 2))
    columns = table[:, [column for column in likely if len(np.unique(glance[:, column])) >= _DISTINCT]]
    mean, deviation = _moments(columns)
    off = np.maximum(abs(mean), abs(deviation - 1) - 1 / len(table))
    # Of the flags among the columns, many are left as they are; sums in single precision are less exact.
    exact = min(_EXACT, _NEAR / 10 / np.sqrt(len(table))) / (1 if table.shape[1] > 1 else 10)
    num_exact, num_near = (np.count_nonzero(off < bound) for bound in (exact, _NEAR / np.sqrt(len(table))))
    return bool(num_exact >= _several(table) or num_near >= max(4, table.shape[1] / 10))


def _are_robust(table: _Table) -> bool:
    glance = table[:: 1 + len(table) // _GLANCE]
    with np.errstate(all="ignore"):
        low, median, high = np.quantile(glance, [0.25, 0.5, 0.75], axis=0)
        likely = np.flatnonzero((abs(median) < _ROUGHLY) & (abs(high - low - 1) < 2 * _ROUGHLY))
    columns = table[:, [column for column in likely if len(np.unique(glance[:, column])) >= _DISTINCT]]
    columns = columns[:, (columns != np.round(columns)).any(0)]
    low, median, high = np.quantile(columns.astype(float), [0.25, 0.5, 0.75], axis=0)
    return bool(((abs(median) < _AT_END) & (abs(high - low - 1) < _CLOSE)).sum() >= _several(table))


def _is_standard_throughout(table: _Table) -> bool:
    """Whether pictures or series have mean 0 and deviation 1 together, but not each of them.

    Where every channel has, or every place, so have all numbers, but for the divisor n - 1 of the deviations.
    """
    flat = table.reshape(len(table), -1)
    glance = flat[:: 1 + len(table) // _GLANCE]
    with np.errstate(all="ignore"):  # what is not finite has none
        is_likely = abs(glance.mean(dtype=float)) < _ROUGHLY and abs(glance.std(dtype=float) - 1) < 2 * _ROUGHLY
        if not is_likely or (abs(glance.mean(1, dtype=float)) < _TOGETHER).mean() > 1 / 2:
            return False
    mean, deviation = (float(moment[0]) for moment in _moments(flat.reshape(-1, 1)))
    divisors = np.array([len(table), flat.size, flat.size / table.shape[1], flat.size / table.shape[-1]])
    exact = max(_AT_END * 2, _NEAR / 100 / np.sqrt(flat.size))
    return abs(mean) < exact and bool((abs(deviation - np.sqrt(1 - np.append(0, 1 / divisors))) < exact).any())


def _are_ranges(table: _Table) -> bool:
    glance = abs(table[:: 1 + len(table) // _GLANCE])
    by_row = (abs(glance.max(1) - 1) < _AT_END).mean() > 1 / 2  # each record was scaled by its own largest
    columns = table[:, np.flatnonzero((glance <= 1 + _AT_END).all(0))[: 0 if by_row else _MOST]]
    least = columns.min(0)
    ends = (np.minimum(abs(least), abs(least + 1)) < _AT_END) & (abs(columns.max(0) - 1) < _AT_END)
    columns, least = columns[:, ends], least[ends]
    once = ((columns < least + _AT_END).sum(0) == 1) & ((columns > 1 - _AT_END).sum(0) == 1)
    return bool(np.count_nonzero(once) >= max(2, _several(table)))


def _several(table: _Table) -> float:
    """How many columns make it sure: of the flags among them, many are left as they are."""
    return float(min(max(2, table.shape[1] / 200), table.shape[1]))


def _held(dataset: Any) -> Iterator[_Table]:
    """Tables with a row for each record of a dataset; of a subset also only its rows."""
    for part in datasets_below(dataset):
        for table in own_tables(part):
            values = _array(table)
            if values is not None and len(values) >= _FEWEST and values.size:
                yield values
                if isinstance(dataset, Subset) and part is dataset.dataset:
                    yield values[np.asarray(dataset.indices)]


def _array(table: Any) -> _Table | None:
    """The numbers of a table; None of one that is kept in another way."""
    try:
        if isinstance(table, Tensor):  # after `numpy()` its storage could no longer be resized, as sharding does
            return np.from_dlpack(table.detach().cpu().resolve_conj().resolve_neg())
        if hasattr(type(table), "iloc"):
            table = table.select_dtypes("number") if hasattr(type(table), "select_dtypes") else table
            return np.asarray(table.to_numpy())
    except Exception:  # sparse, quantized, in eight bits, or otherwise of its own
        return None
    return table if isinstance(table, np.ndarray) else None


def _with_others(dataset: Any, others: Sequence[Any], is_wanted: Callable[[_Table], bool]) -> Iterator[_Table]:
    """The wanted tables of a dataset, and each together with that of the same columns of another one."""
    found = list(filter(is_wanted, _held(dataset)))
    yield from found
    for other in others:
        for one, beside in zip(found, filter(is_wanted, _held(other)), strict=False):
            if one.shape[1:] == beside.shape[1:] and one.dtype == beside.dtype:
                yield np.concatenate([one, beside])


def _numbers_of(dataset: Any, others: Sequence[Any]) -> Iterator[_Table]:
    """Tables of real numbers with a row for each record, by column. Pictures and series are often scaled by record."""
    whole = [other for other in others if not isinstance(other, Subset)]  # what is below it is looked at, too
    for table in _with_others(dataset, whole, lambda table: table.dtype.kind == "f" and table.ndim <= _MATRIX):
        yield table.reshape(len(table), -1)


def _channels_of(dataset: Any, others: Sequence[Any]) -> Iterator[tuple[_Table, float]]:
    """The same, also by the channels of pictures and series, and what a byte is divided by."""
    yield from ((table, 1.0) for table in _numbers_of(dataset, others))
    for table in _held(dataset):
        is_byte = table.dtype == np.uint8
        if table.ndim > _MATRIX and (is_byte or table.dtype.kind == "f"):
            for axis in (1, -1):
                yield np.moveaxis(table, axis, -1).reshape(-1, table.shape[axis]), 255.0 if is_byte else 1.0


def _class_counts(dataset: Any, others: Sequence[Any], most: int) -> Iterator[_Table]:
    """How many records there are of each class, by every table that may say so, of up to so many classes or labels."""

    def may_be_classes(table: _Table) -> bool:
        few = table.ndim <= _MATRIX and table.size <= most * len(table) and table.dtype.kind in "iufb"
        return few and len(np.unique(table[:_GLANCE])) <= most

    for table in _with_others(dataset, others, may_be_classes):
        values, counts = np.unique(table, return_counts=True)
        if table.size > len(table):
            if set(values.tolist()) == {0, 1}:
                yield table.sum(0, dtype=float)
        elif 2 <= len(values) <= len(table) / 4 and (values == np.round(values)).all():
            yield counts.astype(float)


def _are_weighted_by_class(dataset: Any) -> bool:
    """Whether a column has the weight of each record's class, or its share, which follow from how many have them."""
    for table in _held(dataset):
        if table.dtype.kind == "f" and table.ndim <= _MATRIX:
            glance = table.reshape(len(table), -1)[:: 1 + len(table) // _GLANCE]
            for column in range(glance.shape[1]):
                seen = np.unique(glance[:, column])
                if 2 <= len(seen) <= len(glance) / 4 and _vector(seen) is not None:  # no flags, whose numbers are round
                    values, counts = np.unique(table.reshape(len(table), -1)[:, column], return_counts=True)
                    vector = _vector(values)
                    if vector is not None and _are_weights(vector, counts.astype(float)):
                        return True
    return False


def _moments(table: _Table) -> tuple[_Table, _Table]:
    with np.errstate(all="ignore"):  # what is not finite has no moments
        mean = table.mean(0, dtype=float)
        blocks = (table[start : start + _BLOCK] for start in range(0, len(table), _BLOCK))
        squares = np.sum([np.square(block - mean).sum(0) for block in blocks], axis=0)
        return mean, np.sqrt(squares / max(1, len(table)))


def _vector(value: Any) -> _Table | None:
    """Up to a thousand numbers as a vector, unless all are the same, or as round as ones that are chosen."""
    if type(value) in (Tensor, Parameter) and value.numel() <= _MOST:
        value = _array(value)
    is_list = type(value) in (list, tuple) and all(isinstance(number, int | float) for number in value)
    if not (is_list or isinstance(value, np.ndarray | float)) or not 0 < np.size(value) <= _MOST:
        return None
    vector = np.ravel(np.asarray(value))
    if vector.dtype.kind not in "iuf" or not np.isfinite(vector).all() or (vector.size > 1 and np.ptp(vector) == 0):
        return None
    vector = vector.astype(float)
    return None if all(map(_is_chosen, vector.tolist())) else vector


def _is_chosen(number: float) -> bool:
    """Whether it has three digits, or is a plain fraction."""
    near = [float(f"{number:.3g}")]
    if abs(number) <= _FRACTION:
        near.append(float(Fraction(number).limit_denominator(_FRACTION)))
    return any(abs(number - other) <= _AT_END * abs(number) for other in near)


def _are_weights(vector: _Table, counts: _Table) -> bool:
    """Whether numbers are a power of the counts times a factor, their logarithms, or the ratio of two counts."""
    if len(vector) not in (1, len(counts)) or (counts <= 0).any() or (counts == counts[0]).all():
        return False
    logs = np.log(counts)
    if len(vector) == 1:
        if len(counts) == 2 and _is_chosen(counts[0] / counts[1]):  # of 2 to 1, a root of two may be anybody's
            return False
        between = [*(logs[:2] - logs[1::-1]), *(logs - np.log(counts.sum()))] if len(counts) == 2 else []
        powers = [power * log for log in between for power in (-1, -0.5, 0.5, 1)]
        with np.errstate(all="ignore"):  # a logit may be negative
            return any(abs(ours - power) < _CLOSE for ours in (np.log(vector[0]), vector[0]) for power in powers)
    logs -= logs.mean()
    with np.errstate(all="ignore"):
        # A label's weight is the number of records without it over that of those with it: one more is a power.
        for ours in (np.log(vector), np.log(vector + 1), vector):
            ours = ours - ours.mean()
            power = ours @ logs / (logs @ logs)
            is_usual = min(abs(power - likely) for likely in (-1, -0.5, 0.5, 1)) < _CLOSE
            is_usual = is_usual or (len(counts) > 2 and _CLOSE < abs(power) <= 2)
            if is_usual and (abs(ours - power * logs) < _CLOSE).all():
                return True
    return False
