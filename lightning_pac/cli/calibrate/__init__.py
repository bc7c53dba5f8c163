"""`lightning-pac calibrate`: what every way of drawing batches, and every notion, costs in noise."""

from lightning_pac.cli.calibrate.command import add_parser, compare, run

__all__ = ["add_parser", "compare", "run"]
