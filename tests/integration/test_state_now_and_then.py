"""Attributes that training sets in some steps or epochs only, and that the loss of later ones uses."""

import warnings
from collections import deque
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from tiny_fits import make_data, make_private, make_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from lightning_pac.exceptions import PrivacyViolationError

pytestmark = pytest.mark.checks_each_fit


class Shifting(pl.LightningModule):
    """Subtracts a centre from the features."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Linear(6, 3)
        self.centre = torch.zeros(6)
        self.steps = 0

    def is_due(self, batch_idx: int) -> bool:
        return False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.steps += 1
        loss = F.cross_entropy(self.network(batch[0] - self.centre), batch[1])
        if self.is_due(batch_idx):
            self.centre = batch[0].mean(0)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class SeventhOfItsOwn(Shifting):
    def is_due(self, batch_idx: int) -> bool:
        return self.steps % 7 == 0


class LargeBank(SeventhOfItsOwn):
    """Writes to a part of a tensor that copies share."""

    def __init__(self) -> None:
        super().__init__()
        self.bank = torch.zeros(70_000)
        self.centre = self.bank[:6]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.steps += 1
        loss = F.cross_entropy(self.network(batch[0] - self.bank[:6]), batch[1])
        if self.is_due(batch_idx):
            self.bank[:6] = batch[0].mean(0)
        return loss


class CentredLoss:
    """Of the user's own, and no module."""

    def __init__(self) -> None:
        self.centre, self.calls = torch.zeros(6), 0

    def __call__(self, network: nn.Module, batch: Any) -> Tensor:
        self.calls += 1
        loss = F.cross_entropy(network(batch[0] - self.centre), batch[1])
        if self.calls % 7 == 0:
            self.centre = batch[0].mean(0)
        return loss


class Calling(Shifting):
    def __init__(self) -> None:
        super().__init__()
        self.loss = CentredLoss()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self.network, batch)


class ThirdBatch(Shifting):
    def is_due(self, batch_idx: int) -> bool:
        return (batch_idx + 1) % 3 == 0


class TenthStep(Shifting):
    def is_due(self, batch_idx: int) -> bool:
        return self.global_step > 0 and self.global_step % 10 == 0


class FirstEpoch(Shifting):
    """Keeps what it sees in the first epoch, for the second."""

    def is_due(self, batch_idx: int) -> bool:
        return self.current_epoch == 0 and batch_idx == self.trainer.num_training_batches - 1


class FromStepForty(Shifting):
    """Begins after a warm-up that it counts by itself, at a time at which no check is due."""

    def is_due(self, batch_idx: int) -> bool:
        return self.steps >= 40


class Averages(Shifting):
    """Weighs two tasks by how fast their losses fell in epochs before (dynamic weight averaging, Liu et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.averages = torch.ones(50, 2)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        epoch = self.current_epoch
        outputs = self.network(batch[0])
        losses = torch.stack([F.cross_entropy(outputs, batch[1]), outputs.square().mean()])
        if batch_idx == 0:
            self.averages[epoch] = 0
        self.averages[epoch] += losses.detach() / self.trainer.num_training_batches
        fall = self.averages[epoch - 1] / self.averages[epoch - 2] if epoch > 1 else torch.ones(2)
        return (2 * torch.softmax(fall / 0.5, 0) * losses).sum()


def fit(folder: Path, model: pl.LightningModule, *callbacks: pl.Callback, epochs: int = 4) -> pl.Trainer:
    trainer = make_trainer(folder, *callbacks, make_private(ledger=folder / "run.db"), max_epochs=epochs)
    trainer.fit(model, DataLoader(make_data(), batch_size=10))
    return trainer


@pytest.mark.parametrize("model", [SeventhOfItsOwn, LargeBank, Calling, ThirdBatch, TenthStep, FirstEpoch, Averages])
def test_what_training_sets_now_and_then_is_refused_once_the_loss_uses_it(tmp_path: Path, model: Any) -> None:
    with pytest.raises((PrivacyViolationError, MisconfigurationException), match="depends on"):  # or at the start
        fit(tmp_path, model())


def test_what_is_kept_from_the_start_and_used_after_a_warm_up_is_refused_at_the_start(tmp_path: Path) -> None:
    class Warm(Shifting):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            features = batch[0] - self.centre if self.current_epoch >= 10 else batch[0]
            self.centre = 0.9 * self.centre + 0.1 * batch[0].mean(0)
            return F.cross_entropy(self.network(features), batch[1])

    with pytest.raises(MisconfigurationException, match="depends on the records of earlier batches"):
        fit(tmp_path, Warm(), epochs=12)


def test_what_training_sets_after_a_warm_up_is_refused_at_once(tmp_path: Path) -> None:
    model = FromStepForty()
    with pytest.raises(PrivacyViolationError, match="the loss depends on"):
        fit(tmp_path, model, epochs=8)
    assert model.steps <= 42  # at the latest with the next epoch; another check is due at step 64


def test_what_is_first_set_in_the_last_step_is_refused_at_the_end(tmp_path: Path) -> None:
    class Last(Shifting):
        def is_due(self, batch_idx: int) -> bool:
            return self.steps >= 24

    with pytest.raises(PrivacyViolationError, match="loss depends on 'centre'"):
        fit(tmp_path, Last())


class OneStep(Shifting):
    def is_due(self, batch_idx: int) -> bool:
        return self.global_step == 40  # beyond the first steps, which are taken anew


def test_what_no_step_on_synthetic_records_sets_is_told_once_and_is_on_the_card(tmp_path: Path) -> None:
    told = "Training depends on 'centre', which changed in a way that steps on synthetic records do not explain"
    with pytest.warns(UserWarning, match=told) as caught:
        fit(tmp_path, OneStep(), epochs=8)
    assert sum("do not explain" in str(one.message) for one in caught) == 1
    assert "came to depend on 'centre'" in next(tmp_path.rglob("privacy_card.md")).read_text()


class Scheduled(Shifting):
    """Changes itself by time alone: at the fourth epoch, by its own count, and by a copy of its weights."""

    temperature, teacher = 1.0, None

    def __init__(self) -> None:
        super().__init__()
        self.recent: deque[float] = deque(maxlen=5)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 3:
            self.temperature = 0.5

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        weight = self.network.weight.detach().clone()
        self.teacher = weight if self.teacher is None else self.teacher.lerp(weight, 0.1)
        self.recent.append(float(outputs["loss"]))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.steps += 1
        outputs = self.network(batch[0]) / self.temperature
        loss = F.cross_entropy(outputs, batch[1]) * min(1.0, 0.5 + 0.1 * self.steps)
        if self.teacher is not None:
            loss = loss + 0.1 * (outputs - batch[0] @ self.teacher.T).square().mean()
        return loss / (1 + 0.01 * len(self.recent))


def test_what_time_and_weights_decide_passes(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Training depends on")
        trainer = fit(tmp_path, Scheduled(), epochs=6)
    assert trainer.global_step == 36


PLACES: dict[str, Any] = {
    "trainer": lambda model: model.trainer,
    "trainer.strategy": lambda model: model.trainer.strategy,
    "optimizer": lambda model: model.optimizers(),
    "network.weight": lambda model: model.network.weight,
}


class LeavesIt(pl.Callback):
    """The centre of the last batch, for the next one."""

    def __init__(self, place: str, name: str) -> None:
        self.place, self.name = place, name

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        setattr(PLACES[self.place](pl_module), self.name, batch[0].mean(0))


class TakesIt(Shifting):
    def __init__(self, place: str, name: str) -> None:
        super().__init__()
        self.place, self.name = place, name

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        centre = getattr(PLACES[self.place](self), self.name, 0.0)
        return F.cross_entropy(self.network(batch[0] - centre), batch[1])


@pytest.mark.parametrize(
    ("place", "name"), [*((place, "centre") for place in PLACES), *((place, "_centre") for place in PLACES)]
)
def test_what_is_left_on_what_copies_lack_is_told_and_is_on_the_card(place: str, name: str, tmp_path: Path) -> None:
    told = f"Training sets '{place}.{name}', which steps on synthetic records do not follow"
    with pytest.warns(UserWarning, match=told) as caught:
        fit(tmp_path, TakesIt(place, name), LeavesIt(place, name))
    assert sum(told in str(one.message) for one in caught) == 1
    assert told in next(tmp_path.rglob("privacy_card.md")).read_text()


class EpochsMean(Shifting):
    """Of the losses of this epoch so far, from the second epoch on; no loss, no mean."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.network(batch[0]), batch[1])
        if self.current_epoch > 0 and batch_idx > 0:
            loss = loss / torch.tensor(self.losses()).mean()
        self.losses().append(float(loss.detach()))
        return loss

    def losses(self) -> list[float]:
        self.kept: list[float] = vars(self).get("kept", [])
        return self.kept

    def on_train_epoch_end(self) -> None:
        self.losses().clear()


class Losses(pl.Callback):
    def __init__(self) -> None:
        self.kept: list[float] = []


class InACallback(EpochsMean):
    def losses(self) -> list[float]:
        return next(one.kept for one in self.trainer.callbacks if isinstance(one, Losses))


@pytest.mark.parametrize(("kind", "callbacks"), [(EpochsMean, []), (InACallback, [Losses()])])
def test_a_memory_without_which_no_later_step_runs_is_refused(
    kind: type[Shifting], callbacks: list[pl.Callback], tmp_path: Path
) -> None:
    with pytest.raises(PrivacyViolationError, match="depends on the records of earlier batches"):
        fit(tmp_path, kind(), *callbacks)


def test_a_check_during_the_run_that_shows_nothing_is_told_and_is_on_the_card(tmp_path: Path) -> None:
    class Opens(Shifting):
        """A file that is there in the run alone."""

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if self.current_epoch > 0:
                assert isinstance(self.trainer, pl.Trainer)
            return super().training_step(batch, batch_idx)

    with pytest.warns(UserWarning, match="which they did at the start .AssertionError in training_step"):
        fit(tmp_path, Opens())
    assert "could not show that the loss is a mean" in next(tmp_path.rglob("privacy_card.md")).read_text()
