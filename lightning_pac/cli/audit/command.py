"""The options of `lightning-pac audit`, and the way to each audit."""

import argparse
from pathlib import Path
from typing import Any

from lightning_pac.cli.audit.responses import attack_responses
from lightning_pac.cli.audit.training import show_training
from lightning_pac.cli.common import add_command, add_pool_options

__all__ = ["add_parser", "run"]

_AUDITS = {
    "training": show_training,
    "metrics": show_training,
    "responses": attack_responses,
    "membership": attack_responses,
}
# What only some audits know, beside --account.
_OF_RESPONSES = ("records", "secret", "plot")


def add_parser(subparsers: Any) -> None:
    """Declare the command and its options."""
    parser = add_command(
        subparsers,
        "audit",
        run,
        "attack what was released as well as anyone can, and compare with the bound",
        """
        lightning-pac audit training logs/privacy_ledger.db
        lightning-pac audit metrics logs/privacy_ledger.db
        lightning-pac audit responses responses.db --records 1437
        lightning-pac audit responses responses.db --records 1437 --trials 1000 --plot audit.png
        lightning-pac audit responses responses.db --records 1437 --secret secret.key
        lightning-pac audit responses study.db --account privatize --records 400 --pool halves --secret secret.key
        """,
        """
        `training` tells what CanaryAudit found in the run that the ledger is of: the white-box tests, the canary games
        with their limits on epsilon, and the alarms. `metrics` tells those of the metrics that were released meanwhile.

        `responses` (or `membership`) is the Bayes-optimal membership attack, by someone who knows all models and all
        answers. Games with a secret drawn anew are played over the queries that the ledger records, and the attack's
        success is set beside the bound. With --secret, the answers that were really given are attacked as well; that
        figure is computed from the secret and all but names it, so it is for the keeper of the data alone. Values
        released by privatize are attacked with --secret only, since the ledger does not keep what other subsets would
        have given. Nothing is spent: the ledger is only read.
        """,
    )
    parser.add_argument("audit", choices=list(_AUDITS), help="of what")
    parser.add_argument("ledger", type=Path, help="the ledger of a training, of a responder, or of privatize")
    parser.add_argument("--account", help="the account to audit, where the ledger has several")
    add_pool_options(parser, required=False)
    parser.add_argument("--trials", type=int, default=200, help="games to play (200)")
    parser.add_argument("--secret", type=Path, help="the secret file, to attack the answers that were given")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw success and bound into an image file")


def run(args: argparse.Namespace) -> int:
    """Make the audit that is asked for; exit code 1 where it refutes a bound."""
    audit = _AUDITS[args.audit]
    given = [f"--{name}" for name in _OF_RESPONSES if getattr(args, name) is not None]
    if audit is not attack_responses and given:
        args.parser.error(f"{', '.join(given)} belong to `audit responses`: leave them out.")
    return audit(args)
