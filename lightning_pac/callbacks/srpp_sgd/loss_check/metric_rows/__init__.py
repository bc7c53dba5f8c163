"""The rows that metrics are updated with in an evaluation, asked of synthetic records."""

from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.after_training import Training
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.asking import MetricRows, rows_of_metrics

__all__ = ["MetricRows", "Training", "rows_of_metrics"]
