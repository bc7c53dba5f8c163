"""`lightning-pac evidence`: what a ledger proves, in a folder that others can verify."""

import argparse
import json
from pathlib import Path
from typing import Any

from lightning_pac.cli.common import add_command, add_import_option, import_modules, print_json

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare `evidence`."""
    parser = add_command(
        subparsers,
        "evidence",
        run,
        "write what a ledger proves, for those who answer for the data",
        description="""
        Writes a folder with a page, the same as JSON with its schema, the ledger's public journal, and a manifest of
        their hashes: what was promised to whom, for which data and unit of privacy, by which theorem, on which
        conditions and how each was checked, every release in order, audits, and what is not covered. It only reads the
        ledger, and nothing secret is in the folder, which `lightning-pac verify` checks.
        """,
        examples="""
        lightning-pac evidence study.db --output evidence
        lightning-pac evidence study.db --output evidence --statements about.json --released model.ckpt --key me.pem
        """,
    )
    parser.add_argument("ledger", type=Path, metavar="LEDGER", help="the ledger file")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="a new folder")
    parser.add_argument("--delta", type=float, help="failure probability of epsilon (that promised, or 1e-5)")
    parser.add_argument("--prior", type=float, default=0.5, help="prior of one of the worlds (0.5)")
    parser.add_argument(
        "--statements",
        type=Path,
        metavar="FILE",
        help="JSON with what only you can state: controller, purpose, data ...",
    )
    parser.add_argument(
        "--released", type=Path, action="append", default=[], metavar="FILE", help="a released file, whose hash is kept"
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="a private Ed25519 key (PEM) to sign with")
    add_import_option(parser)


def run(args: argparse.Namespace) -> int:
    """Write the folder, and say where."""
    from lightning_pac.evidence import write_evidence

    import_modules(args)
    statements = None if args.statements is None else _read_statements(args.statements)
    page = write_evidence(args.ledger, args.output, args.delta, args.prior, statements, args.released, args.key)
    if args.json:
        print_json({"evidence": str(page.parent), "page": str(page), "signed": args.key is not None})
    else:
        print(f"{page} shows what {args.ledger} proves: read it, and hand over the folder.")
    return 0


def _read_statements(path: Path) -> dict[str, str]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise ValueError("no mapping of texts")
    except (ValueError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise ValueError(f'{path} holds no statements ({reason}): write JSON such as {{"purpose": ...}}.') from None
    return values
