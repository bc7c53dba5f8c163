"""A run of a selection up to its first step and to its first evaluated batch, before anything is charged."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping
from typing_extensions import override

from lightning_pac.callbacks import PrivateMetrics
from lightning_pac.exceptions import BudgetExceededError
from lightning_pac.tuning.selection_run import check_apart, without_validation

__all__ = ["begin", "rehearse"]


_FIRST_STEP = "a first step", "limit_train_batches and max_steps"


class _Reached(Exception):
    """Ends a loop where it would read its first batch."""


def begin(trainer: pl.Trainer, module: pl.LightningModule, data: pl.LightningDataModule) -> None:
    """Begin a fit, up to where callbacks check it: the module has all its weights then, and those it trains are told.

    Raises:
        MisconfigurationException: If the Trainer comes to no step.
        Exception: Whatever the setup of a fit refuses.
    """
    trainer.callbacks.append(_Beginning())  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with without_validation(trainer), _reaching(*_FIRST_STEP):
            trainer.fit(module, datamodule=data)


def rehearse(
    trainer: pl.Trainer,
    module: pl.LightningModule,
    data: pl.LightningDataModule,
    score: str,
    other: pl.LightningModule,
) -> list[str]:
    """Refuse what every run would end by, when it has been paid for and nobody may see why.

    All checks before the first step and before the evaluation are gone through, as `lightning-pac check` does: they run
    the code on synthetic records. No batch of the data is read.

    Args:
        trainer: Of the run.
        module: Its module.
        data: Its data.
        score: Name of the score.
        other: The module of another run, which has begun: it may have no trained weight in common.

    Returns:
        What this package warned of meanwhile.

    Raises:
        MisconfigurationException: If the Trainer or the model could not end a run.
        BudgetExceededError: If the steps that the Trainer plans are more than a share pays for.
        Exception: Whatever a fit or an evaluation refuses.
    """
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        raise MisconfigurationException(
            "The Trainer has fast_dev_run, under which no private score is shown: leave it out; a selection rehearses "
            "by itself."
        )
    trainer.callbacks.append(_Rehearsal(score, other))  # type: ignore[attr-defined]
    with _own_warnings() as caught:
        try:
            with without_validation(trainer), _reaching(*_FIRST_STEP):
                trainer.fit(module, datamodule=data)
        except BudgetExceededError as error:
            raise BudgetExceededError(
                "The Trainer plans more steps than a share of one_run pays for: give it max_steps, or state more."
            ) from error
        with _reaching("a batch of the evaluation", "limit_val_batches"):
            trainer.validate(module, datamodule=data, verbose=False)
    return list(dict.fromkeys(str(warning.message) for warning in caught))


class _Beginning(pl.Callback):
    """Comes first, so that no other has checked anything."""

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        callbacks.remove(self)
        callbacks.insert(0, self)  # before SRPPSGD, which does so in `setup`; nothing that follows is passed over

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        raise _Reached


class _Rehearsal(pl.Callback):
    """Comes last, so that all others have checked what they check."""

    def __init__(self, score: str, other: pl.LightningModule) -> None:
        self._score, self._other = score, other

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for name, user in _monitored(trainer):
            raise MisconfigurationException(
                f"{type(user).__name__} looks at {name!r}, of which a run of a selection has no private value while it "
                "trains: it is evaluated once, after its last step. Leave it out, or choose settings for it on public "
                "data."
            )
        check_apart(pl_module, self._other)
        raise _Reached

    @override
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        loaders = trainer.validate_loop._combined_loader.flattened  # type: ignore[union-attr]
        if len(loaders) > 1:
            raise MisconfigurationException(
                f"The evaluation has {len(loaders)} loaders, for each of which Lightning logs a value under a name of "
                f"its own, so none is {self._score!r}: give the one by which runs are chosen."
            )
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        (scored,) = (one for one in callbacks if isinstance(one, PrivateMetrics))
        rows = scored.asked.found("validation")
        if self._score in rows.others:
            raise MisconfigurationException(
                f"{type(pl_module).__name__} logs a number as {self._score!r} in its evaluation of synthetic records, "
                "by which every run would end: log the torchmetrics object itself, and nothing else under that name."
            )
        if self._score in rows.logged:
            # As the model will; what PrivateMetrics has found against the metric, it says now.
            metric = pl_module.get_submodule(rows.logged[self._score])
            trainer.validate_loop._results.log("validation_step", self._score, metric, on_step=False, on_epoch=True)
        elif rows.unchecked is None and not rows.late:
            logged = ", ".join(map(repr, rows.logged)) or "none"
            raise MisconfigurationException(
                f"{type(pl_module).__name__} logs no torchmetrics object as {self._score!r} in its evaluation of "
                f"synthetic records (it logs {logged}): self.log({self._score!r}, metric) in validation_step."
            )
        else:
            scored.asked.tell_if_unasked(self._score)  # now: nobody sees what a run warns of
        raise _Reached


def _monitored(trainer: pl.Trainer) -> Iterator[tuple[str, object]]:
    """What the run would depend on while it trains, but for what SRPPSGD logs, and who looks at it."""
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    users: list[tuple[str | None, object]] = [(one.monitor, one) for one in callbacks if isinstance(one, EarlyStopping)]
    users += [(config.monitor, config.scheduler) for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
    return ((name, user) for name, user in users if name and not name.startswith("privacy/"))


@contextmanager
def _reaching(place: str, settings: str) -> Iterator[None]:
    with suppress(_Reached):
        yield
        raise MisconfigurationException(
            f"The Trainer does not come to {place}, so no run would have a score: look at its {settings}."
        )


@contextmanager
def _own_warnings() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", category=UserWarning, module="lightning_pac")
        yield caught
