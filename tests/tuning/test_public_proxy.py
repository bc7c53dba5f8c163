"""The score of a planned run on public data."""

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightning_pac import plan
from lightning_pac.accountants import PlannedTraining
from lightning_pac.tuning import PublicProxy

INPUTS = torch.randn(200, 3, generator=torch.Generator().manual_seed(1))
PUBLIC = TensorDataset(INPUTS, (INPUTS[:, 0] > 0).long())


class Line(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(3, 2)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("accuracy", (self.network(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 2.0)


def test_a_proxy_trains_as_planned_and_its_score_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    proxy = PublicProxy(Line, DataLoader(PUBLIC, 20), DataLoader(PUBLIC, 200), "accuracy")
    with caplog.at_level("INFO"):
        (option,) = plan(400, {"model": PlannedTraining(100, 10)}, epsilon=8.0, delta=1e-5, proxy=proxy).options
    assert not any("SRPPSGD" in record.getMessage() for record in caplog.records)
    assert option.score is not None
    assert 0.8 < option.score <= 1.0  # 100 records a step, and noise of about one: hardly any
    with pytest.raises(ValueError, match="train has 200 public records, fewer than the 300"):
        plan(400, {"model": PlannedTraining(300, 10)}, epsilon=8.0, delta=1e-5, proxy=proxy)


def test_an_iterable_dataset_is_refused() -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(PUBLIC)

    with pytest.raises(TypeError, match="the dataset of train is of type Stream"):
        PublicProxy(Line, DataLoader(Stream(), 20), DataLoader(PUBLIC, 200), "accuracy")
