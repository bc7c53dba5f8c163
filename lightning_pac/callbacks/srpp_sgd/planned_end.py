"""When a fit ends, which its records must not decide."""

from typing import Any

import lightning.pytorch as pl

from lightning_pac.exceptions import PrivacyViolationError

__all__ = ["PlannedEnd"]


class PlannedEnd:
    """The settings that say when a fit ends, as they were at its start; `should_stop` is told on the card.

    Args:
        trainer: Of the fit.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._settings = self._read()

    def check(self) -> None:
        """Hold the settings against those of the start.

        Raises:
            PrivacyViolationError: If one was changed.
        """
        changed = [name for name, value in self._read().items() if value != self._settings[name]]
        if changed:
            raise PrivacyViolationError(
                f"{changed[0]} of the Trainer was changed during the run, and private records may have decided that: "
                "set it before fit, or end the run by trainer.should_stop, of which the card tells."
            )

    def check_epoch(self) -> None:
        """Hold the batches of an epoch against each other at its end; one that was left out was not begun.

        Raises:
            PrivacyViolationError: If one was begun and broken off, which ends the epoch without a word.
        """
        batches: Any = self._trainer.fit_loop.epoch_loop.batch_progress.current
        if batches.started > batches.completed:
            raise PrivacyViolationError(
                "A batch was broken off by StopIteration, which ends the epoch, and private records may have decided "
                "that: leave the end to the Trainer, or end the run by trainer.should_stop, of which the card tells."
            )

    def _read(self) -> dict[str, Any]:
        loop: Any = self._trainer.fit_loop
        return {
            "max_epochs": loop.max_epochs,
            "min_epochs": loop.min_epochs,
            "max_steps": loop.epoch_loop.max_steps,
            "min_steps": loop.epoch_loop.min_steps,
            "limit_train_batches": self._trainer.limit_train_batches,
            "accumulate_grad_batches": self._trainer.accumulate_grad_batches,
        }
