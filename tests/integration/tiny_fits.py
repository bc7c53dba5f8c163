"""Small models, data and Trainers for tests of private training."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import SRPPSGD, TwoWorldScenario

RECORDS = 60


class Classifier(pl.LightningModule):
    """A small network under cross entropy; tests override what they break."""

    def __init__(self, learning_rate: float = 0.05, network: nn.Module | None = None) -> None:
        super().__init__()
        self.network = network or nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.learning_rate = learning_rate

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.network(inputs), labels)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), self.learning_rate)


class Validated(Classifier):
    """Logs the accuracy of an evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.accuracy(self.network(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)


def make_data(records: int = RECORDS) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(records, 6, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long())


def make_loader(records: int = RECORDS, **kwargs: Any) -> DataLoader[Any]:
    return DataLoader(make_data(records), **{"batch_size": 10, "shuffle": True, **kwargs})


def make_private(**kwargs: Any) -> SRPPSGD:
    if not {"epsilon", "noise_multiplier", "world_success_bound"} & set(kwargs):
        kwargs["noise_multiplier"] = 1.0
    scenario = kwargs.pop("scenario", TwoWorldScenario(num_differing=2))
    return SRPPSGD(scenario, **({} if "delta" in kwargs or "renyi_order" in kwargs else {"renyi_order": 4}), **kwargs)


def make_trainer(folder: Path, *callbacks: pl.Callback, **kwargs: Any) -> pl.Trainer:
    options = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, **kwargs}
    return pl.Trainer(
        accelerator=options.pop("accelerator", "cpu"),
        devices=options.pop("devices", 1),
        default_root_dir=folder,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
