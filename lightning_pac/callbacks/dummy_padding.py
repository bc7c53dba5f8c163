"""Batches that do not tell how many records were drawn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from lightning_pac.accountants import PrivacyLedger
from lightning_pac.callbacks._noise_account import NoiseAccount
from lightning_pac.callbacks.srpp_sgd import SRPPSGD
from lightning_pac.data import PrivateDataLoader
from lightning_pac.mechanisms.one_sided import DPNoise
from lightning_pac.scenarios import Poisson

__all__ = ["DummyPadding"]


class DummyPadding(pl.Callback):
    """Pad every batch of a Poisson run with dummy records, so that its size no longer tells how many were drawn.

    How many records a Poisson batch holds shows in its time and memory. Dummies are copies of the dataset's first
    record behind the drawn ones; their clipped gradients are exactly zero, and the sum is divided by the public batch
    size as before, so the optimizer takes the step that it would have taken without them. Used with `SRPPSGD`.

    Where records are present in one world only (`adjacency="add_remove"`), sizes of the two worlds differ by at most
    the number of differing records: the noise must be designed for that sensitivity. Each microbatch is one
    observation, charged before the step runs.

    What it does not hide: a loss that is logged is a mean over dummies too; the size is padded, not the time of a step
    (`PositiveDelay`). The guarantee for sizes stands beside the one for gradients: amplification by sampling assumes
    that the draws stay secret, and someone who sees padded sizes as well learns a little about them.

    Logged: `privacy/batch_size_releases` and `privacy/batch_size_mean_overhead`, as designed.

    Args:
        noise: Made by `PositiveNoise.for_dp`; its values count dummies.
        ledger: Where observations are charged; None keeps the count in checkpoints only.

    Raises:
        TypeError: If the noise has no known guarantee.

    Example:
        `Trainer(callbacks=[SRPPSGD(...), DummyPadding(PositiveNoise.for_dp(1.0, 1e-6, compositions=4000))])`
    """

    def __init__(self, noise: DPNoise, ledger: PrivacyLedger | str | Path | None = None) -> None:
        if not isinstance(noise, DPNoise):
            raise TypeError(f"noise must be made by PositiveNoise.for_dp, got {type(noise).__name__}.")
        self.noise = noise
        self._account = NoiseAccount(noise, "batch_size", ledger, "dummy_padding")
        self._loader: PrivateDataLoader | None = None
        self._collate: Callable[[list[Any]], Any] | None = None

    @property
    @override
    def state_key(self) -> str:
        return "lightning_pac.DummyPadding"

    @property
    def num_observations(self) -> int:
        """Padded batches so far."""
        return self._account.num_observations

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        private = [callback for callback in trainer.callbacks if isinstance(callback, SRPPSGD)]  # type: ignore[attr-defined]
        loader = trainer.train_dataloader
        if not private or not isinstance(loader, PrivateDataLoader) or not isinstance(loader.sampling, Poisson):
            raise MisconfigurationException(
                "DummyPadding hides the sizes of Poisson batches: use it together with SRPPSGD(sampling=Poisson(...)); "
                "other sampling has public sizes."
            )
        assert private[0].account is not None
        scenario = private[0].account.accountant.scenario
        differing = scenario.total_differing
        if scenario.adjacency == "add_remove" and self.noise.guarantee.sensitivity < differing:
            raise MisconfigurationException(
                f"sizes of the two worlds differ by up to {differing}, and the noise was designed for "
                f"{self.noise.guarantee.sensitivity}: design it with sensitivity={differing}."
            )
        self._account.open()
        self._restore()
        self._loader, self._collate = loader, loader.collate_fn
        loader.collate_fn = _PaddedCollate(loader.collate_fn, loader.dataset[0], self.noise)
        loader.padded_with_dummies = True

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.train_dataloader is not self._loader:
            raise MisconfigurationException(
                "The train loader was replaced during the fit, and the new one's sizes are not padded: leave "
                "reload_dataloaders_every_n_epochs out."
            )
        if not self._account.affords_another():
            trainer.should_stop = True
            raise StopIteration
        self._account.charge({"step": trainer.global_step, "batch": batch_idx})

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        for name, value in self._account.metrics(unit=1.0).items():
            pl_module.log(name, value, batch_size=1)
        if not self._account.affords_another():
            trainer.should_stop = True
            rank_zero_info(f"DummyPadding: stopping after {self.num_observations} batches: all releases are spent.")

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._restore()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._restore()
        self._account.close()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"num_observations": self.num_observations}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._account.num_observations = state_dict["num_observations"]

    def _restore(self) -> None:
        if self._loader is not None:
            assert self._collate is not None
            self._loader.collate_fn = self._collate
            self._loader.padded_with_dummies = False
            self._loader = self._collate = None


class _PaddedCollate:
    """Collates the drawn records and, behind them, as many dummies as the noise says; runs in the loader's workers."""

    def __init__(self, collate: Callable[[list[Any]], Any], dummy: Any, noise: DPNoise) -> None:
        self._inner, self._dummy, self._noise = collate, dummy, noise

    def __call__(self, records: list[Any]) -> Any:
        return self._inner([*records, *([self._dummy] * int(self._noise.sample()))])
