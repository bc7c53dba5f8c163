"""Hooks of a model and of its callbacks, from which the training data are kept."""

import functools
import inspect
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import lightning.pytorch as pl

from lightning_pac.data.reading_lock import ReadingLock, subclassed

__all__ = ["LockedHooks"]

_STEPS = ("training_step", "validation_step", "configure_gradient_clipping", "lr_scheduler_step", "optimizer_zero_grad")
_AROUND_BACKWARD = ("on_before_", "on_after_")


class LockedHooks:
    """Keeps the training data from every hook of a model: a step sees its batch, and nothing else of them.

    Args:
        trainer: Of which the loader and the datamodule are locked, also those that it loads later.
        pl_module: The model; it has another class until `restore`, and copies of it have its own.
    """

    def __init__(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._trainer, self._pl_module, self._kind = trainer, pl_module, type(pl_module)
        self._lock = ReadingLock(*self._sources())
        self._loader = trainer.train_dataloader
        hooks = [name for name in dir(pl.LightningModule) if name.startswith("on_") or name in _STEPS]
        own = {name: getattr(self._kind, name) for name in (*hooks, "train_dataloader")}
        locked = {name: self._locked(name, hook) for name, hook in own.items() if _is_users(hook)}
        object.__setattr__(pl_module, "__class__", subclassed(self._kind, locked))

    def closed(self, name: str, holder: str) -> AbstractContextManager[None]:
        """Refuse what a hook reads meanwhile."""
        if self._trainer.train_dataloader is not self._loader:
            self._lock = ReadingLock(*self._sources())
            self._loader = self._trainer.train_dataloader
        has_batch = name in _STEPS or "batch" in name or name.startswith(_AROUND_BACKWARD)
        return self._lock.closed(f"{name} of {holder}", has_batch)

    def opened(self) -> AbstractContextManager[None]:
        """Refuse nothing meanwhile, as in checks that run within a hook."""
        return self._lock.closed(None)

    def restore(self) -> None:
        """Give the model its own class again."""
        object.__setattr__(self._pl_module, "__class__", self._kind)

    def _sources(self) -> tuple[Any, Any]:
        return self._trainer.train_dataloader, self._trainer.datamodule  # type: ignore[attr-defined]

    def _locked(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        if name == "train_dataloader":

            @functools.wraps(hook)
            def locked(*args: Any, **kwargs: Any) -> Any:
                self._lock.check()
                return hook(*args, **kwargs)

        else:

            @functools.wraps(hook)
            def locked(*args: Any, **kwargs: Any) -> Any:
                with self.closed(name, self._kind.__name__):
                    return hook(*args, **kwargs)

        locked.__signature__ = inspect.signature(hook)  # type: ignore[attr-defined]  # Lightning reads it
        return locked


def _is_users(hook: Any) -> bool:
    return isinstance(hook, types.FunctionType) and not hook.__module__.startswith("lightning")
