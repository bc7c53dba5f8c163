"""A batch of requests: what one of them cannot have does not touch the others."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_pac.ledger.storage import LedgerStorage
from lightning_pac.mechanisms import PACResponder
from lightning_pac.scenarios import BalancedSubsets
from lightning_pac.serve import APIKey, as_tensor
from lightning_pac.serve.batch_answers import BatchAnswers, Refusal, Ticket

POOL = BalancedSubsets(num_records=20, num_subsets=8)
BUDGET = 2**-10
SPLIT, AGREED = (np.arange(8) % 2).tolist(), [0] * 8


def collate(inputs: list) -> np.ndarray:
    votes = np.array(inputs)
    if votes.shape[1:] != (8,):
        raise ValueError("eight votes are needed")
    return votes


Open = Callable[..., BatchAnswers]


@pytest.fixture
def open_answers(tmp_path: Path):
    opened = []

    def make(budget: float | None = None) -> BatchAnswers:
        def open_responder() -> PACResponder:
            path = tmp_path / "s.key"
            secret = POOL.load_secret(path) if path.exists() else POOL.draw_secret(path)
            return PACResponder(np.asarray, secret, BUDGET, tmp_path / "r.db", budget)

        opened.append(BatchAnswers(open_responder, collate))
        return opened[-1]

    yield make
    for answers in opened:
        answers.close()


def responder_of(answers: BatchAnswers) -> PACResponder:
    return answers._open()


def statuses(results: list[int | Refusal]) -> list[int]:
    return [result.status if isinstance(result, Refusal) else 200 for result in results]


def test_a_batch_is_one_transaction(open_answers: Open) -> None:
    answers = open_answers()
    assert statuses(answers([Ticket(SPLIT)] * 10)) == [200] * 10
    assert len(list(responder_of(answers).recorded_answers())) == 1
    assert responder_of(answers).spent == 10 * BUDGET


def test_a_repetition_is_answered_from_the_record(open_answers: Open) -> None:
    answers = open_answers()
    first = answers([Ticket(SPLIT, "a"), Ticket(SPLIT, "b"), Ticket(SPLIT, "a")])
    assert first[0] == first[2]
    assert responder_of(answers).num_responses == 2
    for _ in range(20):
        assert answers([Ticket(SPLIT, "a"), Ticket(SPLIT, "b")]) == first[:2]
    assert responder_of(answers).spent == 2 * BUDGET


def test_bad_inputs_are_refused_one_by_one(open_answers: Open) -> None:
    answers = open_answers()
    batch = [Ticket(SPLIT, "a"), Ticket([1, 2], "b"), Ticket("words"), Ticket(None), Ticket(SPLIT)]
    assert statuses(answers(batch)) == [200, 422, 422, 422, 200]
    assert responder_of(answers).spent == 2 * BUDGET
    assert statuses(answers(batch)) == [200, 422, 422, 422, 200]
    assert responder_of(answers).spent == 3 * BUDGET


@pytest.mark.parametrize(("bad", "most_calls"), [([[1, 2]], 1), ([[0] * 7], 1), (["words"], 1), ([[9] * 8], 13)])
def test_a_bad_input_costs_its_neighbours_little(tmp_path: Path, bad: list, most_calls: int) -> None:
    """One that is no input of the model never reaches it; one that the model refuses is found by halves."""
    seen = []

    def model(votes: np.ndarray) -> np.ndarray:
        seen.append(votes.shape)
        if (votes == 9).any():
            raise RuntimeError("nine")
        return votes

    secret = POOL.draw_secret(tmp_path / "s.key")
    answers = BatchAnswers(lambda: PACResponder(model, secret, BUDGET, tmp_path / "r.db"), collate)
    results = answers([Ticket(SPLIT)] * 40 + [Ticket(bad[0])] + [Ticket(SPLIT)] * 23)
    answers.close()
    assert statuses(results) == [200] * 40 + [422] + [200] * 23
    assert len(seen) <= most_calls
    assert {shape[1:] for shape in seen} == {(8,)}


def test_inputs_of_several_shapes_are_answered_by_shape(tmp_path: Path) -> None:
    seen = []

    def model(images: np.ndarray) -> np.ndarray:
        seen.append(images.shape)
        return np.tile(SPLIT, (len(images), 1))

    secret = POOL.draw_secret(tmp_path / "s.key")
    answers = BatchAnswers(lambda: PACResponder(model, secret, BUDGET, tmp_path / "r.db"), np.array)
    assert statuses(answers([Ticket([[1] * (2 + number % 2)]) for number in range(10)])) == [200] * 10
    answers.close()
    assert sorted(seen) == [(5, 1, 2), (5, 1, 3)]


def test_a_device_that_failed_is_no_fault_of_the_input(tmp_path: Path) -> None:
    def model(votes: np.ndarray) -> np.ndarray:
        raise torch.AcceleratorError("device-side assert triggered")

    secret = POOL.draw_secret(tmp_path / "s.key")
    answers = BatchAnswers(lambda: PACResponder(model, secret, BUDGET, tmp_path / "r.db"), collate)
    with pytest.raises(torch.AcceleratorError):  # on which the worker ends, since nothing would be answered any more
        answers([Ticket(SPLIT)])
    answers.close()


def test_an_input_of_another_shape_is_refused_before_the_model_sees_it() -> None:
    assert as_tensor([[[1, 2]], [[3, 4]]], shape=(1, 2)).shape == (2, 1, 2)
    for wrong in ([[1, 2]], [[[1, 2, 3]]], [1.0], [[[1], [2]]]):
        with pytest.raises(ValueError, match="and the model takes"):
            as_tensor(wrong, shape=[1, 2])
    for wrong in ([[1e39]], [[float("nan")]]):
        with pytest.raises(ValueError, match="not finite"):
            as_tensor(wrong)


def test_what_the_budget_pays_for_is_answered_and_the_rest_refused(open_answers: Open) -> None:
    answers = open_answers(budget=3 * BUDGET)
    results = answers([Ticket(SPLIT, str(number)) for number in range(5)])
    assert statuses(results) == [200, 200, 200, 429, 429]
    assert "0 are left for all answers together" in results[4].reason
    assert answers([Ticket(SPLIT, "1")]) == [results[1]]
    assert responder_of(answers).spent == 3 * BUDGET


def test_a_key_spends_its_share_and_no_more(open_answers: Open) -> None:
    answers = open_answers(5 * BUDGET)
    alice, bob = APIKey("alice", "", 2 * BUDGET), APIKey("bob", "")
    batch = [Ticket(SPLIT, f"{key.name} {number}", key) for number in range(3) for key in (alice, bob)]
    results = answers(batch)
    assert statuses(results) == [200, 200, 200, 200, 429, 200]
    assert "API key 'alice' has 0 left" in results[4].reason
    accounts = {account.name: account for account in responder_of(answers).ledger.accounts()}
    assert accounts["key alice"].spent == 2 * BUDGET
    assert accounts["key bob"].spent == 3 * BUDGET
    assert responder_of(answers).spent == 5 * BUDGET
    assert statuses(answers([Ticket(SPLIT, key=bob), Ticket(SPLIT, key=alice)])) == [429, 429]


def test_refusals_do_not_say_whether_the_models_agree(open_answers: Open) -> None:
    alice = APIKey("alice", "", BUDGET / 2)
    agreed, split = open_answers()([Ticket(AGREED, key=alice), Ticket(SPLIT, key=alice)])
    assert agreed == split


@pytest.mark.parametrize("opened_again", [False, True])
def test_a_key_that_gets_another_budget_keeps_what_it_spent(open_answers: Open, opened_again: bool) -> None:
    answers = open_answers()
    for budget, expected in ((BUDGET, [200, 429]), (2 * BUDGET, [200, 429]), (BUDGET, [429, 429])):
        alice = APIKey("alice", "", budget)
        assert statuses(answers([Ticket(SPLIT, key=alice), Ticket(SPLIT, key=alice)])) == expected
        if opened_again:
            answers.close()
    assert responder_of(answers).spent == 2 * BUDGET


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch):
    """A disk on which SQLite can write no longer while `disk["full"]`."""
    state, transaction = {"full": False}, LedgerStorage.transaction

    def on_this_disk(storage: LedgerStorage):
        storage._connection.execute(f"PRAGMA query_only = {state['full']:d}")
        return transaction(storage)

    monkeypatch.setattr(LedgerStorage, "transaction", on_this_disk)
    return state


def test_a_ledger_that_fails_answers_nothing_and_is_opened_again(open_answers: Open, disk: dict) -> None:
    answers = open_answers()
    known = answers([Ticket(SPLIT, "known")])
    assert answers.failure is None
    disk["full"] = True
    results = answers([Ticket(SPLIT, "known"), Ticket(SPLIT, "new")])
    assert statuses(results) == [200, 503]
    assert "readonly" not in results[1].reason
    assert statuses(answers([Ticket(SPLIT)])) == [503]
    disk["full"] = False
    assert responder_of(answers).spent == BUDGET
    assert answers([Ticket(SPLIT, "known")]) == known
    assert statuses(answers([Ticket(SPLIT, "new")])) == [200]


def test_a_failure_is_told_until_a_write_succeeds(open_answers: Open, disk: dict, tmp_path: Path) -> None:
    answers = open_answers()
    known = [Ticket(SPLIT, "known")]
    answers(known)
    answers.try_again()
    assert answers.failure is None
    for write in (lambda: answers([Ticket(SPLIT, "new")]), answers.try_again):
        disk["full"] = True
        answers([Ticket(SPLIT)])
        first = answers.failure
        assert re.match(
            r"Nothing is answered since \d{4}-\d\d-\d\dT[\d:+]+: r\.db cannot be .* \(attempt to write", first
        )
        assert str(tmp_path) not in first
        answers.try_again()
        assert answers.failure == first
        answers(known)  # a record that can be read says nothing of writing
        assert answers.failure == first
        disk["full"] = False
        write()
        assert answers.failure is None
    assert responder_of(answers).num_responses == 2


def test_a_responder_that_cannot_be_opened_again_is_a_failure(open_answers: Open, disk: dict, tmp_path: Path) -> None:
    answers = open_answers()
    disk["full"] = True
    answers([Ticket(SPLIT)])
    (tmp_path / "r.db").rename(tmp_path / "elsewhere.db")
    disk["full"] = False
    answers.try_again()
    assert "Nothing is answered since" in answers.failure
