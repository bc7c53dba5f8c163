"""Hooks of a model, its data and its callbacks, from which the training data are kept."""

import functools
import inspect
import types
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn

from lightning_pac.callbacks.shared import TrainerCallback
from lightning_pac.callbacks.srpp_sgd.loss_check import AT_THE_END, TRANSFER_HOOKS, PassingState
from lightning_pac.data.reading_lock import ReadingLock
from lightning_pac.data.tables import others_of

__all__ = ["LockedHooks"]

_STEPS = ("training_step", "validation_step", "configure_gradient_clipping", "lr_scheduler_step", "optimizer_step")
_HAVE_BATCH = (*_STEPS, *TRANSFER_HOOKS, "optimizer_zero_grad")
_AROUND_BACKWARD = ("on_before_", "on_after_")
_LOADERS = ("train_dataloader", "val_dataloader")


class LockedHooks:
    """Keeps the training data from every hook of a model: a step sees its batch, and nothing else of them.

    Until the model's `teardown`, the last of all hooks, or `restore`, its hooks and some of its data and callbacks are
    others on their classes; for other objects of these classes, copies included, they are as before.

    Args:
        trainer: Of which the loader is locked, also those that it loads later, and other datasets of the same records
            that the model, its data and callbacks hold.
        pl_module: The model.

    Attributes:
        has_ended: Whether a hook at the end of training has begun.
    """

    has_ended = False

    def __init__(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._trainer, self._pl_module = trainer, pl_module
        self._undo: list[Callable[[], None]] = []
        datamodule, callbacks = trainer.datamodule, trainer.callbacks  # type: ignore[attr-defined]
        self._holders = [pl_module, *callbacks, *([] if datamodule is None else [datamodule])]
        self._renew()
        hooks = [name for name in dir(pl.LightningModule) if name.startswith("on_")]
        self._lock_hooks(pl_module, {*hooks, *_HAVE_BATCH, *_LOADERS, "state_dict", "teardown"})
        for callback in callbacks:
            if not isinstance(callback, TrainerCallback):
                self._lock_hooks(callback, ("state_dict", "teardown"))
        if datamodule is not None:
            self._lock_hooks(datamodule, (*TRANSFER_HOOKS, *_LOADERS, "state_dict"))

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _left_out, ()  # a copied callback is in no run

    def closed(self, name: str, holder: str) -> AbstractContextManager[None]:
        """Refuse what a hook reads meanwhile."""
        if self._trainer.train_dataloader is not self._loader:
            self._renew()
        self.has_ended |= name in AT_THE_END
        has_batch = name in _HAVE_BATCH or "batch" in name or name.startswith(_AROUND_BACKWARD)
        return self._lock.closed(f"{name} of {holder}", has_batch)

    def opened(self) -> AbstractContextManager[None]:
        """Refuse nothing meanwhile, as in checks that run within a hook."""
        return self._lock.closed(None)

    def restore(self) -> None:
        """Leave all hooks as they were."""
        while self._undo:
            self._undo.pop()()

    def _renew(self) -> None:
        loader: Any = self._trainer.train_dataloader
        self._loader, self._lock = loader, ReadingLock(loader, others_of(loader, self._holders))

    def _lock_hooks(self, holder: Any, names: Collection[str]) -> None:
        """Lock those of an object's hooks that are the user's, be they its own or its class's."""
        for name in names:
            own = vars(holder).get(name)
            if isinstance(own, types.MethodType):
                self._put(holder, name, types.MethodType(self._locked(name, own.__func__, own.__self__), own.__self__))
            elif isinstance(own, types.FunctionType):
                self._put(holder, name, self._locked(name, own, None))
            elif _is_users(inspect.getattr_static(type(holder), name, None)) or (name, holder) == (
                "teardown",
                self._pl_module,
            ):
                self._put(type(holder), name, self._locked(name, getattr(type(holder), name), holder))

    def _put(self, place: Any, name: str, hook: Any) -> None:
        had, before = name in vars(place), vars(place).get(name)
        put, remove = (type.__setattr__, type.__delattr__) if isinstance(place, type) else (_set, _remove)
        put(place, name, hook)

        def undo() -> None:
            if vars(place).get(name) is not hook:  # another run of the same class has locked it since
                return
            put(place, name, before) if had else remove(place, name)

        self._undo.append(undo)

    def _locked(self, name: str, hook: Callable[..., Any], holder: Any) -> Callable[..., Any]:
        @functools.wraps(hook)
        def locked(*args: Any, **kwargs: Any) -> Any:
            if not self._undo or (holder is not None and args[:1] != (holder,)):
                return hook(*args, **kwargs)
            kind = type(self._pl_module if holder is None else holder).__name__
            if name in _LOADERS:
                return self._load(name, kind, functools.partial(hook, *args, **kwargs))
            with self.closed(name, kind), ExitStack() as ending:
                if name == "teardown" and holder is self._pl_module:
                    ending.callback(self.restore)
                return hook(*args, **kwargs)

        locked.__signature__ = inspect.signature(hook)  # type: ignore[attr-defined]  # Lightning reads it
        return locked

    def _load(self, name: str, kind: str, load: Callable[[], Any]) -> Any:
        """Make a loader; that may read the data, but a model is not to be changed by what it reads."""
        if name == "train_dataloader":
            self._lock.check()
        with self.opened():
            passing = PassingState(self._pl_module)
        loader = load()
        with self.opened():
            changed = passing.changed()
        if changed:
            rank_zero_warn(
                f"{name} of {kind} sets {', '.join(sorted(changed))} while {type(self._pl_module).__name__} trains: "
                "make sure that no record decides what is set."
            )
        return loader


def _left_out() -> None:
    """Locked hooks, for a copy of their callback."""


def _set(place: Any, name: str, value: Any) -> None:
    place.__dict__[name] = value


def _remove(place: Any, name: str) -> None:
    del place.__dict__[name]


def _is_users(hook: Any) -> bool:
    return isinstance(hook, types.FunctionType) and not hook.__module__.startswith(("lightning.", "lightning_pac."))
