"""`lightning-pac verify`: whether evidence is as it was written, and its figures follow from its journal."""

import argparse
from pathlib import Path
from typing import Any

from lightning_pac.cli.common import add_command, add_import_option, import_modules, print_json

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare `verify`."""
    parser = add_command(
        subparsers,
        "verify",
        run,
        "check a folder of evidence, and compute its figures again",
        description="""
        Checks the hash of every file, the chain of the journal and the signature, and computes every figure again from
        the events of the journal. Each thing that is not as it should be is one sentence, and the exit code is then 1.
        Without a key, a folder that was written anew as a whole cannot be told from the first: give the public key of
        the one who should have signed it.
        """,
        examples="""
        lightning-pac verify evidence
        lightning-pac verify evidence --key officer.pub
        """,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what `lightning-pac evidence` wrote")
    parser.add_argument("--key", type=Path, metavar="FILE", help="the Ed25519 key (PEM) that it must be signed by")
    add_import_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the findings; exit code 1 where there are any."""
    from lightning_pac.evidence import verify_evidence

    import_modules(args)
    found = verify_evidence(args.folder, args.key)
    if args.json:
        print_json({"findings": list(found.findings), "signed_by": found.signed_by, "notes": list(found.notes)})
        return int(bool(found.findings))
    for sentence in (*found.findings, *found.notes):
        print(sentence)
    if not found.findings:
        signed = f"signed by key {found.signed_by}" if found.signed_by else "not signed"
        figures = "every figure in evidence.json" if found.notes else "every figure"
        print(f"{args.folder} is as it was written, and {figures} follows from its journal; it is {signed}.")
    return int(bool(found.findings))
