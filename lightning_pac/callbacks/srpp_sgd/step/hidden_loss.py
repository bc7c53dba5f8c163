"""The stand-in that an optimizer is given for the loss, which is raw."""

import traceback
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from typing_extensions import override

from lightning_pac.exceptions import PrivacyViolationError

__all__ = ["HiddenLoss", "hide_loss"]

_EARLY = "on_after_backward"


class HiddenLoss(Tensor):
    """Zero, the same for every batch, of which any use is an error: a step size from the loss would be made of zeros.

    Ordinary optimizers return what the closure gives them, and do nothing else with it.
    """

    @classmethod
    @override
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise PrivacyViolationError(
            "The optimizer, or optimizer_step, reads the loss that its closure returns, which is raw, as Polyak step "
            "sizes and line searches do: use an optimizer whose step depends on the gradient only."
        )


def hide_loss(pl_module: pl.LightningModule) -> Callable[[], None]:
    """Keep the loss from `optimizer_step`, the optimizer and all their hooks; return how to undo that.

    What looks for gradients as soon as the closure returns finds none: they are released thereafter.
    """
    step = pl_module.optimizer_step
    hidden = torch.zeros(()).as_subclass(HiddenLoss)

    def optimizer_step(epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        has_returned = False

        def closure() -> Any:
            nonlocal has_returned
            result = optimizer_closure()
            has_returned = True
            return None if result is None else hidden

        try:
            step(epoch, batch_idx, optimizer, closure)
        except (TypeError, AttributeError, RuntimeError) as error:
            released = any(parameter.grad is not None for parameter in pl_module.parameters())
            in_hook = any(frame.name == _EARLY for frame in traceback.extract_tb(error.__traceback__))
            is_missing = "NoneType" in str(error) or "TensorList" in str(error)  # as of a stack of no norms
            if (has_returned or in_hook) and not released and is_missing:
                user = _EARLY if in_hook else "optimizer_step"
                raise MisconfigurationException(
                    f"{user}, or what it calls, uses gradients as soon as the closure has computed them, where none is "
                    "released yet: use them in on_before_optimizer_step, or in the optimizer's step."
                ) from error
            raise

    pl_module.optimizer_step = optimizer_step  # type: ignore[method-assign]

    def undo() -> None:
        pl_module.__dict__.pop("optimizer_step", None)

    return undo
