"""The check that a loss gives each record a gradient of its own, on synthetic records."""

from lightning_pac.callbacks.srpp_sgd.loss_check.check import check_loss

__all__ = [
    "check_loss",
]
