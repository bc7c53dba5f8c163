"""A private classifier of the rows of a CSV file: `python train.py`, with any option of `lightning-pac fit`."""

import csv
import sys
import zlib

import lightning.pytorch as pl
import torch
import torchmetrics
from torch.utils.data import DataLoader, Subset, TensorDataset

from lightning_pac import TableTransform
from lightning_pac.cli import main


class Table(pl.LightningDataModule):
    """The rows of a CSV file, of which each decides by itself whether it is for validation.

    Args:
        path: The file.
        columns: What is known of its columns without looking, as for `TableTransform`.
        label: The column to be predicted.
        classes: The texts that it may hold.
        one_in: How many rows there are for each one that is kept for validation.
        batch_size: As in `sampling`.
    """

    def __init__(self, path: str, columns: dict, label: str, classes: list[str], one_in: int, batch_size: int):
        super().__init__()
        self.batch_size = batch_size
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        if not rows or label not in rows[0]:
            raise ValueError(f"label is {label!r}, but {path} has no such column or no rows.")
        labels = torch.tensor([classes.index(row[label]) for row in rows])
        records = TensorDataset(torch.from_numpy(TableTransform(columns)(rows)), labels)
        # By its place, one row less would move others.
        kept = [zlib.crc32(repr(row).encode()) % one_in == 0 for row in rows]
        self.validation = Subset(records, [place for place, is_kept in enumerate(kept) if is_kept])
        self.training = Subset(records, [place for place, is_kept in enumerate(kept) if not is_kept])

    def train_dataloader(self):
        return DataLoader(self.training, self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.validation, self.batch_size)


class Classifier(pl.LightningModule):
    """One hidden layer over the features of the same columns."""

    def __init__(self, columns: dict, num_classes: int = 2, lr: float = 4.0):
        super().__init__()
        self.save_hyperparameters()
        self.network = torch.nn.Sequential(
            torch.nn.Linear(len(TableTransform(columns).features), 16),
            torch.nn.Tanh(),
            torch.nn.Linear(16, num_classes),
        )
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=num_classes)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.accuracy(self.network(batch[0]), batch[1])
        self.log("val/accuracy", self.accuracy)

    def predict_step(self, batch, batch_idx):
        return self.network(batch[0]).argmax(dim=1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.lr)


if __name__ == "__main__":
    sys.exit(main(["fit", "--config", "config.yaml", *sys.argv[1:]]))
