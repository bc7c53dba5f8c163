"""Whether what people look at stays quick when there is much of it: many runs, many accounts, many charges.

python benchmarks/scale.py --runs 500 --accounts 400 --charges 1000000
"""

import argparse
import contextlib
import csv
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lightning_pac.cards import Estimate, Guarantee, PrivacyCard
from lightning_pac.cli import main as lightning_pac
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import PACResponder
from lightning_pac.scenarios import BalancedSubsets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=500, help="runs of a report, of 100 logged steps each")
    parser.add_argument("--accounts", type=int, default=400, help="accounts of one ledger")
    parser.add_argument("--charges", type=int, default=1_000_000, help="charges of one account")
    parser.add_argument("--folder", type=Path, help="where the files are made; a temporary folder by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        for position in range(args.runs):
            write_run(folder / "runs" / f"version_{position}", position)
        timed(f"report over {args.runs:,} runs", lambda: run_command("report", folder / "runs"))
        open_accounts(folder, args.accounts)
        open_responders(folder, args.accounts)
        timed(f"opening {args.accounts:,} accounts of one ledger", lambda: open_accounts(folder, args.accounts))
        timed(f"opening {args.accounts:,} responders of one ledger", lambda: open_responders(folder, args.accounts))
        timed(f"`account` over {2 * args.accounts:,} accounts", lambda: run_command("account", folder / "many.db"))
        with PrivacyLedger(folder / "long.db") as ledger:
            ledger.account("releases").charge_many([2.0**-30] * args.charges, [{"kind": "release"}] * args.charges)
        timed(f"`account` over {args.charges:,} charges", lambda: run_command("account", folder / "long.db"))
        timed(f"opening an account of {args.charges:,} charges", lambda: open_long(folder))


def write_run(folder: Path, position: int) -> None:
    folder.mkdir(parents=True)
    privacy = (
        "rpp_epsilon",
        "world_success_bound",
        "noise_multiplier",
        "clipped_fraction",
        "clipped_fraction_deviation",
    )
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", "step", "val_acc", *(f"privacy/{name}" for name in privacy)])
        for step in range(100):
            epsilon = 0.01 * step + 0.001 * position
            writer.writerow([step // 10, step, 0.5 + 0.004 * step, epsilon, 0.5 + 0.002 * step, 1.5, 0.9, 0.01])
    PrivacyCard(
        title=f"Run {position}",
        secret="Which of two worlds is true.",
        guarantees=(Guarantee("rpp_epsilon", 0.99 + 0.001 * position, "nats", "Little can be told."),),
        conditions=("Batches stay secret.",),
        estimates=(Estimate("loss_attack_success", 0.53, "probability", "A coin.", "a threshold", (0.5, 0.56), 0.95),),
    ).save(folder)


def open_accounts(folder: Path, count: int) -> None:
    with PrivacyLedger(folder / "many.db") as ledger:
        for position in range(count):
            ledger.account(f"fit {position}", "rpp", declaration(position))


def open_responders(folder: Path, count: int) -> None:
    with PrivacyLedger(folder / "many.db") as ledger:
        for position in range(count):
            pool = BalancedSubsets(num_records=100, num_subsets=16, seed=position)
            key = folder / f"{position}.key"
            secret = pool.load_secret(key) if key.exists() else pool.draw_secret(key)
            with PACResponder(lambda queries: queries, secret, 2.0**-30, ledger, account=f"responses {position}"):
                pass


def open_long(folder: Path) -> None:
    with PrivacyLedger(folder / "long.db") as ledger:
        ledger.account("releases")


def declaration(position: int) -> dict[str, object]:
    return {"coupling": {"num_differing": 10, "renyi_order": 16}, "noise_multiplier": 1.5, "seed": position}


def run_command(*words: object) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert lightning_pac([str(word) for word in words]) == 0


def timed(name: str, action: Callable[[], None]) -> None:
    start, worked = time.perf_counter(), time.process_time()
    action()
    seconds, worked = time.perf_counter() - start, time.process_time() - worked
    print(f"{name:<44} {seconds:8.2f} s, of which {worked:.2f} s on the processor", flush=True)


if __name__ == "__main__":
    main()
