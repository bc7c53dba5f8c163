"""A callback that is shown a private run from the inside, before anything of it is hidden."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_pac.accountants import RunningAccount, SRPPAccountant
from lightning_pac.callbacks.shared import TrainerCallback
from lightning_pac.callbacks.srpp_sgd.loss_check import Replica, transferred
from lightning_pac.callbacks.srpp_sgd.step import ClippingBlocks, NoisySum
from lightning_pac.cards import Estimate
from lightning_pac.data import PrivateDataLoader

__all__ = ["StepWatcher", "Watch", "WatchedRun", "WatchedStep"]


@dataclass(frozen=True)
class WatchedRun:
    """A private run, as it is accounted for.

    Attributes:
        running: its account, which goes on with every step.
        blocks: clipping norms, and shares of the noise.
        loader: what draws the batches.
        ledger: path of its ledger.
        account: name of its account there.
        make_copy: makes a copy of the model, on the CPU and without what the engine attaches to it.
        make_batch: makes a batch of records, as `training_step` is given it, on the CPU.
    """

    running: RunningAccount[SRPPAccountant]
    blocks: ClippingBlocks
    loader: DataLoader[Any]
    ledger: Path
    account: str
    make_copy: Callable[[], pl.LightningModule]
    make_batch: Callable[[list[Any]], Any]


@dataclass(frozen=True)
class WatchedStep:
    """One optimizer step; everything of it but the release is secret.

    Attributes:
        batches: its microbatches, each with the indices of the records that were drawn, in the order of its rows.
        clipped_sum: the exact sum, one value for each parameter, and one for clipped records if those are counted.
        released: the same with noise.
        has_public_terms: whether the loss has terms that no record enters, whose gradient is added without noise.
    """

    batches: Sequence[tuple[Any, Sequence[int]]]
    clipped_sum: Tensor
    released: Tensor
    has_public_terms: bool


class StepWatcher(TrainerCallback):
    """A callback that watches the private run of its Trainer."""

    def begin_run(self, run: WatchedRun, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called before the first step."""

    def see_step(self, step: WatchedStep, pl_module: pl.LightningModule) -> None:
        """Called for every step, before the optimizer uses its gradient."""

    def end_run(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called after the last step, before the privacy card is written."""

    def estimates(self) -> tuple[Estimate, ...]:
        """The measurements so far, for the privacy card."""
        return ()

    def conditions(self) -> tuple[str, ...]:
        """The findings so far on which the promise rests, for the privacy card; one sentence each."""
        return ()


class Watch:
    """The view that a `PrivateRun` gives its watcher; without one, nothing is kept."""

    def __init__(self) -> None:
        self._watchers: list[StepWatcher] = []  # one at most
        self._batches: list[tuple[Any, Sequence[int]]] = []
        self._sum: Tensor | None = None

    def begin(self, run: Any, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let the Trainer's watcher see the run, if it has one.

        Raises:
            MisconfigurationException: If it has several.
        """
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        self._watchers = [callback for callback in callbacks if isinstance(callback, StepWatcher)]
        if len(self._watchers) > 1:
            raise MisconfigurationException(
                f"{len(self._watchers)} callbacks are to watch the run: give the Trainer one."
            )

        def make_copy() -> pl.LightningModule:
            with run.engine_detached():
                return Replica.of(pl_module).model

        def make_batch(records: list[Any]) -> Any:
            datamodule = trainer.datamodule  # type: ignore[attr-defined]
            return transferred(run.loader.collate_fn(records), [hook for hook in (datamodule, pl_module) if hook])

        running, blocks, account = run.journal.running, run.noisy_sum.blocks, run.journal.account
        watched = WatchedRun(running, blocks, run.loader, account.path, account.name, make_copy, make_batch)
        for watcher in self._watchers:
            watcher.begin_run(watched, trainer, pl_module)

    def begin_step(self) -> None:
        """Forget the microbatches of a step that was not completed."""
        self._batches = []

    def see_batch(self, batch: Any, loader: DataLoader[Any]) -> None:
        """Keep a microbatch as it is now, whatever the training step makes of it."""
        if self._watchers and isinstance(loader, PrivateDataLoader):
            self._batches.append((apply_to_collection(batch, Tensor, torch.clone), loader.drawn))

    def see_sum(self, noisy_sum: NoisySum) -> None:
        """Keep the exact sum."""
        if self._watchers:
            self._sum = noisy_sum.total

    def end_step(self, released: Tensor, has_public_terms: bool, pl_module: pl.LightningModule) -> None:
        """Show the step."""
        for watcher in self._watchers:
            assert self._sum is not None
            watcher.see_step(WatchedStep(self._batches, self._sum, released.clone(), has_public_terms), pl_module)
        self._batches, self._sum = [], None

    def end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tell of the end of the run."""
        for watcher in self._watchers:
            watcher.end_run(trainer, pl_module)

    def estimates(self) -> tuple[Estimate, ...]:
        """The estimates of the watchers, for the card."""
        return tuple(estimate for watcher in self._watchers for estimate in watcher.estimates())

    def conditions(self) -> tuple[str, ...]:
        """The conditions of the watchers, for the card."""
        return tuple(condition for watcher in self._watchers for condition in watcher.conditions())
