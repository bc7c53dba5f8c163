"""A decoder and its noise, trained beside the user's own model."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_pac._validation import validated
from lightning_pac.callbacks.shared import TrainerCallback
from lightning_pac.callbacks.srpp_sgd import SRPPSGD
from lightning_pac.mechanisms import OutputLaw, ReleasedMechanism
from lightning_pac.modules.srpac import Decoder, Penalty, Perturbation, SecretTable, StackelbergGame

__all__ = ["SRPACDecoder"]


@validated
class SRPACDecoder(TrainerCallback):
    """Train noise for a model's outputs, and a decoder that attacks it, as auxiliary modules beside the model.

    After each training batch the model's outputs for that batch, in evaluation mode and without gradients, are noised;
    decoder and noise each take their steps with optimizers of their own. The model's training is left as it is: it sees
    neither their gradients nor their parameters. Their state travels in the checkpoint under this callback.

    The secret is each input record of the training dataset. Nothing is private yet: after training, `certify` proves
    a bound on the noise for the model as it is then, and `PrivateOutput` releases predictions.

    Logged: `srpac/decoder_cross_entropy` and `srpac/noise_power` each step, `srpac/leakage_lower_bound` each epoch (it
    costs a pass of the model over the training dataset).

    Args:
        decoder: The follower.
        perturbation: The leader's noise.
        budget: Mutual information in nats for one prediction.
        utility: What noise costs, a function of draws (n, d); the squared length if None.
        penalty: `"one_sided"` (Algorithm 6) or `"two_sided"` (Algorithm 2).
        decoder_period: After so many steps of the leader the follower makes as many.
        warmup_steps: Steps in which only the follower learns.
        decoder_lr: Its learning rate.
        noise_lr: The leader's learning rate.

    Example:
        `Trainer(callbacks=[SRPACDecoder(MixtureDecoder(10, 64), FullGaussian(10))]).fit(model, datamodule)`
    """

    def __init__(
        self,
        decoder: Decoder,
        perturbation: Perturbation,
        budget: float = 1.0,
        utility: Callable[[Tensor], Tensor] | None = None,
        penalty: Penalty = "one_sided",
        decoder_period: int = 5,
        warmup_steps: int = 50,
        decoder_lr: float = 3e-3,
        noise_lr: float = 2e-2,
    ) -> None:
        # The decoder and the noise play the same game as by themselves; only the loop around it is the user's.
        self.game = StackelbergGame(
            _unset,
            decoder,
            perturbation,
            budget,
            utility=utility,
            penalty=penalty,
            decoder_period=decoder_period,
            warmup_steps=warmup_steps,
            decoder_lr=decoder_lr,
            noise_lr=noise_lr,
        )
        self._optimizers: list[torch.optim.Optimizer] = []
        self._saved: list[dict[str, Any]] = []

    def _shown_state(self) -> dict[str, Any]:
        return {"budget": self.game.play.budget, "steps": self.game.num_steps}

    @property
    @override
    def state_key(self) -> str:
        return "lightning_pac.SRPACDecoder"

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(callback, SRPPSGD) for callback in callbacks):
            raise MisconfigurationException(
                "SRPACDecoder learns from private records without noise, and what it learns would be in the logs and "
                "checkpoints that SRPPSGD protects: train the decoder in a fit of its own, after the private one."
            )
        if trainer.precision in ("64-true", "16-true", "bf16-true"):
            raise MisconfigurationException(
                f"precision={trainer.precision!r} computes outputs that the decoder, which has float32 parameters, "
                "cannot read: use '32-true' or 'bf16-mixed'."
            )

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.world_size > 1:
            raise MisconfigurationException(
                f"SRPACDecoder trains its modules in one process, and there are {trainer.world_size}: "
                "train with devices=1."
            )
        self.game.mechanism = pl_module
        self.game.to(pl_module.device)
        self._optimizers = self._optimizers or list(self.game.configure_optimizers())
        for optimizer, state in zip(self._optimizers, self._saved, strict=False):
            optimizer.load_state_dict(state)
        self._saved = []
        self._tabulate(trainer.train_dataloader)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        with torch.enable_grad():
            metrics = self.game.advance(batch, self._optimizers)
        for name, value in metrics.items():
            pl_module.log(name, value, batch_size=1)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._tabulate(trainer.train_dataloader)
        pl_module.log("srpac/leakage_lower_bound", self.game.leakage().lower_bound)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "play": self.game.play.state_dict(),
            "steps": self.game.num_steps,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.game.play.load_state_dict(state_dict["play"])
        self.game.num_steps = state_dict["steps"]
        self._saved = state_dict["optimizers"]

    def certify(
        self,
        model: pl.LightningModule,
        records: DataLoader[Any] | None = None,
        confidence: float = 0.99,
        law: OutputLaw | None = None,
        num_draws: int = 2**17,
    ) -> ReleasedMechanism:
        """Prove a bound for the model as it is now.

        Args:
            model: The trained model; it is run once over the records.
            records: The records that will be predicted, each equally likely to be the secret.
            confidence: Probability that the bound holds.
            law: What is known of the outputs, in place of the records.
            num_draws: Draws of each sample that chooses or certifies.

        Raises:
            ValueError: If not exactly one of `records` and `law` is given.
        """
        if (records is None) == (law is None):
            raise ValueError("Certify needs either the records that will be predicted or the law of the outputs.")
        self.game.mechanism = model
        if records is not None:
            self.game.table = self.game.tabulate(records)
        return self.game.certify(confidence, law, num_draws)

    def _tabulate(self, loader: Any) -> None:
        table: SecretTable = self.game.tabulate(loader)
        self.game.adopt(table)


def _unset(inputs: Any) -> Tensor:
    raise RuntimeError("The mechanism is the model that trains: fit it first.")
