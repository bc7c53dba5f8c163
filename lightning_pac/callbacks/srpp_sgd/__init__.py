"""Private training: the callback, what it checks, and the account of its run."""

from lightning_pac.callbacks.srpp_sgd.at_rest import training_at_rest
from lightning_pac.callbacks.srpp_sgd.callback import SRPPSGD
from lightning_pac.callbacks.srpp_sgd.dp_sgd import DPSGD
from lightning_pac.callbacks.srpp_sgd.guards import runs_in
from lightning_pac.callbacks.srpp_sgd.loss_check import (
    Beginning,
    LeftOut,
    MetricRows,
    ShownMetrics,
    Training,
    digests_of,
    kept_out,
    own_attributes,
    rows_of_metrics,
)
from lightning_pac.callbacks.srpp_sgd.watching import StepWatcher, WatchedRun, WatchedStep

__all__ = [
    "DPSGD",
    "SRPPSGD",
    "Beginning",
    "LeftOut",
    "MetricRows",
    "ShownMetrics",
    "StepWatcher",
    "Training",
    "WatchedRun",
    "WatchedStep",
    "digests_of",
    "kept_out",
    "own_attributes",
    "rows_of_metrics",
    "runs_in",
    "training_at_rest",
]
