"""Whether the rows of an evaluation depend on records of the training before it, beside the weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import Metric

from lightning_pac.callbacks.srpp_sgd.loss_check.check import LATER, synthetic_probe
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.company import FAR, far_apart, times
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.noted_rows import Evaluation, Rows, are_equal
from lightning_pac.callbacks.srpp_sgd.loss_check.own_counters import OwnCounters, set_counters
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import AFTER_A_BATCH, AT_THE_END, Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.replica import Replica
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP, SyntheticRecords
from lightning_pac.data.quiet_copies import deep_copied
from lightning_pac.data.records import copy_small
from lightning_pac.strategies.whole_copies import WholeCopies

__all__ = ["Training", "decided_by_training"]

_TRAINS = {"training": True, "validating": False, "testing": False, "evaluating": False}
# Among these each remainder of numbers up to six, and the first and the last of those that up to 12, 20, ... divide.
_LATER = range(LATER[-1] - 2, LATER[-1] + 4)

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
        kept_at_first: Objects of the model and its callbacks, and copies of their attributes as these were when the
            training began.
    """

    loader: DataLoader[Any]
    callbacks: Sequence[pl.Callback]
    modes: Mapping[str, bool]
    has_ended: bool
    kept_by: Callable[[Metric], bytes]
    kept_at_first: Sequence[tuple[Any, dict[str, Any]]] = ()


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
    since nothing is new to what has seen all values; then steps that come now and then follow (`_trained`).

    Args:
        pl_module: The model.
        training: As above.
        evaluations: What evaluates records, and makes batches of them, for each loader.
        datamodule: Its transfer hooks are run as the Trainer would.
        whole: Makes the copy of a sharded model.
    """

    def probed(begins: bool) -> tuple[Probe, SyntheticRecords]:
        probe, examples = synthetic_probe(pl_module, training.loader, datamodule, training.callbacks, whole)
        for name, layer in probe.model.named_modules():
            layer.training = training.modes.get(name, layer.training)
        if begins:
            _restore(probe, pl_module, training)
            probe.begin_training()
        if training.has_ended:
            probe.end_training()
        return probe, SyntheticRecords(examples, probe.accepts)

    probe, synthetic = probed(begins=False)
    records = synthetic.draw(0)
    part, other = records[: 2 * GROUP], records[2 * GROUP :]
    found = _decided(probe, training, evaluations, part, [other, [times(record, FAR) for record in other]], later=False)
    for begins in (True, False) if training.kept_at_first else ():
        with suppress(Exception):  # a model may not run out of its time, or with what it had then
            probe, synthetic = probed(begins)
            varied = [variation.records[2 * GROUP :] for variation in synthetic.varied(records, ignores=False)]
            return found | _decided(probe, training, evaluations, part, [other, *varied], later=True)
    return found


def _restore(probe: Probe, pl_module: pl.LightningModule, training: Training) -> None:
    """Let the copies of a model and callbacks keep what the originals did when the training began."""
    model, copied = pl_module, probe.model
    pairs: list[tuple[Any, Any]] = [
        (pl_module.trainer, probe.replica.view),
        *zip(model.modules(), copied.modules(), strict=True),
        *zip(model.parameters(), copied.parameters(), strict=True),
        *zip(model.buffers(), copied.buffers(), strict=True),
        *zip(training.callbacks, probe.replica.callbacks, strict=True),
    ]
    for holder, kept in deep_copied(training.kept_at_first, {id(original): each for original, each in pairs}):
        vars(holder).update(kept)


def _decided(
    probe: Probe,
    training: Training,
    evaluations: Sequence[tuple[Evaluation, Callable[[list[Any]], Any]]],
    part: list[Any],
    others: Sequence[list[Any]],
    later: bool,
) -> frozenset[str]:
    """Those whose rows are others after others in place of a part; a model need not take but the first of these."""

    def after(records: list[Any]) -> Found:
        memo: dict[int, Any] = {}
        rows: dict[str, list[Tensor]] = {}
        with probe.copied(memo) as replica:
            for _ in _trained(probe, records, later):
                for evaluation, collate_fn in evaluations:
                    evaluating = Probe(replica, copy_small(collate_fn, memo), probe.hooks)
                    synthetic = evaluation.synthetic
                    _add(rows, evaluation.rows_with(evaluating, [[synthetic.draw(0), synthetic.draw(1)]]))
                    with suppress(Exception):  # some models take no numbers that lie far apart
                        _add(rows, evaluation.rows_with(evaluating, [[far_apart(synthetic, 0)]]))
            return {name: (found, _kept(replica, name, training)) for name, found in rows.items()}

    first, found, unclear = after(part), set[str](), set[str]()
    for number, other in enumerate(others):
        try:
            second = after(other)
        except Exception:
            if number == 0:
                raise
            continue
        names = _differing(first, second)
        if names - found:
            unclear |= names & (_differing(first, after(part)) | _differing(second, after(other)))
            found |= names - unclear
    if unclear and not found:
        raise ValueError("rows are drawn at random")
    return frozenset(found)


def _trained(probe: Probe, records: list[Any], later: bool) -> Iterator[None]:
    """Take a step with the end of an epoch, or of the run, and one within an epoch; weights stay.

    Args:
        probe: Runs the steps.
        records: Those of a batch.
        later: Whether to go on to steps that come now and then, by their number, and to the last of an epoch.
    """

    def step(part: list[Any], left_out: tuple[str, ...]) -> None:
        probe.replica.view.moved |= _TRAINS
        with probe.without(left_out):
            probe.run_round(part)
        for name in _TRAINS:
            del probe.replica.view.moved[name]

    holders = [*probe.model.modules(), *probe.replica.callbacks]
    counters = OwnCounters(holders)
    last, at_the_end = probe.last_number, ("on_train_epoch_start",) * probe.ends  # a round goes on to the next epoch
    step(records, at_the_end)
    counted = counters.found()
    if not probe.ends:
        step(records, AFTER_A_BATCH)
    yield
    if later:
        for number in _LATER:
            with probe.at(number):
                set_counters(counted, number)
                step(records[:GROUP], (*AFTER_A_BATCH, *AT_THE_END))
        yield
        probe.batch_idx = 0  # before which the last is
        with probe.at(last):
            step(records, at_the_end)
        yield


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
