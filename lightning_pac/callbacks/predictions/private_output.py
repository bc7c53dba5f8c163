"""Predictions that are noised, charged and only then shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_pac._validation import validated
from lightning_pac.callbacks.predictions.private_predictions import PrivatePredictions
from lightning_pac.cards import upwards
from lightning_pac.exceptions import BudgetExceededError
from lightning_pac.ledger import LedgerAccount, LedgerArgument, LedgerHandle
from lightning_pac.mechanisms import ReleasedMechanism
from lightning_pac.mechanisms.drowned import warn_if_drowned

__all__ = ["PrivateOutput"]


@validated
class PrivateOutput(PrivatePredictions):
    """Make `Trainer.predict` return noised outputs, each charged before it is shown.

    While predicting, what the module's `predict_step` returns (a float tensor, one row for each record) is passed to a
    certified mechanism: outputs that its certificate does not cover are refused, the cost of the batch is made durable
    in the ledger, and the outputs are returned with noise, rounded to a public grid. Callbacks that write predictions
    write these; what `predict_step` itself keeps, logs or writes stays raw. Predicting stops with a warning before a
    batch that the budget does not allow, and the same records cost again when they are asked again. A warning says
    where noise drowns the first batch.

    The secret is each input record; the certificate's conditions are on `released.card()`.

    Logged after each batch: `privacy/mutual_information` (all charges of the account), `privacy/predictions`,
    `privacy/mutual_information_certified` (of one prediction) and `srpac/noise_power`.

    Args:
        released: What `StackelbergGame.certify` or `certify_mechanism` returned, or the path of its saved file.
        ledger: The ledger, or its path.
        budget: Largest total in nats for this account; None for the ledger's own.
        account: Name of the account in the ledger.

    Raises:
        TypeError: If the mechanism is not certified.
        ValueError: If no ledger is given.

    Example:
        `Trainer(callbacks=[PrivateOutput(released, ledger="study.db")]).predict(model, loader)`
    """

    def __init__(
        self,
        released: ReleasedMechanism | str | Path,
        ledger: LedgerArgument | None = None,
        budget: float | None = None,
        account: str = "predictions",
    ) -> None:
        if ledger is None:
            raise ValueError("ledger is None, but private predictions are recorded before they are shown: give one.")
        mechanism = ReleasedMechanism.load(released) if isinstance(released, str | Path) else released
        super().__init__()
        self.released = mechanism
        self.budget, self._account_name = budget, account
        self.ledger = LedgerHandle(ledger)
        self._account: LedgerAccount | None = None
        self._shown = 0

    @override
    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.world_size > 1:
            raise MisconfigurationException(
                f"Private predictions need one process that owns the ledger, and there are {trainer.world_size}: "
                "predict with devices=1."
            )
        try:
            self._account = self.released.open_account(self.ledger.open(), self._account_name, self.budget)
        except BaseException:
            self.ledger.close()
            raise
        self._shown = 0

        def make_private(step: Callable[..., Any]) -> Callable[..., Tensor]:
            return lambda *args, **kwargs: self._release(step(*args, **kwargs))

        self._replace_step(pl_module, make_private)

    @override
    def on_predict_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._log(trainer, self._shown)

    @override
    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        summary = ", ".join(f"{name.split('/')[1]} {upwards(value)}" for name, value in self.metrics().items())
        rank_zero_info(f"Private predictions: {summary}.")
        self._restore_step()

    @override
    def _close_account(self) -> None:
        self.ledger.close()
        self._account = None

    @override
    def metrics(self) -> dict[str, float]:
        """The releases that the account has paid for so far."""
        assert self._account is not None
        return {
            "privacy/mutual_information": self._account.spent,
            "privacy/mutual_information_certified": self.released.mutual_information,
            "privacy/predictions": float(self._shown),
            "srpac/noise_power": self.released.power,
        }

    def _release(self, outputs: Any) -> Tensor:
        assert self._account is not None
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or not outputs.is_floating_point():
            shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise MisconfigurationException(
                f"predict_step must return a float tensor with one row for each record to be noised, got {shape}: "
                "return the scores alone, and take the argmax of what predict returns."
            )
        values = outputs.detach().double().cpu().numpy()
        self.released.check(values)
        cost = self.released.mutual_information
        event = {"release": "predictions", "records": len(values)}
        try:
            self._account.charge(len(values) * cost, event)
        except BudgetExceededError as error:
            rank_zero_warn(f"Predicting stopped after {self._shown} private predictions: {error}")
            # Lightning's prediction loop ends cleanly on this and keeps the predictions that were made.
            raise StopIteration from None
        noised = self.released.release(values)
        if not self._shown:
            warn_if_drowned(
                noised,
                len(values) * self.released.power,
                "predict fewer or bounded scores (probabilities rather than logits), or certify a larger budget",
            )
        self._shown += len(values)
        return torch.from_numpy(np.ascontiguousarray(noised))
