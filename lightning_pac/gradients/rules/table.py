"""The table of functions with a rule, and of those that are taken apart into others."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from lightning_pac._validation import validated
from lightning_pac.gradients.calls import Call, functions_named
from lightning_pac.gradients.contributions import Found
from lightning_pac.gradients.rules import (
    attention,
    convolution,
    elementwise,
    embedding,
    linear,
    normalization,
    recurrent,
)

__all__ = ["OPENED", "Rule", "applied", "register_rule", "rule_of", "rule_on_trial"]

_STOCK: Any = vars(torch.autograd.Function)["apply"]


@dataclass(frozen=True)
class Rule:
    """The way from a call and the gradient of its output to contributions.

    Attributes:
        contributions: Of the free arguments that it is meant for; None where the call is not one of those.
        needs_values: Whether gradients depend on the values of the arguments, and not on their shapes alone.
        prepare: Called before the function.
    """

    contributions: Callable[[Call], Found | None]
    needs_values: bool = True
    prepare: Callable[[Any, Any, Any], None] | None = None


_rules: dict[Any, Rule] = {}


@validated
def register_rule(
    function: Callable[..., Any],
    rule: Callable[[Call], Found | None],
    *,
    needs_values: bool = True,
    prepare: Callable[[Any, Any, Any], None] | None = None,
) -> None:
    """Say how a function's calls contribute to per-record gradients; a rule that was there before is replaced.

    Functions without a rule are differentiated call by call with `vmap`, so a rule is only ever for speed or memory.
    A wrong one breaks the clipping of every record: hold it against `check_rule` first.

    Args:
        function: A function or method of torch, an operator of `torch.ops`, or a subclass of `torch.autograd.Function`.
        rule: Given the call during the backward pass, returns pairs of an argument and what builds its contribution, or
            None where this call is to be differentiated as if there were no rule.
        needs_values: Whether the rule reads values of tensors among the arguments. Where it reads shapes alone, the
            values are not kept for it.
        prepare: Called before the function with the pass that the call is part of and its arguments.

    Raises:
        TypeError: If the function or the rule cannot be called.

    Example:
        >>> import torch
        >>> from lightning_pac.gradients import Dense, check_rule
        >>> def scaled(call):
        ...     inputs, scale = call.args
        ...     if not (call.is_batched(inputs) and call.is_free(scale) and scale.shape == inputs.shape[-1:]):
        ...         return None
        ...     products = (call.by_record(inputs) * call.gradient_by_record()).float()
        ...     return [(scale, lambda: Dense(products.flatten(1, -2).sum(1) if products.dim() > 2 else products))]
        >>> check_rule(torch.mul, scaled, [(torch.randn(6, 4), torch.nn.Parameter(torch.randn(4)))])
    """
    _rules[_key(function)] = Rule(rule, needs_values, prepare)


def rule_of(function: Any) -> Rule | None:
    """The rule of a function, or None."""
    return _rules.get(function)


@contextmanager
def rule_on_trial(function: Callable[..., Any], rule: Callable[[Call], Found | None]) -> Iterator[None]:
    """Put a rule into the table, with the settings of the one that is there, and take it out again."""
    function = _key(function)
    earlier = _rules.get(function)
    _rules[function] = dataclasses.replace(earlier or Rule(rule), contributions=rule)
    try:
        yield
    finally:
        if earlier is None:
            del _rules[function]
        else:
            _rules[function] = earlier


def _key(function: Any) -> Any:
    return (
        applied(function) if isinstance(function, type) and issubclass(function, torch.autograd.Function) else function
    )


@functools.cache
def applied(cls: type[torch.autograd.Function]) -> Any:
    """The function that a subclass of `torch.autograd.Function` applies."""
    function = _STOCK.__get__(None, cls)

    def apply(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    apply.__name__ = cls.__name__
    return apply


for _names, _rule in {
    "linear": linear.linear,
    "matmul mm __matmul__": linear.matmul,
    "addmm": linear.addmm,
    "conv1d conv2d conv3d": convolution.convolution,
    "conv_transpose1d conv_transpose2d conv_transpose3d": convolution.transposed_convolution,
    "layer_norm": normalization.layer_norm,
    "rms_norm": normalization.rms_norm,
    "group_norm": normalization.group_norm,
    "instance_norm": normalization.instance_norm,
    "mul mul_ __mul__ __rmul__ __imul__ multiply": elementwise.product,
}.items():
    for _function in functions_named(_names):
        register_rule(_function, _rule)
for _names, _rule in {
    "add add_ __add__ __radd__ __iadd__": elementwise.addition,
    "sub sub_ __sub__ __isub__ subtract": elementwise.subtraction,
    "cat concat concatenate": elementwise.concatenation,
}.items():
    for _function in functions_named(_names):
        register_rule(_function, _rule, needs_values=False)
register_rule(F.embedding, embedding.embedding)
register_rule(torch.embedding, embedding.embedding_of_table)
register_rule(torch.Tensor.__getitem__, embedding.picked)
register_rule(F.embedding_bag, embedding.embedding_bag, prepare=embedding.count_bags)

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
