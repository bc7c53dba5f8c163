"""The draw of an optimizer step's batch, from what the loader does and what the Trainer makes of it."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader, SequentialSampler

from lightning_pac.accountants import SRPPAccountant
from lightning_pac.callbacks.srpp_sgd.arguments import RunArguments
from lightning_pac.callbacks.srpp_sgd.guards import SHARE
from lightning_pac.callbacks.srpp_sgd.noise_design import choose_blocks
from lightning_pac.data import (
    PoissonBatchSampler,
    PrivateDataLoader,
    count_records,
    describe_loader,
    hide_worker_seeds,
    order_is_public,
    rebuild_loader,
)
from lightning_pac.data.records import (
    DeliveredRows,
    check_collated_alone,
    digest,
    positions_of_records,
    watch_loader,
)
from lightning_pac.scenarios import Sampling
from lightning_pac.strategies import Ranks
from lightning_pac.strategies.agreement import share_records
from lightning_pac.strategies.private_strategy import PrivateStrategy

__all__ = ["DrawnRecords", "declared_sampling", "swap_loader"]


def swap_loader(
    trainer: pl.Trainer, arguments: RunArguments, resumed: Callable[[], Mapping[str, Any] | None]
) -> Callable[[], None]:
    """Let the strategy hand out our own train loader wherever the user's comes from, and return how to undo that.

    A loader is rebuilt if `sampling` is given, if the user's draws by one of our samplers that needs our loader, if a
    record is loaded several times, or if several ranks divide what it draws, whose arguments must then be the same. Its
    workers, and those of a loader that stays, are seeded in secret.

    Args:
        trainer: Its strategy is changed until the fit ends.
        arguments: Those of the run.
        resumed: The state of the run that is resumed, once it is there.
    """
    strategy, sampling = trainer.strategy, arguments.sampling
    rows = arguments.unit, arguments.views
    original = strategy.process_dataloader
    divided = isinstance(strategy, PrivateStrategy)
    if isinstance(strategy, PrivateStrategy):
        strategy.divide_records(trainer, arguments.declaration())

    undo_watching: list[Callable[[], None]] = []
    memory: dict[int, DeliveredRows] = {}

    def process_dataloader(dataloader: object) -> object:
        processed = take_over(original(dataloader))
        if trainer.training and isinstance(processed, DataLoader):
            check_collated_alone(processed)
            undo_watching.extend([hide_worker_seeds(processed), watch_loader(processed, memory)])
        return processed

    def plan(loader: DataLoader[Any]) -> Sampling | None:
        nonlocal sampling
        microbatches = trainer.accumulate_grad_batches
        if arguments.chooses_blocks and sampling is arguments.sampling:
            assert sampling is not None
            drawn = rebuild_loader(loader, sampling, microbatches, None, *rows)
            sampling = choose_blocks(arguments, trainer, drawn, resumed())
        return sampling or _own_sampling(loader, microbatches)

    def plan_of_all(loader: DataLoader[Any]) -> Sampling:
        return plan(loader) or _step_sampling(
            describe_loader(loader), trainer.accumulate_grad_batches, trainer.world_size
        )

    def take_over(processed: object) -> object:
        if not trainer.training:
            return processed
        share = wanted = None
        if divided:
            share, wanted = share_records(Ranks.of(trainer), processed, "train loader", plan_of_all)
        if not isinstance(processed, DataLoader):
            return processed
        if isinstance(processed, PrivateDataLoader) and processed.units.drawn not in ((None, 1), rows):
            raise MisconfigurationException(
                "The train loader draws persons or views by arguments of its own, which the account does not know of: "
                "give SRPPSGD(unit=, views=) and leave them out of private_loader."
            )
        wanted = wanted or (plan(processed) if arguments.views == 1 else plan_of_all(processed))
        if wanted is None:
            return processed
        return rebuild_loader(processed, wanted, trainer.accumulate_grad_batches, share, *rows)

    strategy.process_dataloader = process_dataloader  # type: ignore[method-assign]

    def undo() -> None:
        strategy.__dict__.pop("process_dataloader", None)
        while undo_watching:
            undo_watching.pop()()

    return undo


def declared_sampling(trainer: pl.Trainer, dataloader: DataLoader[Any], needs_hidden_order: bool = False) -> Sampling:
    """The draw of a whole step that the account assumes, with the passes that the Trainer really makes.

    Args:
        trainer: Accumulates microbatches and may cut passes short.
        dataloader: The loader in use, ours or the user's.
        needs_hidden_order: Whether the account averages over the draw, so that a public order is refused.

    Raises:
        MisconfigurationException: If the order must be hidden and is not, steps accumulate draws that may overlap, or
            the Trainer cuts passes of which the sampling says no price.
    """
    if needs_hidden_order and order_is_public(dataloader):
        raise MisconfigurationException(
            "A mean-square notion averages over the order of the batches, but this one is public (no shuffling, or a "
            "seed that was chosen, as seed_everything does): give sampling=EpochShuffle(batch_size=...), which draws "
            "it from the operating system, or use the notion 'rpp', 'joint' or 'ave'."
        )
    sampling = describe_loader(dataloader)
    microbatches = trainer.accumulate_grad_batches
    if not isinstance(dataloader, PrivateDataLoader):
        sampling = _step_sampling(sampling, microbatches)
    steps = math.ceil(trainer.num_training_batches / microbatches)
    cut = sampling.of_passes(steps, count_records(dataloader))
    if cut is None:
        raise MisconfigurationException(
            f"The Trainer makes passes of {steps} steps, and {sampling} does not say what they cost: leave "
            f"limit_train_batches out, or let {type(sampling).__name__}.of_passes return the sampling of such passes."
        )
    return cut


class DrawnRecords:
    """The draws of a loader and their records: held against later states of it, and against its replacements.

    Args:
        dataloader: The loader as it was described for the account.
        accountant: The terms of the account.
    """

    def __init__(self, dataloader: DataLoader[Any], accountant: SRPPAccountant) -> None:
        self._accountant = accountant
        self._first = self._digest(dataloader)
        self._cost, self._last = 0.0, time.monotonic()

    def check(self, trainer: pl.Trainer, dataloader: DataLoader[Any]) -> None:
        """Refuse a loader that draws otherwise than the first did.

        Raises:
            MisconfigurationException: If it draws by another scheme, or from other records.
        """
        records = self._accountant.scenario.num_records
        changed = records is not None and count_records(dataloader) != records
        if changed or declared_sampling(trainer, dataloader) != self._accountant.sampling:
            raise MisconfigurationException(
                "The train loader was changed or replaced and draws otherwise, and the account is for the first: keep "
                "sampler, batch size and number of records, and return loaders with equal sampling over as many "
                "records."
            )
        if self._digest(dataloader) != self._first:
            raise MisconfigurationException(
                "The train loader draws from other records than at the start, or puts them into another order, which "
                "records may have decided: keep the indices of a Subset or sampler as they are."
            )

    def check_again(self, trainer: pl.Trainer, read: Callable[[], DataLoader[Any]], starts_epoch: bool) -> None:
        """Hold the loader of now against the first, in an epoch's first step or where that takes little time.

        Args:
            trainer: Makes the passes.
            read: Gives the loader, once it has been checked like the first.
            starts_epoch: Whether the step is the first of its epoch.
        """
        started = time.monotonic()
        if starts_epoch or started - self._last > self._cost / SHARE:
            self.check(trainer, read())
            self._last = time.monotonic()
            self._cost = self._last - started

    def check_replacement(self, trainer: pl.Trainer, dataloader: DataLoader[Any]) -> None:
        """Hold a loader that took the place of the first one against it.

        Raises:
            MisconfigurationException: If it draws otherwise, or the noise rests on the order of the first.
        """
        self.check(trainer, dataloader)
        if self._accountant.correlation is not None:
            raise MisconfigurationException(
                "The train loader was replaced, and with it the order that correlated noise rests on: leave "
                "reload_dataloaders_every_n_epochs out, or noise."
            )

    def _digest(self, dataloader: DataLoader[Any]) -> bytes:
        """Of the records that a loader draws from, in their order if noise or batches rest on that."""
        positions = positions_of_records(dataloader.dataset)
        chosen = getattr(getattr(dataloader.batch_sampler, "sampler", None), "indices", None)
        positions = positions if chosen is None else positions[np.asarray(chosen, dtype=np.int64)]
        as_they_lie = type(getattr(dataloader.batch_sampler, "sampler", None)) is SequentialSampler
        in_order = self._accountant.correlation is not None or as_they_lie
        return digest(positions if in_order else np.sort(positions))


def _step_sampling(sampling: Sampling, num_microbatches: int, num_ranks: int = 1) -> Sampling:
    """The draw of a whole optimizer step that takes `num_microbatches` batches on each of `num_ranks` ranks."""
    batches = num_microbatches * num_ranks
    if batches == 1:
        return sampling
    merged = sampling.of_step(batches)
    if merged is None:
        raise MisconfigurationException(
            f"With {batches} batches in a step (accumulate_grad_batches={num_microbatches} on {num_ranks} devices), a "
            f"record may be drawn by several {sampling} batches of it: give the draw of a whole step as "
            f"sampling={type(sampling).__name__}(...)."
        )
    if num_ranks > 1 and getattr(sampling, "steps_per_pass", None) is not None:
        raise MisconfigurationException(
            f"The train loader ends its passes early ({sampling}), which several devices cannot divide: leave "
            "num_samples out, or set limit_train_batches in the Trainer."
        )
    return merged


def _own_sampling(dataloader: DataLoader[Any], num_microbatches: int) -> Sampling | None:
    if isinstance(dataloader, PrivateDataLoader):
        return dataloader.sampling
    if type(dataloader.batch_sampler) is PoissonBatchSampler and num_microbatches == 1:
        return describe_loader(dataloader)
    return None
