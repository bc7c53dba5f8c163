"""Warnings of what was plainly counted from the private records before training, which no promise covers."""

from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_pac.cards.card import UNCOVERED
from lightning_pac.data.own_statistics import is_part_by_place, is_scaled_by_itself, statistics_among
from lightning_pac.data.tables import attributes, datasets_below

__all__ = ["tell_of_own_statistics"]

_DEPTH = 3  # of objects below one another
_FEW = 16  # entries of a list that may be objects


def tell_of_own_statistics(
    trainer: pl.Trainer, pl_module: pl.LightningModule, loader: DataLoader[Any], adjacency: str
) -> list[str]:
    """Warn where records were scaled by themselves, their classes counted, or some held out by place or at random.

    Returns:
        What the card says of that.
    """
    evaluated: Any = trainer.val_dataloaders
    loaders = evaluated if type(evaluated) in (list, tuple) else [evaluated]
    others = [each.dataset for each in loaders if isinstance(each, DataLoader)]
    found: list[str] = []
    with suppress(Exception):  # what refuses to be looked at is no reason to refuse a run
        found += _sentences(pl_module, loader.dataset, others, adjacency)
    for sentence in found:
        rank_zero_warn(sentence)
    return [f"{UNCOVERED}{sentence}" for sentence in found]


def _sentences(pl_module: pl.LightningModule, dataset: Any, others: list[Any], adjacency: str) -> Iterator[str]:
    cure = "No promise covers that: declare ranges or public numbers, or pay for noised ones with TableTransform."
    if is_scaled_by_itself(dataset, others):
        yield (
            "Columns or channels of the training data have mean 0 and deviation 1, or reach from 0 to 1, to the last "
            f"digit, as after a scaler that was fitted to these very records. {cure}"
        )
    numbers = [*_numbers(pl_module), *(found for part in datasets_below(dataset) for found in _held(part))]
    if names := statistics_among(numbers, dataset, others):
        yield (
            f"{' and '.join(names)} hold{'s' * (len(names) == 1)} means, deviations or counts of classes of these very "
            f"records, to the last digit. {cure}"
        )
    if adjacency == "add_remove" and is_part_by_place(dataset):
        yield (
            "The training data are a round share of other records, in one piece or at random, as random_split makes "
            "them: with one record more or less other records change sides, too, and the promise is about one. Let "
            "each decide by a hash of itself, or declare adjacency='replace', whose number of records is public."
        )


def _numbers(pl_module: pl.LightningModule) -> Iterator[tuple[str, Any]]:
    for prefix, part in pl_module.named_modules():
        yield from _held(part, f"{prefix}." if prefix else "", 1)
        named = [*part._buffers.items(), *part._parameters.items()]  # such as a bias that begins at the classes' shares
        yield from ((f"{prefix}.{name}".lstrip("."), value) for name, value in named)


def _held(holder: Any, prefix: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """What a dataset or a layer holds by its names, also in dictionaries, lists and objects, as transforms are."""
    if isinstance(holder, dict):
        named = list(holder.items())
    elif isinstance(holder, list | tuple):
        named = list(enumerate(holder)) if len(holder) <= _FEW else []
    else:
        named = list(attributes(holder).items())
    for name, value in named:
        if str(name).startswith("_"):
            continue
        yield f"{prefix}{name}", value
        if depth and not isinstance(value, Tensor | np.ndarray | Dataset | pl.LightningModule | type | ModuleType):
            yield from _held(value, f"{prefix}{name}.", depth - 1)
