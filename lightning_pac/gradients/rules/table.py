"""The table of layers with a rule, and when each rule applies."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from lightning_pac.gradients.contributions import Contributions
from lightning_pac.gradients.rules import convolution, embedding, linear, normalization

__all__ = ["Rule", "rule_for"]


@dataclass(frozen=True)
class Rule:
    """The way from a layer's input and output gradient to contributions.

    Attributes:
        contributions: Called as `contributions(name, layer, inputs, gradient)`.
        input_dims: Dimensions that a batched input must have; None is any number from two.
        bags: The layer is an `EmbeddingBag`, whose examples are its bags.
    """

    contributions: Callable[..., Contributions]
    input_dims: tuple[int, ...] | None = None
    minimum_dims: int = 2
    bags: bool = False


_RULES: dict[Any, Rule] = {
    nn.Linear.forward: Rule(linear.linear_layer),
    nn.Conv1d.forward: Rule(convolution.convolution_layer, (3,)),
    nn.Conv2d.forward: Rule(convolution.convolution_layer, (4,)),
    nn.Conv3d.forward: Rule(convolution.convolution_layer, (5,)),
    nn.ConvTranspose1d.forward: Rule(convolution.transposed_convolution_layer, (3,)),
    nn.ConvTranspose2d.forward: Rule(convolution.transposed_convolution_layer, (4,)),
    nn.ConvTranspose3d.forward: Rule(convolution.transposed_convolution_layer, (5,)),
    nn.Embedding.forward: Rule(embedding.embedding_layer, minimum_dims=1),
    nn.EmbeddingBag.forward: Rule(embedding.embedding_bag_layer, bags=True),
    nn.LayerNorm.forward: Rule(normalization.layer_norm_layer),
    nn.RMSNorm.forward: Rule(normalization.rms_norm_layer),
    nn.GroupNorm.forward: Rule(normalization.group_norm_layer),
}
_INSTANCE_NORMS: dict[type[nn.Module], int] = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}


def rule_for(layer: nn.Module) -> Rule | None:
    """The rule of a layer whose forward and parameters are those of the stock class, else None."""
    if "forward" in vars(layer) or not set(layer._parameters) <= {"weight", "bias"}:
        return None
    if type(layer) in _INSTANCE_NORMS:
        return Rule(normalization.instance_norm_layer, (_INSTANCE_NORMS[type(layer)],))
    if layer._forward_pre_hooks and any(hasattr(hook, "name") for hook in layer._forward_pre_hooks.values()):
        # Old-style weight normalization and pruning write `weight` as a plain attribute before each call.
        return None
    return _RULES.get(type(layer).forward)
