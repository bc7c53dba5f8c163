"""Rows of metrics that a record which is left out takes with it, or lets in."""

import time
from typing import Any

import torch
from torch import Tensor

from lightning_pac.callbacks.srpp_sgd.loss_check.coupling import MANY
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.company import PLACES
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.noted_rows import (
    Rows,
    RowsOf,
    is_close,
    rounding_of,
    shapes,
    unmatched,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP, SyntheticRecords

__all__ = ["mixed_by_absence", "mixed_by_limit", "mixed_by_number", "mixed_by_size"]

_SECONDS = 1.0  # that an evaluation of more records than `MANY` may be expected to take
_MOST = 2**15  # records that are made, whose rows take fifty megabytes
_SOME = 1024  # of which more are expected
_POOL = 61  # records that are repeated, a prime: one that a limit lets in is another than the one that is left out
_SUMMED = 100  # rows of which the roundings add up to as much as a row's


def mixed_by_absence(rows_of: RowsOf, synthetic: SyntheticRecords, moves_up: bool) -> set[str]:
    """Metrics in which a record that is left out takes more with it than its own row."""
    few, following = synthetic.draw(0)[: 2 * GROUP], synthetic.draw(1)

    def evaluated(first: list[Any]) -> Rows:
        return rows_of(_batches([*first, *following], len(few)) if moves_up else [first, following])

    found, everything = set(), evaluated(few)
    for place in PLACES[::2]:
        for before, after in zip(everything, evaluated([*few[:place], *few[place + 1 :]]), strict=True):
            for name, rows in before.items():
                rounding = rounding_of(rows)
                if unmatched(rows, after[name], rounding) > 1 or unmatched(after[name], rows, rounding):
                    found.add(name)
    return found


def mixed_by_number(rows_of: RowsOf, pair: list[Any], num_batches: int) -> set[str]:
    """Metrics that the number of a batch decides about, which a record that moves up changes."""
    numbers = [number for number in range(num_batches) if number < MANY or number & (number - 1) == 0]
    numbers += [num_batches - 1] * (num_batches > MANY)
    found = set()
    for one, several in zip(rows_of([pair]), rows_of([pair] * len(numbers), numbers), strict=True):
        for name, rows in one.items():
            expected = rows * len(numbers)
            if len(expected) != len(several[name]) or unmatched(expected, several[name], rounding_of(expected)):
                found.add(name)
    return found


def mixed_by_size(rows_of: RowsOf, pool: list[Any], largest: int) -> set[str]:
    """Metrics that leave out batches which are not full, so that one record less takes all of its batch with it."""
    if largest > MANY and not _takes_no_time(rows_of, pool, largest, largest):
        largest = MANY
    found = set()
    for size in {2, largest} - {0, 1}:
        records = _repeated(pool, size)
        try:
            both = rows_of([records]), rows_of([records[1:]])
        except Exception:
            if size > 2:
                raise
            continue  # some models take no single record
        for before, after in zip(*both, strict=True):
            found |= {name for name, rows in before.items() if len(rows) - len(after[name]) not in (0, 1)}
    return found


def mixed_by_limit(rows_of: RowsOf, pool: list[Any], size: int, num_records: int) -> set[str]:
    """Metrics of the first so many records only, among which one record less lets the next one.

    Args:
        rows_of: Evaluates batches.
        pool: Records, of which as many are made as the loader has, and up to twice as many: a power of two, which one
            record more or less seldom decides.
        size: Records of a batch.
        num_records: Those of the loader. None are made where these take time.
    """
    number = 1 << num_records.bit_length()
    if number > _MOST or not _takes_no_time(rows_of, pool, size, number):
        return set()
    number = -(-number // size) * size  # in full batches, since some models take no single record
    records, few = _repeated(pool[:_POOL], number), pool[: 2 * GROUP]
    parts = (_batches(records, size), _batches(records[1:], size), [few], [few[1:]])
    found = set()
    for with_it, without, among_few, of_few in zip(*map(rows_of, parts), strict=True):
        for name in with_it:
            pairs = (with_it[name], without[name]), (among_few[name], of_few[name])
            (lost, difference), (own, expected) = (_taken(*pair) for pair in pairs)
            rounding = (1 + number / _SUMMED) * rounding_of(with_it[name])
            alike = len(shapes(with_it[name] + among_few[name])) < 2
            if lost != own or (alike and not is_close(difference, expected, rounding)):
                found.add(name)
    return found


def _taken(rows: list[Tensor], left: list[Tensor]) -> tuple[int, Tensor]:
    """How many rows a record takes with it, and the sum of these if they have one shape."""
    if len(shapes(rows + left)) != 1:
        return len(rows) - len(left), torch.zeros(1, dtype=torch.float64)
    sums = [torch.stack([torch.zeros_like(rows[0]), *part]).nan_to_num_(0, 0, 0).sum(0) for part in (rows, left)]
    return len(rows) - len(left), sums[0] - sums[1]


def _batches(records: list[Any], size: int) -> list[list[Any]]:
    return [records[start : start + size] for start in range(0, len(records), size)]


def _repeated(pool: list[Any], number: int) -> list[Any]:
    return (pool * -(-number // len(pool)))[:number]


def _takes_no_time(rows_of: RowsOf, pool: list[Any], size: int, number: int) -> bool:
    """Whether an evaluation of so many records in batches of that size is expected to take none to speak of.

    It is expected of few records, which take more each, and then of more of them, if these take little.
    """
    for some in (MANY, _SOME):
        started = time.process_time()
        rows_of(_batches(_repeated(pool, some), size))
        seconds = time.process_time() - started
        if seconds * number <= _SECONDS * some:
            return True
        if seconds * _SOME > _SECONDS * MANY / 2:
            return False
    return False
