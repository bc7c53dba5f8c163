"""Rows of metrics in which one record of a batch changes those of others."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lightning_pac.callbacks.srpp_sgd.loss_check.coupling import MANY
from lightning_pac.callbacks.srpp_sgd.loss_check.fixed_draws import SEEDS
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.noted_rows import (
    RowsOf,
    differing_rows,
    moved,
    rounding_of,
    settings_differ,
    shapes,
    unmatched,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import (
    GROUP,
    OF_LENGTHS,
    SyntheticRecords,
    emptied,
    naming_parts,
    number_parts,
    parts_of_one_length,
    short_parts,
    unlike_in,
    with_number,
    with_parts_of,
)

__all__ = [
    "FAR",
    "PLACES",
    "far_apart",
    "is_random",
    "mixed_by_company",
    "mixed_by_earlier",
    "mixed_by_groups",
    "mixed_by_length",
    "mixed_by_likeness",
    "mixed_by_others",
    "set_by_records",
    "times",
]

FAR = 1e3
PLACES = (0, 2, 5, 7)
_MOST_PARTS = 8  # of a record, which are tried one after another
_MOST_VALUES = 5  # of a part
_SCALES = (0.3, 1.0, 2.0, 4.0)


def mixed_by_others(rows_of: RowsOf, synthetic: SyntheticRecords, batch_size: int | None) -> set[str]:
    """Metrics of which another record in place of one changes several rows."""
    records, following = synthetic.draw(0), synthetic.draw(1)
    few, others = records[: 2 * GROUP], records[2 * GROUP :]
    drawn = [synthetic.draw(number) for number in range(2, 2 + MANY // len(records))]
    many = [record for draw in drawn for record in draw][: batch_size or MANY]
    if any(map(moved, *[rows_of([few, following]) for _ in range(2)])):
        raise ValueError("rows are drawn at random")
    found = set()
    for batch, places, order in ((few, PLACES, -1), (few, PLACES[:1], 1), (many, PLACES[3:], -1)):
        if batch is many and len(many) <= len(few):
            continue
        first = rows_of([batch, following][::order])
        for place in places:
            other = others[place]
            for factor in (1.0, FAR, math.nan):
                record = times(other, factor)
                try:
                    rows = rows_of([[*batch[:place], record, *batch[place + 1 :]], following][::order])
                except Exception:
                    if factor == factor:
                        raise
                    continue  # the evaluation ends with such a record, and shows nothing
                for before, after in zip(first, rows, strict=True):
                    found |= {name for name, number in moved(before, after).items() if number > 1}
    return found


def mixed_by_groups(rows_of: RowsOf, synthetic: SyntheticRecords) -> set[str]:
    """Metrics in which a record that changes from one group of records to another changes the rows of both.

    Such are the hits of patients, of whom the scores of several images are averaged, or of the first row of each user.
    Which part of a record names its group is not known: all that may are asked together, and one by one.
    """
    records, following = synthetic.draw(0), synthetic.draw(1)
    few, others = records[: 2 * GROUP], records[2 * GROUP :]
    found = set[str]()
    for paths in _asked_parts(few[0]):
        one, other = PLACES[1], PLACES[2]
        batch, moving = list(few), with_parts_of(others[one], others[other], paths)
        batch[one + 1] = with_parts_of(few[one + 1], few[one], paths)
        batch[other] = with_parts_of(few[other], others[other], paths)  # a value that no other has
        try:
            both = [rows_of([batch, following]), rows_of([[*batch[:one], moving, *batch[one + 1 :]], following])]
        except Exception:  # a record may not go with parts of another
            continue
        for before, after in zip(*both, strict=True):
            found |= {name for name, number in moved(before, after).items() if number > 1}
    return found


def mixed_by_likeness(rows_of: RowsOf, synthetic: SyntheticRecords) -> tuple[set[str], set[str]]:
    """Metrics of which one record changes rows of others that are alike in a part, and those that it lets be logged.

    A batch of one class, of empty masks or with an image without boxes may be left out, or the accuracy of a group be
    logged only if some record is of it.
    """
    drawn = synthetic.draw(0)[: 2 * GROUP], synthetic.draw(1)
    place, found, logged = PLACES[1], set[str](), set[str]()
    for make, in_common, values in _likenesses(synthetic.draw(0)):
        for common in in_common:
            try:
                batch, alike = ([make(record, common) for record in records] for records in drawn)
                others = [drawn[0][place], *(make(drawn[0][place], value) for value in values if value is not common)]
                before, *rows = (
                    rows_of([[*batch[:place], other, *batch[place + 1 :]], alike]) for other in (batch[place], *others)
                )
            except Exception:  # a record may not go with parts of another
                continue
            for first, second in ((one, two) for after in rows for one, two in zip(before, after, strict=True)):
                found |= {name for name, number in moved(first, second).items() if number > 1}
                logged |= {name for name, noted in first.items() if noted.is_logged != second[name].is_logged}
    return found, logged


def _likenesses(records: list[Any]) -> Iterator[tuple[Callable[[Any, Any], Any], list[Any], list[Any]]]:
    """What makes a record like others in a part, what all may have in common, and what one may be like instead."""
    for paths in _asked_parts(records[0]):
        unlike = unlike_in(records, paths, _MOST_VALUES)
        yield partial(with_parts_of, paths=paths), unlike[:2] if len(unlike) > 1 else [], unlike
    for path in number_parts(records[0])[:_MOST_PARTS]:
        yield partial(with_number, path=path), [0.0, 1.0, -100.0, math.nan], [0.0, 1.0]
    for paths in parts_of_one_length(records[0])[:_MOST_PARTS]:
        yield partial(emptied, paths=paths), [False, True], [False, True]


def _asked_parts(record: Any) -> list[list[Any]]:
    """Parts that may name a group or a class: all together, and one by one."""
    parts = naming_parts(record)
    alone = [*(parts[:_MOST_PARTS] if len(parts) > 1 else []), *short_parts(record)[:_MOST_PARTS]]
    return [parts, *([path] for path in alone)]


def mixed_by_length(rows_of: RowsOf, synthetic: SyntheticRecords) -> set[str]:
    """Metrics in which the longest record of a batch, to which others are padded, changes their rows."""
    found, following = set(), synthetic.draw(1)
    for variation in synthetic.varied(synthetic.draw(0), ignores=False):
        if variation.circumstance != OF_LENGTHS:
            continue
        # The first is cut least, and the others by half or more.
        longest, short, few = variation.records[0], variation.records[2 * GROUP], variation.records[10:]
        try:
            both = [rows_of([[first, *few], following]) for first in (longest, short)]
        except Exception:  # such as in a stack of records of one length
            continue
        for before, after in zip(*both, strict=True):
            # Rows that are padded themselves have another shape, and do not compare.
            alike = [name for name, rows in before.items() if shapes(rows) == shapes(after[name])]
            counts = moved({name: before[name] for name in alike}, after, rounded=True)
            found |= {name for name, number in counts.items() if number > 1}
    return found


def mixed_by_company(rows_of: RowsOf, records: list[Any]) -> set[str]:
    """Metrics of which records have other rows in a batch with more of them.

    Such are hits among those of a batch, or hits at the threshold that serves a batch best.
    """
    if is_random(rows_of, records):
        return set()  # other places in a batch draw other numbers
    together = rows_of([records])
    for size in (GROUP, 2 * GROUP):
        try:
            parts = [rows_of([records[start : start + size]]) for start in range(0, len(records), size)]
        except Exception:  # too few for the model
            continue
        found = set()
        for whole, *few in zip(together, *parts, strict=True):
            for name, rows in whole.items():
                apart = [row for part in few for row in part[name]]
                alike = len(rows) == len(apart) and shapes(rows) == shapes(apart)
                if alike and unmatched(rows, apart, rounding_of(rows)):
                    found.add(name)
        return found
    return set()


def mixed_by_earlier(rows_after: Callable[..., Any], synthetic: SyntheticRecords) -> set[str]:
    """Metrics with other rows after many evaluations of others, of whose first something may have been gathered."""
    # The halves of a draw have other labels.
    first, second, records = synthetic.draw(0)[: 2 * GROUP], synthetic.draw(1)[2 * GROUP :], synthetic.draw(2)
    one, other, again = (rows_after(earlier, records) for earlier in (first, second, first))
    return differing_rows(one, other) - differing_rows(one, again)


def set_by_records(rows_of: RowsOf, first: list[Any], second: list[Any]) -> set[str]:
    """Metrics of which an evaluation sets something, such as a threshold for the next, by its records."""
    both = rows_of([first]), rows_of([second])
    return {name for one, other in zip(*both, strict=True) for name in one if settings_differ(one[name], other[name])}


def far_apart(synthetic: SyntheticRecords, number: int) -> list[Any]:
    """Records whose scores lie far apart, and with either label, as only these show a threshold between them."""
    generator = torch.Generator().manual_seed(number)

    def drawn(value: Tensor, factor: float) -> Tensor:
        numbers = torch.randn(value.shape, generator=generator, dtype=torch.float64) * factor
        found = numbers if value.numel() > 1 else numbers > 0  # of which labels are made
        return found.to(value.dtype) if value.is_floating_point() else value

    draws = [synthetic.draw(number) for number in range(MANY // (4 * GROUP))]
    # The halves of a draw have other labels.
    records = [draw[half + place] for draw in draws for place in range(2 * GROUP) for half in (0, 2 * GROUP)]
    return [apply_to_collection(record, Tensor, drawn, _SCALES[place % GROUP]) for place, record in enumerate(records)]


def is_random(rows_of: RowsOf, records: list[Any]) -> bool:
    """Whether rows of these records are others under another seed."""
    return any(map(moved, *[rows_of([records], seed=seed) for seed in SEEDS[:2]]))


def times(record: Any, factor: float) -> Any:
    """The record with floating-point numbers that are so many times as large."""
    return apply_to_collection(record, Tensor, lambda value: value * factor if value.is_floating_point() else value)
