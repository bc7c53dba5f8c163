"""The correlation of a run's noise, designed for what its optimizer is going to do."""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_info
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from lightning_pac.accountants import BandedMatrix, BestBands, SGDWorkload, SRPPAccountant, best_bands
from lightning_pac.callbacks.srpp_sgd.arguments import RunArguments
from lightning_pac.data import count_records
from lightning_pac.scenarios import BlockedPoisson, Poisson, Sampling

__all__ = ["choose_blocks", "correlate_noise", "words_on_bands"]

_NO_END = (
    "Correlated noise is designed for the number of steps, but this run has no end: set max_epochs or max_steps in the "
    "Trainer."
)


def correlate_noise(
    arguments: RunArguments,
    accountant: SRPPAccountant,
    trainer: pl.Trainer,
    planned_steps: float,
    resumed: Mapping[str, Any] | None,
) -> SRPPAccountant:
    """The terms of the account with the correlation of the run that is resumed, or one designed for this run.

    Raises:
        MisconfigurationException: If the run has no end to design it for.
        ValueError: If a record would come back within the bands.
    """
    if arguments.noise is None:
        return accountant
    if resumed is not None:
        kept = resumed["correlation"]
        return accountant if kept is None else replace(accountant, correlation=BandedMatrix(tuple(kept)))
    if not math.isfinite(planned_steps):
        raise MisconfigurationException(_NO_END)
    noise = arguments.noise
    if noise.bands == "best":
        bands = _bands_of(arguments, accountant, int(planned_steps))
        if bands == 1:
            return accountant
        noise = replace(noise, bands=bands, at_most=None)
    else:
        # Refused before anything is computed: the bands must fit into a pass.
        flat = BandedMatrix.normalized([1.0] * noise.bands)
        flat.check_separation(accountant.sampling, accountant.scenario.num_records)
    return replace(accountant, correlation=noise.matrix(_workload(trainer, int(planned_steps))))


def choose_blocks(
    arguments: RunArguments, trainer: pl.Trainer, loader: DataLoader[Any], resumed: Mapping[str, Any] | None
) -> Sampling:
    """The draw that goes with the best number of bands under Poisson sampling: blocks, or none for a single band.

    Args:
        arguments: Those of a run that `chooses_blocks`.
        trainer: Says how many steps there are.
        loader: Draws the records, or persons, by Poisson sampling.
        resumed: State of the run that is resumed, which keeps its blocks.

    Raises:
        MisconfigurationException: If the run has no end.
    """
    sampling = arguments.sampling
    assert isinstance(sampling, Poisson)
    if resumed is not None:
        bands = len(resumed["correlation"] or [1.0])
        return sampling if bands == 1 else BlockedPoisson(sampling.rate, bands, sampling.batch_size)
    per_pass = _steps_of_a_pass(trainer, sampling.steps_per_epoch())
    ends = [trainer.max_steps] if trainer.max_steps > 0 else []
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        ends.append(per_pass * trainer.max_epochs)
    if not ends:
        raise MisconfigurationException(_NO_END)
    records = count_records(loader)

    def fits(blocks: int) -> bool:
        drawn = BlockedPoisson(sampling.rate, blocks, sampling.batch_size)
        return drawn.of_passes(_steps_of_a_pass(trainer, drawn.steps_per_epoch()), records) is not None

    terms = SRPPAccountant(arguments.scenario.resolve(records), sampling, arguments.renyi_order or 16.0)
    return _choose(arguments, terms, min(ends), fits).sampling


def words_on_bands(arguments: RunArguments, accountant: SRPPAccountant) -> tuple[str, ...]:
    """A sentence for the card on how the number of bands came about, if it was chosen."""
    if arguments.noise is None or arguments.noise.bands != "best":
        return ()
    bands = 1 if accountant.correlation is None else accountant.correlation.num_bands
    return (
        f"That noise is correlated over {bands} step{'s' * (bands > 1)} was computed before the run from public "
        "numbers: the promise, the sampling and the number of steps.",
    )


def _bands_of(arguments: RunArguments, accountant: SRPPAccountant, num_steps: int) -> int:
    if arguments.chooses_blocks:  # decided with the blocks, when the loader was made
        return accountant.sampling.separation(accountant.scenario.num_records) or 1
    return _choose(arguments, accountant, num_steps).bands


def _choose(
    arguments: RunArguments, terms: SRPPAccountant, num_steps: int, fits: Callable[[int], bool] | None = None
) -> BestBands:
    def noise(account: SRPPAccountant) -> float:
        if arguments.promise is not None:
            return account.noise_for(arguments.promise, num_steps)
        assert arguments.epsilon is not None
        return account.noise_multiplier(arguments.epsilon, num_steps)

    assert arguments.noise is not None
    best = best_bands(terms, num_steps, noise, arguments.noise.at_most, fits)
    rank_zero_info(f"SRPPSGD: of 1 to {max(best.errors)} bands, {best}.")
    return best


def _steps_of_a_pass(trainer: pl.Trainer, num_steps: int) -> int:
    """The steps that the Trainer makes of a pass of so many."""
    limit, microbatches = trainer.limit_train_batches, trainer.accumulate_grad_batches
    batches = num_steps * microbatches
    left = min(limit, batches) if isinstance(limit, int) else int(batches * (1.0 if limit is None else limit))
    return math.ceil(left / microbatches)


def _workload(trainer: pl.Trainer, num_steps: int) -> SGDWorkload:
    """The optimizer's momentum (the first beta of Adam), decay and schedule, as its first group states them."""
    group = trainer.optimizers[0].param_groups[0]
    momentum = group.get("momentum", group.get("betas", (0.0,))[0])
    rates = tuple(_learning_rates(trainer, num_steps))
    largest = max(rates, default=0.0)
    # Only ratios of rates count for the shape, and their size beside the decay.
    constant = not largest or min(rates) == largest
    decay = float(group.get("weight_decay", 0.0)) * largest
    shape = () if constant else tuple(rate / largest for rate in rates)
    return SGDWorkload(num_steps, shape, min(float(momentum), 0.999), decay)


def _learning_rates(trainer: pl.Trainer, num_steps: int) -> Iterator[float]:
    """The learning rates that a copy of the scheduler plans, with a parameter of its own; constant where it cannot."""
    optimizer = trainer.optimizers[0]
    configs = [config for config in trainer.lr_scheduler_configs if isinstance(config.scheduler, LRScheduler)]
    if not configs:
        yield from [float(optimizer.param_groups[0]["lr"])] * num_steps
        return
    config = configs[0]
    scheduler = _copy(config.scheduler, optimizer)
    per_epoch = max(1, math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches))
    every = config.frequency * (per_epoch if config.interval == "epoch" else 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the copy's optimizer makes no steps
        for step in range(1, num_steps + 1):
            yield float(scheduler.optimizer.param_groups[0]["lr"])
            if step % every == 0:
                try:
                    scheduler.step()
                except ValueError:  # a schedule that ends before the run
                    every = num_steps + 1


def _copy(scheduler: LRScheduler, optimizer: Optimizer) -> LRScheduler:
    """A copy that shares nothing with the run; its parameters are single numbers."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    memo: dict[int, Any] = {id(parameter): torch.nn.Parameter(torch.zeros(1)) for parameter in parameters}
    memo[id(optimizer.state)] = {}
    for hooks in (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks):
        memo[id(hooks)] = {}
    return copy.deepcopy(scheduler, memo)
