"""A private `predict_step` in place of the module's own."""

import functools
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException

__all__ = ["replace_predict_step"]

_MARK = "_shows_private_predictions"


def replace_predict_step(pl_module: pl.LightningModule, make_private: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace the module's `predict_step` while predicting, and return how to put it back.

    Args:
        pl_module: The module that predicts.
        make_private: Called with the module's own step; returns the one that takes its place.

    Raises:
        MisconfigurationException: If the step is a private one already.
    """
    step = pl_module.predict_step
    if getattr(step, _MARK, False):
        raise MisconfigurationException(
            f"The predictions of {type(pl_module).__name__} are made private twice, where the last callback alone "
            "would answer: keep one of PACResponses and PrivateOutput in the Trainer."
        )
    replaced = vars(pl_module).get("predict_step")
    private_step = functools.wraps(step)(make_private(step))  # Lightning reads from the signature what to pass
    setattr(private_step, _MARK, True)
    pl_module.predict_step = private_step  # type: ignore[method-assign]

    def restore() -> None:
        if replaced is None:
            pl_module.__dict__.pop("predict_step", None)
        else:
            pl_module.predict_step = replaced  # type: ignore[method-assign]

    return restore
