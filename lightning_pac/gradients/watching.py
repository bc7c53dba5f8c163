"""The engine's view of a layer: its input and the gradient of its output, and nothing else of autograd."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["KeptInputs", "enclosing_backward", "watch_output"]


def watch_output(output: Tensor, on_gradient: Callable[[Tensor], None]) -> Tensor:
    """Call `on_gradient` with the output's gradient during backward; use the returned tensor in the output's place."""
    if not output.requires_grad:
        # Nothing before this layer is differentiated and its parameters are detached: the graph starts here.
        output = _Anchor.apply(output, torch.zeros((), device=output.device, requires_grad=True))
    output.register_hook(on_gradient)  # type: ignore[no-untyped-call]
    return output


def enclosing_backward() -> int:
    """Number of the backward pass that is running, or -1; a call repeated by checkpointing is made during one."""
    return torch._C._current_graph_task_id()


class KeptInputs:
    """Inputs of one call, kept for its backward pass.

    Under activation checkpointing they are saved as autograd saves its own, so they are recomputed, not held.
    """

    def __init__(self, layer: str, tensors: tuple[Tensor, ...]) -> None:
        self._layer = layer
        self._tensors: tuple[Tensor, ...] = ()
        self._node: Any = None
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            anchor = torch.zeros((), requires_grad=True)
            self._node = _Saved.apply(anchor, *tensors).grad_fn
        else:
            self._tensors = tuple(tensor.detach() for tensor in tensors)
            self._versions = [tensor._version for tensor in tensors]

    def take(self) -> tuple[Tensor, ...]:
        """Return the inputs and let go of them."""
        if self._node is not None:
            tensors = tuple(tensor.detach() for tensor in self._node.saved_tensors)
            self._node = None
            return tensors
        tensors, self._tensors = self._tensors, ()
        if any(tensor._version != version for tensor, version in zip(tensors, self._versions, strict=True)):
            raise RuntimeError(
                f"An input of the layer {self._layer!r} was changed in place after its call, so its gradient is lost; "
                "use the out-of-place operation."
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


class _Saved(torch.autograd.Function):
    """Lets autograd keep tensors, with whatever hooks are in force for saved ones."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        return (None,) * (1 + len(ctx.saved_tensors))
