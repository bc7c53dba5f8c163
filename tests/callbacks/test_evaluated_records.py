"""What an evaluation with private metrics takes of its records beside the rows of a batch."""

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pandas as pd
import pytest
import torch
import torchmetrics
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_pac import SRPPSGD, PrivateMetrics, TwoWorldScenario
from lightning_pac.exceptions import PrivacyViolationError

BY_ITSELF = "reads evaluated or trained records by itself"
FEATURES = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(30) % 3


class Data(pl.LightningDataModule):
    def __init__(self) -> None:
        super().__init__()
        self.held_out = TensorDataset(FEATURES.clone(), LABELS.clone())

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.held_out, batch_size=10)

    def means(self) -> Tensor:
        return torch.cat([batch[0] for batch in self.val_dataloader()]).mean(0)


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)
        self.centre: Any = 0.0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.accuracy.update(self.layer(batch[0] - self.centre), batch[1])
        self.log("accuracy", self.accuracy)


class ByAHook(Model):
    def on_validation_epoch_start(self) -> None:
        self.centre = self.trainer.datamodule.means()  # type: ignore[attr-defined]


class ByTheFirstHook(Model):
    def on_validation_model_eval(self) -> None:
        super().on_validation_model_eval()
        self.centre = self.trainer.datamodule.means()  # type: ignore[attr-defined]


class ByTheTrainer(Model):
    def on_validation_start(self) -> None:
        self.centre = torch.cat([batch[0] for batch in self.trainer.val_dataloaders]).mean(0)  # type: ignore[union-attr]


class ByTheLabels(Model):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        labels = self.trainer.datamodule.held_out.tensors[1]  # type: ignore[attr-defined]
        self.accuracy.update(self.layer(batch[0]) + labels.bincount(minlength=3), batch[1])
        self.log("accuracy", self.accuracy)


class Centring(pl.Callback):
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        pl_module.centre = trainer.datamodule.means()  # type: ignore[attr-defined]


class CentredData(Data):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] - self.held_out.tensors[0].mean(0), batch[1]


class ByATable(Model):
    """Of which the data set is made anew for each loader, so that no object is the one that is evaluated."""

    def on_validation_start(self) -> None:
        self.centre = self.trainer.datamodule.features.mean(0)  # type: ignore[attr-defined]


class Tables(Data):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.labels = self.held_out.tensors
        del self.held_out

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(self.features, self.labels), batch_size=10)


class CentredTables(Tables):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] - self.means(), batch[1]


class Keeping(pl.Callback):
    """Has a loader of its own."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.loader = trainer.datamodule.val_dataloader()  # type: ignore[attr-defined]

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        pl_module.centre = torch.cat([batch[0] for batch in self.loader]).mean(0)


class Drawing(Model):
    """Looks at lengths, and shows pictures when the last row has been added."""

    def on_validation_start(self) -> None:
        self.count = len(self.trainer.datamodule.held_out)  # type: ignore[attr-defined]
        assert len(self.trainer.datamodule.val_dataloader()) == 3  # type: ignore[attr-defined]

    def on_validation_epoch_end(self) -> None:
        next(iter(self.trainer.datamodule.val_dataloader()))  # type: ignore[attr-defined]


class OfSeveralClasses(Model):
    """Leaves batches out that have one class, as code does to which a rank statistic is undefined."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if len(batch[1].unique()) > 1:
            self.accuracy.update(self.layer(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)


class OfPositives(Model):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if (batch[1] == 0).any():
            self.accuracy.update(self.layer(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)


class IfPresent(Model):
    """Logs the accuracy of a group where some record is of it."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        chosen = batch[1] == 2
        if chosen.any():
            self.accuracy.update(self.layer(batch[0][chosen]), batch[1][chosen])
            self.log("accuracy", self.accuracy)


class Always(IfPresent):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        chosen = batch[1] == 2
        self.accuracy.update(self.layer(batch[0][chosen]), batch[1][chosen])
        self.log("accuracy", self.accuracy)


def validate(folder: Path, model: Model, data: Data | None = None, callbacks: tuple[pl.Callback, ...] = ()) -> None:
    private = PrivateMetrics(
        ["accuracy"], TwoWorldScenario(1), epsilon=100.0, renyi_order=16, ledger=folder / "study.db"
    )
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[*callbacks, private], default_root_dir=folder,
    )  # fmt: skip
    trainer.validate(model, datamodule=data or Data(), verbose=False)


@pytest.mark.parametrize("kind", [ByAHook, ByTheFirstHook, ByTheTrainer, ByTheLabels])
def test_records_are_read_from_the_batch_alone(tmp_path: Path, kind: type[Model]) -> None:
    """One record moved the rows of all others, and copies, which read the same data each time, showed nothing."""
    with pytest.raises(MisconfigurationException, match=BY_ITSELF):
        validate(tmp_path, kind())


def test_nor_may_a_callback_or_the_data_read_them(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=BY_ITSELF):
        validate(tmp_path, Model(), callbacks=(Centring(),))
    with pytest.raises(MisconfigurationException, match=BY_ITSELF):
        validate(tmp_path, Model(), CentredData())
    with pytest.raises(MisconfigurationException, match=BY_ITSELF):
        validate(tmp_path, Model(), callbacks=(Keeping(),))


def test_tables_of_the_data_are_no_way_around(tmp_path: Path) -> None:
    for model, data in ((ByATable(), Tables()), (ByAHook(), Tables()), (Model(), CentredTables())):
        with pytest.raises(MisconfigurationException, match=BY_ITSELF):
            validate(tmp_path, model, data)
    validate(tmp_path, Model(), Tables())


class Masks(Model):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if batch[1].sum() > 0:
            self.accuracy.update(self.layer(batch[0]), batch[1].sum(1).clamp(max=2))
        self.log("accuracy", self.accuracy)


def test_a_batch_of_empty_masks_that_one_mask_lets_in_is_refused(tmp_path: Path) -> None:
    data = Data()
    data.held_out = TensorDataset(FEATURES, (FEATURES.repeat(1, 4) > 0.5).long())
    with pytest.raises(MisconfigurationException, match="with rows that one record decides beside its own"):
        validate(tmp_path, Masks(), data)


@pytest.mark.parametrize("kind", [Drawing, Always])
def test_lengths_and_figures_at_the_end_pass(tmp_path: Path, kind: type[Model]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*synthetic records")
        validate(tmp_path, kind())


@pytest.mark.parametrize("kind", [OfSeveralClasses, OfPositives])
def test_a_batch_that_one_label_lets_in_is_refused(tmp_path: Path, kind: type[Model]) -> None:
    with pytest.raises(MisconfigurationException, match="with rows that one record decides beside its own"):
        validate(tmp_path, kind())


def test_a_metric_that_one_record_lets_be_logged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="whether it is shown tells of a record"):
        validate(tmp_path, IfPresent())


class Images(Dataset[Any]):
    """Each with some boxes, the first with so many."""

    def __init__(self, first: int, makes_lists: bool) -> None:
        self.first, self.makes_lists = first, makes_lists

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        count = self.first + index % 3
        target: dict[str, Any] = {"boxes": FEATURES[:count].abs(), "labels": LABELS[:count]}
        return FEATURES[index], {key: part.tolist() if self.makes_lists else part for key, part in target.items()}


class Boxed(Data):
    def __init__(self, first: int = 1, makes_lists: bool = False) -> None:
        super().__init__()
        self.images = Images(first, makes_lists)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.images, batch_size=10, collate_fn=lambda records: tuple(zip(*records, strict=True)))


class Detector(Model):
    """Leaves batches out in which an image has no boxes, or such images only."""

    def __init__(self, leaves_batches: bool) -> None:
        super().__init__()
        self.leaves_batches = leaves_batches

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        features, targets = batch
        has_boxes = torch.tensor([len(target["boxes"]) > 0 for target in targets])
        if self.leaves_batches and not has_boxes.all():
            has_boxes[:] = False
        sizes = torch.tensor([float(torch.as_tensor(target["boxes"]).sum()) > 1 for target in targets]).long()
        self.accuracy.update(self.layer(torch.stack(features))[has_boxes], sizes[has_boxes])
        self.log("accuracy", self.accuracy)


@pytest.mark.parametrize(
    ("first", "makes_lists"), [(1, False), (FEATURES.shape[1], False), (1, True)], ids=["few", "as many", "lists"]
)
def test_a_batch_that_an_image_without_boxes_keeps_out_is_refused(
    tmp_path: Path, first: int, makes_lists: bool
) -> None:
    with pytest.raises(MisconfigurationException, match="with rows that one record decides beside its own"):
        validate(tmp_path, Detector(leaves_batches=True), Boxed(first, makes_lists))
    validate(tmp_path, Detector(leaves_batches=False), Boxed(first, makes_lists))


class Texts(Data):
    """Of so many tokens each."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__()
        self.texts = [(FEATURES[index], LABELS[index], torch.arange(length)) for index, length in enumerate(lengths)]

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(
            self.texts,  # type: ignore[arg-type]
            batch_size=10,
            collate_fn=lambda records: (*map(torch.stack, zip(*(each[:2] for each in records), strict=True)), records),
        )


class OfLengths(Model):
    """Leaves out what the lengths of a batch say."""

    def __init__(self, leaves_out: Any) -> None:
        super().__init__()
        self.leaves_out = leaves_out

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        lengths = torch.tensor([len(tokens) for _, _, tokens in batch[2]])
        kept = ~self.leaves_out(lengths).expand(len(lengths))
        self.accuracy.update(self.layer(batch[0])[kept], batch[1][kept])
        self.log("accuracy", self.accuracy)


MIXED_LENGTHS = [5 + index % 3 for index in range(30)]
LONG = [*MIXED_LENGTHS[:13], 900, *MIXED_LENGTHS[14:]]
EQUAL = [*MIXED_LENGTHS[:10], *[6] * 10, *MIXED_LENGTHS[20:]]


@pytest.mark.parametrize(
    ("lengths", "leaves_out"),
    [
        (LONG, lambda lengths: lengths.sum() > 500),
        (EQUAL, lambda lengths: torch.tensor(len(set(lengths.tolist())) == 1 and int(lengths[0]) == 6)),
    ],
    ids=["memory", "one length"],
)
def test_a_batch_that_only_real_records_leave_out_is_refused(
    tmp_path: Path, lengths: list[int], leaves_out: Any
) -> None:
    """No synthetic record has these lengths."""
    with pytest.raises(MisconfigurationException, match="had no rows of a batch whose records have rows in other"):
        validate(tmp_path, OfLengths(leaves_out), Texts(lengths))
    validate(tmp_path, OfLengths(leaves_out), Texts(MIXED_LENGTHS))


def test_records_that_are_left_out_one_by_one_pass(tmp_path: Path) -> None:
    validate(tmp_path, OfLengths(lambda lengths: lengths != 6), Texts([7] * 10 + MIXED_LENGTHS[10:20] + [5] * 10))


class Gallery(Model):
    """Names what the nearest record of training is, as its dataset or a table holds them."""

    def __init__(self, table: bool) -> None:
        super().__init__()
        self.table = table

    def on_validation_epoch_start(self) -> None:
        datamodule: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        if self.table:
            rows = torch.tensor(datamodule.table.to_numpy(), dtype=torch.float32)
            self.seen, self.names = rows[:, :4], rows[:, 4].long()
        else:
            self.seen, self.names = datamodule.trained.tensors

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        near = torch.cdist(batch[0], self.seen).argmin(1)
        self.accuracy.update(torch.nn.functional.one_hot(self.names[near], 3).float(), batch[1])
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class TrainedData(Data):
    def __init__(self) -> None:
        super().__init__()
        self.trained = TensorDataset(FEATURES[:24] + 1, LABELS[:24])
        self.table = pd.DataFrame(torch.column_stack([FEATURES[:24] + 1, LABELS[:24]]).numpy())

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.trained, batch_size=8, shuffle=True)


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_gallery_of_records_that_were_trained_on_is_refused(tmp_path: Path, after: bool, table: bool) -> None:
    """One of them moved a figure that only evaluated ones pay for, where the Trainer validated after the fit."""
    metrics = PrivateMetrics(
        ["accuracy"], TwoWorldScenario(1), epsilon=100.0, renyi_order=16, ledger=tmp_path / "study.db"
    )
    private = SRPPSGD(TwoWorldScenario(1), noise_multiplier=1.0, renyi_order=16)
    trainer = pl.Trainer(
        max_epochs=1, limit_val_batches=0 if after else None, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[private, metrics], default_root_dir=tmp_path,
    )  # fmt: skip
    model, data = Gallery(table), TrainedData()
    if not after:
        with pytest.raises((MisconfigurationException, PrivacyViolationError), match=f"{BY_ITSELF}|reads the training"):
            trainer.fit(model, datamodule=data)
        return
    trainer.fit(model, datamodule=data)
    trainer.limit_val_batches = 1.0
    with pytest.raises(MisconfigurationException, match=BY_ITSELF):
        trainer.validate(model, datamodule=data, verbose=False)
