"""`lightning-pac account`: what a ledger says was spent, and what may be spent."""

from lightning_pac.cli.account.command import add_parser, run

__all__ = ["add_parser", "run"]
