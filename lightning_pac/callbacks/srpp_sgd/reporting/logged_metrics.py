"""Metrics that a private run logs at every step."""

from typing import Any

import lightning.pytorch as pl

from lightning_pac.callbacks.shared import in_float32
from lightning_pac.callbacks.srpp_sgd.run import PrivateRun
from lightning_pac.cards import upwards

__all__ = ["is_ours", "log_clipped_fraction", "log_metrics"]

# Names that leave room for the user's loss on a line of 80 columns.
_SHORT = {"world_success_bound": "guess"}
_EPSILON = "eps"


def log_metrics(pl_module: pl.LightningModule, run: PrivateRun) -> None:
    """Log the figures after a step, and show the promised one in the progress bar."""
    metrics = run.metrics()
    for name, value in metrics.items():
        _log(pl_module, run, name, value if name == "privacy/noise_multiplier" else in_float32(value))
    short = _SHORT.get(run.journal.promised, _EPSILON)
    # The bar shows three digits, to the nearest: a bound of 2.994 would be shown as 2.99.
    shown = float(upwards(metrics[f"privacy/{run.journal.promised}"], 3))
    _log(pl_module, run, short, shown, prog_bar=True, logger=False)


def log_clipped_fraction(pl_module: pl.LightningModule, run: PrivateRun) -> None:
    """Log the mean over an epoch at its end: a single step's fraction drowns in its noise."""
    found = run.mean_clipped_fraction
    of_epoch: dict[str, Any] = {"on_step": False, "on_epoch": True, "batch_size": 1, "sync_dist": True}
    if found is not None:
        pl.LightningModule.log(pl_module, "privacy/clipped_fraction", found[0], **of_epoch)
        pl.LightningModule.log(pl_module, "privacy/clipped_fraction_deviation", found[1], **of_epoch)


def _log(pl_module: pl.LightningModule, run: PrivateRun, name: str, value: float, **options: Any) -> None:
    """Log a value of a step, which stays until the epoch ends or there is another one."""
    before, run.logged[name] = run.logged.get(name), value
    if before == value:
        return
    key, results = f"on_train_batch_end.{name}", None
    if before is not None:
        # `log` copies all that Lightning knows of a name, at every call, which takes longer than a small model's step.
        results = getattr(pl_module.trainer, "_results", None)
    if results and key in results:
        results.update_metrics(key, results[key].value.new_tensor(value), 1)
    else:
        # A model's own `log` may give values other names.
        pl.LightningModule.log(pl_module, name, value, on_step=True, on_epoch=False, batch_size=1, **options)


def is_ours(name: str) -> bool:
    """Whether this package logs a guarantee, or an estimate, under that name."""
    return name.startswith(("privacy/", "srpac/")) or name in (*_SHORT.values(), _EPSILON)
