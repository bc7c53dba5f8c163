"""The best attack on what real fits release stays below the account's bound, and passes it at half the noise.

A model of one weight has the inputs as its gradients, whatever the weight is. The steps of one fit are then as many
short runs as they hold, each with draws and noise of its own, and the likelihood ratio of a run is known exactly.
"""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from scipy import optimize, stats
from tiny_fits import make_private, make_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import Poisson, TwoWorldScenario
from lightning_pac.accountants import SRPPAccountant
from lightning_pac.audits.attack_result import proportion_interval
from lightning_pac.scenarios import EpochShuffle, Sampling

RECORDS, BATCH, RATE, BOUND = 8, 4, 0.7, 0.75
# Attacked are 2 * RUNS runs of one pass. An interval fails falsely once in ten thousand times, the noise being secret.
RUNS, SURE = 600, 1 - 2e-4
# What the differing record adds to a sum, in the two worlds.
SHIFTS = {"replace": (1.0, -1.0), "zero_out": (1.0, 0.0), "add_remove": (1.0, 0.0)}


class OneWeight(pl.LightningModule):
    """Notes what it is shown: the released gradients, and whether the differing record, number 0, was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        self.released: list[float] = []
        self.drawn: list[bool] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, numbers = batch
        if self._trainer is not None and isinstance(self.trainer, pl.Trainer):
            self.drawn.append(bool((numbers == 0).any()))
        return self.layer(inputs).mean()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        assert self.layer.weight.grad is not None
        self.released.append(float(self.layer.weight.grad))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-3)


def attack(
    adjacency: Any, sampling: Sampling, precision: Any, noise: float, steps: int, folder: Path
) -> tuple[float, float]:
    """The interval of the attack's success."""
    shifts, scores = SHIFTS[adjacency], []
    for world, own in enumerate(shifts):
        inputs = torch.zeros(RECORDS, 1)
        inputs[0] = own
        numbers = torch.arange(RECORDS)
        absent = slice(1 if adjacency == "add_remove" and world == 1 else 0, None)
        loader = DataLoader(TensorDataset(inputs[absent], numbers[absent]), batch_size=BATCH)
        scenario = TwoWorldScenario(num_differing=1, adjacency=adjacency)
        private = make_private(scenario=scenario, sampling=sampling, noise_multiplier=noise)
        model = OneWeight()
        options = {"precision": precision, "barebones": True, "max_epochs": -1, "max_steps": RUNS * steps}
        trainer = make_trainer(folder / f"{noise}-{world}", private, **options)
        trainer.fit(model, loader)
        sums = sampling.expected_batch_size(RECORDS) * np.array(model.released)[:, None]
        # The noise of the sum is larger by what the fraction of clipped records is released with.
        first, second = stats.norm.logpdf(sums, shifts, noise * np.sqrt(1.01)).T
        if isinstance(sampling, Poisson):
            none = stats.norm.logpdf(sums[:, 0], 0.0, noise * np.sqrt(1.01))
            kept, drawn = np.log(1 - RATE) + none, np.log(RATE)
            ratios = np.logaddexp(kept, drawn + second) - np.logaddexp(kept, drawn + first)
        else:
            ratios = np.where(model.drawn, second - first, 0.0)
        scores.append(ratios.reshape(RUNS, steps).sum(axis=1) * (1 if world else -1))
    return proportion_interval(int(np.count_nonzero(np.concatenate(scores) > 0)), 2 * RUNS, SURE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adjacency", "sampling", "precision"),
    [
        ("replace", Poisson(RATE), "32-true"),
        ("zero_out", Poisson(RATE), "32-true"),
        ("add_remove", Poisson(RATE, batch_size=BATCH), "32-true"),
        ("replace", EpochShuffle(BATCH), "32-true"),
        ("zero_out", EpochShuffle(BATCH), "32-true"),
        ("replace", EpochShuffle(BATCH), "bf16-true"),
        ("add_remove", Poisson(RATE, batch_size=BATCH), "bf16-mixed"),
    ],
)
def test_real_runs_are_told_apart_as_often_as_the_account_says(
    adjacency: Any, sampling: Sampling, precision: Any, tmp_path: Path
) -> None:
    steps = sampling.steps_per_epoch(RECORDS)
    scenario = TwoWorldScenario(1, num_records=None if adjacency == "add_remove" else RECORDS, adjacency=adjacency)
    accountant = SRPPAccountant(scenario, sampling, renyi_order=4, notion="rpp")
    noise = optimize.brentq(lambda noise: accountant.world_success_bound(noise, steps) - BOUND, 0.5, 20.0)
    lowest, _ = attack(adjacency, sampling, precision, noise, steps, tmp_path)
    assert lowest <= BOUND
    assert attack(adjacency, sampling, precision, noise / 2, steps, tmp_path)[0] > BOUND
