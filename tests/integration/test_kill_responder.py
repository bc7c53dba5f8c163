"""Kill -9 the responder at random moments: no answer outside the ledger, and the belief that it had."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from prepared import Child
from slow_cases import slow

from lightning_pac.ledger import ResponseTranscript
from lightning_pac.mechanisms import PACResponder, responder
from lightning_pac.scenarios import BalancedSubsets

NUM_SECRETS = 16
POOL = BalancedSubsets(num_records=20, num_subsets=NUM_SECRETS)
BUDGET = 2**-14


def answer_until_killed(folder: Path) -> None:
    responder._ANSWERS_BETWEEN_SNAPSHOTS = 20  # a snapshot every few answers, so that kills fall on those too
    secret = POOL.load_secret(folder / "secret.key")
    os.write(1, b"ready\n")
    with PACResponder(np.asarray, secret, BUDGET, folder / "responses.db", rule="linear") as answer:
        generator = np.random.default_rng(answer.num_responses)
        while True:
            votes = generator.integers(0, 3, (int(generator.integers(1, 4)), NUM_SECRETS))
            labels = answer(votes)
            os.write(1, " ".join(str(label) for label in labels).encode() + b"\n")


def answer_before_the_commit(folder: Path) -> None:
    ResponseTranscript.append = lambda *arguments: None
    answer_until_killed(folder)


def kill_at_a_random_moment(folder: Path, run: Callable[[Path], None], answering: bool) -> list[list[int]]:
    """Runs the responder, kills it once it answers or while it may still open, and returns what it had answered."""
    process = Child(run, folder)
    assert process.stdout.readline() == b"ready\n", process.finish().decode()
    first = process.stdout.readline() if answering else b""
    time.sleep(random.uniform(0.0, 0.15))
    process.kill()
    # A line without its end was cut off by the kill; its label had not reached anybody who reads lines.
    return [[int(label) for label in line.split()] for line in (first + process.finish()).split(b"\n")[:-1]]


def plain_update(belief: np.ndarray, votes: np.ndarray, value: np.ndarray) -> np.ndarray:
    """One answer of Algorithm 1 with the linear rule, written out densely."""
    classes = np.unique(votes)
    if len(classes) == 1:
        return belief
    vectors = (votes[:, None] == classes).astype(float)
    deviations = vectors - belief @ vectors
    eigenvalues, basis = np.linalg.eigh(deviations.T @ np.diag(belief) @ deviations)
    eigenvalues, basis = eigenvalues[1:], basis[:, 1:]
    noise = np.sqrt(eigenvalues) * np.sqrt(eigenvalues).sum() / (2 * BUDGET)
    weights = np.log(belief) - (((value[: len(classes)] - vectors) @ basis) ** 2 / noise).sum(axis=1) / 2
    updated = np.exp(weights - weights.max())
    return updated / updated.sum()


def check_kills(folder: Path, num_kills: int, run: Callable[[Path], None] = answer_until_killed) -> tuple[int, int]:
    secret = POOL.draw_secret(folder / "secret.key")
    PACResponder(np.asarray, secret, BUDGET, folder / "responses.db", rule="linear").close()
    num_recorded = num_unseen = num_answers = num_charged = 0
    belief = np.full(NUM_SECRETS, 1 / NUM_SECRETS)
    for kill in range(1, num_kills + 1):
        seen = kill_at_a_random_moment(folder, run, answering=kill % 3 > 0)
        secret = POOL.load_secret(folder / "secret.key")
        with PACResponder(np.asarray, secret, BUDGET, folder / "responses.db", rule="linear") as opened:
            entries = list(opened.recorded_answers())[num_recorded:]
            recorded = [entry.labels.tolist() for entry in entries]
            assert recorded[: len(seen)] == seen, "an answer is outside the ledger"
            assert len(recorded) - len(seen) <= 1  # the one that was on its way
            for entry in entries:
                for votes, value in zip(entry.outputs, entry.values, strict=True):
                    belief = plain_update(belief, votes, value)
                    num_charged += len(np.unique(votes)) > 1
            num_answers += sum(map(len, recorded))
            assert opened.num_responses == num_answers
            assert opened.spent == pytest.approx(num_charged * BUDGET, rel=1e-12)
            assert opened.belief == pytest.approx(belief, rel=1e-6)
        num_unseen += len(recorded) - len(seen)
        num_recorded += len(recorded)
    return num_recorded, num_unseen


@pytest.mark.parametrize("kills", [5, *slow(10)])
def test_a_few_kills(kills: int, tmp_path: Path) -> None:
    num_recorded, _ = check_kills(tmp_path, kills)
    assert num_recorded >= kills - kills // 3  # one answer at least of each that is killed once it answers


@pytest.mark.slow
def test_two_hundred_kills(tmp_path: Path) -> None:
    num_recorded, num_unseen = check_kills(tmp_path, 200)
    assert num_recorded > 133
    print(f"{num_recorded} transactions, {num_unseen} of them charged and not seen")


def test_the_check_notices_answers_that_leave_before_the_commit(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="an answer is outside the ledger"):
        check_kills(tmp_path, 5, answer_before_the_commit)
