"""The check that a loss gives each record a gradient of its own, on synthetic records."""

from lightning_pac.callbacks.srpp_sgd.loss_check.check import UNCHECKED, LossCheck, check_loss, refuse_left_out_batch
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows import (
    LeftOut,
    MetricRows,
    ShownMetrics,
    Training,
    kept_out,
    rows_of_metrics,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.passing_state import OF_DATASET, PassingState
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import AT_THE_END
from lightning_pac.callbacks.srpp_sgd.loss_check.replica import TRANSFER_HOOKS, Replica, hidden_behind, transferred
from lightning_pac.callbacks.srpp_sgd.loss_check.state import (
    GRADIENT,
    OPTIMIZER_STATE,
    STEPPED,
    UNEXPLAINED,
    Beginning,
    StateWatch,
    differing,
    digests_of,
    own_attributes,
    unseen_in_training,
)

__all__ = [
    "AT_THE_END",
    "GRADIENT",
    "OF_DATASET",
    "OPTIMIZER_STATE",
    "STEPPED",
    "TRANSFER_HOOKS",
    "UNCHECKED",
    "UNEXPLAINED",
    "Beginning",
    "LeftOut",
    "LossCheck",
    "MetricRows",
    "PassingState",
    "Replica",
    "ShownMetrics",
    "StateWatch",
    "Training",
    "check_loss",
    "differing",
    "digests_of",
    "hidden_behind",
    "kept_out",
    "own_attributes",
    "refuse_left_out_batch",
    "rows_of_metrics",
    "transferred",
    "unseen_in_training",
]
