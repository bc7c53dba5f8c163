"""`lightning-pac keys`: who may ask a server, and how much of its budget each may spend."""

import argparse
from pathlib import Path
from typing import Any

from lightning_pac.cli.common import add_command, print_json, print_table

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
        lightning-pac keys list keys.json
        lightning-pac keys remove keys.json alice
        """,
        """
        A key is printed once, when it is added; the file holds its hash. A server reads the file when it starts. What
        a key has spent is in the server's ledger and stays there: a key that is added again goes on from it.
        """,
    )
    parser.add_argument("action", choices=["add", "remove", "list"])
    parser.add_argument("file", type=Path, help="the file of keys")
    parser.add_argument("name", nargs="?", help="whose key: letters, digits, '_', '.' and '-'")
    parser.add_argument("--budget", type=float, help="add: most nats that its answers may cost (that of all answers)")


def run(args: argparse.Namespace) -> int:
    """Change or show the file."""
    from lightning_pac.serve import APIKeys

    if (args.name is None) != (args.action == "list"):
        args.parser.error(f"`keys {args.action}` takes {'no name' if args.action == 'list' else 'the name of a key'}.")
    keys = APIKeys(args.file)
    if args.action == "list":
        return _show(keys, args.json)
    result = {"name": args.name, "file": str(args.file)}
    if args.action == "remove":
        keys.remove(args.name)
        text = f"Removed {args.name}. A server that is running knows the key until it starts again."
    else:
        result["key"] = text = keys.add(args.name, args.budget)
    if args.json:
        print_json(result)
    else:
        print(text)
    return 0


def _show(keys: Any, as_json: bool) -> int:
    rows = [{"name": key.name, "budget": key.budget} for key in keys]
    if as_json:
        print_json(rows)
    else:
        print_table(str(keys.path), ["name", "budget"], [list(row.values()) for row in rows])
    return 0
