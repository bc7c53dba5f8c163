"""Whether the rows of an evaluation depend on records of the training before it, beside the weights."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.company import FAR, far_apart, times
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.noted_rows import (
    Evaluation,
    NotedRows,
    add_rows,
    differing_rows,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.state import (
    Beginning,
    UnseenChanges,
    begin_anew,
    trained,
    unseen_changes,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_probe import synthetic_probe
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP, SyntheticRecords
from lightning_pac.data.records import copy_small
from lightning_pac.strategies.whole_copies import WholeCopies

__all__ = ["Training", "changed_unseen", "decided_by_training"]

Found = dict[str, NotedRows]
"""By the name of each metric, its rows, and what it keeps beside its states."""


@dataclass(frozen=True)
class Training:
    """The private training of a model that is evaluated.

    Attributes:
        loader: That of the training.
        callbacks: Those that may keep something in training, or use it in the evaluation.
        modes: Whether each layer is in training mode, by name.
        has_ended: Whether its last step was taken.
        beginning: What the model and the callbacks kept when the training began.
        is_first: Whether this is the first evaluation that is asked about it.
    """

    loader: DataLoader[Any]
    callbacks: Sequence[pl.Callback]
    modes: Mapping[str, bool]
    has_ended: bool
    beginning: Beginning | None = None
    is_first: bool = False


def decided_by_training(
    pl_module: pl.LightningModule,
    training: Training,
    evaluations: Sequence[tuple[Evaluation, Callable[[list[Any]], Any]]],
    datamodule: pl.LightningDataModule | None,
    whole: WholeCopies | None,
) -> frozenset[str]:
    """Names of metrics whose rows are others after a training on other records, though no weight has moved.

    The training was paid for by its gradients, through which alone its records may reach a private metric: class
    counts, thresholds, prototypes and a second model that a callback trains are paid for by nobody. A step with the
    end of an epoch and one within the next epoch come before the evaluation, as such state may be made by the one
    and used up by the other. Where it is known what the model had kept when it began, this is asked of that as well,
    since nothing is new to what has seen all values; then steps that come now and then follow (`trained`).

    Args:
        pl_module: The model.
        training: As above.
        evaluations: What evaluates records, and makes batches of them, for each loader.
        datamodule: Its transfer hooks are run as the Trainer would.
        whole: Makes the copy of a sharded model.
    """
    terms = pl_module, training, datamodule, whole
    probe, synthetic = _probed(*terms)
    records = synthetic.draw(0)
    part, other = records[: 2 * GROUP], records[2 * GROUP :]
    found = _decided(probe, evaluations, part, [other, [times(record, FAR) for record in other]])
    for beginning in (training.beginning, None) if training.beginning is not None and training.is_first else ():
        with suppress(Exception):  # a model may not run out of its time, or with what it had then
            varied = [variation.records[2 * GROUP :] for variation in synthetic.varied(records, ignores=False)]
            begin = None if beginning is None else partial(begin_anew, probe, beginning, beginning.changed())
            return found | _decided(probe, evaluations, part, [other, *varied], True, begin)
    return found


def changed_unseen(
    pl_module: pl.LightningModule,
    training: Training,
    evaluations: Sequence[tuple[Evaluation, Callable[[list[Any]], Any]]],
    datamodule: pl.LightningDataModule | None,
    whole: WholeCopies | None,
) -> UnseenChanges:
    """What an evaluation depends on that training has changed, in steps that `decided_by_training` has not repeated.

    Arguments are those above. See `unseen_changes`.
    """
    if training.beginning is None or not (changed := training.beginning.changed()):
        return UnseenChanges()
    terms = pl_module, training, datamodule, whole
    probe, synthetic = _probed(*terms)

    def evaluated(probe: Probe, memo: dict[int, Any]) -> Found:
        return _evaluated(probe, evaluations, memo)

    records = synthetic.draw(0)
    return unseen_changes(training.beginning, changed, probe, records, evaluated, differing_rows, evaluated)


def _probed(
    pl_module: pl.LightningModule,
    training: Training,
    datamodule: pl.LightningDataModule | None,
    whole: WholeCopies | None,
) -> tuple[Probe, SyntheticRecords]:
    """What trains a copy, and draws records for it."""
    probe, examples = synthetic_probe(pl_module, training.loader, datamodule, training.callbacks, whole)
    for name, layer in probe.model.named_modules():
        layer.training = training.modes.get(name, layer.training)
    if training.has_ended:
        probe.end_training()
    return probe, SyntheticRecords(examples, probe.accepts)


def _decided(
    probe: Probe,
    evaluations: Sequence[tuple[Evaluation, Callable[[list[Any]], Any]]],
    part: list[Any],
    others: Sequence[list[Any]],
    later: bool = False,
    begin: Callable[[list[list[Any]]], object] | None = None,
) -> frozenset[str]:
    """Those whose rows are others after others in place of a part; a model need not take but the first of these."""

    def after(records: list[Any]) -> Found:
        memo: dict[int, Any] = {}
        found: Found = {}
        with probe.copied(memo):
            if begin is not None:
                begin([records])
            for _ in trained(probe, [records], later):
                add_rows(found, _evaluated(probe, evaluations, memo))
        return found

    first, found, unclear = after(part), set[str](), set[str]()
    for number, other in enumerate(others):
        try:
            second = after(other)
        except Exception:
            if number == 0:
                raise
            continue
        names = differing_rows(first, second)
        if names - found:
            unclear |= names & (differing_rows(first, after(part)) | differing_rows(second, after(other)))
            found |= names - unclear
    if unclear and not found:
        raise ValueError("rows are drawn at random")
    return frozenset(found)


def _evaluated(
    probe: Probe, evaluations: Sequence[tuple[Evaluation, Callable[[list[Any]], Any]]], memo: dict[int, Any]
) -> Found:
    """What evaluations of the copy that a probe runs come to."""
    found: Found = {}
    for evaluation, collate_fn in evaluations:
        evaluating = Probe(probe.replica, copy_small(collate_fn, memo), probe.hooks)
        synthetic = evaluation.synthetic
        for rows in evaluation.rows_with(evaluating, [[synthetic.draw(0), synthetic.draw(1)]]):
            add_rows(found, rows)
        with suppress(Exception):  # some models take no numbers that lie far apart
            for rows in evaluation.rows_with(evaluating, [[far_apart(synthetic, 0)]]):
                add_rows(found, rows)
    return found
