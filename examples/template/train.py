"""A private classifier of the rows of a CSV file: `python train.py`, with any option of `lightning-pac fit`."""

import csv
import sys

import lightning.pytorch as pl
import torch
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import TableTransform
from lightning_pac.cli import main


class Table(pl.LightningDataModule):
    """The rows of a CSV file, the first of them for validation.

    Args:
        path: The file.
        columns: What is known of its columns without looking, as for `TableTransform`.
        label: The column to be predicted.
        classes: The texts that it may hold.
        num_validation: Rows that are kept for validation.
        batch_size: As in `sampling`.
    """

    def __init__(self, path: str, columns: dict, label: str, classes: list[str], num_validation: int, batch_size: int):
        super().__init__()
        self.batch_size = batch_size
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        if not rows or label not in rows[0]:
            raise ValueError(f"label is {label!r}, but {path} has no such column or no rows.")
        labels = torch.tensor([classes.index(row[label]) for row in rows])
        records = TensorDataset(torch.from_numpy(TableTransform(columns)(rows)), labels)
        self.validation = torch.utils.data.Subset(records, range(num_validation))
        self.training = torch.utils.data.Subset(records, range(num_validation, len(records)))

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
