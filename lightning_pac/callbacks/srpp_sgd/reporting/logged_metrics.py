"""Metrics that a private run logs at every step."""

from typing import Any

import lightning.pytorch as pl

from lightning_pac.callbacks.shared import in_float32
from lightning_pac.callbacks.srpp_sgd.run import PrivateRun
from lightning_pac.cards import upwards

__all__ = ["is_ours", "log_metrics"]

# Names that leave room for the user's loss on a line of 80 columns.
_SHORT = {"world_success_bound": "guess"}
_EPSILON = "eps"


def log_metrics(pl_module: pl.LightningModule, run: PrivateRun) -> None:
    """Log the figures after a step, and show the promised one in the progress bar."""
    metrics = run.metrics()
    of_step: dict[str, Any] = {"on_step": True, "on_epoch": False, "batch_size": 1}
    for name, value in metrics.items():
        pl_module.log(name, value if name == "privacy/noise_multiplier" else in_float32(value), **of_step)
    short = _SHORT.get(run.journal.promised, _EPSILON)
    # The bar shows three digits, to the nearest: a bound of 2.994 would be shown as 2.99.
    shown = float(upwards(metrics[f"privacy/{run.journal.promised}"], 3))
    pl_module.log(short, shown, prog_bar=True, logger=False, **of_step)
    if run.clipped_fraction is None:
        return
    # Shown as the mean over an epoch: a single step's fraction drowns in its noise. All ranks have the same.
    over_epoch: dict[str, Any] = {"on_step": False, "on_epoch": True, "batch_size": 1, "sync_dist": True}
    pl_module.log("privacy/clipped_fraction", run.clipped_fraction, **over_epoch)
    deviation = run.clipped_fraction_deviation
    pl_module.log("privacy/clipped_fraction_deviation", deviation, reduce_fx="min", **over_epoch)


def is_ours(name: str) -> bool:
    """Whether this package logs a guarantee, or an estimate, under that name."""
    return name.startswith(("privacy/", "srpac/")) or name in (*_SHORT.values(), _EPSILON)
