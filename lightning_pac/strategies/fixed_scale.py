"""Mixed precision in float16 whose loss scale is public and stays as it is."""

import math

import lightning.pytorch as pl
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from typing_extensions import override

from lightning_pac._validation import Device, Positive, validated

__all__ = ["FixedScalePrecision"]


@validated
class FixedScalePrecision(MixedPrecision):
    """`16-mixed` for private training: a fixed loss scale, and no step that is left out.

    The scaler of `precision="16-mixed"` skips a step where a gradient overflows and changes its scale by that, both of
    which the records decide. Here the scale is stated once; a record whose gradient overflows counts as zero, and the
    others of its batch are not touched by it.

    Example:
        `Trainer(plugins=FixedScalePrecision(scale=2.0**14, device="cuda"), callbacks=[SRPPSGD(...)])`

    Args:
        scale: What the loss is multiplied by before the backward pass, a power of two from 1 to 2^24.
        device: Type of the device, as `torch.autocast` names it.

    Raises:
        ValueError: If the scale is no power of two, so that gradients would be rounded by it, or out of range.
    """

    def __init__(self, scale: Positive = 2.0**10, device: Device = "cuda") -> None:
        if not 1 <= scale <= 2**24 or math.frexp(scale)[0] != 0.5:
            raise ValueError(f"scale must be a power of two from 1 to 2**24, got {scale!r}.")
        super().__init__("bf16-mixed", device)  # makes no scaler
        self.precision = "16-mixed"
        self.scale = scale

    @override
    def pre_backward(self, tensor: Tensor, module: pl.LightningModule) -> Tensor:  # type: ignore[override]
        return super().pre_backward(tensor * self.scale, module)
