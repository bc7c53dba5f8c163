"""Copies of a sharded model that are whole, and know nothing of FSDP2."""

import copy
import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from lightning_pac.strategies.sharding import sharded_parameters
from lightning_pac.strategies.stand_in_collectives import exchanging_nothing

__all__ = ["WholeCopies", "plain_attributes"]

Value = TypeVar("Value")


class WholeCopies:
    """The whole values of a sharded model and of its optimizer's state, on the host; all ranks gather them at once.

    Args:
        module: The model.
        optimizer: Its optimizer, if it has one by now.
        own_turn: Whether this rank keeps what is gathered.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer | None, own_turn: bool = True) -> None:
        self._module = module
        self._parameters = [(held, whole, _gathered(held, own_turn)) for _, held, whole in sharded_parameters(module)]
        state = {} if optimizer is None else optimizer.state
        values = (value for values in state.values() for value in values.values())
        self._state = {id(value): _gathered(value, own_turn) for value in values if isinstance(value, DTensor)}

    @classmethod
    def in_turn(cls, module: pl.LightningModule, action: Callable[["WholeCopies | None"], Value]) -> Value:
        """Do what needs whole copies on one rank of a node after the other, so that it holds those of one at a time.

        Each rank has all threads of its node's ranks meanwhile, since the others wait. Nothing is exchanged between
        them, whatever the model's steps ask for.

        Args:
            module: The model, attached to a Trainer or not.
            action: Is given the copies of a sharded model, and None for any other.
        """
        if not any(isinstance(layer, FSDPModule) for layer in module.modules()):
            with _memory_given_back(), exchanging_nothing():
                return action(None)
        trainer = module.trainer
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        found: list[Value] = []
        problem: Exception | None = None
        for turn in range(trainer.num_devices):
            own_turn = turn == trainer.local_rank
            copies = cls(module, optimizer, own_turn)
            if own_turn:
                threads = torch.get_num_threads()
                torch.set_num_threads(threads * trainer.num_devices)
                try:
                    with _memory_given_back(), exchanging_nothing():
                        found.append(action(copies))
                except Exception as error:  # for later: the others gather with this rank in the turns to come
                    problem = error
                finally:
                    torch.set_num_threads(threads)
            del copies
        if problem is not None:
            raise problem
        return found[0]

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
            memo[id(layer)].__dict__.update(copy.deepcopy(dict(plain_attributes(layer)), memo))
        found: nn.Module = copy.deepcopy(self._module, memo)
        for layer in found.modules():
            layer.__dict__.update(dict(plain_attributes(layer)))
        return found


@contextmanager
def _memory_given_back() -> Iterator[None]:
    """Afterwards, give what is free back to the system: glibc keeps arrays below 32 MiB, here several models' worth."""
    try:
        yield
    finally:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
        if trim is not None:
            trim(0)


def _gathered(tensor: Tensor, own_turn: bool) -> Tensor:
    values: Any = tensor.detach()
    whole: Tensor = values.full_tensor() if isinstance(values, DTensor) else values
    return whole.cpu() if own_turn else whole.new_empty(0)


def plain_attributes(layer: nn.Module) -> Iterator[tuple[str, Any]]:
    """Names and values of a layer's attributes, without what FSDP2 has added, which must not be copied."""
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
