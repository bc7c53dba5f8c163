"""Datasets that are written to during a run: by what records decide, or by the number of the epoch."""

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from tiny_fits import Classifier, make_data, make_private, make_trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from lightning_pac.exceptions import PrivacyViolationError

pytestmark = pytest.mark.checks_each_fit


class Scaled(Dataset[Any]):
    """Records as large as the difficulty, each with a weight."""

    def __init__(self) -> None:
        self.inputs, self.labels = make_data().tensors
        self.difficulty, self.weights = 1.0, torch.ones(len(self.inputs))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index] * self.difficulty, self.labels[index], self.weights[index], index


class Weighted(Classifier):
    """Trains on weighted losses, which it keeps."""

    held: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, labels, weights, self.places = batch
        losses = torch.nn.functional.cross_entropy(self.network(inputs), labels, reduction="none")
        self.losses = losses.detach()
        return (losses * weights).mean()

    @property
    def data(self) -> Any:
        data = self.trainer.train_dataloader.dataset if self.held is None else self.held  # type: ignore[union-attr]
        return getattr(data, "dataset", data)


class Difficult(Weighted):
    def on_train_batch_end(self, *_: Any) -> None:
        self.data.difficulty = float(self.losses.mean())


class Reweighted(Weighted):
    def on_train_batch_end(self, *_: Any) -> None:
        self.data.weights[self.places] = self.losses


class ByEpoch(Weighted):
    def on_train_epoch_start(self) -> None:
        self.data.difficulty = 1.0 + self.current_epoch


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("kind", [Difficult, Reweighted])
def test_no_loss_is_written_to_the_data(kind: type[Weighted], is_held: bool, tmp_path: Path) -> None:
    model, data = kind(), Scaled()
    model.held = data if is_held else None
    with pytest.raises(
        MisconfigurationException, match=r"The attribute .* of the dataset Scaled is set by private records"
    ):
        make_trainer(tmp_path, make_private()).fit(model, DataLoader(Subset(data, range(40)), batch_size=10))
    assert data.difficulty == 1.0
    assert bool((data.weights == 1).all()), "the check leaves the original alone"


class Teacher(pl.Callback):
    """Sets the difficulty after each batch, by its loss or by its number."""

    def __init__(self, by_loss: bool, through: str) -> None:
        self.by_loss, self.through = by_loss, through

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        data = trainer.datamodule.data if self.through == "datamodule" else trainer.train_dataloader.dataset
        data.difficulty = float(outputs["loss"]) if self.by_loss else 1.0 + batch_idx


class Data(pl.LightningDataModule):
    def __init__(self) -> None:
        super().__init__()
        self.data = Scaled()

    def train_dataloader(self) -> Any:
        return DataLoader(self.data, batch_size=10)


def test_a_callback_that_sets_the_data_is_repeated(tmp_path: Path) -> None:
    with pytest.raises(PrivacyViolationError, match=r"'difficulty' of the dataset Scaled\" takes up records"):
        make_trainer(tmp_path, make_private(), Teacher(True, "loader")).fit(Weighted(), datamodule=Data())
    with pytest.warns(UserWarning, match=r"'difficulty' of the dataset Scaled was written to by a callback"):
        make_trainer(tmp_path, make_private(), Teacher(True, "datamodule")).fit(Weighted(), datamodule=Data())


def test_data_that_the_number_of_a_batch_or_an_epoch_sets_pass(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*of the dataset Scaled")
        for model, callbacks in ((Weighted(), [Teacher(False, "loader")]), (ByEpoch(), [])):
            trainer = make_trainer(tmp_path, make_private(), *callbacks, max_epochs=2)
            trainer.fit(model, DataLoader(Scaled(), batch_size=20))
            assert trainer.global_step == 6
