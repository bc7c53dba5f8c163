"""Private metrics on several gloo processes: each record once, one noise, one charge, one value for all."""

import csv
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from gloo_ranks import RankProcesses, on_ranks
from lightning.pytorch.loggers import CSVLogger
from scipy import stats
from slow_cases import slow
from tiny_fits import Classifier, make_data, make_loader, make_private, make_trainer
from torch.utils.data import DataLoader, SubsetRandomSampler

from lightning_pac import PrivacyLedger, PrivateMetrics, TwoWorldScenario
from lightning_pac.callbacks.metrics import noised_metric
from lightning_pac.callbacks.metrics.delivered_records import DeliveredRecords
from lightning_pac.callbacks.metrics.noised_metric import PrivateMetric
from lightning_pac.data import Sequential, private_loader
from lightning_pac.randomness import secure_generator
from lightning_pac.strategies import Ranks

SCENARIO = TwoWorldScenario(num_differing=2)
NAME = "val/accuracy"
# Hardly any noise; and, for hardly more than finite bits take, noise of deviation 6e5, which lands within 5 of what it
# hides in 7e-6 of draws.
SILENT, LOUD = 1e14, 1.4306e-6


class Validated(Classifier):
    """Logs the accuracy, and what it is told to break on rank one."""

    def __init__(self, broken: str = "") -> None:
        super().__init__()
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)
        self.count = torchmetrics.SumMetric()
        self.broken = broken

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, labels = batch
        scores = self.network(inputs)
        if self.broken in ("rows", "step") and self.global_rank == 1:
            if self.broken == "step":
                raise ZeroDivisionError("in one rank's step")
            scores, labels = scores.repeat(2, 1), labels.repeat(2)
        if self.broken == "gathered":
            scores, labels = (self.all_gather(part).flatten(0, 1) for part in (scores, labels))
        self.accuracy(scores, labels)
        self.count(torch.ones(len(labels)))
        self.log(NAME, self.accuracy)
        self.log("val/count", self.count)

    test_step = validation_step


def metrics(folder: Path, epsilon: float = SILENT, names: tuple[str, ...] = (NAME,), **kwargs: Any) -> PrivateMetrics:
    return PrivateMetrics([*names], SCENARIO, epsilon, renyi_order=4, ledger=folder / "study.db", **kwargs)


def model_on_all_ranks(broken: str = "") -> Validated:
    torch.manual_seed(3)
    return Validated(broken)


def evaluate(rank: int, size: int, folder: Path, sizes: list[int], epsilon: float, lightning: bool) -> list[Any]:
    """Validate and test on datasets whose sizes do not divide; `lightning` leaves the division to Lightning."""
    if lightning:
        PrivateMetrics.setup = lambda self, trainer, pl_module, stage: None  # type: ignore[method-assign]
        DeliveredRecords.of = classmethod(lambda cls, trainer, adjacency: _Unlimited())  # type: ignore[assignment, method-assign]
    found = []
    for records in sizes:
        private = metrics(folder, epsilon, (NAME, "val/count"))
        trainer = make_trainer(folder, private, devices=size, strategy="ddp" if size > 1 else "auto")
        for run in (trainer.validate, trainer.test):
            found += run(model_on_all_ranks(), DataLoader(make_data(records), batch_size=3), verbose=False)
    return found


class _Unlimited:
    batch, in_batch, in_all, in_trial = 0, None, 10**9, False
    loaders, all_loaders = frozenset[int](), (DataLoader(make_data(2)),)
    of_several: dict[int, tuple[int, int]] = {}

    def share_records(self, numbers: frozenset[int]) -> bool:
        return False

    def begin_batch(self, batch_idx: int, dataloader_idx: int) -> None:
        pass

    def end_batches(self) -> None:
        pass


# Sizes that leave ranks without a record in the last batch, or without any.
@pytest.mark.parametrize(("size", "sizes"), [(2, [1, 13]), *slow((2, [2, 24]), (3, [1, 2, 13, 24]))])
def test_every_rank_sees_the_value_of_one_process(tmp_path: Path, size: int, sizes: list[int]) -> None:
    expected = evaluate(0, 1, tmp_path / "alone", sizes, SILENT, False)
    ranks = on_ranks(evaluate, size, tmp_path, sizes, SILENT, False)
    assert all(rank == ranks[0] for rank in ranks)
    assert [value for one in ranks[0] for value in one.values()] == pytest.approx(
        [value for one in expected for value in one.values()], abs=1e-5
    )


@pytest.mark.slow
def test_a_division_that_repeats_records_is_noticed(tmp_path: Path) -> None:
    expected = evaluate(0, 1, tmp_path / "alone", [13], SILENT, False)
    (first, _) = on_ranks(evaluate, 2, tmp_path, [13], SILENT, True)
    assert first[0]["val/count"] != pytest.approx(expected[0]["val/count"], abs=0.5)


def noise_of(rank: int, size: int, folder: Path, draws: int, noise_by_all: bool) -> list[float]:
    """Released sums without records; `noise_by_all` lets each rank noise its own share."""
    noised_metric.noise_of_value = lambda *_: None  # most of a release's time, and not asked for here

    class Released(pl.Callback):
        def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            ranks = Ranks.of(trainer)
            metric = torchmetrics.SumMetric()
            private = PrivateMetric(metric, 2.0, 5.0, lambda: True, ranks=ranks)
            private.is_private = True
            if noise_by_all:
                own_share = private._own_share

                def noised() -> Any:
                    name, total = own_share()
                    return name, total + secure_generator().fill_normal_(torch.empty_like(total)) * 10.0

                private._own_share = noised  # type: ignore[method-assign]
            for _ in range(draws):
                metric.update(torch.zeros(1))
                self.values.append(float(metric.compute()))
                metric.reset()

        values: list[float] = []

    released = Released()
    trainer = make_trainer(folder, released, devices=size, strategy="ddp")
    trainer.validate(model_on_all_ranks(), DataLoader(make_data(4), batch_size=2), verbose=False)
    return released.values


def test_the_noise_is_drawn_once_and_the_same_for_all(tmp_path: Path) -> None:
    first, second = on_ranks(noise_of, 2, tmp_path, 800, False)
    assert first == second
    # False alarm in 1e-7 of runs.
    assert stats.kstest(first, "norm", (0.0, 10.0)).pvalue > 1e-7


@pytest.mark.slow
def test_noise_that_every_rank_draws_is_noticed(tmp_path: Path) -> None:
    by_all, _ = on_ranks(noise_of, 2, tmp_path, 800, True)
    assert stats.kstest(by_all, "norm", (0.0, 10.0)).pvalue < 1e-7


def fit(rank: int, size: int, folder: Path, broken: str) -> dict[str, float]:
    """Private training with private validation, from one ledger."""
    private = make_private(ledger=folder / "study.db", noise_multiplier=50.0)
    logger = CSVLogger(folder, name="", version="")
    trainer = make_trainer(
        folder,
        metrics(folder, LOUD, (NAME, "val/count")),
        private,
        devices=size,
        strategy="ddp_private",
        max_epochs=2,
        logger=logger,
    )
    trainer.fit(model_on_all_ranks(broken), make_loader(30), DataLoader(make_data(13), batch_size=3))
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def test_private_training_with_private_validation_shares_one_ledger(tmp_path: Path) -> None:
    first, second = on_ranks(fit, 2, tmp_path, "")
    assert (first[NAME], first["val/count"]) == (second[NAME], second["val/count"])
    assert abs(first["val/count"] - 13) > 5
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        spent = {account.name.split()[0].split("-")[0]: account.num_charges for account in ledger.accounts()}
        assert spent["metrics"] == 4  # two in each epoch, for both ranks
    with (tmp_path / "metrics.csv").open() as lines:
        logged = [float(row["val/count"]) for row in csv.DictReader(lines) if row["val/count"]]
    assert len(logged) == 2
    assert all(abs(value - 13) > 5 for value in logged)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [("rows", "one record decides beside its own"), ("step", "in one rank's step")],
)
def test_a_rank_that_fails_ends_all_ranks(tmp_path: Path, broken: str, sentence: str) -> None:
    results = RankProcesses(fit, 2, tmp_path, broken).results(timeout=60)
    assert not any(isinstance(result, dict) for result in results)
    assert sentence in results[1]
    if broken == "rows":
        assert sentence in results[0]


def test_records_of_other_ranks_are_not_counted_again(tmp_path: Path) -> None:
    results = RankProcesses(fit, 2, tmp_path, "gathered").results(timeout=60)
    assert all("one record decides beside its own" in result for result in results)


def undivided(rank: int, size: int, folder: Path, shuffled: bool | None) -> None:
    data = make_data(12)
    if shuffled is None:  # a loader of ours that was not made for several ranks
        trainer = make_trainer(folder, metrics(folder), devices=size, strategy="ddp", use_distributed_sampler=False)
        trainer.validate(model_on_all_ranks(), private_loader(data, Sequential(3)), verbose=False)
        return
    sampler = SubsetRandomSampler(range(12)) if shuffled else None
    trainer = make_trainer(folder, metrics(folder), devices=size, strategy="ddp", use_distributed_sampler=shuffled)
    trainer.validate(model_on_all_ranks(), DataLoader(data, batch_size=3, sampler=sampler), verbose=False)


@pytest.mark.parametrize(
    ("shuffled", "reason"),
    [
        (False, "each of 2 ranks evaluates all of it"),
        (None, "each of 2 ranks evaluates all of it"),
        (True, "DistributedSamplerWrapper"),
    ],
)
def test_records_that_the_trainer_does_not_divide_are_refused(
    tmp_path: Path, shuffled: bool | None, reason: str
) -> None:
    results = RankProcesses(undivided, 2, tmp_path, shuffled).results(timeout=60)
    assert all(reason in str(result) and "let the Trainer divide it" in str(result) for result in results)


def test_a_refusal_of_the_ledger_ends_all_ranks(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        ledger.account(f"metrics {NAME}, val/count", "rpp", {"epsilon_of_each": 7.0}, None)
    results = RankProcesses(fit, 2, tmp_path, "").results(timeout=60)
    assert all("LedgerMismatchError" in result for result in results)
