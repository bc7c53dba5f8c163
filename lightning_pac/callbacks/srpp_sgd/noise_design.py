"""The correlation of a run's noise, designed for what its optimizer is going to do."""

import copy
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_pac.accountants import BandedMatrix, SGDWorkload, SRPPAccountant
from lightning_pac.callbacks.srpp_sgd.arguments import RunArguments

__all__ = ["correlate_noise"]


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
        return replace(accountant, correlation=BandedMatrix(tuple(resumed["correlation"])))
    if not math.isfinite(planned_steps):
        raise MisconfigurationException(
            "Correlated noise is designed for the number of steps, but this run has no end: set max_epochs or "
            "max_steps in the Trainer."
        )
    # Refused before anything is computed: the bands must fit into a pass.
    flat = BandedMatrix.normalized([1.0] * arguments.noise.bands)
    flat.check_separation(accountant.sampling, accountant.scenario.num_records)
    return replace(accountant, correlation=arguments.noise.matrix(_workload(trainer, int(planned_steps))))


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
