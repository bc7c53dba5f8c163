"""Whether rows of one loader of an evaluation depend on records of another."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.company import far_apart
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.noted_rows import Evaluation, are_equal

__all__ = ["mixed_by_loaders"]


def mixed_by_loaders(evaluations: Sequence[tuple[Evaluation, Callable[[list[Any]], Any]]]) -> set[str]:
    """Metrics that use what the model keeps of another loader: a threshold, prototypes, or neighbours in a gallery.

    Args:
        evaluations: Of each loader, with what makes batches of its records.
    """
    drawn = [evaluation.synthetic.draw(0) for evaluation, _ in evaluations]
    plain, again = (Evaluation.rows_of_several(evaluations, drawn) for _ in range(2))
    found: set[str] = set()
    for changed, (evaluation, _) in enumerate(evaluations):
        for other in (partial(evaluation.synthetic.draw, 1), partial(far_apart, evaluation.synthetic, 0)):
            with suppress(Exception):  # some models take no numbers that lie far apart
                rows = Evaluation.rows_of_several(evaluations, [*drawn[:changed], other(), *drawn[changed + 1 :]])
                for number, (before, repeated, after) in enumerate(zip(plain, again, rows, strict=True)):
                    found |= {
                        name
                        for name in before
                        if number != changed
                        and are_equal(before[name], repeated[name])
                        and not are_equal(before[name], after[name])
                    }
    return found
