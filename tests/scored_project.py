"""The project of a user whose configurations are run: a model with an accuracy, and its data."""

PROJECT = """
import lightning.pytorch as pl
import torch
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset


class Scored(pl.LightningModule):
    def __init__(self, learning_rate: float = 0.5):
        super().__init__()
        self.network = torch.nn.Linear(4, 2)
        self.learning_rate = learning_rate
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=2)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.accuracy.update(self.network(batch[0]), batch[1])
        self.log("val/accuracy", self.accuracy)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.learning_rate)


class Data(pl.LightningDataModule):
    def __init__(self):
        super().__init__()
        features = torch.randn(60, 4)
        self.dataset = TensorDataset(features, (features[:, 0] > 0).long())

    def train_dataloader(self):
        return DataLoader(self.dataset, 12)

    def val_dataloader(self):
        return DataLoader(self.dataset, 30)
"""
