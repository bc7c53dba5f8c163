"""Whether the rows of an evaluation depend on records of the training before it, beside the weights."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import Metric

from lightning_pac.callbacks.srpp_sgd.loss_check.check import synthetic_probe
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.company import FAR, far_apart, times
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.noted_rows import Evaluation, Rows, are_equal
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import AFTER_A_BATCH, Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.replica import Replica
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP, SyntheticRecords
from lightning_pac.data.records import copy_small
from lightning_pac.strategies.whole_copies import WholeCopies

__all__ = ["Training", "decided_by_training"]

_TRAINS = {"training": True, "validating": False, "testing": False, "evaluating": False}

Found = dict[str, tuple[list[Tensor], bytes]]
"""By the name of each metric, its rows, and what it keeps beside its states."""


@dataclass(frozen=True)
class Training:
    """The private training of a model that is evaluated.

    Attributes:
        loader: That of the training.
        callbacks: Those that may keep something in training, or use it in the evaluation.
        modes: Whether each layer is in training mode, by name.
        has_ended: Whether its last step was taken.
        kept_by: What a metric keeps beside its states, such as a threshold.
    """

    loader: DataLoader[Any]
    callbacks: Sequence[pl.Callback]
    modes: Mapping[str, bool]
    has_ended: bool
    kept_by: Callable[[Metric], bytes]


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
    and used up by the other.

    Args:
        pl_module: The model.
        training: As above.
        evaluations: What evaluates records, and makes batches of them, for each loader.
        datamodule: Its transfer hooks are run as the Trainer would.
        whole: Makes the copy of a sharded model.
    """
    probe, examples = synthetic_probe(pl_module, training.loader, datamodule, training.callbacks, whole)
    for name, layer in probe.model.named_modules():
        layer.training = training.modes.get(name, layer.training)
    if training.has_ended:
        probe.end_training()
    records = SyntheticRecords(examples, probe.accepts).draw(0)

    def after(part: list[Any]) -> Found:
        memo: dict[int, Any] = {}
        rows: dict[str, list[Tensor]] = {}
        with probe.copied(memo) as replica:
            _train(probe, part)
            for evaluation, collate_fn in evaluations:
                evaluating = Probe(replica, copy_small(collate_fn, memo), probe.hooks)
                synthetic = evaluation.synthetic
                _add(rows, evaluation.rows_with(evaluating, [[synthetic.draw(0), synthetic.draw(1)]]))
                with suppress(Exception):  # some models take no numbers that lie far apart
                    _add(rows, evaluation.rows_with(evaluating, [[far_apart(synthetic, 0)]]))
            return {name: (found, _kept(replica, name, training)) for name, found in rows.items()}

    part, other = records[: 2 * GROUP], records[2 * GROUP :]
    first, found, unclear = after(part), set[str](), set[str]()
    for factor in (1.0, FAR):
        changed = [times(record, factor) for record in other]
        try:
            second = after(changed)
        except Exception:
            if factor == 1.0:
                raise
            continue  # some models take no such numbers
        names = _differing(first, second)
        if names - found:
            unclear |= names & (_differing(first, after(part)) | _differing(second, after(changed)))
            found |= names - unclear
    if unclear and not found:
        raise ValueError("rows are drawn at random")
    return frozenset(found)


def _train(probe: Probe, records: list[Any]) -> None:
    """Take a step with the end of an epoch, or of the run, and one within an epoch; weights stay."""
    moved = probe.replica.view.moved
    moved |= _TRAINS
    if probe.ends:
        with probe.without(("on_train_epoch_start",)):  # a round goes on to the next epoch
            probe.run_round(records)
    else:
        probe.run_round(records)
        with probe.without(AFTER_A_BATCH):
            probe.run_round(records)
    for name in _TRAINS:
        del moved[name]


def _add(rows: dict[str, list[Tensor]], evaluated: Rows) -> None:
    for of_metrics in evaluated:
        for name, found in of_metrics.items():
            rows.setdefault(name, []).extend(found)


def _kept(replica: Replica, name: str, training: Training) -> bytes:
    try:
        return training.kept_by(replica.model.get_submodule(name))  # type: ignore[arg-type]
    except (AttributeError, TypeError):  # which is refused where it is evaluated
        return b""


def _differing(first: Found, second: Found) -> set[str]:
    """Names of metrics with other rows, or other settings."""
    nothing: tuple[list[Tensor], bytes] = ([], b"")
    pairs = {name: (first.get(name, nothing), second.get(name, nothing)) for name in first.keys() | second.keys()}
    return {
        name for name, ((rows, kept), (others, other)) in pairs.items() if kept != other or not are_equal(rows, others)
    }
