"""States of private metrics: sums, settings that records do not move, and what metrics with others are told."""

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torchmetrics
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import Metric
from torchmetrics.image import PeakSignalNoiseRatio

from lightning_pac import PrivateMetrics, TwoWorldScenario

GENERATOR = torch.Generator().manual_seed(0)
TARGETS = torch.rand(40, 1, 4, 4, generator=GENERATOR)
GUESSES = (TARGETS + 0.1 * torch.randn(TARGETS.shape, generator=GENERATOR)).clamp(0.0, 1.0)


class Logging(pl.LightningModule):
    def __init__(self, metric: Metric, data_range: float | None = None) -> None:
        super().__init__()
        self.metric, self.data_range = metric, data_range

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.metric(*batch)
        if self.data_range is not None:
            self.metric.data_range.fill_(self.data_range)  # type: ignore[operator]
        self.log("value", self.metric)


def validated(folder: Path, model: Logging, *parts: Tensor) -> float:
    """The value of records with hardly any noise."""
    metrics = PrivateMetrics(
        ["value"], TwoWorldScenario(1), epsilon=1e14, renyi_order=16, max_contribution=32.0, ledger=folder / "study.db"
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[metrics],
        default_root_dir=folder,
    )
    loader = DataLoader(TensorDataset(*(parts or (GUESSES, TARGETS))), 7)
    return float(trainer.validate(model, loader, verbose=False)[0]["value"])


@pytest.mark.parametrize("data_range", [0.7, 3.0, (0.2, 0.9)])
@pytest.mark.parametrize("written", [None, 50.0])
def test_a_signal_to_noise_ratio_is_that_of_the_range_it_was_made_with(
    tmp_path: Path, data_range: Any, written: float | None
) -> None:
    """Whatever an evaluation writes where the metric keeps it, since that could be made of the records."""
    guesses, targets, width = GUESSES.numpy(), TARGETS.numpy(), data_range
    if isinstance(data_range, tuple):
        guesses, targets, width = guesses.clip(*data_range), targets.clip(*data_range), data_range[1] - data_range[0]
    exact = 10 * math.log10(width**2 / np.square(guesses - targets).mean())
    model = Logging(PeakSignalNoiseRatio(data_range), written)
    assert validated(tmp_path, model) == pytest.approx(exact, abs=1e-2)


class Scaled(Metric):
    """A mean with a state that is no sum, to which records above a limit write."""

    total: Tensor
    scale: Tensor

    def __init__(self, limit: float, with_sums: bool = True) -> None:
        super().__init__()
        if with_sums:
            self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("scale", torch.tensor(1.0), dist_reduce_fx="mean")
        self.limit, self.with_sums = limit, with_sums

    def update(self, values: Tensor) -> None:
        if self.with_sums:
            self.total += values.sum()
        if values.max() > self.limit:
            self.scale = values.max()

    def compute(self) -> Tensor:
        return self.total * self.scale if self.with_sums else self.scale


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (Scaled(0.0), "Scaled keeps something of what it saw outside"),
        (Scaled(38.5), "Scaled keeps something of what it saw outside"),  # the last record alone
        (Scaled(1e9, with_sums=False), r"keeps more than sums over records \(scale\)"),
    ],
)
def test_a_state_that_records_write_to_is_no_setting(tmp_path: Path, metric: Metric, message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        validated(tmp_path, Logging(metric), torch.arange(40.0))


def test_a_state_that_no_record_writes_to_is_a_setting(tmp_path: Path) -> None:
    assert validated(tmp_path, Logging(Scaled(1e9)), torch.full((40,), 3.0)) == pytest.approx(120.0, abs=1e-2)


@pytest.mark.parametrize(
    "metric",
    [
        torchmetrics.MinMaxMetric(torchmetrics.MeanMetric()),
        torchmetrics.BootStrapper(torchmetrics.MeanMetric(), num_bootstraps=2),
        torchmetrics.MultioutputWrapper(torchmetrics.MeanMetric(), num_outputs=1),
        torchmetrics.MeanMetric() + torchmetrics.SumMetric(),
    ],
    ids=lambda metric: type(metric).__name__,
)
def test_a_metric_of_metrics_is_told_to_log_these(tmp_path: Path, metric: Metric) -> None:
    with pytest.raises(MisconfigurationException, match="has no bound: log the wrapped metric itself, or compute"):
        validated(tmp_path, Logging(metric), torch.rand(40, 1))


def test_a_metric_that_keeps_records_is_told_to_count(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="has no bound: log a metric of counts and sums"):
        validated(tmp_path, Logging(torchmetrics.CatMetric()), torch.rand(40))
