"""`lightning-pac report`, `evidence` and `verify`: what is shown of runs, and what is handed over of a ledger."""

from typing import Any

from lightning_pac.cli.report import command, evidence, verify
from lightning_pac.cli.report.command import run

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the three commands."""
    for module in (command, evidence, verify):
        module.add_parser(subparsers)
