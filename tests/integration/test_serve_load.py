"""Fifty clients at once, and kill -9 under their load: every answer is in the ledger exactly once."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from serving import ask_all, recorded, serving

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the worker through /proc")

_NEW_EACH_TIME = 1000  # more than are answered before the kill


def check_load(folder: Path, num_requests: int, num_clients: int = 50) -> float:
    seen: dict[int, int] = {}
    with serving(folder) as server:
        start = time.monotonic()
        failed = ask_all(server, list(range(num_requests)), num_clients, seen)
        seconds = time.monotonic() - start
        assert not failed, next(iter(failed.items()))
        _, before = server.get("/privacy")
        again: dict[int, int] = {}
        assert not ask_all(server, list(range(0, num_requests, 5)), num_clients, again)
        assert all(seen[number] == label for number, label in again.items()), "a retry got another answer"
        assert server.get("/privacy")[1]["spent"] == before["spent"], "a retry was charged"
        assert server.stop() == 0
    assert recorded(folder) == seen
    assert len(seen) == num_requests
    return num_requests / seconds


def check_kills(folder: Path, num_kills: int, num_clients: int, flaw: str = "") -> tuple[int, int]:
    """Kills the server under load, and its worker every other time; returns numbers of answers and of unseen ones."""
    seen: dict[int, int] = {}
    waiting: list[int] = []
    asked = num_unseen = 0
    for kill in range(num_kills):
        with serving(folder, {"shutdown_timeout": 1}, flaw) as server:
            numbers = waiting + list(range(asked, asked + _NEW_EACH_TIME))
            victim = server.workers()[0] if kill % 2 else server.pid
            killer = threading.Timer(random.uniform(0.05, 0.5), os.kill, (victim, signal.SIGKILL))
            killer.start()
            waiting = list(ask_all(server, numbers, num_clients, seen))
            killer.join()
            asked += _NEW_EACH_TIME
            assert server.wait(30) == (1 if kill % 2 else -signal.SIGKILL)
            if kill % 2:
                assert "The worker ended, so the server did too" in server.log.read_text()
        answered = recorded(folder)
        assert seen.items() <= answered.items(), "an answer is outside the ledger"
        num_unseen += len(answered) - len(seen)
    with serving(folder, flaw=flaw) as server:
        assert not ask_all(server, waiting, num_clients, seen)
        assert server.stop() == 0
    assert recorded(folder) == seen, "an answer is in the ledger and nobody can get it"
    return len(seen), num_unseen


def test_fifty_clients_send_200_requests(tmp_path: Path) -> None:
    check_load(tmp_path, 200)


@pytest.mark.slow
def test_two_kills_under_load(tmp_path: Path) -> None:
    check_kills(tmp_path, 2, num_clients=20)


@pytest.mark.slow
def test_fifty_clients_send_ten_thousand_requests(tmp_path: Path) -> None:
    print(f"{check_load(tmp_path, 10_000):.0f} requests a second")


@pytest.mark.slow
def test_twenty_kills_under_load(tmp_path: Path) -> None:
    num_answers, num_unseen = check_kills(tmp_path, 20, num_clients=50)
    print(f"{num_answers} answers, {num_unseen} of them recorded and not seen before the kill")


@pytest.mark.slow
def test_the_check_notices_answers_that_are_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="an answer is outside the ledger"):
        check_kills(tmp_path, 1, num_clients=4, flaw="--break")
