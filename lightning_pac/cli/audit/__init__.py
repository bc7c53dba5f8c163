"""`lightning-pac audit`: does what was released agree with what was promised?"""

from lightning_pac.cli.audit.command import add_parser, run

__all__ = ["add_parser", "run"]
