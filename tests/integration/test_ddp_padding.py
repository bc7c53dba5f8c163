"""Padded sizes and steps on several gloo processes: one observation for all ranks, paid for once."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from gloo_ranks import RankProcesses, on_ranks
from test_ddp_responses import BUDGET, make_ensemble
from tiny_fits import Classifier, make_data, make_loader, make_private, make_trainer
from torch.utils.data import DataLoader

from lightning_pac import DummyPadding, PACResponses, Poisson, PositiveDelay, PrivacyLedger
from lightning_pac.callbacks import positive_delay
from lightning_pac.data import PrivateDataLoader
from lightning_pac.mechanisms.one_sided import DPGuarantee, DPNoise
from lightning_pac.strategies import Ranks


class Noise(DPNoise):
    """Designed noise that is uniform on 0 to 3, far from what a test would see by chance."""

    def __init__(self, releases: int = 100) -> None:
        super().__init__([0.25] * 4, DPGuarantee(1.0, 0.1, releases, 1, "exact"))


class Sized(Classifier):
    """Notes how many rows a batch has and how many of them are records."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self._trainer is not None:
            self.sizes.append((len(batch[0]), vars(self.trainer.train_dataloader).get("num_drawn", 0)))
        return super().training_step(batch, batch_idx)


def train(
    rank: int, size: int, folder: Path, releases: int, own: bool, workers: int = 0, steps: int = 12
) -> list[tuple[int, int]]:
    """Padded batches; `own` breaks the padding by leaving smaller shares as they are."""
    if own:

        def _padded_size(self: PrivateDataLoader, largest: int) -> int:
            return 0

        PrivateDataLoader._padded_size = _padded_size  # type: ignore[method-assign]
    padding = DummyPadding(Noise(releases), ledger=folder / "sizes.db")
    private = make_private(sampling=Poisson(0.2), ledger=folder / "run.db")
    model = Sized()
    options = {"devices": size, "strategy": "ddp_private", "max_steps": steps, "max_epochs": -1}
    make_trainer(folder, padding, private, **options).fit(model, make_loader(25, num_workers=workers))
    assert padding.num_observations == len(model.sizes) or workers or own
    return model.sizes


def test_all_ranks_show_one_padded_size_that_is_paid_once(tmp_path: Path) -> None:
    first, second = on_ranks(train, 2, tmp_path, 100, False)
    assert [rows for rows, _ in first] == [rows for rows, _ in second]
    for (rows, records), (_, others) in zip(first, second, strict=True):
        assert 0 <= rows - max(1, records, others) <= 3
    assert len({rows - max(1, records) for rows, records in first}) > 1  # all equal in 4^-11 of runs
    with PrivacyLedger.read_only(tmp_path / "sizes.db") as ledger:
        assert ledger.spent("batch_size_releases") == 12


@pytest.mark.slow
def test_shares_that_are_not_filled_up_are_noticed(tmp_path: Path) -> None:
    # Shares of one batch differ by a record where their sum is odd, in half of all batches: never in 3e-8 of runs.
    first, second = on_ranks(train, 2, tmp_path, 100, True, 0, 25)
    assert any(one != two for (one, _), (two, _) in zip(first, second, strict=True))


@pytest.mark.slow  # predicting ends in the same way
def test_padded_training_ends_on_all_ranks_when_the_releases_are_spent(tmp_path: Path) -> None:
    first, second = on_ranks(train, 2, tmp_path, 5, False, 1)
    assert len(first) == len(second) == 5
    assert [rows for rows, _ in first] == [rows for rows, _ in second]


def predict(rank: int, size: int, folder: Path, releases: int) -> tuple[int, list[int]]:
    ensemble = make_ensemble()
    asked: list[int] = []
    votes = ensemble.votes

    def counted(inputs: Any) -> Any:
        asked.append(len(inputs))
        return votes(inputs)

    ensemble.votes = counted  # type: ignore[method-assign]
    answers = PACResponses(
        secret=folder / "secret.key", ledger=folder / "answers.db", budget_per_response=BUDGET, budget=None
    )
    padding = DummyPadding(Noise(releases), ledger=folder / "sizes.db")
    # Seven records on two ranks: two batches on each, and one of them has a record less.
    trainer = make_trainer(folder, answers, padding, devices=size, strategy="ddp")
    labels = trainer.predict(ensemble, DataLoader(make_data(7), batch_size=2))
    return sum(len(label) for label in labels or []), asked


def test_queries_of_all_ranks_are_padded_and_paid(tmp_path: Path) -> None:
    results = on_ranks(predict, 2, tmp_path, 100)
    assert sum(answers for answers, _ in results) == 7
    assert all(1 <= rows <= 5 for _, asked in results for rows in asked)
    with PrivacyLedger.read_only(tmp_path / "sizes.db") as ledger:
        assert ledger.spent("batch_size_releases") == sum(len(asked) for _, asked in results) == 4
    with PrivacyLedger.read_only(tmp_path / "answers.db") as ledger:
        assert ledger.spent("mutual_information") > 0


def test_predicting_ends_on_all_ranks_when_the_releases_are_spent(tmp_path: Path) -> None:
    results = on_ranks(predict, 2, tmp_path, 2)
    assert [len(asked) for _, asked in results] == [1, 1]


class Clock:
    """Time that only the steps and the waiting take, so that the load of the machine does not matter."""

    def __init__(self) -> None:
        self.now = 0.0
        self.deadlines: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wait_until(self, deadline: float) -> None:
        self.deadlines.append(deadline)
        self.now = max(self.now, deadline)


def delayed(rank: int, size: int, folder: Path, max_duration: float, alone: bool = False) -> list[float]:
    """Units that each step was shown to take: truly two on rank zero, four on rank one; `alone` draws on each rank."""
    clock = Clock()
    positive_delay.time, positive_delay.wait_until = clock, clock.wait_until  # type: ignore[attr-defined, assignment]
    if alone:
        Ranks.exchange = lambda self, bring, answer: answer([bring()])  # type: ignore[method-assign]

    class Taking(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            if self is taking:  # the check of the loss runs copies, which take no time of the step
                clock.now += 2 * (1 + rank)

    taking = Taking()

    delay = PositiveDelay(Noise(), 1.0, max_duration, ledger=folder / "time.db")
    private = make_private(ledger=folder / "run.db")
    options = {"devices": size, "strategy": "ddp_private", "max_steps": 12, "max_epochs": -1}
    make_trainer(folder, delay, private, taking, **options).fit(Classifier(), make_loader(120, batch_size=5))
    return [round(step - positive_delay._DRAWING, 6) for step in np.diff(clock.deadlines)]


def test_one_delay_is_drawn_for_the_step_of_all_ranks(tmp_path: Path) -> None:
    first, second = on_ranks(delayed, 2, tmp_path, 8.0)
    assert first == second
    assert set(first) <= {7.0, 8.0, 9.0, 10.0}
    with PrivacyLedger.read_only(tmp_path / "time.db") as ledger:
        assert ledger.spent("time_releases") == 12


@pytest.mark.slow
def test_a_delay_for_each_rank_is_noticed(tmp_path: Path) -> None:
    first, second = on_ranks(delayed, 2, tmp_path, 8.0, True)
    assert first != second  # equal in 4^-11 of runs


def test_an_overrun_of_one_rank_ends_all(tmp_path: Path) -> None:
    results = RankProcesses(delayed, 2, tmp_path, 3.0).results(timeout=60)
    assert all("A step took longer than max_duration = 3 s" in str(result) for result in results)
