"""Telling of an earlier private run whose cost a new account leaves out."""

import weakref

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from lightning_pac.callbacks.srpp_sgd.journal import RunJournal

__all__ = ["warn_of_earlier_run"]

_trained: weakref.WeakKeyDictionary[nn.Module, RunJournal] = weakref.WeakKeyDictionary()


def warn_of_earlier_run(pl_module: pl.LightningModule, journal: RunJournal) -> None:
    """Warn where a model goes on from weights that were charged to another ledger.

    Args:
        pl_module: The model that is about to be trained.
        journal: That of the run that begins.
    """
    earlier, _trained[pl_module] = _trained.get(pl_module), journal
    if earlier is not None and earlier.num_steps and earlier.account.path != journal.account.path:
        rank_zero_warn(
            f"This model goes on from weights that run {earlier.account.name!r} of {earlier.account.path} trained, and "
            "the figures of this run leave out what that has cost: build the model anew, or give both runs one "
            "ledger=, whose total has both."
        )
