"""The use that evaluations make of metrics, asked of synthetic records at the first and now and then."""

from collections import Counter
from collections.abc import Sequence

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from lightning_pac.callbacks.metrics.delivered_records import DeliveredRecords, modes_before, tell_of_persons
from lightning_pac.callbacks.metrics.metric_memory import ONE_ROW, remembered
from lightning_pac.callbacks.srpp_sgd import MetricRows, Training, rows_of_metrics, runs_in, training_at_rest
from lightning_pac.scenarios import Adjacency, TwoWorldScenario

__all__ = ["MIXED", "TRAINED", "AskedRows"]

MIXED = ("was updated, for synthetic records, with rows that one record decides beside its own", ONE_ROW)
TRAINED = (
    "shows other values, for synthetic records, after training on others though no weight has moved, so training "
    "records reach it in a way that nothing pays for (class counts, a threshold, prototypes, a second model)",
    ": let the evaluation depend on the weights and on public data only, or log the figure where the data may be seen",
)
"""What a metric does and what to do instead."""


class AskedRows:
    """Asks whether each row of the metrics is of one record, before an evaluation that may do something else.

    That is Lightning's check before training, in which many steps return at once, the first that counts, and then the
    second, fourth, eighth and so on of its stage.
    """

    def __init__(self) -> None:
        self._found: dict[str, MetricRows] = {}
        self._evaluations: Counter[str] = Counter()

    def before(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        delivered: DeliveredRecords,
        names: Sequence[str],
        scenario: TwoWorldScenario,
    ) -> MetricRows:
        """What was found for the stage of the evaluation that begins."""
        stage, earlier = "test" if trainer.testing else "validation", MetricRows()
        if stage in self._found:
            earlier = self._found[stage]
        else:
            tell_of_persons(trainer.callbacks, delivered.all_loaders, scenario.total_differing)  # type: ignore[attr-defined]
        self._evaluations[stage] += not delivered.in_trial
        number = self._evaluations[stage]
        if stage not in self._found or (number & (number - 1) == 0 and not delivered.in_trial):
            found = self._ask(trainer, pl_module, delivered, stage, scenario.adjacency)
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
        return self._found[stage]

    def _ask(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        delivered: DeliveredRecords,
        stage: str,
        adjacency: Adjacency,
    ) -> MetricRows:
        users: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        callbacks = [user for user in users if runs_in(user, stage)]
        terms = (trainer.datamodule, stage, callbacks, adjacency)  # type: ignore[attr-defined]
        with training_at_rest(trainer) as loader:
            training = None
            if loader is not None:
                callbacks = [user for user in users if runs_in(user, "train", "validation", stage)]
                has_ended = trainer.state.fn != TrainerFn.FITTING
                training = Training(loader, callbacks, modes_before(trainer), has_ended, remembered)
            return rows_of_metrics(pl_module, delivered.all_loaders, *terms, training)
