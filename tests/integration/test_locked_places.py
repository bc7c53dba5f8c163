"""Code beside the usual hooks that reads training data, and code that only looks as if it did."""

import copy
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from slow_cases import slow
from test_locked_hooks import Centred, OnDisk
from tiny_fits import make_data, make_private, make_trainer
from torch.utils.data import DataLoader, Subset, TensorDataset

from lightning_pac.exceptions import PrivacyViolationError

pytestmark = [pytest.mark.checks_each_fit, pytest.mark.filterwarnings("ignore")]


def mean_of(data: Any) -> torch.Tensor:
    return torch.stack([data[number][0] for number in range(len(data))]).mean(0)


class Module(pl.LightningDataModule):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.data = OnDisk(folder)

    def train_dataloader(self) -> Any:
        return DataLoader(self.data, batch_size=10)


class Mixes(Module):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] + 0.1 * self.data[int(torch.randint(60, ()))][0], batch[1]


class SavesState(Module):
    def state_dict(self) -> dict[str, Any]:
        return {"mean": mean_of(self.data)}


class ACopy(Centred):
    def on_train_end(self) -> None:
        self.threshold.copy_(mean_of(copy.copy(self.trainer.train_dataloader.dataset)))  # type: ignore[union-attr]


class AnotherOne(Centred):
    """With other transforms, made before the training."""

    def on_train_start(self) -> None:
        self.threshold.copy_(mean_of(self.held))


class Threads(Centred):
    def on_train_end(self) -> None:
        data = self.trainer.train_dataloader.dataset  # type: ignore[union-attr]
        with ThreadPoolExecutor(2) as pool:
            self.threshold.copy_(torch.stack([row[0] for row in pool.map(data.__getitem__, range(60))]).mean(0))


class Teardown(Centred):
    def teardown(self, stage: str) -> None:
        self.threshold.copy_(mean_of(self.trainer.train_dataloader.dataset))  # type: ignore[union-attr]


class Transfer(Centred):
    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return batch[0] - mean_of(self.trainer.train_dataloader.dataset), batch[1]  # type: ignore[union-attr]


class FromALightningFile(Centred):
    def on_train_end(self) -> None:
        self.threshold.copy_(mean_of(self.trainer.train_dataloader.dataset))  # type: ignore[union-attr]


FromALightningFile.on_train_end.__module__ = "lightning_module"


class OfTheCallback(pl.Callback):
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        return {"mean": mean_of(self.trainer.train_dataloader.dataset)}


class AtTheLast(pl.Callback):
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pl_module.threshold.copy_(mean_of(trainer.train_dataloader.dataset))


PLACES: list[Any] = [
    *(ACopy, AnotherOne, Threads, Transfer, Mixes),
    *slow(Teardown, FromALightningFile, SavesState, OfTheCallback, AtTheLast),
]


@pytest.mark.parametrize("kind", PLACES, ids=lambda kind: kind.__name__)
def test_no_place_to_read_from_is_open(kind: Any, tmp_path: Path) -> None:
    model = kind() if issubclass(kind, Centred) else Centred()
    module = kind(tmp_path) if issubclass(kind, Module) else Module(tmp_path)
    model.held = OnDisk(tmp_path)
    callbacks = [kind()] if issubclass(kind, pl.Callback) else []
    saves = kind in (SavesState, OfTheCallback)
    trainer = make_trainer(tmp_path, make_private(), *callbacks, max_epochs=2, enable_checkpointing=saves)
    with pytest.raises(PrivacyViolationError, match=f"{kind.__name__} reads the training data"):
        trainer.fit(model, datamodule=module)
    assert not model.threshold.any()
    assert not trainer.checkpoint_callback or not Path(trainer.checkpoint_callback.best_model_path).is_file()  # type: ignore[attr-defined]


def test_a_hook_of_the_object_itself_is_locked(tmp_path: Path) -> None:
    model = Centred()
    model.on_train_end = types.MethodType(Teardown.teardown, model)  # type: ignore[method-assign]
    model.on_train_end.__func__.__defaults__ = (None,)
    with pytest.raises(PrivacyViolationError, match="on_train_end of Centred reads the training data"):
        make_trainer(tmp_path, make_private()).fit(model, DataLoader(OnDisk(tmp_path), batch_size=10))


class Sorted(Module):
    def train_dataloader(self) -> Any:
        network = self.trainer.lightning_module.network  # type: ignore[union-attr]
        with torch.no_grad():
            scores = torch.stack([network(self.data[number][0])[0] for number in range(60)])
        return DataLoader(Subset(self.data, scores.argsort().tolist()), batch_size=10)


class Centres(Module):
    def train_dataloader(self) -> Any:
        self.trainer.lightning_module.centre = mean_of(self.data)  # type: ignore[union-attr]
        return super().train_dataloader()


def test_an_order_by_what_a_model_makes_of_records_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, make_private(), max_epochs=3, reload_dataloaders_every_n_epochs=1)
    with pytest.raises(MisconfigurationException, match="puts them into another order"):
        trainer.fit(Centred(), datamodule=Sorted(tmp_path))


def test_what_a_loader_hook_does_to_the_model_is_told(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, make_private(), max_epochs=3, reload_dataloaders_every_n_epochs=1)
    with pytest.warns(UserWarning, match="train_dataloader of Centres sets the attribute 'centre' while Centred"):
        trainer.fit(Centred(), datamodule=Centres(tmp_path))


FOUND: dict[str, type] = {}


class Registered(Centred):
    def __init_subclass__(cls, name: str) -> None:
        FOUND[name] = cls


class Inspected(Registered, name="inspected"):
    """Looks at its class, and copies itself with its data."""

    train_data: Any = None

    def on_train_epoch_start(self) -> None:
        assert type(self) is self.__class__ is FOUND["inspected"] is Inspected
        super(self.__class__, self).on_train_epoch_start()
        assert len(copy.deepcopy(self).train_data) == 60


class Saves(ModelCheckpoint):
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_epoch_end(trainer, pl_module)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["note"] = 1


def test_hooks_may_look_at_classes_copy_and_save(tmp_path: Path) -> None:
    model, own = Inspected(), dict(vars(Inspected))
    model.train_data = make_data()
    saves = Saves(dirpath=tmp_path, save_last=True)
    trainer = make_trainer(tmp_path, make_private(), saves, max_epochs=2, enable_checkpointing=True)
    trainer.fit(model, DataLoader(model.train_data, batch_size=10), DataLoader(TensorDataset(*make_data(20).tensors)))
    assert (tmp_path / "last.ckpt").is_file()
    assert dict(vars(Inspected)) == own
    trainer.validate(model, DataLoader(TensorDataset(*make_data(20).tensors)))
