"""The common base of the callbacks that pad observations."""

from abc import ABC, abstractmethod
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from lightning_pac.callbacks.padding.noise_account import NoiseAccount
from lightning_pac.callbacks.shared import TrainerCallback
from lightning_pac.cards import PrivacyCard

__all__ = ["PaddingCallback"]


class PaddingCallback(TrainerCallback, ABC):
    """An account that is charged for each observation, and a fit that ends when its noise is spent.

    Args:
        account: What observations cost, and where they are charged.
    """

    def __init__(self, account: NoiseAccount) -> None:
        self._account = account

    @property
    @override
    def state_key(self) -> str:
        return f"lightning_pac.{type(self).__name__}"

    def _shown_state(self) -> dict[str, Any]:
        return {"ledger": self._account.ledger}

    @property
    def num_observations(self) -> int:
        """Padded observations so far."""
        return self._account.num_observations

    @property
    def spent(self) -> float:
        """Their cost, in releases or nats."""
        return self._account.spent

    @abstractmethod
    def card(self) -> PrivacyCard:
        """The guarantees for the observations that a budget allows, or those so far where none does."""

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._account.affords_another():
            raise StopIteration  # ends the fit; `min_epochs` and `min_steps` override `should_stop`

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._close()

    @override
    def state_dict(self) -> dict[str, Any]:
        account = self._account
        return {
            "num_observations": self.num_observations, "spent": account.unrecorded, "noise": account.noise_facts()
        }  # fmt: skip

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._account.restore(state_dict["num_observations"], state_dict.get("spent"), state_dict.get("noise"))

    def _end_if_spent(self, trainer: pl.Trainer, observations: str) -> None:
        """End the fit after this batch where the noise covers no further one."""
        if not self._account.affords_another():
            trainer.should_stop = True
            rank_zero_info(
                f"{type(self).__name__}: stopping after {self.num_observations} {observations}, since all releases are "
                "spent."
            )

    def _close(self) -> None:
        """Keep the card with the account, and let others write the ledger."""
        self.card()
        self._account.close()
