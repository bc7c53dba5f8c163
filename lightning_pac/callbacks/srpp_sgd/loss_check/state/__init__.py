"""What a model, its callbacks and its optimizer keep from one step to the next, and what of it takes up records."""

from lightning_pac.callbacks.srpp_sgd.loss_check.state.beginning import Beginning
from lightning_pac.callbacks.srpp_sgd.loss_check.state.kept_places import differing, digests_of, own_attributes
from lightning_pac.callbacks.srpp_sgd.loss_check.state.kept_state import looks_through, remembers
from lightning_pac.callbacks.srpp_sgd.loss_check.state.later_steps import LATER, begin_anew, trained
from lightning_pac.callbacks.srpp_sgd.loss_check.state.state_watch import OPTIMIZER_STATE, StateWatch
from lightning_pac.callbacks.srpp_sgd.loss_check.state.taken_up import STEPPED, taking_up_records
from lightning_pac.callbacks.srpp_sgd.loss_check.state.unseen import (
    GRADIENT,
    UNEXPLAINED,
    UnseenChanges,
    unseen_changes,
    unseen_in_training,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.state.used_now_and_then import remembers_at

__all__ = [
    "GRADIENT",
    "LATER",
    "OPTIMIZER_STATE",
    "STEPPED",
    "UNEXPLAINED",
    "Beginning",
    "StateWatch",
    "UnseenChanges",
    "begin_anew",
    "differing",
    "digests_of",
    "looks_through",
    "own_attributes",
    "remembers",
    "remembers_at",
    "taking_up_records",
    "trained",
    "unseen_changes",
    "unseen_in_training",
]
