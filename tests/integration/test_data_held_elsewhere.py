"""Training data that a hook comes across outside of the loader's dataset, in tables of any kind, or in a validation."""

import copy
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pandas as pd
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from slow_cases import slow
from tiny_fits import Classifier, make_data, make_private, make_trainer
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, random_split

from lightning_pac.data.tables import is_of, repeat_rows
from lightning_pac.exceptions import PrivacyViolationError

pytestmark = pytest.mark.checks_each_fit

REFUSED = (MisconfigurationException, PrivacyViolationError)


class Centred(Classifier):
    """Trains on inputs less a centre, which a hook sets."""

    centre = torch.zeros(6)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return torch.nn.functional.cross_entropy(self.network(batch[0].float() - self.centre), batch[1])


class Wrapped(Dataset[Any]):
    """Keeps the dataset below under a name of its own."""

    def __init__(self, base: Dataset[Any]) -> None:
        self.base = base

    def __len__(self) -> int:
        return len(self.base)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        return self.base[index]


class Frame(Dataset[Any]):
    def __init__(self) -> None:
        inputs, labels = make_data().tensors
        self.frame = pd.DataFrame(inputs.numpy()).assign(label=labels.numpy())

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: int) -> Any:
        row = self.frame.iloc[index]
        return torch.tensor(row[:6].to_numpy(dtype="float32")), int(row["label"])


class Stacking(Centred):
    """Goes through the Trainer's dataset, whatever it is made of."""

    def on_train_epoch_start(self) -> None:
        data = self.trainer.train_dataloader.dataset  # type: ignore[union-attr]
        self.centre = torch.stack([data[number][0] for number in range(len(data))]).mean(0)


def concatenated() -> Dataset[Any]:
    data = make_data()
    return ConcatDataset([TensorDataset(*data[:30]), TensorDataset(*data[30:])])


@pytest.mark.parametrize(
    "make", [concatenated, Frame, *slow(lambda: Wrapped(make_data()), lambda: Subset(concatenated(), range(5, 55)))]
)
def test_rows_of_any_dataset_are_told_apart(make: Any, tmp_path: Path) -> None:
    with pytest.raises(REFUSED, match="depends on rows of the dataset"):
        make_trainer(tmp_path, make_private()).fit(Stacking(), DataLoader(make(), batch_size=10))


class Holding(Centred):
    """Takes its centre from what it is given, a function of no arguments."""

    def __init__(self, inputs: Any, held: Any) -> None:
        super().__init__()
        self.inputs, self.held = inputs, held

    def on_train_epoch_start(self) -> None:
        self.centre = self.inputs(self.held).mean(0)


class Callback(pl.Callback):
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.centre = torch.cat([inputs for inputs, _ in self.loader]).mean(0)


def of_loader(loader: Any) -> Tensor:
    return torch.cat([inputs for inputs, _ in loader])


@pytest.mark.parametrize("place", ["loader", "splits", "closure", "loader in a closure", "callback"])
def test_training_data_are_found_where_they_are_held(place: str, tmp_path: Path) -> None:
    data = make_data()
    loader = DataLoader(data, batch_size=20)
    models = {
        "loader": lambda: Holding(of_loader, loader),
        "splits": lambda: Holding(lambda splits: splits["train"].tensors[0], {"train": data}),
        "closure": lambda: Holding(lambda _: data.tensors[0], None),
        "loader in a closure": lambda: Holding(lambda _: of_loader(loader), None),
        "callback": Centred,
    }
    trainer = make_trainer(tmp_path, make_private(), *([Callback(loader)] if place == "callback" else []))
    before = copy.deepcopy(data.tensors)
    with pytest.raises(REFUSED, match=r"depends on rows of the dataset|Callback reads the training data"):
        trainer.fit(models[place](), DataLoader(data, batch_size=10))
    assert all(torch.equal(one, other) for one, other in zip(before, data.tensors, strict=True))


class Module(pl.LightningDataModule):
    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.labels = make_data().tensors
        self.centre = torch.zeros(6)

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.inputs, self.labels), batch_size=10)


class Partners(Classifier):
    """Takes what it adds to a record from its datamodule, within the step."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs = self.trainer.datamodule.inputs  # type: ignore[attr-defined]
        partners = inputs[torch.randint(len(inputs), (len(batch[0]),))]
        return torch.nn.functional.cross_entropy(self.network(0.8 * batch[0] + 0.2 * partners), batch[1])


class LessTheMean(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs = batch[0] - self.trainer.datamodule.inputs.mean(0)  # type: ignore[attr-defined]
        return torch.nn.functional.cross_entropy(self.network(inputs), batch[1])


class KeptThere(Classifier):
    """Leaves the mean of a batch in the datamodule, for the next one."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs = batch[0] - self.trainer.datamodule.centre  # type: ignore[attr-defined]
        return torch.nn.functional.cross_entropy(self.network(inputs), batch[1])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.trainer.datamodule.centre = batch[0].mean(0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [Partners, LessTheMean, KeptThere])
def test_a_step_takes_nothing_from_its_datamodule(kind: type[Classifier], tmp_path: Path) -> None:
    with pytest.raises(REFUSED, match=r"depends on (rows of the dataset|the records of earlier batches)"):
        make_trainer(tmp_path, make_private()).fit(kind(), datamodule=Module())


def test_public_data_may_be_held_anywhere(tmp_path: Path) -> None:
    public = TensorDataset(*(tensor.clone() for tensor in make_data(40).tensors))
    trainer = make_trainer(tmp_path, make_private(), Callback(DataLoader(public, batch_size=20)), max_epochs=2)
    trainer.fit(Holding(lambda _: public.tensors[0], {"public": public}), DataLoader(make_data(), batch_size=20))
    assert trainer.global_step == 6


class Validated(Centred):
    """Takes its centre from the validation."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1]))
        self.found = batch[0].mean(0)

    def on_validation_epoch_end(self) -> None:
        self.centre = self.found


class Logging(Validated):
    def on_validation_epoch_end(self) -> None:
        self.found = None


@pytest.mark.parametrize("precision", ["32-true", *slow("bf16-mixed")])
def test_a_validation_on_training_data_decides_nothing(precision: Any, tmp_path: Path) -> None:
    data = make_data()
    for model, given in ((Validated(), data), (Validated(), Subset(Wrapped(data), range(20)))):
        trainer = make_trainer(tmp_path, make_private(), precision=precision)
        with pytest.raises(REFUSED, match="depends on the records of earlier batches"):
            trainer.fit(model, DataLoader(data, batch_size=20), DataLoader(given, batch_size=20))
    for kind, given in ((Logging, data), (Validated, TensorDataset(*make_data(20).tensors))):
        trainer = make_trainer(tmp_path, make_private(), precision=precision)
        trainer.fit(kind(), DataLoader(data, batch_size=20), DataLoader(given, batch_size=20))
        assert trainer.global_step == 3


def test_what_of_a_validation_is_trained_on() -> None:
    data = make_data()
    first, second = random_split(data, [40, 20])
    for given, trained, expected in (
        (data, data, True),
        (Wrapped(data), data, True),
        (data, Wrapped(data), True),
        (Subset(data, range(9)), data, True),
        (TensorDataset(*data.tensors), data, True),
        (first, first, True),
        (first, second, False),
        (make_data(), data, False),
    ):
        assert is_of(given, trained) == expected


def test_every_second_row_of_each_table_is_repeated() -> None:
    class Tables(Frame):
        def __init__(self) -> None:
            super().__init__()
            self.names = pd.Series([f"n{number}" for number in range(60)], dtype="category")
            self.by_key = {number: number for number in range(60)}

    data = Tables()
    old = copy.deepcopy(data)
    repeat_rows(data)
    assert (data.frame.iloc[1::2] == old.frame.iloc[0]).all().all()
    assert data.frame.iloc[::2].equals(old.frame.iloc[::2])
    assert data.frame.dtypes.equals(old.frame.dtypes)
    assert data.names.tolist() == [old.names[0] if number % 2 else old.names[number] for number in range(60)]
    assert list(data.by_key.values()) == [0 if number % 2 else number for number in range(60)]
