"""The private training beside an evaluation, as it is between two batches."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import DataLoader

from lightning_pac.callbacks.srpp_sgd.callback import SRPPSGD

__all__ = ["training_at_rest"]


@contextmanager
def training_at_rest(trainer: pl.Trainer) -> Iterator[DataLoader[Any] | None]:
    """The training's loader, with a model that can be copied and trained meanwhile, without the engine.

    None where the Trainer has not trained this model yet, or not with this package: nothing is promised on the
    records then, which may be public.
    """
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    run = next((callback._run for callback in callbacks if isinstance(callback, SRPPSGD)), None)
    if run is None or run._pl_module is not trainer.lightning_module or trainer.sanity_checking:
        yield None
        return
    with torch.inference_mode(False):  # its tensors could not be trained with
        if trainer.state.fn == TrainerFn.FITTING:
            with run.engine_detached():
                yield run.loader
        else:
            yield run.loader
