"""Clipping, noise and release of one optimizer step, which is given no loss."""

from lightning_pac.callbacks.srpp_sgd.step.clipping_blocks import BlockNoise, ClippingBlocks
from lightning_pac.callbacks.srpp_sgd.step.hidden_loss import hide_loss
from lightning_pac.callbacks.srpp_sgd.step.noisy_sum import NoisySum
from lightning_pac.callbacks.srpp_sgd.step.released_gradient import ReleasedGradient, enable_hooks

__all__ = [
    "BlockNoise",
    "ClippingBlocks",
    "NoisySum",
    "ReleasedGradient",
    "enable_hooks",
    "hide_loss",
]
