"""Seeing every value that a model, a copy of it or a callback logs, before a logger or a file does."""

import types
from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

__all__ = ["in_float32", "let_log", "watch_logging"]

Watcher = Callable[[str, Any, Mapping[str, Any]], None]


def in_float32(bound: float) -> float:
    """The least number of float32, the type in which Lightning keeps what is logged, that is not below a bound."""
    with np.errstate(over="ignore"):
        nearest = np.float32(bound)
    return float(nearest if float(nearest) >= bound else np.nextafter(nearest, np.float32(np.inf)))


def watch_logging(trainer: pl.Trainer, watcher: Watcher) -> Callable[[], None]:
    """Call a function before each value is logged, with its name, the value and the options; return how to undo that.

    It stands where the Trainer collects what is logged: a model may have a `log` of its own, or keep `self.log` from
    before the watch, and callbacks are handed it when a fit is set up.

    Args:
        trainer: All of its loops are watched.
        watcher: May raise; several see a value in the order in which they came.
    """
    collections = _collections_of(trainer)
    watchers: list[Watcher] | None = getattr(collections[0].log, "watchers", None)
    if watchers is None:
        watchers = []
        for results in collections:
            results.log = _watched(results.log, watchers)
    watchers.append(watcher)

    def undo() -> None:
        if watcher in watchers:
            watchers.remove(watcher)
        if not watchers:
            for results in collections:
                if getattr(vars(results).get("log"), "watchers", None) is watchers:
                    del results.log  # what the class has needs no putting back

    return undo


def _collections_of(trainer: pl.Trainer) -> list[Any]:
    training = trainer.fit_loop.epoch_loop
    return [loop._results for loop in (training, training.val_loop, trainer.validate_loop, trainer.test_loop)]


def _watched(collect: Callable[..., None], watchers: list[Watcher]) -> Callable[..., None]:
    def log(hook: str, name: str, value: Any, *args: Any, **options: Any) -> None:
        for watcher in tuple(watchers):
            watcher(name, value, options)
        collect(hook, name, value, *args, **options)

    without_compiler: Callable[..., Any] = torch.compiler.disable  # as the method itself is
    watched: Callable[..., None] = without_compiler(log)
    watched.__dict__["watchers"] = watchers
    return watched


def let_log(model: pl.LightningModule, sink: Callable[[str, Any], None]) -> None:
    """Hand names and values that a copy of a model logs, in whatever way, to a function in place of a Trainer.

    Args:
        model: The copy, attached to a stand-in for its Trainer or to none.
        sink: Takes the name and the value.
    """

    def log(name: str, value: Any = None, *args: Any, **options: Any) -> None:
        sink(name, value)

    def log_dict(dictionary: Mapping[str, Any], *args: Any, **options: Any) -> None:
        for name, value in dictionary.items():
            model.log(name, value, *args, **options)

    def collect(hook: str, name: str, value: Any, **options: Any) -> None:
        sink(name, value)

    # A class's own method may give values other names; it leads to the collection.
    if type(model).log is pl.LightningModule.log:
        model.log = log  # type: ignore[method-assign]
    if type(model).log_dict is pl.LightningModule.log_dict:
        model.log_dict = log_dict  # type: ignore[assignment, method-assign]
    model._current_fx_name, model._metric_attributes = "training_step", None  # in which everything may be logged
    trainer: Any = model._trainer
    if trainer is not None:
        trainer._results = types.SimpleNamespace(log=collect)
        trainer._logger_connector = types.SimpleNamespace(should_reset_tensors=lambda hook: False)
        trainer._accelerator_connector = types.SimpleNamespace(is_distributed=False)
