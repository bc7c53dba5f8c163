"""When a fit ends, which its records must not decide."""

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from lightning_pac.data import ResumableDataLoader
from lightning_pac.exceptions import PrivacyViolationError

__all__ = ["PlannedEnd", "recount_progress"]


class PlannedEnd:
    """The settings that say when a fit ends, as they were at its start; `should_stop` is told on the card.

    Args:
        trainer: Of the fit.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._settings = self._read()
        progress: Any = trainer.fit_loop.epoch_progress.current
        self._epoch = progress.processed
        loop: Any = trainer.fit_loop.epoch_loop
        # Batches that the epoch begins with, which the Trainer keeps where it goes on with one.
        self._begun = loop.batch_progress.current.ready if loop.restarting else 0

    def begin_loader(self) -> None:
        """Another train loader, which the Trainer asked for, may have another number of batches."""
        self._settings["num_training_batches"] = self._trainer.num_training_batches

    def check(self) -> None:
        """Hold the settings against those of the start.

        Raises:
            PrivacyViolationError: If one was changed.
        """
        changed = [name for name, value in self._read().items() if value != self._settings[name]]
        if changed:
            self._refuse(f"{changed[0]} of the Trainer was changed during the run", "set it before fit")

    def check_epoch(self, loader: DataLoader[Any], left_out: bool) -> None:
        """Hold the batches of an epoch against each other, and against their number, at its end.

        Args:
            loader: Gave them.
            left_out: Whether `on_train_batch_start` left out the last one, which was not begun then.

        Raises:
            PrivacyViolationError: If one was begun and broken off, which ends the epoch without a word, or some are
                missing, or epochs.
        """
        loop: Any = self._trainer.fit_loop
        batches, self._epoch = loop.epoch_loop.batch_progress.current, self._epoch + 1
        if batches.started > batches.completed:
            raise PrivacyViolationError(
                "A batch was broken off by StopIteration, which ends the epoch, and private records may have decided "
                "that: leave the end to the Trainer, or end the run by trainer.should_stop, which the card mentions."
            )
        ended = self._trainer.should_stop or 0 <= loop.epoch_loop.max_steps <= self._trainer.global_step
        planned, begun, self._begun = self._trainer.num_training_batches, self._begun, 0
        # A complete epoch that a fit without epochs goes on with gets another batch, unless validation comes first.
        allowed = (planned, begun + 1) if begun >= planned else (planned,)
        # After an error within a batch the Trainer counts one less than the loader has given.
        is_complete = isinstance(loader, ResumableDataLoader) and loader.is_complete
        if not (left_out or ended or is_complete) and planned != math.inf and batches.ready not in allowed:
            self._refuse(f"An epoch ended after {batches.ready} of {planned} batches", "leave its end to the Trainer")
        if loop.epoch_progress.current.processed != self._epoch:
            self._refuse("The number of epochs was changed during the run", "leave it to the Trainer")

    def _refuse(self, found: str, instead: str) -> NoReturn:
        raise PrivacyViolationError(
            f"{found}, and private records may have decided that: {instead}, or end the run by trainer.should_stop, "
            "which the card mentions."
        )

    def _read(self) -> dict[str, Any]:
        loop: Any = self._trainer.fit_loop
        return {
            "max_epochs": loop.max_epochs,
            "min_epochs": loop.min_epochs,
            "max_steps": loop.epoch_loop.max_steps,
            "min_steps": loop.epoch_loop.min_steps,
            "num_training_batches": self._trainer.num_training_batches,
            "limit_train_batches": self._trainer.limit_train_batches,
            "accumulate_grad_batches": self._trainer.accumulate_grad_batches,
        }


def recount_progress(checkpoint: Mapping[str, Any]) -> None:
    """Let the Trainer see by a checkpoint whether it is of the end of a batch, or of an epoch.

    Each time it resumes at the last batch of an epoch, it counts one completed batch too few in all, and one epoch too
    few as begun, and after an error one batch too many as begun. By these it takes a later checkpoint for one within a
    batch, and ends an epoch one batch before its loader, or trains an epoch twice.

    Args:
        checkpoint: Of a fit, before the Trainer restores its loops; its counts are set right.
    """
    progress = checkpoint.get("loops", {}).get("fit_loop", {})
    batches, epochs = progress.get("epoch_loop.batch_progress"), progress.get("epoch_progress")
    if not batches or not epochs:
        return
    total, current = batches["total"], batches["current"]
    ends_batch = current["ready"] == current["started"] == current["processed"] == current["completed"] + 1
    if ends_batch:
        total["ready"] = total["started"] = total["processed"]
        total["completed"] = total["processed"] - 1
    for counted in epochs.values():
        if ends_batch:
            counted["completed"] = counted["processed"]
        begun = counted["processed"] + ends_batch
        counted["ready"], counted["started"] = max(counted["ready"], begun), max(counted["started"], begun)
