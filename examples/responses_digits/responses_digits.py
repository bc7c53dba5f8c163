"""Handwritten digits in three parts: a pool to protect, public images without labels, and a test set."""

from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_pac.data import WithIndex

NUM_POOL, NUM_PUBLIC = 898, 539


def make_network() -> nn.Module:
    """One member, and the student."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def digits() -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    """Pool (images, labels), public images, and test set (images, labels)."""
    data = load_digits()
    images = torch.tensor(data.data / 16, dtype=torch.float32)
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    pool, public, test = order.split([NUM_POOL, NUM_PUBLIC, len(order) - NUM_POOL - NUM_PUBLIC])
    return (
        TensorDataset(images[pool], labels[pool]),
        TensorDataset(images[public]),
        TensorDataset(images[test], labels[test]),
    )


class PoolDigits(pl.LightningDataModule):
    """The pool for training, with the index of each record; the test set for validation and prediction."""

    def __init__(self, batch_size: int = 64) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.pool, _, self.test = digits()

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(WithIndex(self.pool), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.test, batch_size=self.batch_size)

    def predict_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.test, batch_size=self.batch_size)


class PublicDigits(Dataset[Any]):
    """Images that nobody has labelled."""

    def __init__(self) -> None:
        self.images = digits()[1]

    def __getitem__(self, index: int) -> Tensor:
        image: Tensor = self.images[index][0]
        return image

    def __len__(self) -> int:
        return len(self.images)


class TestDigits(Dataset[Any]):
    """The test set, for the student's validation."""

    def __init__(self) -> None:
        self.records = digits()[2]

    def __getitem__(self, index: int) -> Any:
        return self.records[index]

    def __len__(self) -> int:
        return len(self.records)


class Student(pl.LightningModule):
    """An ordinary classifier; nothing in it knows about privacy."""

    def __init__(self, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.network = make_network()
        self.learning_rate = learning_rate

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.network(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        accuracy = (self.network(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("val_accuracy", accuracy, prog_bar=True, batch_size=len(batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)
