"""A private `predict_step` in place of the module's own, while a Trainer predicts."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from lightning_pac.callbacks.shared import TrainerCallback, refuse_searches

__all__ = ["PrivatePredictions"]

_MARK = "_shows_private_predictions"


class PrivatePredictions(TrainerCallback, ABC):
    """Replaces `predict_step` from the start of predicting to its end, its error or its teardown."""

    def __init__(self) -> None:
        self._restore: Callable[[], None] | None = None

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """The metrics that are logged after each batch."""

    @abstractmethod
    def _close_account(self) -> None:
        """Close what this callback has opened to charge predictions; called more than once, also after an error."""

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "predict":
            refuse_searches(trainer, self, stage)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._restore_step()
        self._close_account()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._restore_step()
        self._close_account()

    def _log(self, trainer: pl.Trainer, step: int) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(self.metrics(), step=step)

    def _replace_step(self, pl_module: pl.LightningModule, make_private: Callable[[Any], Any]) -> None:
        """Replace the module's `predict_step` by what `make_private` returns for it.

        Raises:
            MisconfigurationException: If the step is a private one already.
        """
        step = pl_module.predict_step
        if getattr(step, _MARK, False):
            raise MisconfigurationException(
                f"The predictions of {type(pl_module).__name__} are made private twice, where the last callback alone "
                "would answer: keep one of PACResponses and PrivateOutput in the Trainer."
            )
        replaced = vars(pl_module).get("predict_step")
        private_step = functools.wraps(step)(make_private(step))  # Lightning reads from the signature what to pass
        setattr(private_step, _MARK, True)
        pl_module.predict_step = private_step  # type: ignore[method-assign]

        def restore() -> None:
            if replaced is None:
                pl_module.__dict__.pop("predict_step", None)
            else:
                pl_module.predict_step = replaced  # type: ignore[method-assign]

        self._restore = restore

    def _restore_step(self) -> None:
        if self._restore is not None:
            self._restore()
            self._restore = None
