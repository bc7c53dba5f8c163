"""Copies of a sharded model that are whole, and know nothing of FSDP2."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from lightning_pac.strategies.sharding import sharded_parameters

__all__ = ["WholeCopies"]


class WholeCopies:
    """The whole values of a sharded model and of its optimizer's state, on the host; all ranks make them at once.

    Args:
        module: The model.
        optimizer: Its optimizer, if it has one by now.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self._module = module
        self._parameters = [(held, whole, _gathered(held)) for _, held, whole in sharded_parameters(module)]
        state = {} if optimizer is None else optimizer.state
        values = (value for values in state.values() for value in values.values())
        self._state = {id(value): _gathered(value) for value in values if isinstance(value, DTensor)}

    @classmethod
    def of(cls, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> "WholeCopies | None":
        """Those of a model of which some part is sharded."""
        return cls(module, optimizer) if any(isinstance(layer, FSDPModule) for layer in module.modules()) else None

    def copy(self, memo: dict[int, Any]) -> nn.Module:
        """A copy as `copy.deepcopy` would make it of the model if nothing of it were sharded.

        Args:
            memo: That of `copy.deepcopy`; it maps shards and their state to whole tensors afterwards.
        """
        for held, whole, values in self._parameters:
            memo[id(held)] = nn.Parameter(values.clone(), held.requires_grad)
            if whole is not None:
                memo[id(whole)] = memo[id(held)]
        memo.update({number: values.clone() for number, values in self._state.items()})
        managed: list[nn.Module] = [layer for layer in self._module.modules() if isinstance(layer, FSDPModule)]
        for layer in managed:
            plain_class: Any = type(layer).__bases__[1]  # before it is the class that makes it a managed one
            memo[id(layer)] = plain_class.__new__(plain_class)
        for layer in self._module.modules():
            memo.update({id(value): value for value in vars(layer).values() if isinstance(value, DeviceMesh)})
        for layer in managed:
            memo[id(layer)].__dict__.update(copy.deepcopy(dict(_plain_attributes(layer)), memo))
        found: nn.Module = copy.deepcopy(self._module, memo)
        for layer in found.modules():
            layer.__dict__.update(dict(_plain_attributes(layer)))
        return found


def _gathered(tensor: Tensor) -> Tensor:
    values: Any = tensor.detach()
    return (values.full_tensor() if isinstance(values, DTensor) else values).cpu()


def _plain_attributes(layer: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(layer).items():
        if name.startswith(("__composable_api", "_is_fsdp", "_fsdp")):
            continue
        if isinstance(value, dict) and any(map(_is_of_fsdp, value.values())):
            yield name, type(value)((key, entry) for key, entry in value.items() if not _is_of_fsdp(entry))
        else:
            yield name, value


def _is_of_fsdp(entry: Any) -> bool:
    """Whether it is a hook of FSDP2; the classes that it makes of users' own are its, too."""
    return (
        not isinstance(entry, nn.Module)
        and callable(entry)
        and str(getattr(entry, "__module__", "")).startswith("torch.distributed.fsdp.")
    )
