"""Noised metrics: what they release, what it costs, and what they refuse."""

import csv
import functools
import itertools
import logging
import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torchmetrics
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import BatchSizeFinder, EarlyStopping, LearningRateFinder
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import CombinedLoader
from scipy import stats
from sklearn.metrics import roc_auc_score
from slow_cases import slow
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from lightning_pac.accountants import GaussianCurve, ledger_order, ledger_total
from lightning_pac.callbacks import SRPPSGD, PrivateMetrics
from lightning_pac.callbacks.metrics.clipped_contribution import clipped_contribution
from lightning_pac.callbacks.metrics.noise_of_value import warn_if_noisy
from lightning_pac.callbacks.metrics.noised_metric import PrivateMetric
from lightning_pac.data import ShuffledBatchSampler
from lightning_pac.exceptions import BudgetExceededError, LedgerMismatchError, PrivacyViolationError
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios import TwoWorldScenario

pytestmark = pytest.mark.metrics_asked_once

SCENARIO = TwoWorldScenario(num_differing=3)


class Validated(pl.LightningModule):
    """Logs a metric, a collection and a plain value."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(4, 3)
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)
        self.others = torchmetrics.MetricCollection(
            {
                "val/recall": torchmetrics.Recall("multiclass", num_classes=3, average="macro"),
                "val/f1": torchmetrics.F1Score("multiclass", num_classes=3, average="macro"),
            }
        )
        self.area = torchmetrics.AUROC("multiclass", num_classes=3)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        scores = self.network(batch[0])
        self.accuracy(scores, batch[1])
        self.log("val/accuracy", self.accuracy)
        self.others.update(scores, batch[1])
        self.log_dict(self.others)
        self.area.update(scores.softmax(1), batch[1])
        self.log("val/area", self.area)
        self.log("val/plain", scores.mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def data(records: int = 120) -> TensorDataset:
    inputs = torch.randn(records, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def loader() -> DataLoader[Any]:
    return DataLoader(data(), 50)


def trainer(folder: Path, *callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=list(callbacks),
        enable_model_summary=False,
        **(quiet | options),
    )


def test_with_hardly_any_noise_the_values_are_the_exact_ones(tmp_path: Path) -> None:
    model = Validated()
    (exact,) = trainer(tmp_path).validate(model, loader(), verbose=False)
    private = PrivateMetrics(
        ["val/accuracy", "val/recall"], SCENARIO, epsilon=1e12, renyi_order=16, ledger=tmp_path / "study.db"
    )
    (noised,) = trainer(tmp_path, private).validate(model, loader(), verbose=False)
    assert noised == pytest.approx(exact, abs=1e-4)
    assert (noised["val/f1"], noised["val/plain"]) == (exact["val/f1"], exact["val/plain"])
    # The metrics are as before, and nothing exact is left in a private one.
    (again,) = trainer(tmp_path).validate(model, loader(), verbose=False)
    assert again == exact


def test_an_evaluation_by_itself_says_where_it_is_on_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A second figure in a second ledger was charged without a word on either."""

    class Predicting(Validated):
        def __init__(self) -> None:
            super().__init__()
            self.error = torchmetrics.MeanAbsoluteError()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            self.error(self.network(batch[0])[:, 0], batch[0][:, 0])
            self.log("val/error", self.error)

    with caplog.at_level(logging.INFO):
        for name in ("first", "second"):
            ledger = tmp_path / f"{name}.db"
            private = PrivateMetrics(["val/accuracy", "val/error"], SCENARIO, noise_multiplier=5.0, ledger=ledger)
            (values,) = trainer(tmp_path, private).validate(Predicting(), loader(), verbose=False)
    first, second = (line for line in caplog.messages if line.startswith("PrivateMetrics: "))
    assert f"On record in {tmp_path / 'first.db'}; " in first
    assert "Beside it" not in first
    assert "Beside it: first.db. Costs of ledgers add up where a record is in the data of both." in second
    errors = private.standard_errors
    assert f"val/accuracy is {values['val/accuracy']:.4g}, give or take {errors['val/accuracy']:.2g}, " in second
    noise = private.deviations["val/error"]
    assert f"val/error is {values['val/error']:.4g}, give or take {noise:.2g} of noise alone." in second


def test_an_area_with_thresholds_is_that_of_scores_rounded_down_to_them(tmp_path: Path) -> None:
    class Binned(Validated):
        def __init__(self) -> None:
            super().__init__()
            self.area = torchmetrics.AUROC("multiclass", num_classes=3, thresholds=20)

    model = Binned()
    private = PrivateMetrics(["val/area"], SCENARIO, epsilon=1e12, renyi_order=16, ledger=tmp_path / "study.db")
    (noised,) = trainer(tmp_path, private).validate(model, loader(), verbose=False)
    inputs, labels = data().tensors
    with torch.no_grad():
        scores = (model.network(inputs).softmax(1) * 19).floor().numpy()
    exact = [roc_auc_score(labels == label, scores[:, label]) for label in range(3)]
    assert noised["val/area"] == pytest.approx(sum(exact) / 3, abs=1e-4)


def test_noise_changes_the_named_values_only_and_is_charged(tmp_path: Path) -> None:
    model = Validated()
    (exact,) = trainer(tmp_path).validate(model, loader(), verbose=False)
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        private = PrivateMetrics(["val/accuracy", "val/recall"], SCENARIO, epsilon=0.25, renyi_order=4, ledger=ledger)
        # a kappa^2 d^2 / (2 eps) at a = 4, kappa = 2, d = 3.
        assert private.noise_multiplier**2 == pytest.approx(4 * 4 * 9 / (2 * 0.25), rel=1e-5)
        fitted = trainer(tmp_path, private, max_epochs=2)
        fitted.fit(model, loader(), loader())
        # Two values in each of two epochs; Lightning's check before training shows none.
        assert ledger.spent("rpp") == pytest.approx(4 * 0.25)
    (after,) = trainer(tmp_path).validate(model, loader(), verbose=False)
    assert after["val/f1"] == pytest.approx(float(fitted.callback_metrics["val/f1"]))
    assert after["val/accuracy"] != float(fitted.callback_metrics["val/accuracy"])
    assert exact.keys() == after.keys()


def test_the_noise_is_the_stated_one_and_lies_on_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    # Most of a release's time, and not asked for here.
    monkeypatch.setattr("lightning_pac.callbacks.metrics.noised_metric.noise_of_value", lambda *_: None)
    metric = torchmetrics.SumMetric()
    values = torch.tensor([-3.0, 0.5, 2.5])
    private = PrivateMetric(metric, max_contribution=2.0, noise_multiplier=5.0, charge=lambda: True)
    private.is_private = True
    released = []
    for _ in range(1500):
        metric.update(values)
        released.append(float(metric.compute()))
        metric.reset()
    clipped = float(values.clamp(-2, 2).sum())
    # False alarm in 1e-7 of runs.
    assert stats.kstest(released, "norm", (clipped, 10.0)).pvalue > 1e-7
    step = 2.0**-7  # the largest power of two below 10 / 1024
    assert all(value / step == round(value / step) for value in released)


@pytest.mark.parametrize(("records", "drowned"), [(3, True), (3000, False)])
def test_noise_that_drowns_a_metric_is_told_once(records: int, drowned: bool, recwarn: pytest.WarningsRecorder) -> None:
    # The sum grows with the records; its noise of deviation 100 does not.
    metric = torchmetrics.SumMetric()
    private = PrivateMetric(metric, max_contribution=1.0, noise_multiplier=100.0, charge=lambda: True)
    private.is_private = True
    shown = []
    for _ in range(2):
        for value in torch.ones(records).split(1000):
            metric.update(value)
        shown.append(float(metric.compute()))
        metric.reset()
    told = [str(warning.message) for warning in recwarn if "drowns" in str(warning.message)]
    # Three records are told of unless the noise is above 1.4 deviations.
    assert len(told) <= 1
    assert bool(told) == (drowned and abs(shown[0]) < 100 * 2**0.5)
    if told:
        assert f"{abs(shown[0]):.3g} in size" in told[0]
        assert "SumMetric on more records" in told[0]


@pytest.mark.parametrize(("noise", "told"), [(1.0, False), (500.0, True)])
def test_a_value_that_says_little_is_told_of(
    noise: float, told: bool, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(SecureGenerator):
        def release_(self, total: torch.Tensor, deviation: float) -> torch.Tensor:
            return total

    monkeypatch.setattr("lightning_pac.callbacks.metrics.noised_metric.secure_generator", Silent)
    # The weight is large beside its noise, and the value is not.
    metric = torchmetrics.MeanMetric()
    private = PrivateMetric(metric, max_contribution=1.0, noise_multiplier=noise, charge=lambda: True)
    private.is_private = True
    private._total = torch.tensor([90.0, 3900.0], dtype=torch.float64)
    private._rows = 100
    metric.compute()
    found = [str(warning.message) for warning in recwarn if "which says little" in str(warning.message)]
    assert bool(found) == told
    assert not told or f"give or take {private.deviation:.2g} of noise" in found[0]


@pytest.mark.parametrize(("deviation", "told"), [(0.03, False), (0.06, True)])
def test_a_mean_near_zero_says_something_on_its_scale(
    deviation: float, told: bool, recwarn: pytest.WarningsRecorder
) -> None:
    warn_if_noisy(torchmetrics.MeanMetric(), "val/mean", torch.tensor(-0.045), deviation, max_contribution=1.0)
    assert bool(recwarn.list) == told


@pytest.mark.parametrize(
    ("metric", "sums", "noise", "lowest", "highest"),
    [
        # Nearly linear in the noise, and 200 releases know a deviation to 5 %.
        (torchmetrics.Accuracy("binary"), [230.0, 20.0, 110.0, 40.0], 4.0, 0.9, 1.1),
        # A denominator of six deviations of its noise, and of three, where some values are far off.
        *slow((torchmetrics.MeanMetric(), [100.0, 110.0], 18.0, 0.8, 1.1)),
        (torchmetrics.MeanMetric(), [48.0, 54.0], 18.0, 0.3, 1.1),
        # Counts near zero, which noise would make negative.
        *slow((torchmetrics.Recall("binary"), [280.0, 10.0], 18.0, 0.8, 1.1)),
        (torchmetrics.Recall("binary"), [10.0, 100.0], 18.0, 0.8, 1.15),
    ],
)
def test_the_deviation_of_a_value_is_that_of_repeated_releases(
    metric: torchmetrics.Metric,
    sums: list[float],
    noise: float,
    lowest: float,
    highest: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each error divided by what was stated with it has size one, or less where that is rounded up."""
    generator = np.random.default_rng(1)

    class Seeded(SecureGenerator):
        def release_(self, total: torch.Tensor, deviation: float) -> torch.Tensor:
            return total + deviation * torch.from_numpy(generator.standard_normal(len(total)))

    monkeypatch.setattr("lightning_pac.callbacks.metrics.noised_metric.secure_generator", Seeded)
    private = PrivateMetric(metric, max_contribution=1.0, noise_multiplier=noise, charge=lambda: True)
    private.is_private = True
    private._total = torch.tensor(sums, dtype=torch.float64)
    exact = float(private._evaluate(private._total))
    errors = []
    for _ in range(200):
        private._released = None
        errors.append((float(metric.compute()) - exact) / private.deviation)
    assert lowest < np.sqrt(np.mean(np.square(errors))) < highest
    assert np.mean(np.abs(errors) < 2) > 0.92


def test_the_deviation_of_a_ratio_is_that_of_its_linear_part() -> None:
    """Hits over a noised count, where both have noise of s = 9 sqrt(1^2 + 1^2): s / count * sqrt(1 + ratio^2)."""
    private = PrivateMetric(torchmetrics.MeanMetric(), max_contribution=1.0, noise_multiplier=9.0, charge=lambda: True)
    private.is_private = True
    private._total = torch.tensor([2400.0, 28000.0], dtype=torch.float64)
    private.metric.compute()
    assert private.deviation == pytest.approx(9 * math.sqrt(2) / 28000 * math.hypot(1, 24 / 280), rel=0.005)


def _scores(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    labels = generator.random(3000) < 0.15
    return 1 / (1 + np.exp(-generator.normal(1.2 * labels, 1.0))), labels


def _classes(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    labels = generator.integers(5, size=3000)
    return np.where(generator.random(3000) < 0.6, labels, generator.integers(5, size=3000)), labels


@pytest.mark.parametrize(
    ("metric", "records", "noise"),
    [
        (torchmetrics.Accuracy("binary"), _scores, 30.0),
        (torchmetrics.Recall("binary"), _scores, 3.0),
        (torchmetrics.AUROC("binary", thresholds=20), _scores, 1.0),
        (torchmetrics.F1Score("multiclass", num_classes=5, average="macro"), _classes, 5.0),
        *slow(
            (torchmetrics.F1Score("binary"), _scores, 2.0),
            (torchmetrics.JaccardIndex("binary"), _scores, 2.0),
            (torchmetrics.AveragePrecision("binary", thresholds=20), _scores, 0.5),
            (torchmetrics.Accuracy("multiclass", num_classes=5), _classes, 5.0),
            (torchmetrics.Precision("multiclass", num_classes=5, average="macro"), _classes, 5.0),
        ),
    ],
)
def test_a_standard_error_is_that_of_values_of_other_records(
    metric: torchmetrics.Metric,
    records: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]],
    noise: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values of 200 samples, whose deviation is known to 5 %: off by 20 % with chance 1 in 10,000."""
    generator = np.random.default_rng(2)

    class Seeded(SecureGenerator):
        def release_(self, total: torch.Tensor, deviation: float) -> torch.Tensor:
            return total + deviation * torch.from_numpy(generator.standard_normal(len(total)))

    monkeypatch.setattr("lightning_pac.callbacks.metrics.noised_metric.secure_generator", Seeded)
    some, alone = [torch.from_numpy(part[:50]) for part in records(generator)], metric.clone()
    private = PrivateMetric(metric.clone(), 1.0, noise, charge=lambda: True)
    private.metric.update(*some)
    alone.update(*some)
    clipped = private._total.norm() / private._flatten(alone).norm()  # as all records are, and not by one at a time
    values, errors = [], []
    for _ in range(200):
        exact, private = metric.clone(), PrivateMetric(metric.clone(), 1.0, noise, charge=lambda: True)
        exact.update(*(torch.from_numpy(part) for part in records(generator)))
        private.is_private, private._total = True, clipped * private._flatten(exact)
        values.append(float(private.metric.compute()))
        errors.append(private.standard_error)
    assert 0.8 < np.sqrt(np.mean(np.square(errors))) / np.std(values) < 1.25
    assert np.mean(np.abs(np.array(values) - np.mean(values)) < 2 * np.array(errors)) > 0.9


@pytest.mark.parametrize(
    "metric",
    [
        torchmetrics.MeanMetric(),
        torchmetrics.Specificity("multiclass", num_classes=3, average="macro"),
        torchmetrics.Accuracy("multiclass", num_classes=3, top_k=2),
        torchmetrics.Accuracy("multilabel", num_labels=3),
    ],
)
def test_no_standard_error_is_stated_where_counts_do_not_tell_it(metric: torchmetrics.Metric) -> None:
    private = PrivateMetric(metric, max_contribution=1.0, noise_multiplier=9.0, charge=lambda: True)
    private.is_private, private._total = True, torch.full_like(private._total, 500.0)
    metric.compute()
    assert private.deviation is not None
    assert private.standard_error is None


@pytest.mark.parametrize("pixels", [1, 9])
def test_labels_of_one_record_are_no_independent_draws(pixels: int) -> None:
    """Pixels of a picture are alike, and their number is not that of records: the error was seven times too small."""
    metric = torchmetrics.Accuracy("binary")
    private = PrivateMetric(metric, max_contribution=64.0, noise_multiplier=0.1, charge=lambda: True)
    private.is_private = True
    metric.update(torch.rand(30, pixels), torch.randint(2, (30, pixels)))
    metric.compute()
    assert private.deviation is not None
    assert (private.standard_error is None) == (pixels > 1)


def test_a_table_has_no_deviation() -> None:
    rows = torchmetrics.ConfusionMatrix("binary")
    private = PrivateMetric(rows, max_contribution=1.0, noise_multiplier=12.0, charge=lambda: True)
    private.is_private = True
    rows.update(torch.ones(9, dtype=torch.long), torch.ones(9, dtype=torch.long))
    rows.compute()
    assert private.deviation is None


def test_deviations_are_logged_beside_their_values(tmp_path: Path) -> None:
    private = PrivateMetrics(
        ["val/accuracy"], SCENARIO, epsilon=5, renyi_order=4, budget=5, ledger=tmp_path / "study.db"
    )
    logger = CSVLogger(tmp_path, "logs")
    fitted = trainer(tmp_path, private, max_epochs=2, log_every_n_steps=1, logger=logger)
    with pytest.warns(UserWarning, match="an older value of val.accuracy is shown"):
        fitted.fit(Validated(), loader(), loader())
    rows = list(csv.DictReader((Path(logger.log_dir) / "metrics.csv").open()))
    steps = {name: [row["step"] for row in rows if row[name]] for name in ("val/accuracy", "val/accuracy_deviation")}
    assert steps["val/accuracy_deviation"] == steps["val/accuracy"][:1], "the second value is the first again"
    (logged,) = (float(row["val/accuracy_deviation"]) for row in rows if row["val/accuracy_deviation"])
    assert private.deviations == {"val/accuracy": pytest.approx(logged)}
    (error,) = (float(row["val/accuracy_standard_error"]) for row in rows if row["val/accuracy_standard_error"])
    assert private.standard_errors == {"val/accuracy": pytest.approx(error)}
    assert error > logged
    assert 0 < logged < 1


def test_a_record_moves_the_sums_by_no_more_than_its_contribution() -> None:
    generator = torch.Generator().manual_seed(1)
    metric = torchmetrics.Accuracy("multiclass", num_classes=4, average="macro")
    private = PrivateMetric(metric, max_contribution=1.0, noise_multiplier=1.0, charge=lambda: True)
    private.is_private = True
    scores, labels = torch.randn(30, 4, generator=generator), torch.randint(4, (30,), generator=generator)
    metric.update(scores, labels)
    before = private._total.clone()
    metric.reset()
    labels[:3] = (labels[:3] + 1) % 4
    scores[:3] *= -1
    metric.update(scores, labels)
    assert 0 < float((private._total - before).norm()) <= 2 * 3 * 1.0
    # Hits and misses by class; true negatives and false positives do not matter to macro accuracy.
    assert len(before) == 8


def test_a_record_that_is_not_finite_adds_nothing() -> None:
    metric = torchmetrics.SumMetric(nan_strategy="ignore")
    private = PrivateMetric(metric, max_contribution=1.0, noise_multiplier=1.0, charge=lambda: True)
    private.is_private = True
    metric.update(torch.tensor([0.5, float("inf"), 0.25]))
    assert float(private._total.sum()) == 0.75


def test_past_the_budget_the_last_value_is_repeated_with_a_warning(tmp_path: Path) -> None:
    private = PrivateMetrics(
        ["val/accuracy"], SCENARIO, epsilon=1.0, renyi_order=16, budget=2.0, ledger=tmp_path / "study.db"
    )
    seen: list[float] = []

    class Watch(pl.Callback):
        def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            if not trainer.sanity_checking:
                seen.append(float(trainer.callback_metrics["val/accuracy"]))

    with pytest.warns(UserWarning, match="an older value of val.accuracy is shown"):
        trainer(tmp_path, private, Watch(), max_epochs=4).fit(Validated(), loader(), loader())
    assert seen[1] == seen[2] == seen[3]
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        assert ledger.spent("rpp") == 2.0


def test_a_budget_holds_for_values_at_every_epsilon(tmp_path: Path) -> None:
    def fit(epsilon: float, budget: float | None) -> float:
        private = PrivateMetrics(
            ["val/accuracy"], SCENARIO, epsilon=epsilon, renyi_order=16, budget=budget, ledger=tmp_path / "study.db"
        )
        trainer(tmp_path, private, max_epochs=1).fit(Validated(), loader(), loader())
        with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
            return ledger.spent("rpp")

    assert fit(1.0, 1.5) == 1.0
    # Other terms neither forget the budget nor state another.
    with pytest.raises(LedgerMismatchError, match=r"other values of budget \(1\.5, now 3\.0\)"):
        fit(0.5, 3.0)
    assert fit(0.5, None) == 1.5
    for budget in (None, 1.5):
        with pytest.warns(UserWarning, match=r"budget is 1\.5, which values .* at other terms have used up"):
            assert fit(0.5, budget) == 1.5


@pytest.mark.parametrize(("scale", "told"), [(20.0, True), (1.0, False), (0.05, False)])
def test_a_mean_of_errors_that_are_clipped_is_told(scale: float, told: bool, recwarn: pytest.WarningsRecorder) -> None:
    metric = torchmetrics.MeanAbsoluteError()
    private = PrivateMetric(metric, max_contribution=1.0, noise_multiplier=0.1, charge=lambda: True)
    private.is_private = True
    errors = scale * torch.rand(2000, generator=torch.Generator().manual_seed(0))
    metric.update(errors, torch.zeros(2000))
    shown = float(metric.compute())
    assert any("so larger ones count for less" in str(warning.message) for warning in recwarn) == told
    assert (abs(shown / float(errors.mean()) - 1) < 0.02) != told  # larger ones than 1 weigh less


@pytest.mark.parametrize("kind", [torchmetrics.MeanMetric, torchmetrics.MeanAbsoluteError])
@pytest.mark.parametrize("largest", [1.0, 3.0])
def test_a_mean_of_values_up_to_the_largest_is_that_mean(kind: type[torchmetrics.Metric], largest: float) -> None:
    """Below the norm of the values alone, a row of the largest would weigh less than one of zero."""
    metric, values = kind(), largest * (torch.arange(1000) % 4 == 0).float()
    private = PrivateMetric(metric, max_contribution=largest, noise_multiplier=1e-6, charge=lambda: True)
    private.is_private = True
    metric.update(*([values] if kind is torchmetrics.MeanMetric else [values, torch.zeros(1000)]))
    assert float(metric.compute()) == pytest.approx(largest / 4, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "average"),
    [
        *itertools.product(["F1Score", "Precision", "Recall", "Specificity", "Accuracy"], ["macro", "micro"]),
        ("ExactMatch", None),
        ("CohenKappa", None),
    ],
)
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_counts_of_classes_are_those_of_torchmetrics(kind: str, average: str | None, task: str) -> None:
    """Where a miss adds to more counts than a hit, clipped to norm one it would weigh less."""
    generator = torch.Generator().manual_seed(1)
    if kind == "CohenKappa" and task == "multilabel":
        return
    if task == "multilabel":
        labels = (torch.rand(3000, 4, generator=generator) < torch.tensor([0.1, 0.4, 0.5, 0.7])).long()
        named = torch.where(torch.rand(3000, 4, generator=generator) < 0.7, labels, 1 - labels)
    else:
        labels = torch.multinomial(torch.tensor([0.1, 0.2, 0.3, 0.4]), 3000, replacement=True, generator=generator)
        named = torch.where(torch.rand(3000, generator=generator) < 0.6, labels, torch.randint(4, (3000,)))
    number = "num_classes" if task == "multiclass" else "num_labels"
    terms = {"task": task, number: 4} | ({} if average is None else {"average": average})
    metric, exact = (getattr(torchmetrics, kind)(**terms) for _ in range(2))
    private = PrivateMetric(metric, max_contribution=1.0, noise_multiplier=1e-6, charge=lambda: True)
    private.is_private = True
    metric.update(named, labels)
    exact.update(named, labels)
    assert float(metric.compute()) == pytest.approx(float(exact.compute()), rel=1e-4)


@pytest.mark.parametrize("kind", ["Precision", "Specificity", "Recall", "F1Score"])
@pytest.mark.parametrize("noise", [1e-6, 1.0])
def test_a_class_that_is_never_named_counts_as_torchmetrics_counts_it(kind: str, noise: float) -> None:
    """Its precision was that of noise in noise, and of three classes the macro average lay up to a third too high."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.multinomial(torch.tensor([0.1, 0.4, 0.5]), 6000, replacement=True, generator=generator)
    hit = torch.rand(6000, generator=generator) < 0.7
    named = torch.where(hit, labels, torch.randint(3, (6000,), generator=generator)).clamp(min=1)
    metric, exact = (getattr(torchmetrics, kind)(task="multiclass", num_classes=3, average="macro") for _ in range(2))
    private = PrivateMetric(metric, max_contribution=1.0, noise_multiplier=noise, charge=lambda: True)
    private.is_private = True
    exact.update(named, labels)
    shown = []
    for _ in range(11):
        metric.reset()
        metric.update(named, labels)
        shown.append(float(metric.compute()))
    # Noise of two deviations in either count of the class, 4.5 % of draws, in six of eleven: 4 in a million runs.
    assert float(np.median(shown)) == pytest.approx(float(exact.compute()), abs=1e-4 if noise < 1 else 0.02)


@pytest.mark.parametrize("kind", ["R2Score", *slow("ExplainedVariance", "RelativeSquaredError")])
def test_metrics_of_several_sums_need_room_for_them(kind: str) -> None:
    inputs = torch.rand(2, 4000, generator=torch.Generator().manual_seed(0)) * 2 - 1
    predictions, targets = 0.8 * inputs[0] + 0.2 * inputs[1], inputs[0]
    exact = getattr(torchmetrics, kind)()
    exact.update(predictions, targets)

    def error(max_contribution: float) -> float:
        metric = getattr(torchmetrics, kind)()
        private = PrivateMetric(metric, max_contribution, noise_multiplier=1e-6, charge=lambda: True)
        private.is_private = True
        metric.update(predictions, targets)
        return abs(float(metric.compute()) - float(exact.compute()))

    assert error(2.3) < 1e-3 < 0.005 < error(1.0)


def test_a_value_that_was_never_paid_for_is_no_number(tmp_path: Path) -> None:
    private = PrivateMetrics(
        ["val/accuracy"], SCENARIO, epsilon=1.0, renyi_order=16, budget=0.5, ledger=tmp_path / "study.db"
    )
    fitted = trainer(tmp_path, private, max_epochs=1)
    with pytest.warns(UserWarning, match="an older value of val.accuracy is shown, or nan: "):
        fitted.fit(Validated(), loader(), loader())
    assert math.isnan(fitted.callback_metrics["val/accuracy"])
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        assert ledger.spent("rpp") == 0.0


def test_a_metric_that_refuses_sums_is_nan_where_nothing_was_measured() -> None:
    """Lightning's check before training asks for a value at sums of zero, which ended a run with R2Score."""
    paid = False
    metric = torchmetrics.R2Score()
    private = PrivateMetric(metric, max_contribution=3.0, noise_multiplier=1e-6, charge=lambda: paid)
    private.is_private = True
    truth = torch.rand(50, generator=torch.Generator().manual_seed(0))
    metric.update(truth / 2, truth)
    assert math.isnan(metric.compute())
    metric.reset()
    paid = True
    metric.update(truth / 2, truth)
    exact = torchmetrics.R2Score()(truth / 2, truth)
    assert float(metric.compute()) == pytest.approx(float(exact), abs=1e-4)
    metric.reset()
    metric.update(truth[:1] / 2, truth[:1])
    with pytest.warns(UserWarning, match="R2Score has no value at its noised sums"):
        assert math.isnan(metric.compute())


class Changing(TensorDataset):
    """Gives the first of two records for both, once it is told to."""

    repeats = False

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index - index % 2 if self.repeats else index)


def repeat(worker_id: int) -> None:
    get_worker_info().dataset.repeats = True  # type: ignore[union-attr]


@pytest.mark.parametrize("in_worker", [False, True])
def test_a_record_that_comes_to_count_for_two_in_an_evaluation_is_refused(tmp_path: Path, in_worker: bool) -> None:
    private = PrivateMetrics(["val/accuracy"], SCENARIO, epsilon=1.0, renyi_order=16, ledger=tmp_path / "study.db")
    dataset = Changing(*data().tensors)

    class Fitted(Validated):
        def on_validation_epoch_start(self) -> None:
            dataset.repeats = self.current_epoch > 0 and not in_worker

    options: dict[str, Any] = {"num_workers": 1, "worker_init_fn": repeat} if in_worker else {}
    fit = trainer(tmp_path, private, max_epochs=3, num_sanity_val_steps=0)
    with pytest.raises((PrivacyViolationError, ValueError), match=r"under several indices|give other records"):
        fit.fit(Fitted(), loader(), DataLoader(dataset, 50, **options))


def test_one_loader_can_be_in_two_passes_at_once(tmp_path: Path) -> None:
    private = PrivateMetrics(["val/accuracy"], SCENARIO, epsilon=1.0, renyi_order=16, ledger=tmp_path / "study.db")
    training = SRPPSGD(SCENARIO, noise_multiplier=1.0, renyi_order=16, ledger=tmp_path / "study.db")
    both = DataLoader(data(), 20)
    fit = trainer(tmp_path, training, private, max_epochs=1, val_check_interval=0.5)
    fit.fit(Validated(), both, both)
    assert fit.global_step == 6


def test_what_a_callback_logs_is_noised_like_what_the_model_logs(tmp_path: Path) -> None:
    class Silent(Validated):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.accuracy.update(self.network(batch[0]), batch[1])

    class Logs(pl.Callback):
        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            self.log("val/accuracy", pl_module.accuracy)

    private = PrivateMetrics(["val/accuracy"], SCENARIO, epsilon=1e-4, renyi_order=16, ledger=tmp_path / "study.db")
    model, logs = Silent(), Logs()
    for charges in (1, 2):
        trainer(tmp_path, private, logs).validate(model, loader(), verbose=False)
        with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
            assert ledger.accounts()[0].num_charges == charges


class Prefixed(Validated):
    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        super().log("val/" + name, value, *args, **options)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.accuracy(self.network(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)


class Kept(Validated):
    def __init__(self) -> None:
        super().__init__()
        self.log_epoch = functools.partial(self.log, on_step=False, on_epoch=True)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.accuracy(self.network(batch[0]), batch[1])
        self.log_epoch("val/accuracy", self.accuracy)


class Unbound(Validated):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.accuracy(self.network(batch[0]), batch[1])
        pl.LightningModule.log(self, "val/accuracy", self.accuracy)


@pytest.mark.parametrize(
    ("fits", "kind"),
    [(True, Prefixed), (False, Kept), (False, Unbound), *slow((False, Prefixed), (True, Kept), (True, Unbound))],
)
def test_a_value_is_noised_whatever_way_it_is_logged(tmp_path: Path, kind: type[Validated], fits: bool) -> None:
    private = PrivateMetrics(["val/accuracy"], SCENARIO, epsilon=1e-4, renyi_order=16, ledger=tmp_path / "study.db")
    model, given = kind(), trainer(tmp_path, private, max_epochs=1, limit_train_batches=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(nothing was logged|could not show|without noise)")
        given.fit(model, loader(), loader()) if fits else given.validate(model, loader(), verbose=False)
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        assert ledger.accounts()[0].num_charges == 1
    inputs, labels = data()[:]
    exact = float((model.network(inputs).argmax(1) == labels).double().mean())
    assert abs(float(given.callback_metrics["val/accuracy"]) - exact) > 1e-6


def test_a_number_is_refused_whatever_way_it_is_logged(tmp_path: Path) -> None:
    class Number(Kept):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log_epoch("val/accuracy", batch[0].mean())

    private = PrivateMetrics(["val/accuracy"], SCENARIO, epsilon=1.0, renyi_order=16, ledger=tmp_path / "study.db")
    with pytest.raises(MisconfigurationException, match="log the torchmetrics object itself"):
        trainer(tmp_path, private).validate(Number(), loader(), verbose=False)


@pytest.mark.parametrize(
    "metric",
    [
        torchmetrics.Accuracy("multiclass", num_classes=3, average=None),
        torchmetrics.ConfusionMatrix("multiclass", num_classes=3),
        torchmetrics.StatScores("multiclass", num_classes=3),
        torchmetrics.classification.MulticlassPrecisionRecallCurve(3, thresholds=5),
    ],
)
def test_several_values_are_refused_before_they_are_charged(tmp_path: Path, metric: torchmetrics.Metric) -> None:
    class Several(Validated):
        def __init__(self) -> None:
            super().__init__()
            self.accuracy = metric.clone()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.accuracy.update(self.network(batch[0]).softmax(1), batch[1])
            self.log("val/accuracy", self.accuracy)

    private = PrivateMetrics(["val/accuracy"], SCENARIO, epsilon=1.0, renyi_order=16, ledger=tmp_path / "study.db")
    with pytest.raises(MisconfigurationException, match="has several values, of which Lightning logs none: log one"):
        trainer(tmp_path, private).validate(Several(), loader(), verbose=False)
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        assert ledger.spent("rpp") == 0


def test_values_without_noise_are_named(tmp_path: Path) -> None:
    names = ["val/accuracy", "val/recall", "val/f1"]
    private = PrivateMetrics(names, SCENARIO, epsilon=1.0, renyi_order=16, ledger=tmp_path / "study.db")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            trainer(tmp_path, private).validate(Validated(), loader(), verbose=False)
    told = [str(warning.message).split("'")[1] for warning in caught if "nothing covers it" in str(warning.message)]
    assert sorted(told) == ["val/area", "val/plain"]


class Rejecting(TensorDataset):
    """Adds a random number, after as many draws as the record asks for."""

    def __getitem__(self, index: int) -> Any:
        inputs, label = super().__getitem__(index)
        draws = torch.rand(2 if inputs[0] > 10 else 1)
        return inputs + draws[-1], label


def test_draws_of_one_record_do_not_decide_those_of_others(tmp_path: Path) -> None:
    """Under a seed that is known, one more draw would shift all later ones: two evaluations must not draw the same."""

    class Keeping(Validated):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.seen = batch[0]
            super().validation_step(batch, batch_idx)

    private = PrivateMetrics(["val/accuracy"], SCENARIO, epsilon=1.0, renyi_order=16, ledger=tmp_path / "study.db")
    seen, after = [], []
    for _ in range(2):
        torch.manual_seed(0)
        model = Keeping()
        trainer(tmp_path, private).validate(model, DataLoader(Rejecting(*data(8).tensors), 8), verbose=False)
        seen.append(model.seen)
        after.append(torch.get_rng_state())
    assert not torch.equal(*seen)
    assert torch.equal(*after)

    class Seeding(Keeping):
        def on_validation_start(self) -> None:
            torch.manual_seed(0)

    with pytest.raises(PrivacyViolationError, match="A generator was seeded"):
        trainer(tmp_path, private).validate(Seeding(), loader(), verbose=False)


def test_no_warning_tells_that_a_record_is_not_finite() -> None:
    metric = torchmetrics.MeanMetric()
    private = PrivateMetric(metric, 1.0, noise_multiplier=1.0, charge=lambda: True)
    private.is_private = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric.update(torch.tensor([1.0, math.nan]))


def test_early_stopping_sees_the_noised_value(tmp_path: Path) -> None:
    distances = []
    for number in range(2):
        private = PrivateMetrics(
            ["val/accuracy"], SCENARIO, epsilon=10.0, renyi_order=16, ledger=tmp_path / f"{number}.db"
        )
        stopping = EarlyStopping("val/accuracy", mode="max", patience=1)
        fitted = trainer(tmp_path, private, stopping, max_epochs=1, limit_train_batches=1)
        fitted.fit(Validated(), loader(), loader())
        hits = float(stopping.best_score) * 120
        distances.append(abs(hits - round(hits)))
    # An exact accuracy is a whole number of the 120 records; a noised one comes as close twice with chance 4e-8.
    assert max(distances) > 1e-4


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["val/area"], "val/area.*keeps more than sums.*thresholds=20"),
        (["val/plain"], "val/plain.*log the torchmetrics object itself"),
    ],
)
def test_a_value_without_a_bound_is_refused(tmp_path: Path, names: list[str], sentence: str) -> None:
    private = PrivateMetrics(names, SCENARIO, epsilon=1.0, renyi_order=16, ledger=tmp_path / "study.db")
    with pytest.raises(MisconfigurationException, match=sentence):
        trainer(tmp_path, private).validate(Validated(), loader(), verbose=False)


class Logging(Validated):
    """Logs accuracy under the names that a function of the Trainer gives."""

    def __init__(self, names: Callable[[pl.Trainer], list[str]]) -> None:
        super().__init__()
        self.names = names

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.accuracy(self.network(batch[0]), batch[1])
        for name in self.names(self.trainer):
            self.log(name, self.accuracy)

    test_step = validation_step


def absences(names: list[str], folder: Path, logged: Callable[[pl.Trainer], list[str]]) -> list[tuple[int, str]]:
    """Warnings of absent names in a fit of three epochs and a test, each with the epoch in which it came."""
    private = PrivateMetrics(names, SCENARIO, epsilon=0.1, renyi_order=16, ledger=folder / "study.db")
    fitted, model, found = trainer(folder, private, max_epochs=3), Logging(logged), []

    def show(message: Any, *_: Any, **__: Any) -> None:
        if "nothing was logged as" in str(message):
            found.append((fitted.current_epoch, str(message).split(": ", 1)[1]))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        fitted.fit(model, loader(), loader())
        fitted.test(model, loader(), verbose=False)
    return found


def test_a_name_that_is_not_logged_is_told_of_after_the_first_validation(tmp_path: Path) -> None:
    """Also where the check before training logged it, in which `trainer.validating` is not yet True."""
    told = absences(
        ["val/acuracy"], tmp_path, lambda trainer: ["val/recall"] if trainer.validating else ["val/acuracy"]
    )
    ((epoch, sentence),) = told
    assert epoch == 0
    assert sentence.startswith(
        "nothing was logged as val/acuracy in this validation, which logged val/recall: unless later ones do, log"
    )


@pytest.mark.parametrize(
    ("names", "logged", "told"),
    [
        *slow((["val/a", "test/a"], lambda trainer: ["test/a" if trainer.testing else "val/a"], [])),
        (["a"], lambda trainer: [] if trainer.testing else ["a"], []),
        (["val/a"], lambda trainer: ["val/a"] if trainer.current_epoch else ["val/b"], [(0, "val/a")]),
        (["val/a", "test/a"], lambda trainer: [] if trainer.testing else ["val/a"], [(3, "test/a")]),
        *slow((["test/a", "val/a"], lambda trainer: [], [(0, "val/a"), (3, "test/a")])),
    ],
    ids=["each in its stage", "without a stage", "from the second epoch on", "never in the test", "nowhere"],
)
def test_names_are_told_of_once_where_they_are_absent(
    tmp_path: Path, names: list[str], logged: Callable[[pl.Trainer], list[str]], told: list[tuple[int, str]]
) -> None:
    found = absences(names, tmp_path, logged)
    assert [
        (epoch, sentence.split(" in this ")[0].removeprefix("nothing was logged as ")) for epoch, sentence in found
    ] == told


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"names": []}, "must list the metrics"),
        ({"names": ["val/accuracy/dataloader_idx_0"]}, "name 'val/accuracy', for the values of all loaders"),
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"max_contribution": -1.0}, "max_contribution is -1.0, but must lie between 1e-100 and 1e100"),
        ({"renyi_order": 1.0}, "renyi_order is 1.0"),
        ({"ledger": None}, "ledger is None, but values are charged"),
        ({"renyi_order": None}, "epsilon=1 says nothing by itself"),
        ({"world_success_bound": 0.6}, "one promise and epsilon with delta another"),
        ({"delta": 0.0}, "delta is 0.0, but must lie strictly between"),
        ({"noise_multiplier": 2.0}, "epsilon and noise_multiplier each decide the noise"),
        ({"noise_multiplier": 0.0}, "noise_multiplier is 0.0"),
        ({"epsilon": None}, "epsilon is None.*pass exactly one of"),
        ({"epsilon": 1e-7}, "must be above the 1.4e-06 that finite random bits take"),
    ],
)
def test_bad_arguments_are_one_sentence(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"names": ["a"], "scenario": SCENARIO, "ledger": tmp_path / "a.db"}
    arguments |= {"epsilon": 1.0, "renyi_order": 16} if "delta" not in changes else {"epsilon": 1.0}
    with pytest.raises(ValueError, match=sentence):
        PrivateMetrics(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("promise", "mu"),
    [
        ({"world_success_bound": 0.6}, 0.506694),
        ({"epsilon": 1.0, "delta": 1e-5}, 0.268051),
        ({"noise_multiplier": 12.0}, 0.5),
    ],
)
def test_one_value_costs_what_was_stated(promise: dict[str, float], mu: float, tmp_path: Path) -> None:
    """A value is the Gaussian mechanism: mu = kappa d / sigma, and order a costs a mu^2 / 2 in the ledger."""
    assert stats.norm.cdf(0.506694 / 2) == pytest.approx(0.6, abs=1e-6)
    delta = stats.norm.cdf(0.268051 / 2 - 1 / 0.268051) - math.e * stats.norm.cdf(-0.268051 / 2 - 1 / 0.268051)
    assert delta == pytest.approx(1e-5, rel=1e-4)
    private = PrivateMetrics(["val/accuracy"], SCENARIO, ledger=tmp_path / "study.db", **promise)
    assert private.noise_multiplier == pytest.approx(SCENARIO.sensitivity_factor * 3 / mu, rel=1e-4)
    trainer(tmp_path, private).validate(Validated(), loader(), verbose=False)
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        assert ledger.spent("rpp") == pytest.approx(16 * mu**2 / 2, rel=1e-4)


class Counting(pl.LightningModule):
    """Counts the rows that it is told to add for each record; `break_it` shows how an update goes wrong."""

    def __init__(self, break_it: str = "") -> None:
        super().__init__()
        self.network = nn.Linear(4, 3)
        self.count, self.tested = torchmetrics.SumMetric(), torchmetrics.SumMetric()
        self.break_it = break_it
        self.kept: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.break_it == "training":
            self.log("count", batch[0].mean())
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        ones = torch.ones(len(batch[0]))
        if self.break_it == "rows":
            ones = ones.repeat(3)
        if self.break_it == "twice":
            self.count.update(ones)
        if self.break_it.startswith("end"):
            self.kept += [ones, ones] if self.break_it == "end twice" else [ones]
            return
        self.count.update(ones)
        self.log("count", self.count)

    def on_validation_epoch_end(self) -> None:
        if self.kept:
            self.count.update(torch.cat(self.kept))
            self.kept.clear()
            self.log("count", self.count)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.tested.update(torch.ones(len(batch[0])))
        self.log("tested", self.tested)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


# Hardly more than finite bits take: noise of deviation 1.8e6, which lands within 5 of what it hides in 2e-6 of draws.
LOUD = 1.4306e-6


def counts(folder: Path, names: tuple[str, ...] = ("count",), epsilon: float = 1e12) -> PrivateMetrics:
    return PrivateMetrics([*names], SCENARIO, epsilon, renyi_order=16, ledger=folder / "study.db")


@pytest.mark.parametrize("break_it", ["rows", "twice", "end twice"])
def test_a_record_that_is_added_more_than_once_is_refused(tmp_path: Path, break_it: str) -> None:
    with pytest.raises(MisconfigurationException, match=r"was updated with more rows (in a batch )?than"):
        trainer(tmp_path, counts(tmp_path)).validate(Counting(break_it), loader(), verbose=False)


def test_the_last_batch_of_a_shortened_pass_counts_its_own_records(tmp_path: Path) -> None:
    short = DataLoader(data(), 50, sampler=RandomSampler(data(), num_samples=70))
    (found,) = trainer(tmp_path, counts(tmp_path)).validate(Counting(), short, verbose=False)
    assert found["count"] == pytest.approx(70, abs=1e-3)

    class Doubled(Counting):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            # 20 records in the second batch, where a pass over all of them would have 50.
            self.count.update(torch.ones(len(batch[0]) * (1 + batch_idx)))
            self.log("count", self.count)

    with pytest.raises(MisconfigurationException, match="updated with more rows in a batch than it has"):
        trainer(tmp_path, counts(tmp_path)).validate(Doubled(), short, verbose=False)


def test_a_batch_sampler_of_this_package_is_understood(tmp_path: Path) -> None:
    given = DataLoader(data(), batch_sampler=ShuffledBatchSampler(120, 50))
    (found,) = trainer(tmp_path, counts(tmp_path)).validate(Counting(), given, verbose=False)
    assert found["count"] == pytest.approx(120, abs=1e-3)


@pytest.mark.parametrize("break_it", ["", "end"])
def test_records_that_are_added_once_pass(tmp_path: Path, break_it: str) -> None:
    (found,) = trainer(tmp_path, counts(tmp_path)).validate(Counting(break_it), loader(), verbose=False)
    assert found["count"] == pytest.approx(120, abs=1e-3)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (lambda: DataLoader(data(), 50, sampler=RandomSampler(data(), replacement=True)), "draws by WithReplacement"),
        (lambda: DataLoader(data(), 50, sampler=WeightedRandomSampler([1.0] * 120, 120)), "draws by weights"),
        (lambda: DataLoader(Stream(), 50), "iterable dataset"),
        (
            lambda: CombinedLoader([loader(), DataLoader(data(50), 50)], "max_size_cycle"),
            "combined by 'max_size_cycle'",
        ),
    ],
)
def test_a_loader_that_may_deliver_a_record_twice_is_refused(tmp_path: Path, given: Any, reason: str) -> None:
    with pytest.raises(MisconfigurationException, match=reason):
        trainer(tmp_path, counts(tmp_path)).validate(Counting(), given(), verbose=False)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(data())


def test_a_metric_of_two_loaders_is_released_after_each(tmp_path: Path) -> None:
    first, second = trainer(tmp_path, counts(tmp_path)).validate(
        Counting(), [loader(), DataLoader(data(30), 50)], verbose=False
    )
    assert first["count/dataloader_idx_0"] == pytest.approx(120, abs=1e-3)
    assert second["count/dataloader_idx_1"] == pytest.approx(150, abs=1e-3)
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        assert [account.num_charges for account in ledger.accounts()] == [2]


def test_a_metric_of_its_own_is_private_in_tests(tmp_path: Path) -> None:
    given = trainer(tmp_path, counts(tmp_path, ("count", "tested"), LOUD))
    model = Counting()
    given.validate(model, loader(), verbose=False)
    (found,) = given.test(model, loader(), verbose=False)
    assert abs(found["tested"] - 120) > 5


def test_a_named_value_that_is_logged_in_training_is_refused(tmp_path: Path) -> None:
    model, given = Counting("training"), trainer(tmp_path, counts(tmp_path), max_epochs=1)
    with pytest.raises(MisconfigurationException, match="'count' is logged while training"):
        given.fit(model, loader(), loader())
    assert all("log" not in vars(results) for results in collections_of(given))


def collections_of(given: pl.Trainer) -> list[Any]:
    loops = (given.fit_loop.epoch_loop, given.fit_loop.epoch_loop.val_loop, given.validate_loop, given.test_loop)
    return [loop._results for loop in loops]


def test_the_module_logs_by_itself_again_after_a_fit(tmp_path: Path) -> None:
    model = Counting()
    given = trainer(tmp_path, counts(tmp_path), max_epochs=2, limit_train_batches=1)
    given.fit(model, loader(), loader())
    assert all("log" not in vars(results) for results in collections_of(given))
    (found,) = trainer(tmp_path).validate(model, loader(), verbose=False)
    assert found["count"] == 120


def test_a_copy_during_an_evaluation_is_refused(tmp_path: Path) -> None:
    class Copying(Counting):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.count.clone()

    with pytest.raises(MisconfigurationException, match="SumMetric is copied during an evaluation"):
        trainer(tmp_path, counts(tmp_path)).validate(Copying(), loader(), verbose=False)


def test_two_of_it_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=r"two PrivateMetrics.*name all metrics in one"):
        trainer(tmp_path, counts(tmp_path), counts(tmp_path)).validate(Counting(), loader(), verbose=False)


@pytest.mark.parametrize("finder", [LearningRateFinder(), BatchSizeFinder()])
def test_searches_are_refused(tmp_path: Path, finder: pl.Callback) -> None:
    model = Counting()
    model.batch_size, model.train_dataloader, model.val_dataloader = 10, loader, loader  # type: ignore[assignment, method-assign]
    with pytest.raises(MisconfigurationException, match="Finder removes PrivateMetrics and all other callbacks"):
        trainer(tmp_path, counts(tmp_path), finder, max_epochs=1).fit(model)


def test_training_and_metrics_share_one_ledger_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    training = SRPPSGD(SCENARIO, noise_multiplier=50.0, renyi_order=4, ledger=path)
    metrics = PrivateMetrics(["val/accuracy"], SCENARIO, epsilon=0.25, renyi_order=4, ledger=path)
    train = DataLoader(data(), 30, shuffle=True)
    trainer(tmp_path, metrics, training, max_epochs=1).fit(Validated(), train, loader())
    with PrivacyLedger.read_only(path) as ledger:
        spent = {account.name.split()[0].split("-")[0]: account.spent for account in ledger.accounts()}
        assert ledger.spent("rpp") == pytest.approx(sum(spent.values()))
    # Four steps of one pass over three differing records: a kappa^2 d^2 / (2 sigma^2).
    assert spent == {"training": pytest.approx(4 * 4 * 9 / (2 * 50.0**2), abs=2e-6), "metrics": 0.25}


def test_values_pay_for_their_finite_bits(tmp_path: Path) -> None:
    """A million draws: at most 2^-31 sqrt(n) + 2^-20 nats, and 2^-64 n of delta."""
    nats, tail = 2.0**-21 + 2.0**-20, 2.0**-44
    private = PrivateMetrics(["val/accuracy"], SCENARIO, epsilon=1.0, delta=1e-5, ledger=tmp_path / "study.db")
    mu = SCENARIO.sensitivity_factor * 3 / private.noise_multiplier
    kept = GaussianCurve(mu).epsilon(1e-5 - tail) + nats
    assert 1 - 1e-6 < kept <= 1.0
    trainer(tmp_path, private).validate(Validated(), loader(), verbose=False)
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        (total, (account,)) = ledger_total(ledger), ledger.accounts()
        (value,), spent = account.events(), account.spent
    assert value.event == {"release": "metric", "mu_squared": pytest.approx(mu**2), "draws": 2**20}
    assert total.epsilon_at_delta == pytest.approx(kept, rel=1e-9)
    assert total.world_success_bound == pytest.approx(stats.norm.cdf(mu / 2) + nats + tail, rel=1e-12)
    assert spent == pytest.approx(16 * mu**2 / 2 + nats, rel=1e-12)


def test_values_at_another_epsilon_are_charged_beside_the_earlier_ones(tmp_path: Path) -> None:
    """They were refused, with the advice to begin a new ledger, which forgets what was spent."""
    for epsilon in (0.25, 0.125, 0.25):
        metrics = PrivateMetrics(
            ["val/accuracy"], SCENARIO, epsilon=epsilon, renyi_order=4, ledger=tmp_path / "study.db"
        )
        trainer(tmp_path, metrics).validate(Validated(), loader(), verbose=False)
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        spent = {account.name: account.spent for account in ledger.accounts()}
    assert spent == {"metrics val/accuracy": 0.5, "metrics val/accuracy (2)": 0.125}


def test_the_same_metrics_in_another_order_or_twice_have_the_same_budget(tmp_path: Path) -> None:
    first, second = "val/recall", "val/accuracy"
    refused = pytest.raises(BudgetExceededError, match="has 0 left for it")
    for names, ends in (
        ([first, second], nullcontext()),
        ([second, first], refused),
        ([first, second, first], refused),
    ):
        metrics = PrivateMetrics(names, SCENARIO, epsilon=0.25, renyi_order=4, budget=0.5, ledger=tmp_path / "study.db")
        with ends:
            trainer(tmp_path, metrics).validate(Validated(), loader(), verbose=False)
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        assert ledger.spent("rpp") == 0.5


def test_a_promise_without_an_order_is_charged_at_that_of_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    first = PrivateMetrics(["val/f1"], SCENARIO, epsilon=0.25, renyi_order=4, ledger=path)
    trainer(tmp_path, first).validate(Validated(), loader(), verbose=False)
    training = SRPPSGD(SCENARIO, epsilon=3.0, delta=1e-5, ledger=path)
    metrics = PrivateMetrics(["val/accuracy"], SCENARIO, world_success_bound=0.6, ledger=path)
    train = DataLoader(data(), 30, shuffle=True)
    trainer(tmp_path, metrics, training, max_epochs=1).fit(Validated(), train, loader())
    assert training.account is not None
    assert training.account.accountant.renyi_order == 4
    with PrivacyLedger.read_only(path) as ledger:
        assert ledger_order(ledger) == 4
        orders = {account.declaration["coupling"]["renyi_order"] for account in ledger.accounts()}
        (spent,) = (account.spent for account in ledger.accounts() if account.name == "metrics val/accuracy")
    assert orders == {4.0}
    assert spent == pytest.approx(4 * 0.506694**2 / 2, rel=1e-4)


def test_contributions_stay_within_their_bound_and_add_up_exactly() -> None:
    rows = torch.randn(3_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 10
    for bound in (1.0, 0.3, 1e-9, 7e5):
        clipped = [clipped_contribution(row * bound, bound) for row in rows]
        assert max(sum(Fraction(value) ** 2 for value in row.tolist()) for row in clipped) <= Fraction(bound) ** 2
        assert torch.stack(clipped).norm(dim=1).max() > 0.999 * bound
        total = sum(clipped, torch.zeros(3, dtype=torch.float64))
        assert total.tolist() == [float(sum(map(Fraction, column))) for column in torch.stack(clipped).T.tolist()]


@pytest.mark.parametrize(
    ("value", "bound"), [(1.7e308, 2.0**-26), (4.88e220, 1e-100), (3.85e223, 1e-100), (-1e308, 1e-9)]
)
def test_a_contribution_as_large_as_floats_go_stays_within_its_bound(value: float, bound: float) -> None:
    """The factor that would bring it there is a subnormal number, with few bits."""
    (clipped,) = clipped_contribution(torch.tensor([value], dtype=torch.float64), bound).tolist()
    assert abs(Fraction(clipped)) <= Fraction(bound)
