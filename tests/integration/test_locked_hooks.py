"""Hooks that read training data where no copy of the model can show what they do with them, and those that may run."""

import copy
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import LambdaCallback
from slow_cases import slow
from tiny_fits import Classifier, make_data, make_private, make_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

from lightning_pac.exceptions import PrivacyViolationError

REFUSED = (MisconfigurationException, PrivacyViolationError)  # some are told apart by the check already
pytestmark = pytest.mark.checks_each_fit


class Centred(Classifier):
    """Trains on inputs less a centre, and has a buffer that is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = torch.zeros(6)
        self.register_buffer("threshold", torch.zeros(6))
        self.held: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.network(batch[0].float() - self.centre), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    @property
    def mean(self) -> Tensor:
        data = self.trainer.train_dataloader.dataset  # type: ignore[union-attr]
        return torch.stack([data[number][0] for number in range(len(data))]).mean(0)


class InOneEpoch(Centred):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 3:
            self.centre = self.mean


class OfSome(Centred):
    def on_train_epoch_start(self) -> None:
        rows = np.random.default_rng().permutation(60)[:30]
        self.centre = torch.stack([self.trainer.train_dataloader.dataset[row][0] for row in rows]).mean(0)  # type: ignore[union-attr]


class Logged(Centred):
    def on_train_epoch_end(self) -> None:
        self.log("mean", self.mean[0])


class Saved(Centred):
    def on_train_epoch_end(self) -> None:
        torch.save(self.mean, Path(self.trainer.default_root_dir) / "mean.pt")


class InCheckpoints(Centred):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["sample"] = self.mean


class AtTheEnd(Centred):
    def on_train_end(self) -> None:
        self.threshold.copy_(self.mean)


class OfTheLoader(Centred):
    def on_fit_end(self) -> None:
        self.threshold.copy_(torch.cat([inputs for inputs, _ in self.trainer.train_dataloader]).mean(0))  # type: ignore[union-attr]


class OfTensors(Centred):
    def on_train_end(self) -> None:
        self.threshold.copy_(self.held.mean(0))


class Neighbours(Centred):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("distance", torch.dist(batch[0].mean(0), self.mean))


class OfAnotherLoader(Centred):
    def on_train_epoch_start(self) -> None:
        loader = self.trainer.datamodule.train_dataloader()  # type: ignore[attr-defined]
        self.centre = torch.cat([inputs for inputs, _ in loader]).mean(0)


class OfItsOwnLoader(Centred):
    """With a dataset of its own each time."""

    def train_dataloader(self) -> Any:
        return DataLoader(make_data(), batch_size=10)

    def on_train_epoch_start(self) -> None:
        self.centre = torch.cat([inputs for inputs, _ in self.train_dataloader()]).mean(0)


class OnDisk(Dataset[Any]):
    """Loads each record from a file, so that no copy of the data can be another."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "data.npz"
        inputs, labels = make_data().tensors
        np.savez(self.path, inputs=inputs.numpy(), labels=labels.numpy())

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        with np.load(self.path) as data:
            return torch.tensor(data["inputs"][index]), int(data["labels"][index])


class Module(pl.LightningDataModule):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.data = OnDisk(folder)

    def train_dataloader(self) -> Any:
        return DataLoader(OnDisk(self.data.path.parent), batch_size=10)


class Always(Centred):
    def on_train_epoch_start(self) -> None:
        self.centre = self.mean


HOOKS = [
    *(OfSome, InCheckpoints, AtTheEnd, OfTensors, Neighbours, OfItsOwnLoader),
    *slow(InOneEpoch, Logged, Saved, OfTheLoader, OfAnotherLoader, Always),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", HOOKS, ids=lambda kind: kind.__name__)
def test_no_hook_reads_training_data(kind: type[Centred], tmp_path: Path) -> None:
    model, data = kind(), make_data()
    model.held = data.tensors[0]
    saves = kind is InCheckpoints
    trainer = make_trainer(tmp_path, make_private(), max_epochs=5, enable_checkpointing=saves, num_sanity_val_steps=0)
    given: dict[str, Any] = {"train_dataloaders": DataLoader(data, batch_size=10)}
    if kind is OfAnotherLoader:
        given = {"datamodule": Module(tmp_path)}
    if kind is Always:
        given = {"train_dataloaders": DataLoader(OnDisk(tmp_path), batch_size=10)}
    if kind is Neighbours:
        given["val_dataloaders"] = DataLoader(TensorDataset(*make_data(20).tensors), batch_size=10)
    with pytest.raises(REFUSED, match=rf"{kind.__name__} (reads the training data|depends on (the )?r)"):
        trainer.fit(model, **({} if kind is OfItsOwnLoader else given))
    assert not model.threshold.any()
    assert type(model) is kind


@pytest.mark.parametrize("workers", [0, 1])
def test_what_calibrates_a_model_at_the_end_is_refused(workers: int, tmp_path: Path) -> None:
    loader = DataLoader(make_data(), batch_size=10, num_workers=workers, persistent_workers=workers > 0)

    def calibrate(trainer: Any, pl_module: Any) -> None:
        pl_module.threshold = torch.cat([inputs for inputs, _ in trainer.train_dataloader]).mean(0)

    model = Centred()
    trainer = make_trainer(tmp_path, make_private(), LambdaCallback(on_train_end=calibrate))
    with pytest.raises(PrivacyViolationError, match="on_train_end of LambdaCallback reads the training data"):
        trainer.fit(model, loader)
    assert not model.threshold.any()


class Honest(Centred):
    """Reads lengths, names and held-out records, copies itself, and saves checkpoints, all of it in hooks."""

    def __init__(self, held_out: Any) -> None:
        super().__init__()
        self.held_out, self.done = held_out, 0
        self.average: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        number = len(self.trainer.train_dataloader.dataset)  # type: ignore[union-attr]
        return super().training_step(batch, batch_idx) + sum(p.square().sum() for p in self.parameters()) / number

    def on_train_epoch_start(self) -> None:
        self.average = [copy.deepcopy(self.network)]

    def on_validation_epoch_end(self) -> None:
        inputs, _ = next(iter(DataLoader(self.held_out, batch_size=20)))
        assert inputs[0].equal(self.held_out[0][0])

    def on_train_epoch_end(self) -> None:
        assert type(copy.deepcopy(self)) is Honest
        self.trainer.save_checkpoint(Path(self.trainer.default_root_dir) / "saved.ckpt")
        self.done += 1


def test_hooks_may_do_all_else(tmp_path: Path) -> None:
    trained, held_out = random_split(make_data(80), [60, 20])
    model = Honest(held_out)
    trainer = make_trainer(tmp_path, make_private(), max_epochs=2)
    trainer.fit(model, DataLoader(trained, batch_size=10), DataLoader(held_out, batch_size=10))
    assert model.done == 2
    assert (tmp_path / "saved.ckpt").exists()
    assert type(model) is Honest
    trainer.train_dataloader.dataset[0]  # type: ignore[union-attr]


def test_a_model_has_its_class_again_after_an_error(tmp_path: Path) -> None:
    class Failing(Classifier):
        def on_train_epoch_end(self) -> None:
            raise ValueError("stop")

    model, data = Failing(), make_data()
    with pytest.raises(ValueError, match="stop"):
        make_trainer(tmp_path, make_private()).fit(model, DataLoader(data, batch_size=10))
    assert (type(model), type(data)) == (Failing, TensorDataset)


class ShowsHeldOut(pl.Callback):
    """Draws records that are not trained on, of a loader that it asks the data for."""

    shown = 0

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.shown += len(next(iter(trainer.datamodule.val_dataloader()))[0])  # type: ignore[attr-defined]


class InTensors(Dataset[Any]):
    def __init__(self) -> None:
        self.inputs, self.labels = make_data().tensors

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.labels[index]


class TwoSets(pl.LightningDataModule):
    def __init__(self) -> None:
        super().__init__()
        self.trained, self.held_out = InTensors(), InTensors()

    def train_dataloader(self) -> Any:
        return DataLoader(self.trained, batch_size=10)

    def val_dataloader(self) -> Any:
        return DataLoader(self.held_out, batch_size=10)


class Validating(Classifier):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.network(batch[0])


def test_a_hook_may_ask_for_records_that_are_not_trained_on(tmp_path: Path) -> None:
    """It was told that it reads the training data, which the lock itself had looked at."""
    pictures = ShowsHeldOut()
    make_trainer(tmp_path, make_private(), pictures, max_epochs=1).fit(Validating(), datamodule=TwoSets())
    assert pictures.shown > 0
