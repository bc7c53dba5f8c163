"""`lightning-pac serve`: private answers over HTTP."""

import argparse
import functools
import importlib
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_pac.cli.common import add_command, add_pool_options, count, describe_last_charge, make_pool, print_json

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = add_command(
        subparsers,
        "serve",
        run,
        "answer requests over HTTP from a trained ensemble, privately",
        """
        lightning-pac serve responses.db --ensemble runs/ensemble.ckpt --network my_project.make_network --records 898
        lightning-pac serve responses.db --ensemble a.ckpt b.ckpt --network my_project.make_network --records 898 \\
            --budget 1e-4 --keys keys.json --rate-limit 20/second --witness /mnt/elsewhere/responses.mark
        curl -d '{"input": [0.0, 1.0]}' -H 'Content-Type: application/json' http://127.0.0.1:8000/predict
        """,
        """
        One worker owns the ledger and answers POST /predict in batches; GET /privacy shows what was spent, GET /health
        whether it answers, GET /docs the whole interface. It listens on this machine only, unless --host says
        otherwise, which needs API keys (`lightning-pac keys`). The budget stays on record in the ledger, and
        `lightning-pac account budget` changes it. Stop it by Ctrl-C or SIGTERM: what is under way is
        answered first.
        """,
    )
    parser.add_argument("ledger", type=Path, help="the responder's ledger, made if there is none")
    parser.add_argument(
        "--ensemble", nargs="+", required=True, metavar="CKPT", help="the ensemble's checkpoint, or those of its shards"
    )
    parser.add_argument(
        "--network",
        required=True,
        metavar="MODULE.NAME",
        help="function or class that makes one network, as in training",
    )
    add_pool_options(parser)
    parser.add_argument("--seed", type=int, default=0, help="public seed of training (0)")
    parser.add_argument(
        "--secret", type=Path, help="secret file, drawn if there is none (secret.key beside the ledger)"
    )
    parser.add_argument("--budget-per-response", type=float, default=2.0**-32, help="nats of an answer (2^-32)")
    parser.add_argument("--budget", type=float, help="most nats of all answers together (that on record, or no limit)")
    parser.add_argument("--witness", metavar="PATH", help="keep the ledger's high-water marks there (where they are)")
    parser.add_argument("--device", default="cpu", help="where the members run (cpu)")
    parser.add_argument(
        "--input-shape", nargs="+", type=count, metavar="N", help="shape of one input, as 1 28 28: refuse others (any)"
    )
    parser.add_argument("--keys", type=Path, metavar="FILE", help="API keys that may ask (everybody on this machine)")
    parser.add_argument("--host", default="127.0.0.1", help="127.0.0.1, 0.0.0.0 or :: (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="1024 to 65535 (8000)")
    parser.add_argument("--max-batch-size", type=count, default=64, help="most answers of one transaction (64)")
    parser.add_argument("--max-request-bytes", type=count, default=2**20, help="largest request (1048576)")
    parser.add_argument("--rate-limit", default="100/second", help="requests a key or an address may send (100/second)")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds until a request is told to come back (30)")
    parser.add_argument("--log-level", default="warning", choices=["debug", "info", "warning", "error"])


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    network = _import(args.network)
    from lightning_pac.ledger import LedgerHandle, PrivacyLedger
    from lightning_pac.modules import SavedResponder
    from lightning_pac.serve import as_tensor, serve

    last = None
    if args.ledger.exists():
        with PrivacyLedger.read_only(args.ledger) as ledger:
            last = ledger.last_charge
    secret = args.ledger.with_name("secret.key") if args.secret is None else args.secret
    saved = SavedResponder(
        checkpoints=args.ensemble,
        network=network,
        pool=make_pool(args),
        secret=str(secret),
        ledger=LedgerHandle(str(args.ledger), args.witness),
        budget_per_response=args.budget_per_response,
        budget=args.budget,
        seed=args.seed,
        device=args.device,
    )
    announced = False

    def announce() -> None:
        nonlocal announced
        announced = True
        _announce(args, last)

    serve(
        saved.open,
        args.ledger,
        args.keys,
        host=args.host,
        port=args.port,
        log_level=args.log_level,
        announce=announce,
        collate=functools.partial(as_tensor, shape=args.input_shape),
        max_batch_size=args.max_batch_size,
        max_request_bytes=args.max_request_bytes,
        rate_limit=args.rate_limit,
        timeout=args.timeout,
    )
    if announced and not args.json:
        _announce_end(args.ledger)
    return 0


def _import(name: str) -> Callable[[], Any]:
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ValueError(f"--network is MODULE.NAME, got {name!r}: name the module too, as in my_project.make_network.")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python script.py` does, so that a module of the project is found
    found = getattr(importlib.import_module(module), attribute, None)
    if not callable(found):
        raise ValueError(f"{module} has no function or class {attribute!r}: check --network.")
    made: Callable[[], Any] = found
    return made


def _announce_end(path: Path) -> None:
    from lightning_pac.cards import downwards, upwards
    from lightning_pac.ledger import PrivacyLedger

    with PrivacyLedger.read_only(path) as ledger:
        for account in ledger.accounts():
            if account.kind == "responses":
                left = "" if account.remaining == math.inf else f", {downwards(account.remaining)} are left"
                count = account.num_charges
                spent = f"{upwards(account.spent)} nats{left}"
                print(
                    f"Stopped. The ledger has {count:,} answer{'s' * (count != 1)} for {spent}; the same command "
                    f"continues with {path}."
                )


def _announce(args: argparse.Namespace, last: tuple[str, str] | None) -> None:
    url = f"http://{args.host}:{args.port}"
    if args.json:
        keys = None if args.keys is None else str(args.keys)
        print_json({"url": url, "ledger": str(args.ledger), "last_charge": last, "keys": keys})
    else:
        print(f"Serving {args.ledger} at {url} (interface: {url}/docs). Stop by Ctrl-C.")
        print(describe_last_charge(last))
    sys.stdout.flush()
