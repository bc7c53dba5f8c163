"""Modules without a rule: the module alone is differentiated example by example."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from typing_extensions import override

from lightning_pac.gradients.tap import DeferredCall, Receiver, Tap
from lightning_pac.gradients.watching import enclosing_backward

__all__ = ["VmappedCall", "VmappedTap"]

_logger = logging.getLogger("lightning_pac.gradients")
_CHUNK = 16


class VmappedTap(Tap):
    """Keeps the arguments of a module's calls and the gradients of its outputs.

    Its parameters keep their ordinary gradient, which the engine compares with the sum over examples.

    Args:
        name: Name of the module, for messages.
        module: A module that owns parameters and has no rule.
        parameters: Those parameters, by name relative to the module.
        batch_dim: Dimension of its tensors that counts the examples.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        batch_dim: int,
        engine: Receiver,
    ) -> None:
        self._engine, self._handle = engine, module.register_forward_hook(self._after, with_kwargs=True)
        self.name, self.module, self.parameters, self.batch_dim = name, module, parameters, batch_dim
        self.loops = False
        _logger.info("Per-example gradients of %s (%s) by vmap.", name, type(module).__name__)

    @override
    def autograd_parameters(self) -> Iterable[nn.Parameter]:
        return self.parameters.values()

    @override
    def remove(self) -> None:
        self._handle.remove()

    def _after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not self._engine.watching:
            return
        call = VmappedCall(self, args, kwargs)
        outer = enclosing_backward()
        for place, leaf in enumerate(pytree.tree_leaves(output)):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(self._receiver(call, place, outer))  # type: ignore[no-untyped-call]

    def _receiver(self, call: "VmappedCall", place: int, outer: int) -> Callable[[Tensor], None]:
        def on_gradient(gradient: Tensor) -> None:
            self._engine.check_backward(self.name, outer, gradient)
            call.output_gradients[place] = gradient.detach()
            self._engine.defer(call)

        return on_gradient


class VmappedCall(DeferredCall):
    """One call of a module: arguments now, output gradients during backward, per-example gradients at the end."""

    def __init__(self, tap: VmappedTap, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tap = tap
        self.layer = tap.name
        self.output_gradients: dict[int, Tensor] = {}
        leaves, self._structure = pytree.tree_flatten((args, kwargs))
        self._leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._versions = [leaf._version if isinstance(leaf, Tensor) else 0 for leaf in leaves]
        self._recurrent = isinstance(tap.module, nn.RNNBase)
        first = next((leaf for leaf in self._leaves if isinstance(leaf, Tensor)), None)
        if first is None or first.dim() <= tap.batch_dim:
            raise RuntimeError(f"The module {tap.name!r} was called without a batched tensor; pass it one.")
        self.count = first.shape[tap.batch_dim]
        device = first.device.type
        self._device, self._autocast = device, torch.is_autocast_enabled(device)
        self._autocast_dtype = torch.get_autocast_dtype(device)

    @property
    @override
    def tolerance(self) -> float:
        return 3e-2 if self._autocast else 1e-4

    @override
    def per_example_gradients(self) -> list[tuple[nn.Parameter, Tensor]]:
        for leaf, version in zip(self._leaves, self._versions, strict=True):
            if isinstance(leaf, Tensor) and leaf._version != version:
                raise RuntimeError(f"An input of the module {self.layer!r} was changed in place after its call.")
        tap = self._tap
        names = list(tap.parameters)
        values = {name: parameter.detach() for name, parameter in tap.parameters.items()}
        if not self.count:
            return [(tap.parameters[name], values[name].new_zeros(0, *values[name].shape)) for name in names]
        places = sorted(self.output_gradients)
        tensors = [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]
        in_dims = [self._batch_dim(leaf, place) for place, leaf in enumerate(tensors)]
        gradients = [self.output_gradients[place] for place in places]
        out_dims = []
        for place, gradient in zip(places, gradients, strict=True):
            dim = self._batch_dim(gradient, place)
            if dim is None:
                raise RuntimeError(f"An output of the module {self.layer!r} has no batch dimension; give it one.")
            out_dims.append(dim)

        def pairing(parameters: dict[str, Tensor], inputs: list[Tensor], cotangents: list[Tensor]) -> Tensor:
            """Inner product of one example's outputs with their gradients."""
            singles = iter([x if d is None else x.unsqueeze(d) for x, d in zip(inputs, in_dims, strict=True)])
            leaves = [next(singles) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
            args, kwargs = pytree.tree_unflatten(leaves, self._structure)
            with torch.autocast(self._device, dtype=self._autocast_dtype, enabled=self._autocast):
                output = torch.func.functional_call(tap.module, parameters, args, kwargs)
            outputs = pytree.tree_leaves(output)
            products = [
                (outputs[place] * cotangent.unsqueeze(dim)).float().sum()
                for place, cotangent, dim in zip(places, cotangents, out_dims, strict=True)
            ]
            return torch.stack(products).sum()

        found: dict[str, Tensor] | None = None
        if not tap.loops:
            try:
                mapped = torch.func.vmap(
                    torch.func.grad(pairing),
                    in_dims=(None, in_dims, out_dims),
                    randomness="different",
                    chunk_size=_CHUNK,
                )
                with torch.enable_grad():
                    found = mapped(values, tensors, gradients)
            except RuntimeError as error:
                tap.loops = True
                _logger.warning("vmap cannot run %s (%s): its examples are taken one by one.", self.layer, error)
        if found is None:
            found = _one_by_one(pairing, values, tensors, in_dims, gradients, out_dims, self.count)
        return [(tap.parameters[name], found[name].detach().float()) for name in names]

    def _batch_dim(self, tensor: Tensor, place: int) -> int | None:
        dim = 1 if self._recurrent and place > 0 else self._tap.batch_dim
        return dim if tensor.dim() > dim and tensor.shape[dim] == self.count else None


def _one_by_one(
    pairing: Callable[..., Tensor],
    values: dict[str, Tensor],
    tensors: list[Tensor],
    in_dims: list[int | None],
    gradients: list[Tensor],
    out_dims: list[int],
    count: int,
) -> dict[str, Tensor]:
    rows: list[tuple[Tensor, ...]] = []
    for i in range(count):
        parameters = {name: value.clone().requires_grad_() for name, value in values.items()}
        inputs = [x if dim is None else x.select(dim, i) for x, dim in zip(tensors, in_dims, strict=True)]
        cotangents = [g.select(dim, i) for g, dim in zip(gradients, out_dims, strict=True)]
        with torch.enable_grad():
            total = pairing(parameters, inputs, cotangents)
            rows.append(
                torch.autograd.grad(total, list(parameters.values()), allow_unused=True, materialize_grads=True)
            )
    return {name: torch.stack([row[k] for row in rows]) for k, name in enumerate(values)}
