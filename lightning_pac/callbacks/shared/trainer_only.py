"""Callbacks that a loop without a Trainer must not pass by."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_pac.strategies import Ranks

__all__ = ["TrainerCallback"]


class TrainerCallback(pl.Callback):
    """A callback whose hooks a Trainer calls; Fabric, which takes any callback and calls none by itself, is refused.

    Attributes:
        noised_names: Of metrics that it noises before they are shown.
    """

    noised_names: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        # Lightning gives a callback the methods by which its model logs, and a copy would take the model along.
        return {name: value for name, value in self.__dict__.items() if name not in ("log", "log_dict")}

    def planned_cost(self, ledger: Path, ranks: Ranks) -> float:
        """What it is to charge to a ledger beside a run that begins, in nats; a run's own steps are left out."""
        return 0.0

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Called by `Fabric.setup`.

        Raises:
            MisconfigurationException: Always.
        """
        raise MisconfigurationException(
            f"{type(self).__name__} works through the hooks of a Trainer, which a loop over Fabric does not call, so "
            "that nothing in it would be private: use a Trainer."
        )
