"""Batches of an evaluation that a metric had no row of, asked of copies with fewer and with other records."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from lightning_pac.callbacks.srpp_sgd.loss_check.fixed_draws import SEEDS
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.asking import EVALUATED, other_data
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.noted_metrics import ShownMetrics
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.noted_rows import Evaluation
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_probe import probe_of
from lightning_pac.data.reading_lock import ReadingLock
from lightning_pac.data.records import apart, load_alone, own_generators
from lightning_pac.strategies.whole_copies import WholeCopies

__all__ = ["LeftOut", "kept_out"]

_ALONE = 4
_REPLACED = 2


@dataclass(frozen=True)
class LeftOut:
    """A batch that metrics had no row of.

    Attributes:
        loader: Number of its loader.
        number: Of the batch, in a pass of that loader.
        indices: Of its records, two or more; none where they are not known.
        other: Index of a record of a batch that one of the metrics had rows of.
        names: Of the metrics, in the model.
    """

    loader: int
    number: int
    indices: list[int]
    other: int
    names: frozenset[str]


def kept_out(
    pl_module: pl.LightningModule,
    batches: Sequence[LeftOut],
    loaders: Sequence[DataLoader[Any]],
    datamodule: pl.LightningDataModule | None,
    stage: str,
    callbacks: Sequence[pl.Callback],
    shown: ShownMetrics,
) -> tuple[set[str], set[str]]:
    """Metrics that records of such a batch are kept out of by others in it, and errors where nothing could be shown.

    A record of the batch then has a row without the others, or another record in place of one brings more than its own.

    Args:
        pl_module: The model; a copy of it is run, on the CPU.
        batches: Those asked about.
        loaders: Those of the evaluation, one after another.
        datamodule: Its transfer hooks are run as the Trainer would.
        stage: ``"validation"`` or ``"test"``, after which the hooks are named.
        callbacks: Those that may update a metric, too; a copy of them is run.
        shown: Its metrics as they are logged.
    """
    lock = ReadingLock(loaders[0], other_data(pl_module, loaders, datamodule, callbacks), EVALUATED)

    def ask(whole: WholeCopies | None) -> tuple[set[str], set[str]]:
        found, errors = set[str](), set[str]()
        for batch in batches:
            loader, broken = loaders[batch.loader], set[str]()
            try:
                if not batch.indices:
                    raise LookupError("it is not known which records the loader has given")
                with apart(loader.dataset) as own, own_generators():
                    *records, other = (load_alone(own, index, SEEDS[0]) for index in [*batch.indices, batch.other])
                with lock.copied():
                    probe = probe_of(pl_module, loader, datamodule, callbacks, whole=whole)
                number = batch.loader if len(loaders) > 1 else None
                evaluation = Evaluation(probe, None, stage, number, shown, lock)
            except Exception as error:
                errors.add(type(error).__name__)
                continue
            answers = list(_answers(evaluation, batch, records, other, broken))
            found |= {name for answer in answers for name in answer}
            errors |= broken if not answers else set()
        return found, errors

    return WholeCopies.in_turn(pl_module, ask)


def _answers(
    evaluation: Evaluation, batch: LeftOut, records: list[Any], other: Any, errors: set[str]
) -> Iterator[set[str]]:
    """Of each question that does not end in an error, the metrics with more rows than that record may bring."""
    places = sorted({len(records) * number // _ALONE for number in range(_ALONE)})
    # Twice, as some code takes a batch of one for a record.
    alone: list[tuple[list[Any], int]] = [([records[place]] * 2, 0) for place in places]
    replaced = [([*records[:place], other, *records[place + 1 :]], 1) for place in places[:_REPLACED]]
    for company, own in alone + replaced:
        try:
            rows = evaluation.rows_of([company], numbers=[batch.number])[0]
        except Exception as error:
            errors.add(type(error).__name__)
        else:
            yield {name for name in batch.names if len(rows[name]) > own}
