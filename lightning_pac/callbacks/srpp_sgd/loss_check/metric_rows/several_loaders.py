"""Whether rows of one loader of an evaluation depend on records of another."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.company import FAR, far_apart, times
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.noted_rows import Evaluation, are_equal
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import SyntheticRecords

__all__ = ["mixed_by_loaders"]


_Draw = Callable[[SyntheticRecords, int], list[Any]]


def mixed_by_loaders(evaluations: Sequence[tuple[Evaluation, Callable[[list[Any]], Any]]]) -> set[str]:
    """Metrics that use what is kept of another loader: a threshold, prototypes, or neighbours in a gallery.

    Args:
        evaluations: Of each loader, with what makes batches of its records.
    """
    found = _mixed_beside(evaluations, SyntheticRecords.draw)
    with suppress(Exception):  # some models take no numbers that lie far apart
        found |= _mixed_beside(evaluations, far_apart)
    return found


def _mixed_beside(evaluations: Sequence[tuple[Evaluation, Callable[[list[Any]], Any]]], draw: _Draw) -> set[str]:
    """Those of which rows of such records are others beside others of another loader."""
    drawn = [draw(evaluation.synthetic, 0) for evaluation, _ in evaluations]
    plain, again = (Evaluation.rows_of_several(evaluations, drawn) for _ in range(2))
    found: set[str] = set()
    for changed, (evaluation, _) in enumerate(evaluations):
        other = evaluation.synthetic.draw(1)
        # A mean moves little where others are alike, and passes no score of another loader.
        for records in (other, far_apart(evaluation.synthetic, 1), *(_times(other, factor) for factor in (FAR, -FAR))):
            with suppress(Exception):  # as above
                rows = Evaluation.rows_of_several(evaluations, [*drawn[:changed], records, *drawn[changed + 1 :]])
                for number, (before, repeated, after) in enumerate(zip(plain, again, rows, strict=True)):
                    found |= {
                        name
                        for name in before
                        if number != changed
                        and are_equal(before[name], repeated[name])
                        and not are_equal(before[name], after[name])
                    }
    return found


def _times(records: list[Any], factor: float) -> list[Any]:
    return [times(record, factor) for record in records]
