"""The table of functions with a rule, and of those that are taken apart into others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from lightning_pac.gradients.contributions import Found
from lightning_pac.gradients.layouts import functions_named
from lightning_pac.gradients.rules import (
    attention,
    convolution,
    elementwise,
    embedding,
    linear,
    normalization,
    recurrent,
)

__all__ = ["OPENED", "Rule", "rule_of"]


@dataclass(frozen=True)
class Rule:
    """The way from a call and the gradient of its output to contributions.

    Attributes:
        contributions: Of the free arguments that it is meant for; None where the call is not one of those.
        needs_values: Whether gradients depend on the values of the arguments, and not on their shapes alone.
        prepare: Called before the function.
    """

    contributions: Callable[[Any], Found | None]
    needs_values: bool = True
    prepare: Callable[[Any, Any, Any], None] | None = None


RULES: dict[Any, Rule] = {
    **dict.fromkeys(functions_named("linear"), Rule(linear.linear)),
    **dict.fromkeys(functions_named("matmul", "mm", "__matmul__"), Rule(linear.matmul)),
    **dict.fromkeys(functions_named("addmm"), Rule(linear.addmm)),
    **dict.fromkeys(functions_named("conv1d", "conv2d", "conv3d"), Rule(convolution.convolution)),
    **dict.fromkeys(
        functions_named("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        Rule(convolution.transposed_convolution),
    ),
    **dict.fromkeys(functions_named("embedding"), Rule(embedding.embedding)),
    torch.embedding: Rule(embedding.embedding_of_table),
    torch.Tensor.__getitem__: Rule(embedding.picked),
    F.embedding_bag: Rule(embedding.embedding_bag, prepare=embedding.count_bags),
    **dict.fromkeys(functions_named("layer_norm"), Rule(normalization.layer_norm)),
    **dict.fromkeys(functions_named("rms_norm"), Rule(normalization.rms_norm)),
    **dict.fromkeys(functions_named("group_norm"), Rule(normalization.group_norm)),
    F.instance_norm: Rule(normalization.instance_norm),
    **dict.fromkeys(
        functions_named("add", "add_", "__add__", "__radd__", "__iadd__"), Rule(elementwise.addition, False)
    ),
    **dict.fromkeys(
        functions_named("sub", "sub_", "__sub__", "__isub__", "subtract"), Rule(elementwise.subtraction, False)
    ),
    **dict.fromkeys(
        functions_named("mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"), Rule(elementwise.product)
    ),
    **dict.fromkeys(functions_named("cat", "concat", "concatenate"), Rule(elementwise.concatenation, False)),
}
OPENED: dict[Any, Callable[..., Any]] = {
    F.multi_head_attention_forward: attention.multi_head_attention,
    F.scaled_dot_product_attention: attention.scaled_dot_product,
    torch.Tensor.__setitem__: elementwise.masked_write,
    torch.lstm: recurrent.lstm,
    torch.gru: recurrent.gru,
    torch.rnn_tanh: recurrent.rnn("tanh"),
    torch.rnn_relu: recurrent.rnn("relu"),
    torch.lstm_cell: recurrent.lstm_cell,
    torch.gru_cell: recurrent.gru_cell,
    torch.rnn_tanh_cell: recurrent.rnn_cell(torch.tanh),
    torch.rnn_relu_cell: recurrent.rnn_cell(torch.relu),
}


def rule_of(function: Any) -> Rule | None:
    """The rule of a function, or None."""
    return RULES.get(function)
