"""Tensors that meet the batch and are neither parameters of the model nor computed where the engine sees it."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.gradients.calls import enclosing_backward

__all__ = ["Outsiders"]


class Outsiders:
    """Refuses the raw gradients that a backward pass would leave in tensors outside of a module.

    Args:
        module: Its own parameters have gradients that others answer for.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._seen: dict[int, tuple[Tensor, RemovableHandle]] = {}

    def see(self, tensor: Tensor) -> None:
        """Refuse a gradient of a tensor, or of those that it was computed from."""
        for leaf in _leaves_behind(tensor):
            # Checkpointing repeats a part with inputs of its own, whose gradients it hands on.
            is_handed_on = enclosing_backward() >= 0 and not isinstance(leaf, nn.Parameter)
            if not is_handed_on and id(leaf) not in self._seen:
                handle = leaf.register_post_accumulate_grad_hook(self._refuse)  # type: ignore[no-untyped-call]
                self._seen[id(leaf)] = leaf, handle

    def forget(self) -> None:
        """Leave them as they were."""
        for _, handle in self._seen.values():
            handle.remove()
        self._seen.clear()

    def _refuse(self, leaf: Tensor) -> None:
        if any(leaf is parameter for parameter in self._module.parameters()):
            return  # also one that was unfrozen since the engine was attached, which it says itself
        leaf.grad = None
        raise PrivacyViolationError(
            f"A tensor of shape {tuple(leaf.shape)} received a gradient, which is raw, and is not a parameter of "
            f"{type(self._module).__name__}: register the module that holds it (no plain list), freeze it "
            "(requires_grad_(False)), or, where it is made of the inputs, ask for its gradient by torch.autograd.grad."
        )


def _leaves_behind(tensor: Tensor) -> Iterator[Tensor]:
    """What backward would give a gradient to."""
    if tensor.grad_fn is None:
        yield tensor
    nodes: list[Any] = [tensor.grad_fn]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):
            yield node.variable
        for below, _ in getattr(node, "next_functions", ()):
            if below is not None and below not in seen:
                seen.add(below)
                nodes.append(below)
