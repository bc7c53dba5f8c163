"""What durability costs: a private answer against a bare commit on the same disk, and opening a ledger of many answers.

python benchmarks/ledger.py --answers 1000000 --single-answers 100000
"""

import argparse
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import AdaptiveComposition, PACResponder
from lightning_pac.scenarios import BalancedSubsets

NUM_SUBSETS = 128
POOL = BalancedSubsets(num_records=1000, num_subsets=NUM_SUBSETS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--answers", type=int, default=1_000_000, help="answers recorded in batches of 1000")
    parser.add_argument("--single-answers", type=int, default=100_000, help="answers recorded one by one")
    parser.add_argument("--folder", type=Path, help="where the ledgers are made; a temporary folder by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        single_answers(Path(folder))
        charges(Path(folder))
        many_answers(Path(folder), args.answers, batch_size=1000)
        many_answers(Path(folder), args.single_answers, batch_size=1)


def single_answers(folder: Path, count: int = 500) -> None:
    queries = votes(count, np.random.default_rng(0))
    position = iter(range(10**9))
    responder = open_responder(folder, "single", lambda row: queries[row % count])
    composition = AdaptiveComposition(POOL.prior, 0)
    bare = sqlite3.connect(folder / "bare.db", isolation_level=None)
    bare.execute("PRAGMA journal_mode = WAL")
    bare.execute("PRAGMA synchronous = FULL")
    bare.execute("CREATE TABLE entries (payload BLOB)")
    descriptor = os.open(folder / "bare.file", os.O_WRONLY | os.O_CREAT)
    payload = os.urandom(300)

    def commit() -> None:
        bare.execute("INSERT INTO entries VALUES (?)", (payload,))

    def overwrite() -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, payload)
        os.fdatasync(descriptor)

    durations = in_turns(
        count,
        {
            "durable answer": lambda: responder(next(position)),
            "answer of the composition alone": lambda: composition.release(queries[next(position) % count], 2**-20),
            "bare SQLite commit": commit,
            "bare commit, then overwrite and flush": lambda: (commit(), overwrite()),
        },
    )
    for name, seconds in durations.items():
        print(f"{name:<40} {1e3 * seconds:8.3f} ms (median of {count})")
    added = durations["durable answer"] - durations["answer of the composition alone"]
    print(f"{'durability adds':<40} {1e3 * added:8.3f} ms")
    responder.close()


def charges(folder: Path, count: int = 1000) -> None:
    with PrivacyLedger(folder / "charges.db") as ledger:
        account = ledger.account("a")
        attempt = ledger.account("fit", "rpp").start_attempt()
        steps = iter(range(count))
        durations = in_turns(
            count,
            {
                "charge": lambda: account.charge(1e-6, {"kind": "release"}),
                "journalled step": lambda: attempt.start_step(1e-6, next(steps)),
            },
        )
        for name, seconds in durations.items():
            print(f"{name:<40} {1e3 * seconds:8.3f} ms (median of {count})")
        start = time.perf_counter()
        account.charge_many([1e-9] * 100_000)
        print(f"{'100,000 charges in one transaction':<40} {time.perf_counter() - start:8.3f} s")


def many_answers(folder: Path, count: int, batch_size: int) -> None:
    name = f"many{batch_size}"
    responder = open_responder(folder, name, np.asarray)
    # What is measured is the opening; a flush for each single answer would take long to prepare.
    responder.ledger.storage.read("PRAGMA synchronous = OFF")
    queries = votes(max(batch_size, 1000), np.random.default_rng(1))
    start = time.perf_counter()
    for turn in range(count // batch_size):
        first = turn * batch_size % len(queries)
        responder(queries[first : first + batch_size])
    written = time.perf_counter() - start
    responder.close()
    start = time.perf_counter()
    responder = open_responder(folder, name, np.asarray)
    opened = time.perf_counter() - start
    size = (folder / f"{name}.db").stat().st_size / 2**20
    print(
        f"{responder.num_responses:,} answers, {batch_size} an entry: written in {written:.1f} s, opened in "
        f"{opened:.3f} s, {size:.0f} MiB"
    )
    responder.close()


def open_responder(folder: Path, name: str, model: Callable[..., object]) -> PACResponder:
    key = folder / f"{name}.key"
    secret = POOL.load_secret(key) if key.exists() else POOL.draw_secret(key)
    return PACResponder(model, secret, 2**-30, folder / f"{name}.db")


def votes(count: int, generator: np.random.Generator) -> np.ndarray:
    """Votes on ten classes, of which about a third of the queries are not unanimous."""
    answers = np.repeat(generator.integers(0, 10, (count, 1)), NUM_SUBSETS, axis=1)
    stray = generator.random((count, NUM_SUBSETS)) < 0.2
    stray[generator.random(count) < 0.65] = False
    answers[stray] = generator.integers(0, 10, int(stray.sum()))
    return answers


def in_turns(count: int, actions: dict[str, Callable[[], object]]) -> dict[str, float]:
    durations: dict[str, list[float]] = {name: [] for name in actions}
    # In turns, so that what else the machine does falls on all of them, and by fifties, since a flush takes longer
    # after another file was flushed.
    for _ in range(count // 50):
        for name, action in actions.items():
            for _ in range(50):
                start = time.perf_counter()
                action()
                durations[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in durations.items()}


if __name__ == "__main__":
    main()
