"""The use that evaluations make of metrics, asked of synthetic records at the first and now and then."""

from collections import Counter
from collections.abc import Sequence

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn

from lightning_pac.callbacks.metrics.delivered_records import DeliveredRecords, tell_of_persons
from lightning_pac.callbacks.srpp_sgd import MetricRows, evaluates, rows_of_metrics
from lightning_pac.scenarios import TwoWorldScenario

__all__ = ["AskedRows"]


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
            callbacks = [user for user in trainer.callbacks if evaluates(user, stage)]  # type: ignore[attr-defined]
            terms = (trainer.datamodule, stage, callbacks, scenario.adjacency)  # type: ignore[attr-defined]
            found = rows_of_metrics(pl_module, delivered.all_loaders, *terms)
            if found.unchecked not in (None, earlier.unchecked):
                rank_zero_warn(
                    f"PrivateMetrics: synthetic records could not show that each row of {', '.join(names)} is of one "
                    f"record ({found.unchecked} in {stage}_step): make sure that no row is computed from others or "
                    "comes twice."
                )
            logged = {**earlier.logged, **found.logged}
            self._found[stage] = MetricRows(earlier.mixed | found.mixed, logged, found.unchecked or earlier.unchecked)
        return self._found[stage]
