"""The engine's view of one call: its arguments and the gradients of its outputs, and nothing else of autograd."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

__all__ = ["KeptTensors", "anchored", "enclosing_backward", "hook_before_others", "joined", "on_gradient_of"]


def anchored(output: Tensor) -> Tensor:
    """The output as the start of a graph: nothing before it is differentiated."""
    return _Anchor.apply(output, torch.zeros((), device=output.device, requires_grad=True))  # type: ignore[no-any-return]


def joined(outputs: Any, on_gradients: Callable[..., None]) -> Any:
    """The outputs, so that `on_gradients` is called once, with the gradients of all of them."""
    tensors = [part for part in outputs if isinstance(part, Tensor)]
    anchor = torch.zeros((), requires_grad=True)
    found = iter(_Join.apply(on_gradients, anchor, *tensors))
    parts = [next(found) if isinstance(part, Tensor) else part for part in outputs]
    return type(outputs)(parts)


def on_gradient_of(tensor: Tensor, hook: Callable[[Tensor], None]) -> None:
    """Call `hook` with the gradient of a tensor; the same as `register_hook`, without what removes it again.

    Of a view, as `F.linear` returns of more than two dimensions, the gradient is taken off that of its base: writing to
    a view in place gives it another history, in which its own hook is not called.
    """
    base = tensor._base
    if base is not None and base.dtype == tensor.dtype and not tensor.is_conj():
        offset = int(tensor.storage_offset() - base.storage_offset())
        hook = partial(_with_part, hook, base.stride(), tensor.shape, tensor.stride(), offset)
        tensor = base
    if tensor._backward_hooks is not None or tensor.grad_fn is None:
        tensor.register_hook(hook)  # type: ignore[no-untyped-call]
        return
    tensor._backward_hooks = OrderedDict({-1: hook})
    tensor.grad_fn._register_hook_dict(tensor)


def _with_part(
    hook: Callable[[Tensor], None],
    strides: Sequence[int],
    shape: torch.Size,
    stride: Sequence[int],
    offset: int,
    gradient: Tensor,
) -> None:
    """Call `hook` with the gradient of a view, given that of its base and the strides of both."""
    if gradient.stride() != tuple(strides):
        gradient = gradient.new_empty_strided(gradient.shape, strides).copy_(gradient)
    hook(gradient.as_strided(shape, stride, gradient.storage_offset() + offset))


def hook_before_others(tensor: Tensor, hook: Callable[[Tensor], Any]) -> RemovableHandle:
    """Register a hook that is called before those that the tensor has by now."""
    earlier = tuple(tensor._backward_hooks or ())
    handle: RemovableHandle = tensor.register_hook(hook)  # type: ignore[no-untyped-call]
    hooks: Any = tensor._backward_hooks
    for key in earlier:
        hooks[key] = hooks.pop(key)
    return handle


def enclosing_backward() -> int:
    """Number of the backward pass that is running, or -1; a call repeated by checkpointing is made during one."""
    return torch._C._current_graph_task_id()


class KeptTensors:
    """Tensors of one call, kept for its backward pass.

    Under activation checkpointing they are saved as autograd saves its own, so they are recomputed, not held.
    """

    def __init__(self, name: Callable[[], str], tensors: Sequence[Tensor]) -> None:
        self._name = name
        self._tensors: tuple[Tensor, ...] = ()
        self._node: Any = None
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            anchor = torch.zeros((), requires_grad=True)
            self._node = _Saved.apply(anchor, *tensors).grad_fn
        else:
            self._tensors = tuple(tensor.detach() for tensor in tensors)
            self._versions = [tensor._version for tensor in tensors]

    def take(self) -> tuple[Tensor, ...]:
        """Return the tensors and let go of them."""
        if self._node is not None:
            tensors = tuple(tensor.detach() for tensor in self._node.saved_tensors)
            self._node = None
            return tensors
        tensors, self._tensors = self._tensors, ()
        if any(tensor._version != version for tensor, version in zip(tensors, self._versions, strict=True)):
            raise RuntimeError(
                f"An input of {self._name()} was changed in place after its call, so its gradient is lost; use the "
                "out-of-place operation."
            )
        return tensors


class _Anchor(torch.autograd.Function):
    """Makes an output part of the graph without differentiating what came before it."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor) -> Tensor:
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        return None, None


class _Join(torch.autograd.Function):
    """Several outputs of one call, whose gradients come together."""

    @staticmethod
    def forward(ctx: Any, on_gradients: Callable[..., None], anchor: Tensor, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.on_gradients = on_gradients
        ctx.set_materialize_grads(False)
        found = tuple(output.view_as(output) for output in outputs)
        ctx.mark_non_differentiable(*[output for output in found if not output.is_floating_point()])
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        ctx.on_gradients(*gradients)
        return (None, None, *gradients)


class _Saved(torch.autograd.Function):
    """Lets autograd keep tensors, with whatever hooks are in force for saved ones."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        return (None,) * (1 + len(ctx.saved_tensors))
