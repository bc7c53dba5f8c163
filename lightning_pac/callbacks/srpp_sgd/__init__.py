"""Private training: the callback, what it checks, and the account of its run."""

from lightning_pac.callbacks.srpp_sgd.callback import SRPPSGD

__all__ = [
    "SRPPSGD",
]
