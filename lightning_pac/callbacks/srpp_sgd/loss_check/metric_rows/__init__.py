"""The rows that metrics are updated with in an evaluation, asked of synthetic records."""

from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.after_training import Training
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.asking import MetricRows, rows_of_metrics
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.left_out import LeftOut, kept_out
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.noted_metrics import ShownMetrics

__all__ = ["LeftOut", "MetricRows", "ShownMetrics", "Training", "kept_out", "rows_of_metrics"]
