"""Probes of a model as it is now."""

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.replica import Replica
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import shown_records
from lightning_pac.strategies.whole_copies import WholeCopies

__all__ = ["probe_of", "synthetic_probe"]


def synthetic_probe(
    pl_module: pl.LightningModule,
    dataloader: DataLoader[Any],
    datamodule: pl.LightningDataModule | None,
    callbacks: Sequence[pl.Callback],
    whole: WholeCopies | None,
) -> tuple[Probe, list[Any]]:
    """What runs a copy of a model and callbacks, and records of which synthetic ones may take the structure."""
    memo: dict[int, Any] = {}
    probe = probe_of(pl_module, dataloader, datamodule, callbacks, whole=whole, memo=memo)
    probe.copy_around(memo)
    return probe, shown_records(dataloader.dataset)[0]


def probe_of(
    pl_module: pl.LightningModule,
    dataloader: DataLoader[Any],
    datamodule: pl.LightningDataModule | None,
    callbacks: Sequence[pl.Callback] = (),
    dtype: torch.dtype = torch.float32,
    whole: WholeCopies | None = None,
    memo: dict[int, Any] | None = None,
) -> Probe:
    """What runs a copy of a model and callbacks; `memo` is given the copies of all objects."""
    replica = Replica.of(pl_module, callbacks, dtype, whole, memo)
    return Probe(replica, dataloader.collate_fn, [] if datamodule is None else [datamodule], dtype)
