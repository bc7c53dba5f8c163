"""A server over sixteen models that vote with the digits of the question, so that the ledger shows what was asked."""

import ctypes
import functools
import multiprocessing
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from lightning_pac.mechanisms import PACResponder
from lightning_pac.scenarios import BalancedSubsets
from lightning_pac.serve import APIKeys, serve

POOL = BalancedSubsets(num_records=20, num_subsets=16)
BUDGET = 2**-20
SLOW, BUG, STUCK = 3**14, 3**15, 2 * 3**15


def vote(numbers: np.ndarray) -> np.ndarray:
    """Ternary digits of each question's number: all questions differ, and number 0 is unanimous."""
    return (numbers[:, None] // 3 ** np.arange(16)) % 3


def read_numbers(inputs: list) -> np.ndarray:
    numbers = np.array(inputs)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError("Questions are whole numbers.")
    if (numbers == BUG).any():
        raise KeyError("a bug in the model")
    time.sleep(2.0 * bool((numbers == SLOW).any()))
    if (numbers == STUCK).any():
        ctypes.PyDLL(None).sleep(5)  # native code that lets no other thread of the process run
    return numbers


def open_responder(folder: Path, budget: float | None = None) -> PACResponder:
    path = folder / "secret.key"
    secret = POOL.load_secret(path) if path.exists() else POOL.draw_secret(path)
    return PACResponder(vote, secret, BUDGET, folder / "responses.db", budget)


def open_forgetful_responder(folder: Path, budget: float | None = None) -> PACResponder:
    """Answers leave before they are recorded: the mistake that the tests must notice."""
    from lightning_pac.ledger import ResponseTranscript

    ResponseTranscript.append = lambda *arguments: None
    return open_responder(folder, budget)


def open_responder_on_a_disk_that_fills(folder: Path, budget: float | None = None) -> PACResponder:
    """While there is a file `full`, SQLite refuses to write."""
    from lightning_pac.ledger.storage import LedgerStorage

    transaction = LedgerStorage.transaction

    def on_this_disk(storage: LedgerStorage) -> object:
        storage._connection.execute(f"PRAGMA query_only = {(folder / 'full').exists():d}")
        return transaction(storage)

    LedgerStorage.transaction = on_this_disk
    return open_responder(folder, budget)


OPEN = {"": open_responder, "--break": open_forgetful_responder, "--fill": open_responder_on_a_disk_that_fills}


def run(folder: Path, port: int, options: dict[str, Any], flaw: str, descriptors: int | None, log: Path) -> None:
    """Serve in a process of its own, whose output goes to a file."""
    with log.open("a") as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    multiprocessing.set_start_method("fork", force=True)  # as in a program that nobody forked
    # A suite that a shell runs in the background ignores Ctrl-C, and its children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    serve(
        functools.partial(OPEN[flaw], folder, options.pop("budget", None)),
        folder / "responses.db",
        APIKeys(folder / "keys.json") if (folder / "keys.json").exists() else None,
        port=port,
        collate=read_numbers,
        **{"rate_limit": "1000000/second", **options},
    )
