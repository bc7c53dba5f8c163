"""Metrics that a private run logs at every step."""

from typing import Any

import lightning.pytorch as pl

from lightning_pac.callbacks.srpp_sgd.run import PrivateRun

__all__ = ["log_metrics"]


def log_metrics(pl_module: pl.LightningModule, run: PrivateRun) -> None:
    """Log the figures after a step, and show the promised one in the progress bar."""
    metrics = run.metrics()
    of_step: dict[str, Any] = {"on_step": True, "on_epoch": False, "batch_size": 1}
    for name, value in metrics.items():
        pl_module.log(name, value, **of_step)
    # A name that leaves room for the user's loss on a line of 80 columns.
    short = "guess" if run.journal.promised == "world_success_bound" else "eps"
    pl_module.log(short, metrics[f"privacy/{run.journal.promised}"], prog_bar=True, logger=False, **of_step)
    if run.clipped_fraction is None:
        return
    # Shown as the mean over an epoch: a single step's fraction drowns in its noise. All ranks have the same.
    over_epoch: dict[str, Any] = {"on_step": False, "on_epoch": True, "batch_size": 1, "sync_dist": True}
    pl_module.log("privacy/clipped_fraction", run.clipped_fraction, **over_epoch)
    deviation = run.clipped_fraction_deviation
    pl_module.log("privacy/clipped_fraction_deviation", deviation, reduce_fx="min", **over_epoch)
