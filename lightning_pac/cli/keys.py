"""`lightning-pac keys`: who may ask a server, and how much of its budget each may spend."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.common import add_command, print_json, print_table

if TYPE_CHECKING:
    from lightning_pac.serve import APIKeys

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = add_command(
        subparsers,
        "keys",
        run,
        "add, remove and list the API keys of a server",
        """
        lightning-pac keys add keys.json alice --budget 1e-6
        lightning-pac keys list keys.json --ledger responses.db
        lightning-pac keys budget keys.json alice --budget 2e-6
        lightning-pac keys remove keys.json alice
        """,
        """
        A key is printed once, when it is added; the file holds its hash. A server that is running sees every change at
        the next request. What a key has spent is in the server's ledger and stays there: a key that is added again, as
        after it was lost, goes on from it.
        """,
    )
    parser.add_argument("action", choices=["add", "remove", "list", "budget"])
    parser.add_argument("file", type=Path, help="the file of keys")
    parser.add_argument("name", nargs="?", help="whose key: letters, digits, '_', '.' and '-'")
    parser.add_argument(
        "--budget", type=float, help="add, budget: most nats that its answers may cost, as 1e-6 (that of all answers)"
    )
    parser.add_argument("--ledger", type=Path, help="list: the server's ledger, to show what each key has spent")


def run(args: argparse.Namespace) -> int:
    """Change or show the file."""
    from lightning_pac.serve import APIKeys

    _check_words(args)
    if args.action in ("remove", "list", "budget") and not args.file.exists():
        raise FileNotFoundError(
            f"There is no file {args.file}: `lightning-pac keys add {shlex.quote(str(args.file))} NAME` makes one."
        )
    keys = APIKeys(args.file)
    if args.action == "list":
        return _show(keys, args.ledger, args.json)
    result = {"name": args.name, "file": str(args.file)}
    if args.action == "remove":
        keys.remove(args.name)
        text = f"Removed {args.name}: a server refuses the key from now on."
    elif args.action == "budget":
        before = keys.set_budget(args.name, args.budget).budget
        result |= {"before": before, "budget": args.budget}
        words = "that of all answers" if before is None else f"{before:g} nats"
        text = f"The budget of {args.name} was {words} and is {args.budget:g} nats, with what is spent already."
    else:
        result["key"] = text = keys.add(args.name, args.budget)
    if args.json:
        print_json(result)
    else:
        print(text)
    return 0


def _check_words(args: argparse.Namespace) -> None:
    if (args.name is None) != (args.action == "list"):
        args.parser.error(f"`keys {args.action}` takes {'no name' if args.action == 'list' else 'the name of a key'}.")
    if args.budget is None and args.action == "budget":
        args.parser.error("`keys budget` needs --budget.")
    if args.budget is not None and args.action not in ("add", "budget"):
        args.parser.error(f"`keys {args.action}` takes no --budget; `keys budget` changes one.")
    if args.ledger is not None and args.action != "list":
        args.parser.error(f"`keys {args.action}` takes no --ledger.")


def _show(keys: "APIKeys", ledger: Path | None, as_json: bool) -> int:
    rows: list[dict[str, Any]] = [{"name": key.name, "budget": key.budget} for key in keys]
    if ledger is not None:
        spent = _spent(ledger)
        for row in rows:
            row["answers"], row["spent"] = spent.get(row["name"], (0, 0.0))
            row["left"] = None if row["budget"] is None else max(0.0, row["budget"] - row["spent"])
    if as_json:
        print_json(rows)
    else:
        columns = list(rows[0]) if rows else ["name", "budget"]
        print_table(str(keys.path), columns, [list(row.values()) for row in rows], "Budgets are in nats.")
    return 0


def _spent(path: Path) -> dict[str, tuple[int, float]]:
    """Answers and nats of each key that a ledger knows."""
    from lightning_pac.ledger import PrivacyLedger

    with PrivacyLedger.read_only(path) as ledger:
        return {
            account.api_key: (account.num_charges, account.spent)
            for account in ledger.accounts()
            if account.api_key is not None
        }
