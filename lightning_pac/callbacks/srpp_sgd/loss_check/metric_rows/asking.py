"""Whether each row that a metric is updated with is of one record, asked of synthetic records."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader

from lightning_pac.callbacks.srpp_sgd.loss_check.coupling import MANY
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.absence import (
    mixed_by_absence,
    mixed_by_limit,
    mixed_by_number,
    mixed_by_size,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.after_training import (
    Training,
    changed_unseen,
    decided_by_training,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.company import (
    far_apart,
    is_random,
    mixed_by_company,
    mixed_by_earlier,
    mixed_by_groups,
    mixed_by_length,
    mixed_by_likeness,
    mixed_by_others,
    set_by_records,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.noted_metrics import ShownMetrics
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.noted_rows import AT_THE_END, Evaluation, RowsOf
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.several_loaders import mixed_by_loaders
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.state import UNEXPLAINED, UnseenChanges
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_probe import probe_of
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP, shown_records
from lightning_pac.data import count_records, describe_loader
from lightning_pac.data.reading_lock import ReadingLock
from lightning_pac.data.tables import others_of
from lightning_pac.scenarios import Adjacency
from lightning_pac.strategies.whole_copies import WholeCopies

__all__ = ["EVALUATED", "MetricRows", "other_data", "rows_of_metrics"]

EVALUATED = (
    "reads evaluated or trained records by itself, so that one may move the rows of all others: make each row from its "
    "own record in the batch, take what else it needs from the weights or from public data, and draw figures in the "
    "hooks at the end."
)

_BATCHES = 8  # since a class that a nearest neighbour has may stay the same by chance


@dataclass(frozen=True)
class MetricRows:
    """The use that an evaluation of synthetic records makes of the metrics of a model.

    Attributes:
        mixed: Names, in the model, of metrics of which one record decides more than one row.
        logged: Those of metrics, by the names under which they are logged.
        unchecked: Why nothing could be shown, or None.
        trained: Names of metrics whose rows records decide that the model was trained on, beside the weights.
        untrained: Why nothing of that could be shown, or None.
        others: Names under which anything but a metric is logged.
        late: Errors of hooks after the last row, which matter where they log a metric.
        sometimes: Names of metrics that are logged or not as one record decides.
    """

    mixed: frozenset[str] = frozenset()
    logged: Mapping[str, str] = field(default_factory=dict)
    unchecked: str | None = None
    trained: frozenset[str] = frozenset()
    untrained: str | None = None
    others: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    sometimes: frozenset[str] = frozenset()

    def and_earlier(self, earlier: "MetricRows") -> "MetricRows":
        """This together with what an earlier evaluation has shown."""
        return MetricRows(
            self.mixed | earlier.mixed,
            {**earlier.logged, **self.logged},
            self.unchecked or earlier.unchecked,
            self.trained | earlier.trained,
            self.untrained or earlier.untrained,
            self.others | earlier.others,
            self.late | earlier.late,
            self.sometimes | earlier.sometimes,
        )


def rows_of_metrics(
    pl_module: pl.LightningModule,
    loaders: Sequence[DataLoader[Any]],
    datamodule: pl.LightningDataModule | None,
    stage: str,
    callbacks: Sequence[pl.Callback] = (),
    adjacency: Adjacency = "replace",
    training: Training | None = None,
    shown: ShownMetrics | None = None,
) -> MetricRows:
    """Evaluate batches of synthetic records in which one makes room for another.

    That other has numbers of the usual size, a thousand times as large, and none that is a number: with a loss over the
    largest of a batch, a row that is used twice, tokens of a record as rows, or a batch that is left out if any of it
    is not finite, several rows then change. The batch has eight records, and then as many as the loader's, up to 64;
    another batch comes before it or after, and both once more, in an evaluation in which what a model keeps of the
    first shows; and one comes after many evaluations of others. One also moves from a group of records to another, such
    as the images of a patient. A batch of sixteen
    is compared with parts of it, in which hits among those of a batch are others. Where records may be absent, one is
    left out, and under `add_remove` others move up into its batch: a row that is made of a batch, or of some batches
    only, then changes. So do rows of full batches only, which are also asked for at the loader's size, above 64 where
    that takes no time, and rows of the first batches only, which are asked for at the numbers that the loader has, or
    of the first records only, if as many as the loader has take no time. After training, the same records are evaluated
    after batches of others (`decided_by_training`). Values of records are drawn at random
    (`SyntheticRecords`), or are parts of real ones; what is found shows none.

    Args:
        pl_module: The model; a copy of it is run, on the CPU.
        loaders: Those of the evaluation, one after another.
        datamodule: Its transfer hooks are run as the Trainer would.
        stage: ``"validation"`` or ``"test"``, after which the hooks are named.
        callbacks: Those that may update a metric, too; a copy of them is run.
        adjacency: How records differ.
        training: That of the model, where it is private.
        shown: Its metrics as they are logged.
    """
    terms = (pl_module, loaders, datamodule, stage, callbacks, adjacency, training, shown or ShownMetrics())
    return WholeCopies.in_turn(pl_module, lambda whole: _rows_of_metrics(*terms, whole))


def _rows_of_metrics(
    pl_module: pl.LightningModule,
    loaders: Sequence[DataLoader[Any]],
    datamodule: pl.LightningDataModule | None,
    stage: str,
    callbacks: Sequence[pl.Callback],
    adjacency: Adjacency,
    training: Training | None,
    shown: ShownMetrics,
    whole: WholeCopies | None,
) -> MetricRows:
    found: set[str] = set()
    trained: frozenset[str] = frozenset()
    unchecked: list[str] = []
    untrained: list[str] = []
    evaluations: list[tuple[Evaluation, Any]] = []
    updated: set[str] = set()
    at_end: set[str] = set()
    sometimes: set[str] = set()
    by_data: set[str] = set()
    read = [*loaders, *([] if training is None else [training.loader])]
    lock = ReadingLock(loaders[0], other_data(pl_module, read, datamodule, callbacks), EVALUATED)
    for number, loader in enumerate(loaders):
        with _noting_error(unchecked):
            examples = shown_records(loader.dataset)[0]
            with lock.copied():
                probe = probe_of(pl_module, loader, datamodule, callbacks, whole=whole)
            terms = probe, examples, stage, number if len(loaders) > 1 else None, shown, lock
            try:
                evaluation = Evaluation(*terms)
            except Exception:
                if not evaluations:
                    raise
                evaluation = Evaluation(*terms, evaluations)  # it may need what the model keeps of those before it
            evaluations.append((evaluation, loader.collate_fn))
            broken, late = _broken_hooks(evaluation, probe)
            unchecked += broken
            at_end |= late
            for names in _mixed(evaluation, loader, adjacency):
                found |= names
            with _noting_error(unchecked):
                batches = [evaluation.synthetic.draw(number)[: 2 * GROUP] for number in range(_BATCHES)]
                for num_rows in {count_records(one) for one in (loader, *read[len(loaders) :])}:
                    by_data |= evaluation.reads_data(batches, num_rows)
            mixed, some = mixed_by_likeness(evaluation.rows_of, evaluation.synthetic)
            found |= mixed
            sometimes |= some
            updated |= evaluation.updated
    if not unchecked and not updated >= {shown.logged[name] for name in shown.names if name in shown.logged}:
        unchecked.append("no update of it")
    with _noting_error(unchecked):
        if len(evaluations) > 1:
            found |= mixed_by_loaders(evaluations)
    with _noting_error(untrained):
        if training is not None:
            trained = decided_by_training(pl_module, training, evaluations, datamodule, whole)
            unseen = UnseenChanges() if trained else changed_unseen(pl_module, training, evaluations, datamodule, whole)
            trained |= unseen.moved
            if unseen.unexplained:
                untrained.append(f"{', '.join(map(repr, unseen.unexplained))} {UNEXPLAINED}")
    if by_data:
        raise MisconfigurationException(f"{stage}_step or a hook before it {EVALUATED}")
    for reader, sentence in lock.refused.items():
        if reader != AT_THE_END:  # where an error counts
            raise MisconfigurationException(sentence)
    reasons = (next(iter(errors), None) for errors in (unchecked, untrained))
    found_so = frozenset(found), shown.logged, next(reasons), trained, next(reasons)
    return MetricRows(*found_so, frozenset(shown.others), frozenset(at_end), frozenset(sometimes))


@contextmanager
def _noting_error(errors: list[str]) -> Iterator[None]:
    """Go on after an error: any model, dataset or collate function may run here."""
    try:
        yield
    except Exception as error:
        errors.append(type(error).__name__)


def _broken_hooks(evaluation: Evaluation, probe: Probe) -> tuple[list[str], set[str]]:
    """Those that end in an error, so that what they would set is not shown, and those after the last row."""
    probe.broken.clear()
    evaluation.rows_of([evaluation.synthetic.draw(number) for number in range(2)])
    late = ("_epoch_end", "validation_end", "test_end")  # which many use to show what was logged
    at_end = {name for name in probe.broken if name.split()[0].endswith(late)}
    broken = [f"an error in {name}" for name in sorted(probe.broken - at_end)]
    return broken, {f"an error in {name}" for name in at_end}


def other_data(
    pl_module: pl.LightningModule,
    loaders: Sequence[DataLoader[Any]],
    datamodule: pl.LightningDataModule | None,
    callbacks: Sequence[pl.Callback],
) -> list[Any]:
    """Datasets beside that of the first loader by which evaluated records may be read."""
    holders = [pl_module, *callbacks, *([] if datamodule is None else [datamodule])]
    others = [dataset for loader in loaders for dataset in others_of(loader, holders)]
    return [*(loader.dataset for loader in loaders[1:]), *others]


def _mixed(evaluation: Evaluation, loader: DataLoader[Any], adjacency: Adjacency) -> Iterator[set[str]]:
    """Metrics that one question after the other finds; the last may end in an error."""
    rows_of: RowsOf = evaluation.rows_of
    synthetic = evaluation.synthetic
    yield mixed_by_others(rows_of, synthetic, loader.batch_size)
    yield mixed_by_groups(rows_of, synthetic)
    yield mixed_by_length(rows_of, synthetic)
    yield from _of_two_draws(rows_of, synthetic.draw)
    if evaluation.recombined is not None:
        yield mixed_by_company(rows_of, evaluation.recombined.draw(0))
    yield mixed_by_earlier(evaluation.rows_after, synthetic)
    with suppress(Exception):  # some models take no such numbers
        yield from _of_two_draws(rows_of, partial(far_apart, synthetic))
    if adjacency == "replace":
        return
    records = synthetic.draw(0)
    if is_random(rows_of, records):
        # A record at another place draws other numbers, which are as likely as those that it drew.
        rows_of = partial(rows_of, holds_draws=True)
    yield mixed_by_absence(rows_of, synthetic, moves_up=adjacency == "add_remove")
    if adjacency == "add_remove":
        yield mixed_by_number(rows_of, records[:2], len(loader))
        ranks = getattr(loader, "num_shares", 1)
        size = math.ceil(describe_loader(loader).expected_batch_size() / ranks)
        pool = [record for number in range(MANY // (4 * GROUP)) for record in synthetic.draw(number)]
        yield mixed_by_size(rows_of, pool, size)
        yield mixed_by_limit(rows_of, pool, size, math.ceil(count_records(loader) / ranks))


def _of_two_draws(rows_of: RowsOf, draw: Callable[[int], list[Any]]) -> Iterator[set[str]]:
    first, second = (draw(number) for number in range(2))
    yield mixed_by_company(rows_of, first)
    yield mixed_by_company(rows_of, second)
    yield set_by_records(rows_of, first, second)
