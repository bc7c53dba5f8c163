"""Callbacks that write to what is trained, and those of them that are trusted to."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import BaseFinetuning, LambdaCallback, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden

from lightning_pac.callbacks.shared import TrainerCallback
from lightning_pac.callbacks.srpp_sgd.guards.locked_hooks import LockedHooks
from lightning_pac.callbacks.srpp_sgd.loss_check import AT_THE_END, PassingState, StateWatch, hidden_behind

__all__ = ["WritingCallbacks", "is_repeated", "runs_in"]

_AROUND_BACKWARD = ("on_before_", "on_after_")
_HOOKS = tuple(name for name in dir(pl.Callback) if name.startswith("on_") and "exception" not in name)
# What is set before the first step counts as done before training.
_OF_STEPS = tuple(name for name in _HOOKS if "batch" in name or "epoch" in name or name.startswith(_AROUND_BACKWARD))
# Lightning's own, which read released weights and the number of the epoch only; in the other hooks they write nothing.
_TRUSTED = (StochasticWeightAveraging, WeightAveraging, BaseFinetuning)
_TRUSTED_HOOKS = tuple(name for name in _HOOKS if "epoch" in name or name in ("on_fit_start", "on_train_end"))


class WritingCallbacks:
    """Finds out, hook by hook, which of the user's callbacks write to weights, buffers or the optimizer.

    Args:
        trainer: Its callbacks are watched until `restore`, and its schedules are trusted.
        pl_module: The model that is trained.
        watch: Of the model and its optimizer.
        locked: Keeps the training data from their hooks, but from those of ours.
        broken: Hooks that cannot be run on synthetic records; what those of the model set is told.

    Attributes:
        locked, pl_module: The same.
        passing: Names of attributes of the model that they have set, and the batch if they have changed it.
    """

    def __init__(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        watch: StateWatch,
        locked: LockedHooks,
        broken: Collection[str] = (),
    ) -> None:
        self.passing: set[str] = set()
        self.pl_module, self.locked = pl_module, locked
        self._watch, self._writing = watch, list[pl.Callback]()
        self._users: list[pl.Callback] = []
        self._wrapped: list[tuple[Any, str, Any]] = []
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if _is_users(callback):
                self._users.append(callback)
            for hook in _HOOKS:
                home = getattr(getattr(callback, hook), "__module__", "") or ""
                if _is_users(callback) and home != pl.Callback.__module__ and not home.startswith("lightning.pytorch"):
                    self._wrap(callback, hook, self._noting(callback, hook))
                elif isinstance(callback, _TRUSTED) and hook in _TRUSTED_HOOKS:
                    self._wrap(callback, hook, self._trusting(getattr(callback, hook)))
        for hook in set(broken) & set(_OF_STEPS):
            self._wrap(pl_module, hook, self._telling(hook, getattr(pl_module, hook)))
        self._wrap(pl_module, "lr_scheduler_step", self._trusting(pl_module.lr_scheduler_step))

    def repeated(self, all_of_them: bool = False) -> list[pl.Callback]:
        """Those to repeat on synthetic records: who has written, or may change batches or checkpoints.

        Args:
            all_of_them: Whether to name every callback of the user's, whatever else its repetition does.
        """
        return [user for user in self._users if all_of_them or user in self._writing or is_repeated(user)]

    @property
    def acts_at_the_end(self) -> bool:
        """Whether the model, or a callback that is repeated, has hooks after the last step, which set what is saved."""
        own = any(is_overridden(hook, self.pl_module) for hook in AT_THE_END)
        return own or any(_has_any(callback, AT_THE_END) for callback in self.repeated())

    def restore(self) -> None:
        """Leave callbacks and model as they were."""
        for holder, hook, own in self._wrapped:
            holder.__dict__.pop(hook, None)
            if own is not None:
                holder.__dict__[hook] = own
        self._wrapped.clear()

    def _wrap(self, holder: Any, hook: str, wrapper: Callable[..., Any]) -> None:
        self._wrapped.append((holder, hook, holder.__dict__.get(hook)))
        holder.__dict__[hook] = wrapper

    def _noting(self, callback: pl.Callback, name: str) -> Callable[..., Any]:
        hook, ours = getattr(callback, name), isinstance(callback, TrainerCallback)

        @functools.wraps(hook)
        def noting(*args: Any, **kwargs: Any) -> Any:
            with self.locked.opened():  # a hook may save a checkpoint, and with that call others
                before = self._watch.changed()
                passing = PassingState(self.pl_module, args[2] if name == "on_train_batch_start" else None)
            with self.locked.opened() if ours else self.locked.closed(name, type(callback).__name__):
                result = hook(*args, **kwargs)
            with self.locked.opened():
                changed = passing.changed() if name in _OF_STEPS else set[str]()
            self.passing |= changed
            if callback not in self._writing and (self._watch.changed() - before or changed):
                self._writing.append(callback)
            return result

        return hidden_behind(noting, hook)

    def _telling(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        told = set[str]()

        @functools.wraps(hook)
        def telling(*args: Any, **kwargs: Any) -> Any:
            passing = PassingState(self.pl_module)
            result = hook(*args, **kwargs)
            changed = passing.changed() - told
            if changed:
                told.update(changed)
                rank_zero_warn(
                    f"{name} of {type(self.pl_module).__name__} sets {', '.join(sorted(changed))}, and ends in "
                    "an error on synthetic records: make sure that no record decides what is set."
                )
            return result

        return hidden_behind(telling, hook)

    def _trusting(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(hook)
        def trusting(*args: Any, **kwargs: Any) -> Any:
            with self._watch.trusting():
                return hook(*args, **kwargs)

        return hidden_behind(trusting, hook)


def is_repeated(callback: pl.Callback) -> bool:
    """Whether it is the user's own, and may change checkpoints, or batches before they are trained on."""
    kind = type(callback)
    keeps = kind.state_dict is not pl.Callback.state_dict
    keeps |= kind.on_save_checkpoint is not pl.Callback.on_save_checkpoint
    return _is_users(callback) and (keeps or _has_any(callback, ("on_train_batch_start", "on_before_backward")))


def runs_in(callback: pl.Callback, *stages: str) -> bool:
    """Whether it is the user's own, and runs in one of these stages, in which it may update metrics or keep records.

    Args:
        callback: Any.
        stages: Of ``"train"``, ``"validation"`` and ``"test"``.
    """
    starts = tuple(f"on_{stage}_" for stage in stages) + _AROUND_BACKWARD * ("train" in stages)
    return _is_users(callback) and _has_any(callback, [hook for hook in _HOOKS if hook.startswith(starts)])


def _has_any(callback: pl.Callback, hooks: Sequence[str]) -> bool:
    kind = type(callback)
    return any(hook in vars(callback) or getattr(kind, hook) is not getattr(pl.Callback, hook) for hook in hooks)


def _is_users(callback: pl.Callback) -> bool:
    own = type(callback).__module__.startswith(("lightning.", "lightning_pac."))
    return isinstance(callback, LambdaCallback) or not own
