"""Callbacks that a loop without a Trainer must not pass by."""

from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException

__all__ = ["TrainerCallback"]


class TrainerCallback(pl.Callback):
    """A callback whose hooks a Trainer calls; Fabric, which takes any callback and calls none by itself, is refused."""

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Called by `Fabric.setup`.

        Raises:
            MisconfigurationException: Always.
        """
        raise MisconfigurationException(
            f"{type(self).__name__} works through the hooks of a Trainer, which a loop over Fabric does not call, so "
            "that nothing in it would be private: use a Trainer."
        )
