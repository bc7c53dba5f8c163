"""Choosing settings on private data at one price: the best of a secret number of runs."""

from lightning_pac.tuning.optuna_space import OptunaSpace
from lightning_pac.tuning.private_selection import PrivateSelection, SelectionResult
from lightning_pac.tuning.public_proxy import PublicProxy
from lightning_pac.tuning.selection_run import SelectionRun
from lightning_pac.tuning.space import Choice, Integers, LogUniform, SearchSpace, Setting, Uniform

__all__ = [
    "Choice",
    "Integers",
    "LogUniform",
    "OptunaSpace",
    "PrivateSelection",
    "PublicProxy",
    "SearchSpace",
    "SelectionResult",
    "SelectionRun",
    "Setting",
    "Uniform",
]
