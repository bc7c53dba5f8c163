"""One call of a function that meets parameters and the batch: what is kept of it, and what becomes of its gradient."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lightning_pac.gradients.calls import (
    Autocast,
    Batched,
    Call,
    Free,
    KeptTensors,
    Pass,
    anchored,
    enclosing_backward,
    free_of,
    joined,
    name_of,
    on_gradient_of,
    record_axis,
    set_tag,
    tag_of,
    unflattened,
    without_autocast,
)
from lightning_pac.gradients.contributions import Contribution, Dense, OwnRows
from lightning_pac.gradients.following.after_mean import ADDITIONS
from lightning_pac.gradients.following.single_call import per_record_gradients
from lightning_pac.gradients.rules.table import rule_of

__all__ = ["Meeting", "Receiver"]

_GONE = object()
_WRITES = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__", "__imatmul__")


class Receiver(ABC):
    """An engine as its meetings see it.

    Attributes:
        is_paused: Whether a backward pass is running that gives no parameter a gradient, so that none is received.
    """

    is_paused = False

    @abstractmethod
    def check_backward(self, what: Callable[[], str], outer_pass: int, gradient: Tensor) -> None:
        """Refuse a backward pass whose gradients cannot be told from those of another."""

    @abstractmethod
    def check_count(self, what: Callable[[], str], count: int) -> None:
        """All meetings must see the same number of records."""

    @abstractmethod
    def see_outsider(self, tensor: Tensor) -> None:
        """Refuse a gradient of what is neither a parameter nor computed where it was seen, or of what is behind it."""

    @abstractmethod
    def receive(self, free: Tensor, contribution: Contribution | OwnRows) -> None:
        """Add a call's contribution to a free tensor."""

    @abstractmethod
    def receive_public(self, free: Tensor, gradient: Tensor, call: Call) -> None:
        """Add the gradient of a free tensor that was added to the mean over the batch: it has no records."""

    @abstractmethod
    def describe(self, free: Sequence[Tensor]) -> str:
        """Names of the parameters behind free tensors, for messages."""


class Meeting:
    """One call of a function with free and batched arguments.

    Args:
        receiver: Takes the contributions.
        current: The pass that the call is part of.
        func: The function, with its arguments.
    """

    def __init__(
        self, receiver: Receiver, current: Pass, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._receiver, self._pass, self._function = receiver, current, func
        leaves, self._structure = _flattened(args, kwargs)
        self._tags = [_valid(tag_of(leaf), current) if isinstance(leaf, Tensor) else None for leaf in leaves]
        self._frees = [
            leaf if type(tag) is Free and leaf.requires_grad else None
            for leaf, tag in zip(leaves, self._tags, strict=True)
        ]
        self._leaves = leaves
        self._mutates = _writes(func, kwargs)
        self._rule = rule_of(func)
        self._autocast = Autocast()
        if self._rule is not None and self._rule.prepare is not None:
            self._rule.prepare(current, args, kwargs)

    def run(self, tag: Callable[[Any], None]) -> Any:
        """Call the function without asking autograd for the gradients of its free arguments."""
        leaves = list(self._leaves)
        for place, free in enumerate(self._frees):
            if free is not None:
                leaves[place] = free.detach()
        target: Tensor | None = None
        if self._mutates:
            target = self._target()
        kept = self._keep(leaves, target)
        states = None if self._rule is not None else _generator_states()
        # What is kept is in `kept`, and may be recomputed; nothing else holds on to it.
        self._leaves = [_GONE if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = unflattened(leaves, self._structure)
        del leaves
        result = self._function(*args, **kwargs)
        del args, kwargs
        self._drew = states is not None and states != _generator_states()
        output = target if target is not None and result is None else result
        outer = enclosing_backward()

        def on_gradient(*gradients: Tensor | None) -> None:
            first = next((gradient for gradient in gradients if gradient is not None), None)
            if first is None or self._receiver.is_paused:
                return
            self._receiver.check_backward(self._name, outer, first)
            with torch.no_grad(), without_autocast(first.device.type):
                self._contribute(kept, gradients, outputs)

        if isinstance(output, Tensor):
            if not output.is_floating_point() and not output.is_complex():
                tag(result)
                return result
            if not output.requires_grad:
                if target is not None:
                    # Adding a zero that requires a gradient gives what was written to a node for the hook.
                    output.add_(torch.zeros((), dtype=output.dtype, device=output.device, requires_grad=True))
                else:
                    result = output = anchored(output)
            on_gradient_of(output, on_gradient)
            tag(result)
            outputs: list[Any] = [(tag_of(output), output.shape)]
        else:
            result = joined(result, on_gradient)
            tag(result)
            outputs = [(tag_of(part), part.shape) if isinstance(part, Tensor) else None for part in result]
        return result

    def _target(self) -> Tensor:
        """The tensor that an in-place function writes to."""
        target = self._leaves[0]
        if not isinstance(target, Tensor) or free_of(target) is not None:
            raise RuntimeError(
                f"A tensor that is computed from {self._names()} alone is written to with values of the batch by "
                f"{name_of(self._function)}; put them together with torch.cat or torch.where."
            )
        return target

    def _keep(self, leaves: list[Any], target: Tensor | None) -> KeptTensors:
        by_shape = self._rule is not None and not self._rule.needs_values
        tensors = []
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                continue
            if by_shape:
                leaf = leaf.new_empty(()).expand(leaf.shape)
            elif leaf is target:
                leaf = leaf.detach().clone()
            tensors.append(leaf)
        return KeptTensors(self._name, tensors)

    def _contribute(
        self,
        kept: KeptTensors,
        gradients: Sequence[Tensor | None],
        outputs: Sequence[tuple[Batched, torch.Size] | None],
    ) -> None:
        tensors = iter(kept.take())
        leaves = [next(tensors) if leaf is _GONE else leaf for leaf in self._leaves]
        for leaf, of in zip(leaves, self._tags, strict=True):
            if of is not None:
                set_tag(leaf, of)
        args, kwargs = unflattened(leaves, self._structure)
        free = {place: leaves[place] for place, tensor in enumerate(self._frees) if tensor is not None}
        call = Call(self._function, args, kwargs, self._pass, gradients, outputs, self._name, self._autocast)
        call.writes = self._mutates
        for gradient, of in zip(gradients, outputs, strict=True):
            if gradient is not None and of is not None and not _is_of_records(gradient, *of, self._pass.count):
                raise call.refusal()
        originals = {id(leaves[place]): self._frees[place] for place in free}
        count = self._pass.count
        self._receiver.check_count(self._name, count)
        after_mean = outputs[0] is not None and outputs[0][0].outer is None and outputs[0][0].shares is not None
        if after_mean and self._function in ADDITIONS and not kwargs:
            for place, sign in enumerate(ADDITIONS[self._function]):
                term = self._frees[place]
                if term is not None:
                    # d(mean + p) / dp is 1 or -1, summed over whatever p was broadcast along.
                    self._receiver.receive_public(term, sign * call.gradient.sum_to_size(term.shape), call)
            return
        # Rules transpose, and complex functions have conjugates in their gradients, which autograd puts there.
        is_complex = any(isinstance(leaf, Tensor) and leaf.is_complex() for leaf in [*leaves, *gradients])
        rule = None if after_mean or is_complex else self._rule
        found = None if rule is None else rule.contributions(call)
        if found is None:
            if self._drew:
                raise RuntimeError(
                    f"{name_of(self._function)} draws random numbers and takes {self._names()}, so its gradients "
                    "cannot be taken apart into records; draw apart from it, with F.dropout."
                )
            found = per_record_gradients(call, leaves, self._structure, list(free))
        for tensor, build in found:
            original = originals.get(id(tensor))
            if original is not None:
                self._receiver.receive(original, self._checked(build(), tensor))

    def _checked(self, contribution: Contribution | OwnRows, free: Tensor) -> Contribution | OwnRows:
        # A rule of someone else may err at a size that it was not tried at. Rows of others would be clipped together,
        # and what a sum leaves unwritten is memory of anything.
        if isinstance(contribution, Dense) and contribution.dense().shape != (self._pass.count, *free.shape):
            raise RuntimeError(
                f"The rule of {self._name()} gave gradients of shape {tuple(contribution.dense().shape)} for "
                f"{self._pass.count} records: return one of shape {tuple(free.shape)} for each."
            )
        return contribution

    def _names(self) -> str:
        return self._receiver.describe([free for free in self._frees if free is not None])

    def _name(self) -> str:
        return f"{name_of(self._function)} of {self._names()}"


def _flattened(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """The arguments in one list, and what puts them together again."""
    values = [*args, *kwargs.values()]
    for value in values:
        if isinstance(value, list | tuple | dict) and any(map(_holds_tensors, value)):
            return pytree.tree_flatten((tuple(args), dict(kwargs)))
    return values, (len(args), *kwargs)


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor | list | tuple | dict)


def _is_of_records(gradient: Tensor, tag: Batched, shape: torch.Size, count: int) -> bool:
    """Whether the loss depends on no row of a tensor of the batch that holds constants alone."""
    if tag.rows is None or not bool((tag.rows < 0).any()):
        return True
    axis = record_axis(shape, tag, count)
    return axis is not None and not bool(gradient.movedim(axis, 0)[tag.rows < 0].any())


def _valid(tag: Any, current: Pass) -> Any:
    return tag if type(tag) is Free or (tag is not None and tag.owner is current) else None


def _writes(function: Any, kwargs: Mapping[str, Any]) -> bool:
    name = name_of(function)
    if kwargs.get("out") is not None:
        return True
    return name in _WRITES or (name.endswith("_") and not name.endswith("__")) or kwargs.get("inplace") is True


def _generator_states() -> bytes:
    return torch.get_rng_state().numpy().tobytes()
