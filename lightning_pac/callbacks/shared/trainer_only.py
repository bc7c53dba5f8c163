"""Callbacks that a loop without a Trainer must not pass by."""

from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException

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

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Called by `Fabric.setup`.

        Raises:
            MisconfigurationException: Always.
        """
        raise MisconfigurationException(
            f"{type(self).__name__} works through the hooks of a Trainer, which a loop over Fabric does not call, so "
            "that nothing in it would be private: use a Trainer."
        )
