"""Runs of one model on one kind of dataset share the outcomes of checks, most of the time of a tiny fit."""

from collections.abc import Callable, Sequence
from typing import Any

import lightning.pytorch as pl

_passed: dict[Any, Any] = {}
_clean: dict[Any, Any] = {}


def share_passed_checks(setattr: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let a model that passed the check pass it again, for tests of what a fit does after that."""
    from lightning_pac.callbacks.srpp_sgd import callback, first_check
    from lightning_pac.callbacks.srpp_sgd.loss_check import check_loss

    def check(
        pl_module: pl.LightningModule,
        dataloader: Any,
        datamodule: Any = None,
        repeated: int = 0,
        callbacks: Sequence[pl.Callback] = (),
        batch_idx: int = 0,
        ended: bool = False,
        beginning: Any = None,
    ) -> Any:
        key = (
            type(pl_module),
            repr(pl_module),
            type(dataloader.dataset),
            repeated > 0,
            ended,
            tuple(map(type, callbacks)),
        )
        if key in _passed:
            return _passed[key]
        found = check_loss(pl_module, dataloader, datamodule, repeated, callbacks, batch_idx, ended, beginning)
        if found.problem is None:
            _passed[key] = found
        return found

    for module in (first_check, callback):
        setattr(module, "check_loss", check)


def share_clean_rows(setattr: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let evaluations of a model whose metrics were found in order be found so again."""
    from lightning_pac.callbacks.metrics import asked_rows
    from lightning_pac.callbacks.srpp_sgd import rows_of_metrics

    def ask(pl_module: pl.LightningModule, loaders: Sequence[Any], *terms: Any) -> Any:
        _, stage, callbacks, adjacency, training, shown = terms
        key = (
            type(pl_module),
            repr(pl_module),
            *(type(loader.dataset) for loader in loaders),
            stage,
            adjacency,
            *map(type, callbacks),
            training is not None,
            shown.names,
        )
        if key in _clean:
            return _clean[key]
        found = rows_of_metrics(pl_module, loaders, *terms)
        if not (found.mixed or found.trained or found.sometimes or found.unchecked or found.untrained or found.late):
            _clean[key] = found
        return found

    setattr(asked_rows, "rows_of_metrics", ask)
