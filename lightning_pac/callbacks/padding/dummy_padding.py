"""Batches that do not tell how many records or queries they hold."""

from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from lightning_pac._validation import validated
from lightning_pac.callbacks.padding.noise_account import NoiseAccount
from lightning_pac.callbacks.padding.padding_callback import PaddingCallback
from lightning_pac.callbacks.predictions import PACResponses
from lightning_pac.callbacks.srpp_sgd import SRPPSGD
from lightning_pac.cards import PrivacyCard
from lightning_pac.data import PrivateDataLoader
from lightning_pac.ledger import LedgerArgument
from lightning_pac.mechanisms.one_sided import DPNoise
from lightning_pac.strategies import Ranks

__all__ = ["DummyPadding"]


@validated
class DummyPadding(PaddingCallback):
    """Pad every batch with dummies, so that its size no longer tells how many records or queries it holds.

    Training (with `SRPPSGD` and Poisson sampling): how many records a batch holds shows in its time and memory. Dummies
    are copies of the dataset's first record behind the drawn ones; their clipped gradients are exactly zero, and the
    sum is divided by the public batch size as before, so the optimizer takes the step that it would have taken without
    them. Where records are present in one world only (`adjacency="add_remove"`), the sizes of the two worlds differ by
    at most the number of differing records: the noise must be designed for that sensitivity.

    Predicting (with `PACResponses`): dummies are copies of the batch's first query behind the real ones. All members
    are asked them; their answers are dropped before any is drawn, are not on record, and cost no mutual information.
    That neighbours ask at most `sensitivity` queries more or less in a batch is your claim.

    Each batch (in training each microbatch) is one observation, charged before its size shows: before the first of its
    records is loaded, also by workers (what they fetch ahead is paid for, used or not), and before the members are
    asked. Training and predicting stop when the releases are spent.

    On several devices, all ranks show the same size in training: that of the largest share, plus one draw, so that what
    they show together is one observation. When predicting, each rank's batch is an observation of its own.

    What it does not hide: the number of batches; a loss that is logged is a mean over dummies too; the size is padded,
    not the time of a step (`PositiveDelay`). Queries are loaded, and copied to the device, at their true number. The
    guarantee for sizes stands beside the one for gradients: amplification by sampling assumes that the draws stay
    secret, and someone who sees padded sizes as well learns a little about them.

    Logged: `privacy/batch_size_releases` and `privacy/batch_size_mean_overhead`, as designed. `PACResponses` then logs
    nothing, since its figures count the true queries. A privacy card is kept with the ledger's account.

    Args:
        noise: Made by `PositiveNoise.for_dp`; its values count dummies.
        ledger: Where observations are charged; None keeps the count in checkpoints only.

    Raises:
        TypeError: If the noise has no known guarantee.

    Example:
        `Trainer(callbacks=[SRPPSGD(...), DummyPadding(PositiveNoise.for_dp(1.0, 1e-6, compositions=4000))])`
    """

    def __init__(self, noise: DPNoise, ledger: LedgerArgument | None = None) -> None:
        self.noise = noise
        super().__init__(NoiseAccount(noise, "batch_size", ledger, "dummy_padding"))
        self._padded: list[PrivateDataLoader | PACResponses] = []

    @override
    def card(self) -> PrivacyCard:
        """The guarantees for the batches that a budget allows, or those so far where none does."""
        return self._account.card(
            "Sizes of batches",
            "How many records or queries a batch really held, from anyone who sees padded sizes.",
            (
                "The padding does not hide the number of batches, how long they took, or metrics that are means over "
                "the padded batch.",
                "The bound is for sizes alone and stands beside those for gradients and answers.",
            ),
        )

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        private = [callback for callback in _callbacks(trainer) if isinstance(callback, SRPPSGD)]
        loader = trainer.train_dataloader
        if not private or not isinstance(loader, PrivateDataLoader) or not loader.sampling.independent_draws:
            raise MisconfigurationException(
                "DummyPadding hides the sizes of Poisson batches: use it together with SRPPSGD(sampling=Poisson(...)); "
                "other sampling has public sizes."
            )
        assert private[0].account is not None
        scenario = private[0].account.accountant.scenario
        differing = scenario.total_differing
        if scenario.adjacency == "add_remove" and self.noise.guarantee.sensitivity < differing:
            raise MisconfigurationException(
                f"Sizes of the two worlds differ by up to {differing}, and the noise was designed for "
                f"{self.noise.guarantee.sensitivity}: design it with sensitivity={differing}."
            )
        ranks = Ranks.of(trainer)
        ranks.check_equal(loader.num_workers * (loader.prefetch_factor or 1), "how many batches workers fetch ahead")
        self._begin(ranks)

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_epoch_start(trainer, pl_module)
        loader = trainer.train_dataloader
        if loader not in self._padded:  # a new one every few epochs; SRPPSGD has checked that it draws as the first
            assert isinstance(loader, PrivateDataLoader)
            self._padded.append(loader)
            loader.draw_dummies = self._draw

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        for name, value in self._account.metrics(unit=1.0).items():
            pl_module.log(name, value, batch_size=1)
        # Batches that workers have fetched ahead are paid for.
        ahead = any(isinstance(source, PrivateDataLoader) and source.num_ahead for source in self._padded)
        if not ahead:
            self._end_if_spent(trainer, "batches")

    @override
    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        responses = [callback for callback in _callbacks(trainer) if isinstance(callback, PACResponses)]
        if not responses:
            raise MisconfigurationException(
                "DummyPadding pads the queries of PACResponses when predicting: put both into one Trainer, or predict "
                "with a Trainer that has neither."
            )
        self._begin(Ranks.of(trainer))
        self._padded = [*responses]
        for response in responses:
            response.draw_dummies = self._draw_alone

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
        for logger in trainer.loggers:
            logger.log_metrics(self._account.metrics(unit=1.0), step=self.num_observations)

    def _begin(self, ranks: Ranks) -> None:
        self._close()
        self._account.open(ranks)

    @override
    def _close(self) -> None:
        for source in self._padded:
            source.draw_dummies = None
        self._padded = []
        super()._close()

    def _draw(self) -> int | None:
        """The number of dummies in the next batch of all ranks, paid for; None where the releases are spent."""
        if not self._account.affords_another():
            return None
        return self._account.pay({"batch": self.num_observations}, self._sample)

    def _draw_alone(self) -> int | None:
        """The same for one batch, on rank zero."""
        if not self._account.affords_another_alone():
            return None
        return self._account.pay_alone({"batch": self.num_observations}, self._sample)

    def _sample(self) -> int:
        return int(self.noise.sample())


def _callbacks(trainer: pl.Trainer) -> list[pl.Callback]:
    return trainer.callbacks  # type: ignore[attr-defined, no-any-return]
