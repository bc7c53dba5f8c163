"""Telling of attributes that the loss depends on, and that training has changed in a way that no check has seen."""

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn

from lightning_pac.callbacks.srpp_sgd.guards.kept_elsewhere import KeptElsewhere
from lightning_pac.callbacks.srpp_sgd.guards.writing_callbacks import runs_in
from lightning_pac.callbacks.srpp_sgd.loss_check import (
    GRADIENT,
    UNCHECKED,
    UNEXPLAINED,
    Beginning,
    LossCheck,
    unseen_in_training,
)

__all__ = ["SHARE", "UnseenState"]

SHARE = 0.01
"""Of the time since the last check, or look at attributes, that one may take, where it is not due anyway."""


class UnseenState:
    """Knows what a model and its callbacks kept when the training began.

    Args:
        trainer: Of the training.
        pl_module: The model.

    Attributes:
        pl_module: The same.
        beginning: What they kept.
    """

    def __init__(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.pl_module, self._trainer = pl_module, trainer
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        self._users = [callback for callback in callbacks if runs_in(callback, "train")]
        self.beginning = Beginning(trainer, pl_module, self._users)
        self._elsewhere = KeptElsewhere(trainer)
        self._told, self._seen = set[str](), set[tuple[Any, ...]]()
        self._last, self._cost = time.monotonic(), 0.0

    def is_new(self, now: bool) -> bool:
        """Whether an attribute has changed since the last check that had not.

        Args:
            now: Whether to look in any case; otherwise where that takes less than 1 % of the time since it was done.
        """
        start = time.monotonic()
        if not now and SHARE * (start - self._last) < self._cost:
            return False
        found = not self.beginning.attributes() <= self._seen or not self._elsewhere.changed() <= self._told
        self._last = time.monotonic()
        self._cost = self._last - start
        return found

    def told(self, run: Any, ended: bool, found: LossCheck) -> LossCheck:
        """Go on with what a check has found, add what it has not seen to it or warn of that.

        Args:
            run: The `PrivateRun`, of which the card names the same.
            ended: Whether training has ended, so that what was told before need not be asked again.
            found: The check's outcome.
        """
        for name in self._new(self._elsewhere.changed()):
            what = f"Training sets {name!r}, which steps on synthetic records do not follow"
            rank_zero_warn(f"{what}: keep it on the model, or make sure that no record decides it.")
            run.not_shown.append(f"{what}: that no record decides it but through the weights is taken on trust.")
        if found.unchecked and not any(sentence.startswith(UNCHECKED) for sentence in run.not_shown):
            rank_zero_warn(f"{UNCHECKED}, which they did at the start ({found.unchecked}): make sure of that.")
            run.not_shown.append(found.not_shown[0])
        changed, before = self.beginning.attributes(), self._seen
        self._seen = before | changed
        due = changed and not found.problem and not (ended and changed <= before)
        if not run.copying_ranks.anywhere(bool(due)):
            return found
        terms = self.pl_module, run.loader, self._trainer.datamodule, self._users  # type: ignore[attr-defined]
        found_now = unseen_in_training(*terms, self.beginning)
        if found_now.decided and GRADIENT not in found_now.moved:
            return replace(found, state=tuple(sorted(found_now.moved)))
        if found_now.decided:
            kept = " and ".join(map(repr, found_now.decided))
            problem = f"depends on {kept}, in which training keeps something of earlier records without noise"
            return replace(found, problem=problem)
        for name in self._new(found_now.unexplained):
            rank_zero_warn(
                f"Training depends on {name!r}, which {UNEXPLAINED}: make sure that no record decides it but through "
                "the weights."
            )
            run.not_shown.append(
                f"Training came to depend on {name!r}, which {UNEXPLAINED}: that no record decides it but through the "
                "weights is taken on trust."
            )
        return found

    def _new(self, names: Collection[str]) -> list[str]:
        """Those that were not told, which they are from now on."""
        new = sorted(set(names) - self._told)
        self._told |= set(new)
        return new
