"""Datasets that are written to during a run: by what records decide, or by the number of the epoch."""

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from tiny_fits import Classifier, make_data, make_private, make_trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

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


@pytest.mark.parametrize("through", ["loader", "datamodule"])
def test_a_callback_that_sets_the_data_is_repeated(through: str, tmp_path: Path) -> None:
    with pytest.raises(PrivacyViolationError, match=r"'difficulty' of the dataset Scaled\" takes up records"):
        make_trainer(tmp_path, make_private(), Teacher(True, through)).fit(Weighted(), datamodule=Data())


class Arrays(Dataset[Any]):
    """Records in arrays of NumPy, with weights."""

    def __init__(self) -> None:
        inputs, labels = make_data().tensors
        self.inputs, self.labels = inputs.numpy(), labels.numpy()
        self.weights = np.ones(len(inputs), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.labels[index], self.weights[index], index


def reweigh(data: Any, model: Any, beside_all: bool) -> None:
    """Weights by losses, or by those beside their mean."""
    inputs, labels = (torch.as_tensor(values) for values in (data.inputs, data.labels))
    losses = torch.nn.functional.cross_entropy(model.network(inputs), labels, reduction="none").detach()
    found = losses / losses.mean() if beside_all else losses.clamp(max=1.0)
    data.weights[:] = found.numpy() if isinstance(data, Arrays) else found


class Boosting(pl.Callback):
    def __init__(self, beside_all: bool) -> None:
        self.beside_all = beside_all

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        reweigh(trainer.train_dataloader.dataset, pl_module, self.beside_all)


class Boosted(Weighted):
    beside_all = True

    def on_train_epoch_end(self) -> None:
        reweigh(self.data, self, self.beside_all)


class Own(Boosted):
    beside_all = False


class Prototypes(Classifier):
    means = torch.eye(3)

    def on_train_epoch_start(self) -> None:
        data = self.trainer.train_dataloader.dataset  # type: ignore[union-attr]
        found = self.network(data.tensors[0]).detach()
        self.means = torch.stack([found[data.tensors[1] == label].mean(0) for label in range(3)])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return torch.nn.functional.cross_entropy(-torch.cdist(self.network(batch[0]), self.means), batch[1])


class Holding(Prototypes):
    """Takes its prototypes from tensors that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.labels = make_data().tensors

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.inputs, self.labels), batch_size=20)

    def on_train_epoch_start(self) -> None:
        found = self.network(self.inputs).detach()
        self.means = torch.stack([found[self.labels == label].mean(0) for label in range(3)])


class Loading(Holding):
    """Takes them from its own loader, which is made anew."""

    def on_train_epoch_start(self) -> None:
        batches = [(self.network(inputs).detach(), labels) for inputs, labels in self.train_dataloader()]
        found, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        self.means = torch.stack([found[labels == label].mean(0) for label in range(3)])


class Centred(Weighted):
    """Holds its training data, as models with a train_dataloader of their own do."""

    def __init__(self) -> None:
        super().__init__()
        self.training_data = Scaled()

    def train_dataloader(self) -> Any:
        return DataLoader(Subset(self.training_data, range(40)), batch_size=20)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step([batch[0] - self.training_data.inputs.mean(0), *batch[1:]], batch_idx)


@pytest.mark.parametrize(
    ("model", "data", "callbacks"),
    [
        (Boosted, Scaled, []),
        (Centred, None, []),
        (Holding, None, []),
        (Loading, None, []),
        (Boosted, Arrays, []),
        (Weighted, Scaled, [Boosting(True)]),
        (Weighted, Arrays, [Boosting(True)]),
        (Prototypes, make_data, []),
    ],
)
def test_no_hook_makes_something_of_all_records(model: Any, data: Any, callbacks: list[Any], tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, make_private(), *callbacks, max_epochs=2)
    with pytest.raises(
        (MisconfigurationException, PrivacyViolationError),
        match=r"depends on (rows of the dataset|the records of earlier)|Boosting reads the training data",
    ):
        trainer.fit(model(), None if data is None else DataLoader(data(), batch_size=20))


@pytest.mark.parametrize("sets", [False, True])
def test_what_a_hook_sets_that_ends_in_an_error_is_told(sets: bool, tmp_path: Path) -> None:
    class Progress(Prototypes):
        def on_train_epoch_start(self) -> None:
            assert self.trainer.fit_loop.epoch_loop is not None
            if sets:
                self.means = torch.eye(3) * (
                    1.0 + self.current_epoch
                )  # one for all would leave rounding for a gradient

    model, told = Progress(), r"on_train_epoch_start of Progress sets the attribute 'means', and ends in an error"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(tmp_path, make_private(), max_epochs=2).fit(model, DataLoader(make_data(), batch_size=20))
    assert sum(told in str(warning.message) for warning in caught) == sets
    assert "on_train_epoch_start" not in vars(model)


@pytest.mark.parametrize(("model", "callbacks"), [(Own, []), (Weighted, [Boosting(False)])])
def test_a_hook_that_weighs_each_record_by_itself_is_sent_to_the_step(
    model: Any, callbacks: list[Any], tmp_path: Path
) -> None:
    trainer = make_trainer(tmp_path, make_private(), *callbacks, max_epochs=2)
    with pytest.raises(PrivacyViolationError, match=r"reads the training data.* put what it needs into the batch"):
        trainer.fit(model(), DataLoader(Scaled(), batch_size=20))


def test_data_that_the_number_of_a_batch_or_an_epoch_sets_pass(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*of the dataset Scaled")
        for model, callbacks in ((Weighted(), [Teacher(False, "loader")]), (ByEpoch(), [])):
            trainer = make_trainer(tmp_path, make_private(), *callbacks, max_epochs=2)
            trainer.fit(model, DataLoader(Scaled(), batch_size=20))
            assert trainer.global_step == 6
