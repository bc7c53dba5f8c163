"""The use that evaluations make of metrics, asked of synthetic records at the first and now and then."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from lightning_pac.callbacks.metrics.delivered_records import DeliveredRecords, modes_before, tell_of_persons
from lightning_pac.callbacks.metrics.kept_values import attribute_digests
from lightning_pac.callbacks.metrics.metric_memory import ONE_ROW, remembered
from lightning_pac.callbacks.metrics.noised_metric import PrivateMetric
from lightning_pac.callbacks.shared import named_if_slow
from lightning_pac.callbacks.srpp_sgd import (
    SRPPSGD,
    Beginning,
    LeftOut,
    MetricRows,
    ShownMetrics,
    Training,
    kept_out,
    rows_of_metrics,
    runs_in,
    training_at_rest,
)
from lightning_pac.data.records import delivered_indices
from lightning_pac.scenarios import Adjacency, TwoWorldScenario
from lightning_pac.strategies import Ranks

__all__ = ["MIXED", "SOMETIMES", "TRAINED", "AskedRows"]

MIXED = (
    "was updated, for synthetic records, with rows that one record decides beside its own (or set by it, as a "
    "threshold is)",
    ONE_ROW,
)
TRAINED = (
    "shows other values, for synthetic records, after training on others though no weight has moved, so training "
    "records reach it in a way that nothing pays for (class counts, a threshold, prototypes, a second model)",
    ": let the evaluation depend on the weights and on public data only, or log the figure where the data may be seen",
)
LEFT_OUT = (
    "had no rows of a batch whose records have rows in other company, so that one record decides whether those beside "
    "it count",
    ": update it with the records of every batch, whatever one of them is",
)
SOMETIMES = (
    "is logged for some synthetic records and not for others, so that whether it is shown tells of a record",
    ": log it in each evaluation, also where nothing was added to it",
)
"""What a metric does and what to do instead."""

_ASKED_AT_ONCE = 3  # batches without a row


class AskedRows:
    """Asks whether each row of the metrics is of one record, before an evaluation that may do something else.

    That is Lightning's check before training, in which many steps return at once, the first that counts, then the
    second, fourth, eighth and so on of its stage, and one before which an attribute has changed that had not.
    """

    def __init__(self) -> None:
        self._found: dict[str, MetricRows] = {}
        self._evaluations: Counter[str] = Counter()
        self._beginning: Beginning | None = None
        self._asked_of_first: set[str] = set()
        self._changed: set[tuple[Any, ...]] = set()
        self._stage, self._told = "", set[str]()
        self._asked_about: set[tuple[Any, ...]] = set()
        self._asked_after: tuple[DeliveredRecords, int] | None = None
        self._unseen: tuple[pl.LightningModule, dict[tuple[str, str], bytes], frozenset[str]] | None = None

    def __reduce__(self) -> tuple[type["AskedRows"], tuple[()]]:
        return AskedRows, ()  # a copied callback has asked nothing

    def forget(self) -> None:
        """Forget what was found: another model, or the same with other loaders, may use its metrics otherwise."""
        self._found, self._evaluations, self._asked_of_first, self._told = {}, Counter(), set(), set()
        self._asked_about = set()

    def found(self, stage: str) -> MetricRows:
        """What was found for that stage, ``"validation"`` or ``"test"``, of which an evaluation has begun."""
        return self._found[stage]

    def tell_if_unasked(self, name: str) -> None:
        """Tell, once, that a metric is logged under a name that the evaluation of synthetic records did not log."""
        found = self._found[self._stage]
        if found.unchecked is None and name not in found.logged.keys() | self._told:
            self._told.add(name)
            cause = f" ({', '.join(sorted(found.late))})" if found.late else ""
            rank_zero_warn(
                f"PrivateMetrics: {name!r} was not logged for synthetic records{cause}, which could not show that each "
                "row of it is of one record: make sure that no row is computed from others or comes twice."
            )

    def note_beginning(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Copy what a model and its callbacks keep beside weights and buffers, before they have seen a record."""
        if self._beginning is None or self._beginning.pl_module is not pl_module:
            self._beginning = Beginning(trainer, pl_module, _users(trainer, "train", "validation", "test"))
            self._changed = set()

    def before(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        delivered: DeliveredRecords,
        names: Sequence[str],
        scenario: TwoWorldScenario,
        ranks: Ranks,
    ) -> MetricRows:
        """What was found for the stage of the evaluation that begins."""
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        stage, earlier = "test" if trainer.testing else "validation", MetricRows()
        self._stage = stage
        self._tell_of_unseen(trainer, pl_module, names)
        if stage in self._found:
            earlier = self._found[stage]
        else:
            tell_of_persons(callbacks, delivered.all_loaders, scenario.total_differing)
        self._evaluations[stage] += not delivered.in_trial
        number = self._evaluations[stage]
        changed = set() if self._beginning is None or delivered.in_trial else self._beginning.attributes()
        is_due = (number & (number - 1) == 0 and not delivered.in_trial) or ranks.anywhere(not changed <= self._changed)
        self._changed |= changed
        if stage not in self._found or is_due:
            with named_if_slow(f"Checking {', '.join(names)} on synthetic records"):
                found = self._ask(trainer, pl_module, delivered, names, stage, scenario.adjacency)
            if found.unchecked not in (None, earlier.unchecked):
                rank_zero_warn(
                    f"PrivateMetrics: synthetic records could not show that each row of {', '.join(names)} is of one "
                    f"record ({found.unchecked} in {stage}_step): make sure that no row is computed from others or "
                    "comes twice."
                )
            if found.untrained not in (None, earlier.untrained, found.unchecked):
                rank_zero_warn(
                    f"PrivateMetrics: synthetic records could not show that {', '.join(names)} take nothing of the "
                    f"records trained on but the weights ({found.untrained}): make sure that the evaluation uses no "
                    "state that training keeps of its records."
                )
            self._found[stage] = found.and_earlier(earlier)
        is_repeated = trainer.state.fn == TrainerFn.FITTING and any(isinstance(each, SRPPSGD) for each in callbacks)
        if (errors := self._found[stage].late) and not delivered.in_trial and not is_repeated:
            self._unseen = pl_module, attribute_digests(pl_module, _users(trainer, "validation", "test")), errors
        return self._found[stage]

    def refuse_left_out(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        delivered: DeliveredRecords,
        names: Sequence[str],
        metrics: Mapping[str, PrivateMetric],
    ) -> None:
        """Refuse metrics that had no row of a batch because of one of its records.

        Synthetic records cannot show all for which a batch may be left out, such as a number of tokens that only one
        real record has. The batches that most metrics lack are asked about, at those evaluations at which the others
        are.
        """
        before, self._asked_after = self._asked_after, (delivered, delivered.batch)
        if self._asked_after == before:
            return
        number, private = self._evaluations[self._stage], {n: m for n, m in metrics.items() if m.is_private}
        lacking = _lacking(delivered, private) if number & (number - 1) == 0 else {}
        lacking = {batch: names for batch, names in lacking.items() if (self._stage, batch) not in self._asked_about}
        chosen = sorted(lacking, key=lambda batch: -len(lacking[batch]))[:_ASKED_AT_ONCE]
        self._asked_about |= {(self._stage, batch) for batch in chosen}
        if not Ranks.of(trainer).anywhere(bool(chosen)):
            return
        batches = [_left_out(delivered, batch, {name: private[name] for name in lacking[batch]}) for batch in chosen]
        users = _users(trainer, self._stage)
        shown = ShownMetrics(names, remembered, dict(self._found[self._stage].logged))
        with ExitStack() as stack:
            stack.enter_context(named_if_slow(f"Checking {', '.join(names)} on batches without a row"))
            stack.enter_context(training_at_rest(trainer))
            for metric in metrics.values():
                stack.enter_context(metric.set_aside())
            terms = delivered.all_loaders, trainer.datamodule, self._stage, users, shown  # type: ignore[attr-defined]
            found, errors = kept_out(pl_module, batches, *terms)
        for name in found:
            private[name].refuse(*LEFT_OUT)
        if errors:
            rank_zero_warn(
                f"PrivateMetrics: {', '.join(names)} had no row of a batch, and a copy of the model could not show why "
                f"({', '.join(sorted(errors))}): make sure that no record decides whether those beside it count."
            )

    def _tell_of_unseen(self, trainer: pl.Trainer, pl_module: pl.LightningModule, names: Sequence[str]) -> None:
        """Tell what changed since an evaluation whose last hooks end in an error for synthetic records.

        Within a private fit steps of training are repeated, which shows what they do not explain.
        """
        (model, before, errors), self._unseen = self._unseen or (None, {}, ()), None
        if model is not pl_module:
            return
        now = attribute_digests(pl_module, _users(trainer, "validation", "test"))
        changed = {name for (name, _), _ in before.items() ^ now.items()} - self._told
        if changed:
            self._told |= changed
            places, causes = (", ".join(sorted(several)) for several in (changed, errors))
            rank_zero_warn(
                f"PrivateMetrics: {places} of {type(pl_module).__name__} changed since the evaluation before this one, "
                f"whose end synthetic records did not show ({causes}): make sure that {', '.join(names)} depend on "
                "nothing that an earlier evaluation took from its records."
            )

    def _ask(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        delivered: DeliveredRecords,
        names: Sequence[str],
        stage: str,
        adjacency: Adjacency,
    ) -> MetricRows:
        is_fitting = trainer.state.fn == TrainerFn.FITTING
        users = _users(trainer, stage, *["train"] * is_fitting)
        terms = (trainer.datamodule, stage, users, adjacency)  # type: ignore[attr-defined]
        with training_at_rest(trainer) as loader:
            training = None
            if loader is not None:
                callbacks = _users(trainer, "train", "validation", stage)
                known = self._beginning is not None and self._beginning.pl_module is pl_module
                is_first = stage not in self._asked_of_first
                self._asked_of_first.add(stage)
                given = loader, callbacks, modes_before(trainer), not is_fitting
                training = Training(*given, self._beginning if known else None, is_first)
            shown = ShownMetrics(names, remembered)
            return rows_of_metrics(pl_module, delivered.all_loaders, *terms, training, shown)


def _lacking(delivered: DeliveredRecords, private: Mapping[str, PrivateMetric]) -> dict[tuple[int, int], list[str]]:
    """Of each batch of a loader that metrics had rows of, by loader and place, those that it brought none."""
    found: dict[tuple[int, int], list[str]] = {}
    for name, metric in private.items():
        loaders = {delivered.of_several[batch][0] for batch in metric.batches & delivered.of_several.keys()}
        for batch in delivered.of_several.keys() - metric.batches:
            if delivered.of_several[batch][0] in loaders:
                found.setdefault(delivered.of_several[batch], []).append(name)
    return found


def _left_out(delivered: DeliveredRecords, batch: tuple[int, int], lacking: Mapping[str, PrivateMetric]) -> LeftOut:
    number, place = batch
    loader = delivered.all_loaders[number]
    counted = next(iter(lacking.values())).batches & delivered.of_several.keys()
    other = next(beside for which, beside in map(delivered.of_several.__getitem__, counted) if which == number)
    indices = [delivered_indices(loader, each) for each in (place, other)]
    return LeftOut(number, place, indices[0], next(iter(indices[1]), 0), frozenset(lacking))


def _users(trainer: pl.Trainer, *stages: str) -> list[pl.Callback]:
    return [callback for callback in trainer.callbacks if runs_in(callback, *stages)]  # type: ignore[attr-defined]
