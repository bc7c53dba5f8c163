"""Kill -9 a training journal at random moments: every step that was started is counted, and none twice."""

import os
import random
import time
from pathlib import Path

import pytest
from prepared import Child

from lightning_pac.ledger import PrivacyLedger

COST = 2**-10


def run_until_killed(path: Path, first_step: int) -> None:
    with PrivacyLedger(path) as ledger:
        attempt = ledger.account("fit", "rpp").start_attempt(first_step)
        os.write(1, b"ready\n")
        step = first_step
        while True:
            attempt.start_step(COST, step)
            os.write(1, b"%d\n" % step)  # here the noise would be drawn
            step += 1


def check_kills(path: Path, num_kills: int) -> int:
    expected: list[tuple[int, int]] = []
    total = 0
    for _ in range(num_kills):
        # A checkpoint is somewhere in what was run so far.
        first_step = random.randint(0, max([first + count for first, count in expected], default=0))
        process = Child(run_until_killed, path, first_step)
        assert process.stdout.readline() == b"ready\n"
        time.sleep(random.uniform(0.0, 0.05))
        process.kill()
        seen = [int(line) for line in process.finish().split(b"\n")[:-1]]
        assert seen == list(range(first_step, first_step + len(seen)))
        with PrivacyLedger.read_only(path) as ledger:
            account = ledger.account("fit", "rpp")
            attempts = [(attempt.first_step, attempt.num_steps) for attempt in account.attempts()]
            assert attempts[: len(expected)] == expected
            new = attempts[len(expected) :]
            started = new[0][1] if new else 0
            assert len(seen) <= started <= len(seen) + 1  # the last one may have been killed before it was seen
            assert all(first == first_step for first, _ in new)
            total += started
            assert account.num_charges == total
            assert account.spent == total * COST
        expected = attempts
    return total


def test_steps_ever_started_are_counted_through_ten_kills(tmp_path: Path) -> None:
    assert check_kills(tmp_path / "ledger.db", 10) > 10


@pytest.mark.slow
def test_steps_ever_started_are_counted_through_a_hundred_kills(tmp_path: Path) -> None:
    assert check_kills(tmp_path / "ledger.db", 100) > 100
