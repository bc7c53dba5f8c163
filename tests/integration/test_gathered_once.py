"""What code gathers over the first batches, or the first epoch, and uses from then on."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from slow_cases import slow
from tiny_fits import Classifier, make_data, make_loader, make_private, make_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, default_collate

from lightning_pac.exceptions import PrivacyViolationError

pytestmark = [pytest.mark.checks_each_fit, pytest.mark.filterwarnings("ignore:.*num_workers")]

REFUSED = (MisconfigurationException, PrivacyViolationError)
BATCHES = 6  # an epoch


class Rectified(Classifier):
    """Whose hidden values tell what was active."""

    def __init__(self) -> None:
        super().__init__(network=nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))

    def active(self, batch: Any) -> Tensor:
        return self.network[:2](batch[0]).mean(0).detach()


class Scaled(pl.LightningDataModule):
    """Scales batches by what it saw of the first ones."""

    def __init__(self, records: TensorDataset, needed: int = 4) -> None:
        super().__init__()
        self.records, self.needed, self.seen, self.fitted = records, needed, list[Tensor](), None

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.records, 10)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if self.fitted is None:
            self.seen.append(batch[0])
            if self.is_done():
                together = torch.cat(self.seen)
                self.fitted = together.mean(0), together.std(0)
            return batch
        return (batch[0] - self.fitted[0]) / self.fitted[1], batch[1]

    def is_done(self) -> bool:
        return len(self.seen) == self.needed


class ScaledLater(Scaled):
    """Those of the first epoch, from the second on."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if self.trainer.current_epoch == 0:
            self.seen.append(batch[0])
            return batch
        if self.fitted is None:
            self.fitted = torch.cat(self.seen).mean(0)
        return batch[0] - self.fitted, batch[1]


class ByTheLargest(Scaled):
    largest = 0.0

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if self.trainer.current_epoch == 0:
            self.largest = max(self.largest, float(batch[0].abs().max()))
            return batch
        return batch[0] / self.largest, batch[1]


class PublicScale(Scaled):
    """Fitted to what belongs to nobody."""

    def is_done(self) -> bool:
        self.seen = [torch.randn(20, 6, generator=torch.Generator().manual_seed(number)) for number in range(2)]
        return True


class ScaledCollate:
    """As the datamodule does, in the collate function."""

    def __init__(self) -> None:
        self.seen, self.fitted = list[Tensor](), None

    def __call__(self, records: list[Any]) -> Any:
        inputs, labels = default_collate(records)
        if self.fitted is None:
            self.seen.append(inputs)
            if len(self.seen) == BATCHES:
                self.fitted = torch.cat(self.seen).mean(0)
            return inputs, labels
        return inputs - self.fitted, labels


class PrunesOnce(pl.Callback):
    """What is less active than the median in the first epoch."""

    def __init__(self) -> None:
        self.active = list[Tensor]()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 0:
            self.active.append(pl_module.active(batch))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 0:
            prune(pl_module, torch.stack(self.active).mean(0))


class SelectsFeatures(pl.Callback):
    def __init__(self) -> None:
        self.total, self.kept = torch.zeros(6), None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.kept is None:
            self.total += batch[0].abs().sum(0)
        else:
            with torch.no_grad():
                pl_module.network[0].weight[:, ~self.kept] = 0

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.kept is None:
            self.kept = self.total >= self.total.median()


class ChoosesRate(pl.Callback):
    """By the mean loss of the first epoch."""

    def __init__(self) -> None:
        self.losses, self.chosen = list[float](), None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(float(outputs["loss"]))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.chosen is None:
            self.chosen = 0.1 * float(np.mean(self.losses))
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = self.chosen


class SchedulesByLoss(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.losses, self.chosen = list[float](), None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.chosen is None:
            self.losses.append(loss.item())
        return loss

    def on_train_epoch_end(self) -> None:
        if self.chosen is None:
            self.chosen = float(np.mean(self.losses))

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: self.chosen or 1.0)]


class SetsHyperparameter(pl.Callback):
    """To the mean loss of the first epoch."""

    def __init__(self) -> None:
        self.losses = list[float]()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 0:
            self.losses.append(float(outputs["loss"]))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 0:
            pl_module.hparams["usual"] = float(np.mean(self.losses))


class LooksAtHard(Classifier):
    """Records, by a hyperparameter."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"usual": 0.0})

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        losses = F.cross_entropy(self.network(batch[0]), batch[1], reduction="none")
        return (losses * torch.sigmoid(20 * (losses.detach() - self.hparams["usual"]))).mean()


SCALER: Any = None


class ByGlobal(Classifier):
    """Scales by what an object in a global variable saw of the first twelve batches."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.network(SCALER.scaled(batch[0])), batch[1])


class Scaler:
    def __init__(self) -> None:
        self.seen, self.total = 0, torch.zeros(6)

    def scaled(self, inputs: Tensor) -> Tensor:
        if self.seen < 12:
            self.seen, self.total = self.seen + 1, self.total + inputs.detach().abs().mean(0) / 12
            return inputs
        return inputs / self.total


class PrunesWeights(pl.Callback):
    """The small ones once, and rewinds the others to where they began (a lottery ticket)."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.first, self.mask = pl_module.network[2].weight.detach().clone(), None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.mask is not None:
            with torch.no_grad():
                pl_module.network[2].weight.mul_(self.mask)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.mask is None:
            sizes = pl_module.network[2].weight.detach().abs()
            self.mask = sizes > sizes.median()
            with torch.no_grad():
                pl_module.network[2].weight.copy_(self.first)


class RateByEpoch(pl.Callback):
    """Chosen once, kept, and set again; the first batches are kept as examples."""

    chosen: float | None = None

    def __init__(self) -> None:
        self.examples = list[Any]()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if len(self.examples) < 4:
            self.examples.append(batch)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.chosen is None:
            self.chosen = 0.01 / (1 + trainer.current_epoch)
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = self.chosen


def prune(model: Any, active: Tensor) -> None:
    with torch.no_grad():
        model.network[2].weight[:, active <= active.median()] = 0


def run(model: Classifier, tmp_path: Path, callbacks: Any = (), data: Any = None) -> None:
    pl.seed_everything(0)
    trainer = make_trainer(tmp_path, make_private(), *callbacks, max_epochs=3)
    trainer.fit(model, data or DataLoader(make_data(), 10))


@pytest.mark.parametrize(
    ("model", "callback"),
    [
        (Rectified, PrunesOnce),
        *slow((Classifier, SelectsFeatures), (Classifier, ChoosesRate)),
        (SchedulesByLoss, None),
    ],
)
def test_weights_and_rates_by_what_was_gathered_are_refused(model: Any, callback: Any, tmp_path: Path) -> None:
    with pytest.raises(REFUSED, match="takes up"):
        run(model(), tmp_path, [callback()] if callback else [])


@pytest.mark.parametrize("kind", [Scaled, ScaledLater, *slow(ByTheLargest)])
def test_batches_scaled_by_earlier_ones_are_refused(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(REFUSED, match="in which training keeps something of earlier records"):
        run(Classifier(), tmp_path, data=kind(make_data()))


def test_what_a_callback_gathers_into_hyperparameters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(REFUSED, match="'hparams', in which training keeps something of earlier records"):
        run(LooksAtHard(), tmp_path, [SetsHyperparameter()])


def test_what_a_global_variable_has_gathered_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SCALER", Scaler())
    with pytest.raises(REFUSED, match="in which training keeps something of earlier records"):
        run(ByGlobal(), tmp_path)


@pytest.mark.slow
def test_a_collate_function_that_has_gathered_is_refused(tmp_path: Path) -> None:
    with pytest.raises(REFUSED, match="in which training keeps something of earlier records"):
        run(Classifier(), tmp_path, data=make_loader(collate_fn=ScaledCollate()))


@pytest.mark.parametrize("callback", [PrunesWeights, RateByEpoch])
def test_what_weights_or_numbers_decide_once_trains(callback: Any, tmp_path: Path) -> None:
    run(Rectified(), tmp_path, [callback()])


def test_a_scale_of_public_records_trains(tmp_path: Path) -> None:
    run(Classifier(), tmp_path, data=PublicScale(make_data()))
