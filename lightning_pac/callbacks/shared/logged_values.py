"""Seeing every value that a model or a callback logs, before a logger or a file does."""

from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import numpy as np

__all__ = ["in_float32", "watch_logging"]

Watcher = Callable[[str, Any, Mapping[str, Any]], None]


def in_float32(bound: float) -> float:
    """The least number of float32, the type in which Lightning keeps what is logged, that is not below a bound."""
    with np.errstate(over="ignore"):
        nearest = np.float32(bound)
    return float(nearest if float(nearest) >= bound else np.nextafter(nearest, np.float32(np.inf)))


def watch_logging(trainer: pl.Trainer, pl_module: pl.LightningModule, watcher: Watcher) -> Callable[[], None]:
    """Call a function before each value is logged, with its name, the value and the options; return how to undo that.

    Lightning hands callbacks the method of the model when a fit is set up, so one in the model alone would not see what
    they log.

    Args:
        trainer: Its callbacks are seen, too.
        pl_module: The model.
        watcher: May raise; several see a value in the order in which they came.
    """
    watchers: list[Watcher] | None = getattr(pl_module.log, "watchers", None)
    if watchers is None:
        watchers = []
        _intercept(trainer, pl_module, watchers)
    watchers.append(watcher)

    def undo() -> None:
        if watcher in watchers:
            watchers.remove(watcher)
        if not watchers:
            _let_go(trainer, pl_module, watchers)

    return undo


def _intercept(trainer: pl.Trainer, pl_module: pl.LightningModule, watchers: list[Watcher]) -> None:
    own_log = pl_module.log

    def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:  # no method: copies of the module share it
        for watcher in tuple(watchers):
            watcher(name, value, kwargs)
        own_log(name, value, *args, **kwargs)

    log.__dict__.update(watchers=watchers, own=own_log)
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if "log" in vars(callback):
            callback.log = log
    pl_module.log = log  # type: ignore[method-assign]


def _let_go(trainer: pl.Trainer, pl_module: pl.LightningModule, watchers: list[Watcher]) -> None:
    for holder in (*trainer.callbacks, pl_module):  # type: ignore[attr-defined]
        held = vars(holder).get("log")
        if getattr(held, "watchers", None) is watchers:
            del holder.log
            if getattr(holder, "log", None) != held.own:  # what the class has needs no putting back
                holder.log = held.own
