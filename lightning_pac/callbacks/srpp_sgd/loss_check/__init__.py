"""The check that a loss gives each record a gradient of its own, on synthetic records."""

from lightning_pac.callbacks.srpp_sgd.loss_check.check import LossCheck, check_loss
from lightning_pac.callbacks.srpp_sgd.loss_check.state_watch import StateWatch

__all__ = [
    "LossCheck",
    "StateWatch",
    "check_loss",
]
