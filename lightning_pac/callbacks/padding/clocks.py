"""Clocks within a step, which show how long it really took although it is padded at its end."""

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import DeviceStatsMonitor, LearningRateMonitor, ProgressBar, ThroughputMonitor
from lightning.pytorch.profilers import PassThroughProfiler, Profiler
from lightning.pytorch.utilities import rank_zero_warn

__all__ = ["refuse_clocks"]

# Called after a step has begun (its records are loaded) and before its deadline.
_WITHIN_A_STEP = {
    "fit": (
        "on_train_batch_start",
        "on_before_zero_grad",
        "on_before_backward",
        "on_after_backward",
        "on_before_optimizer_step",
    ),
    "predict": ("on_predict_batch_start",),
}


def refuse_clocks(trainer: pl.Trainer, stage: str) -> None:
    """Refuse what writes down, within a step, what time it is, and name the other callbacks that act there.

    Raises:
        MisconfigurationException: Names the clock and the way out.
    """
    profiler: Profiler = trainer.profiler  # type: ignore[attr-defined]
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    clocks = [
        type(callback).__name__
        for callback in callbacks
        if isinstance(callback, ThroughputMonitor | DeviceStatsMonitor)
        or (isinstance(callback, LearningRateMonitor) and callback.logging_interval != "epoch")
    ]
    if not isinstance(profiler, PassThroughProfiler):
        clocks.append(type(profiler).__name__)
    if clocks:
        raise MisconfigurationException(
            f"{clocks[0]} writes down how long steps really take, or what time it is within them, which is what "
            "PositiveDelay hides: measure on public data, in a run without it; LearningRateMonitor may stay with "
            "logging_interval='epoch'."
        )
    hooks = _WITHIN_A_STEP.get(stage, ())
    acting = {
        type(callback).__name__: hook
        for callback in callbacks
        for hook in hooks
        if not isinstance(callback, ProgressBar | LearningRateMonitor)
        and not type(callback).__module__.startswith("lightning_pac.")
        and getattr(type(callback), hook) is not getattr(pl.Callback, hook)
    }
    if acting:
        named = ", ".join(f"{name}.{hook}" for name, hook in acting.items())
        rank_zero_warn(
            f"PositiveDelay pads a step at its end, and some callbacks act within it ({named}): a file, a log or a "
            "message that one of them writes there tells when that was, and is not covered."
        )
