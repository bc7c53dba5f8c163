"""Telling of earlier private runs whose cost a new account leaves out."""

import weakref
from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from lightning_pac.callbacks.srpp_sgd.journal import RunJournal

__all__ = ["warn_of_earlier_run", "words_on_other_ledgers"]

_NAMED = 3  # ledgers

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


def words_on_other_ledgers(ledger: Path, is_named: bool) -> str:
    """That costs add over runs of the same data, where others near this one have ledgers of their own; empty if none.

    Args:
        ledger: Of the run.
        is_named: Whether the run was given it, and has not begun one beside its logs.
    """
    if is_named:
        marked = {path.name.removesuffix("-mark") for path in ledger.parent.glob("*-mark")}  # as ledgers are
        others = sorted(marked - {ledger.name})
        named = ", ".join(others[:_NAMED]) + ", ..." * (len(others) > _NAMED)
        return f" Beside it: {named}. Costs of ledgers add up where a record is in the data of both." if others else ""
    folders = ledger.parent.parent.glob("version_*") if ledger.parent.name.startswith("version_") else [ledger.parent]
    number = sum(len(list(folder.glob("privacy_ledger*.db"))) for folder in folders) - 1
    if number < 1:
        return ""
    runs = (
        "1 other run here has a ledger of its" if number == 1 else f"{number:,} other runs here have ledgers of their"
    )
    return f" {runs} own: on the same data all of them cost together, which one ledger= for all would add up."
