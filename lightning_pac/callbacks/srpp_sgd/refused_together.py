"""What is refused before a step is run, told together where one start of a fit can tell it all."""

from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_pac.callbacks.shared import (
    acts_at_once,
    model_problems,
    optimizer_problems,
    refuse_together,
    trainer_problems,
)

__all__ = ["refuse_at_setup", "refuse_fit", "refuse_late", "refuse_options", "refuse_other_trainer"]


def refuse_at_setup(trainer: pl.Trainer, pl_module: pl.LightningModule, callback: pl.Callback) -> None:
    """Refuse a strategy or a callback that acts as it is set up; other conflicts wait to be told with the model's.

    Raises:
        MisconfigurationException: Names all conflicts of the Trainer and the ways out.
    """
    if acts_at_once(trainer):
        refuse_together(trainer_problems(trainer, pl_module, callback))


def refuse_options(trainer: pl.Trainer, pl_module: pl.LightningModule, callback: pl.Callback) -> None:
    """Refuse a Trainer before data are loaded, once its model is there, of which the problems are told along.

    A model alone is refused later: its own hooks may put it right until training starts.

    Raises:
        MisconfigurationException: Names everything that is found and the ways out.
    """
    if any(trainer_problems(trainer, pl_module, callback)):
        refuse_fit(trainer, pl_module, callback)


def refuse_fit(
    trainer: pl.Trainer, pl_module: pl.LightningModule, callback: pl.Callback, dataloader: Any = None
) -> None:
    """Refuse a Trainer, a model or an optimizer under which the noised gradient would not be what trains the model.

    Raises:
        MisconfigurationException: Names everything that is found and the ways out.
    """
    datamodule = trainer.datamodule  # type: ignore[attr-defined]
    refuse_together(
        [
            *trainer_problems(trainer, pl_module, callback),
            *model_problems(pl_module, dataloader, datamodule),
            *optimizer_problems(trainer, pl_module),
        ]
    )


def refuse_late(was_set_up: bool) -> None:
    """Refuse a callback whose `setup` was passed over.

    Raises:
        MisconfigurationException: If it was.
    """
    if not was_set_up:
        raise MisconfigurationException(
            "SRPPSGD: its checks were left out, because it was added, or the list of callbacks was changed, while "
            "the fit was set up: give it to the Trainer, before callbacks that change that list."
        )


def refuse_other_trainer(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    """Refuse to train a model that another Trainer, as it evaluated it, has attached to itself.

    Raises:
        MisconfigurationException: If it has.
    """
    if pl_module.trainer is not trainer:
        raise MisconfigurationException(
            f"Another Trainer evaluated {type(pl_module).__name__} during the fit and holds it now, so no gradient "
            "would reach SRPPSGD: set model.trainer = trainer after its validate(), test() or predict()."
        )
