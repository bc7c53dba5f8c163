"""Weights that are written by a count that the user's code keeps of its own steps, epochs and calls."""

import copy
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from slow_cases import slow
from tiny_fits import make_data, make_private, make_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from lightning_pac.exceptions import PrivacyViolationError

pytestmark = pytest.mark.checks_each_fit


class Target(pl.LightningModule):
    """A second network is made a copy of the first now and then, as in Q-learning."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Linear(6, 3)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.register_buffer("done", torch.zeros((), dtype=torch.long))
        self.steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        outputs = self.network(batch[0])
        return F.cross_entropy(outputs, batch[1]) + 0.1 * F.mse_loss(outputs, self.target(batch[0]))

    def refresh(self) -> None:
        self.target.load_state_dict(self.network.state_dict())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-2)


class InTheStep(Target):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.steps += 1
        if self.steps % 5 == 0:
            self.refresh()
        return super().training_step(batch, batch_idx)


class AfterTheBatch(Target):
    def on_train_batch_end(self, *_: Any) -> None:
        self.steps += 1
        if self.steps == 5:
            self.refresh()


class ByABuffer(Target):
    def on_train_batch_end(self, *_: Any) -> None:
        self.done += 1
        if self.done % 5 == 0:
            self.refresh()


class EachSecondEpoch(Target):
    def on_train_epoch_end(self) -> None:
        if (self.current_epoch + 1) % 2 == 0:
            self.refresh()


class WarmUp(Target):
    """As in Lightning's documentation."""

    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)
        if self.trainer.global_step < 5:
            for group in optimizer.param_groups:
                group["lr"] = 1e-2 * (self.trainer.global_step + 1) / 5


class RestartsEachSecondEpoch(Target):
    def on_train_epoch_end(self) -> None:
        if (self.current_epoch + 1) % 2 == 0:
            self.trainer.optimizers[0].state.clear()


class StartsSecondEpochsAnew(Target):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch % 2 == 1:
            self.trainer.optimizers[0].state.clear()


class IfTheLossIsLow(Target):
    """By the count and by records, which all that are drawn decide alike; no gradient depends on it."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.network(batch[0]), batch[1])

    def on_train_batch_end(self, outputs: Any, *_: Any) -> None:
        self.steps += 1
        if self.steps % 5 == 0 and outputs["loss"].item() < 100:
            self.refresh()


class Lookahead(pl.Callback):
    def __init__(self) -> None:
        self.slow: list[Tensor] = []
        self.calls = 0

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self.calls += 1
        weights = [weight for weight in pl_module.parameters() if weight.requires_grad]
        self.slow = self.slow or [weight.detach().clone() for weight in weights]
        if self.calls % 5 == 0:
            with torch.no_grad():
                for slow, weight in zip(self.slow, weights, strict=True):
                    weight.copy_(slow.lerp_(weight, 0.5))


class ForgetsMomenta(pl.Callback):
    def __init__(self) -> None:
        self.calls = 0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.calls += 1
        if self.calls % 5 == 0:
            for state in trainer.optimizers[0].state.values():
                state["exp_avg"].zero_()


def fit(model: pl.LightningModule, folder: Path, *callbacks: pl.Callback) -> None:
    loader = DataLoader(make_data(64), batch_size=16, shuffle=True)
    make_trainer(folder, *callbacks, make_private(), max_epochs=4).fit(model, loader)


KINDS = [
    *(AfterTheBatch, ByABuffer, EachSecondEpoch),
    *slow(InTheStep, WarmUp, RestartsEachSecondEpoch, StartsSecondEpochsAnew),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_may_write_by_a_count(kind: type[Target], tmp_path: Path) -> None:
    fit(kind(), tmp_path)


@pytest.mark.parametrize("kind", [ForgetsMomenta, *slow(Lookahead)])
def test_a_callback_may_write_by_a_count_of_its_own(kind: type[pl.Callback], tmp_path: Path) -> None:
    fit(Target(), tmp_path, kind())


def test_a_count_does_not_hide_that_records_decide(tmp_path: Path) -> None:
    with pytest.raises(PrivacyViolationError, match="takes up records"):
        fit(IfTheLossIsLow(), tmp_path)


class NormsOfGradients(Target):
    def __init__(self) -> None:
        super().__init__()
        self.norms: list[float] = []

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.norms.append(float(torch.cat([weight.grad.flatten() for weight in self.network.parameters()]).norm()))  # type: ignore[union-attr]


def test_the_norm_of_the_released_gradient_may_be_kept(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*ends in an error on synthetic records")
        fit(NormsOfGradients(), tmp_path)
