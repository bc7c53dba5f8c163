"""Private predictions on several gloo processes: rank zero answers for all, and nobody is left waiting."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gloo_ranks import on_ranks
from sklearn.tree import DecisionTreeClassifier
from tiny_fits import make_data, make_trainer
from torch import nn
from torch.utils.data import DataLoader

from lightning_pac import BalancedSubsets, LearnerEnsemble, PACResponses, PrivacyLedger, SubsetEnsemble
from lightning_pac.mechanisms import PACResponder

MEMBERS, BUDGET = 8, 2.0**-6


def make_ensemble() -> SubsetEnsemble:
    torch.manual_seed(0)
    ensemble = SubsetEnsemble(lambda: nn.Linear(6, 3), BalancedSubsets(40, MEMBERS, seed=0))
    with torch.no_grad():  # untrained members agree, so give each its own weights
        for parameter in ensemble.parameters():
            parameter.normal_()
    return ensemble


def make_learners() -> LearnerEnsemble:
    learners = LearnerEnsemble(lambda: DecisionTreeClassifier(random_state=0), BalancedSubsets(40, MEMBERS, seed=0))
    return learners.fit(*(tensor.numpy() for tensor in make_data(40).tensors), progress=False)


def predict_by_learners(rank: int, size: int, folder: Path) -> list[int]:
    answers = PACResponses(secret=folder / "secret.key", ledger=folder / "answers.db", budget_per_response=BUDGET)
    trainer = make_trainer(folder, answers, devices=size, strategy="ddp")
    labels = trainer.predict(make_learners(), DataLoader(make_data(7), batch_size=2))
    return [int(label) for batch in labels or [] for label in batch]


def predict(rank: int, size: int, folder: Path, records: int, budget: float | None, broken: bool) -> Any:
    ensemble = make_ensemble()
    if broken and rank == 1:
        ensemble.votes = lambda inputs: 1 / 0  # type: ignore[assignment, method-assign]
    answers = PACResponses(
        secret=folder / "secret.key", ledger=folder / "answers.db", budget_per_response=BUDGET, budget=budget
    )
    trainer = make_trainer(folder, answers, devices=size, strategy="ddp" if size > 1 else "auto")
    labels = trainer.predict(ensemble, DataLoader(make_data(records), batch_size=2))
    return [label.tolist() for label in labels or []]


# Seven records on two ranks: four and three, so that one rank has one batch more in the second case.
@pytest.mark.parametrize(("size", "records"), [(2, 7), (3, 8)])
def test_every_record_of_every_rank_is_answered_once(tmp_path: Path, size: int, records: int) -> None:
    labels = on_ranks(predict, size, tmp_path, records, None, False)
    ensemble = make_ensemble()
    votes = np.asarray(ensemble.votes(make_data(records).tensors[0]))
    shown = [label for rank in labels for batch in rank for label in batch]
    pool = ensemble.pool
    responder = PACResponder(ensemble, pool.load_secret(tmp_path / "secret.key"), BUDGET, tmp_path / "answers.db")
    with responder:
        recorded = [(row, label) for entry in responder.recorded_answers() for row, label in _rows(entry)]
        paid = int((votes != votes[:, :1]).any(axis=1).sum())
        assert responder.spent == pytest.approx(min(paid * BUDGET, np.log(MEMBERS)))
    assert len(shown) == len(recorded) == records
    assert sorted(row for row, _ in recorded) == sorted(map(tuple, votes.tolist()))
    assert sorted(shown) == sorted(label for _, label in recorded)


def test_learners_that_are_no_networks_answer_on_several_ranks(tmp_path: Path) -> None:
    first, second = on_ranks(predict_by_learners, 2, tmp_path)
    assert (len(first), len(second)) == (4, 3)
    with PrivacyLedger.read_only(tmp_path / "answers.db") as ledger:
        assert sum(account.num_charges for account in ledger.accounts()) == 7


def test_a_budget_that_ends_stops_all_ranks_with_what_was_paid_for(tmp_path: Path) -> None:
    labels = on_ranks(predict, 2, tmp_path, 12, 5 * BUDGET, False)
    with PrivacyLedger.read_only(tmp_path / "answers.db") as ledger:
        assert ledger.spent("mutual_information") <= 5 * BUDGET * (1 + 1e-9)
    assert all(len(rank) < 3 for rank in labels)


def test_an_error_of_one_rank_is_raised_by_all(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        on_ranks(predict, 2, tmp_path, 8, None, True)


def _rows(entry: Any) -> list[tuple[tuple[int, ...], int]]:
    return [(tuple(row), int(label)) for row, label in zip(entry.outputs.tolist(), entry.labels, strict=True)]
