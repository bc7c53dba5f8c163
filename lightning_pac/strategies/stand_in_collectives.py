"""Collectives that exchange nothing, for checks in which the ranks do not take the same steps."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["exchanging_nothing", "held_by_all"]

# Other ranks hold multiples of what this one does, so that a difference from their mean shows, and hold it in other
# rows, so that a partner there is another record. Counts and shapes, which are short, are the same.
_OTHERS = 1.25
_SHAPES = 8  # numbers, which none has


@contextmanager
def exchanging_nothing() -> Iterator[None]:
    """Let the collectives of `torch.distributed` return at once, with other rows of what this rank has for all others.

    A loss that exchanges something would otherwise wait for a rank that checks at another time, or on which a check
    has ended early, in an error or for lack of time. Messages from one rank to another stay.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        yield
        return
    originals = [(getattr(dist, name), act) for name, act in _ACTS.items() if hasattr(dist, name)]
    stand_ins = {id(original): _stand_in(original, act) for original, act in originals}
    places = [
        (names, name, value)
        for module in list(sys.modules.values())  # any may have imported one by its name
        for names in [vars(module) if isinstance(module, ModuleType) else {}]
        for name, value in list(names.items())
        if id(value) in stand_ins
    ]
    for names, name, value in places:
        names[name] = stand_ins[id(value)]
    try:
        yield
    finally:
        for names, name, value in places:
            names[name] = value


class _Done:
    """What an exchange hands back that is over already."""

    def wait(self, *args: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def _stand_in(original: Callable[..., Any], act: Callable[..., None]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def run(*args: Any, **kwargs: Any) -> _Done | None:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        group = given.arguments.get("group")
        ranks, own = dist.get_world_size(group), dist.get_rank(group)
        if own >= 0:
            act(ranks, own, given.arguments)
        return _Done() if given.arguments.get("async_op") else None

    return run


def held_by_all(ranks: int, own: int, value: Any) -> list[Any]:
    """What all ranks hold, as far as one is concerned that holds this value."""
    return [value if rank == own else _others(value) for rank in range(ranks)]


def _others(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.dim() and (value.is_floating_point() or value.numel() >= _SHAPES):
        value = value.roll(1, 0)
    return value * _OTHERS if value.is_floating_point() else value


def _reduced(values: list[Tensor], op: Any) -> Tensor:
    stacked, name = torch.stack(values), str(op).upper()
    if "MAX" in name:
        return stacked.amax(0)
    if "MIN" in name or "BAND" in name or "BOR" in name:  # bits of counts, which are the same everywhere
        return stacked.amin(0)
    if "PRODUCT" in name:
        return stacked.prod(0)
    return stacked.to(values[0].dtype).sum(0).div(len(values) if "AVG" in name else 1).to(values[0].dtype)


def _reduce(ranks: int, own: int, given: dict[str, Any]) -> None:
    tensor = given["tensor"].detach()
    tensor.copy_(_reduced(held_by_all(ranks, own, tensor), given["op"]))


def _fill(given: dict[str, Any], to: str, values: list[Any]) -> None:
    for place, value in zip(given[to] or (), values, strict=False):
        place.detach().copy_(value)


def _gather(to: str, ranks: int, own: int, given: dict[str, Any]) -> None:
    _fill(given, to, held_by_all(ranks, own, given["tensor"].detach()))


def _gather_objects(to: str, taken: str, ranks: int, own: int, given: dict[str, Any]) -> None:
    if given[to] is not None:
        given[to][:] = held_by_all(ranks, own, given[taken])


def _gather_into_one(ranks: int, own: int, given: dict[str, Any]) -> None:
    whole, part = list(given.values())[:2]  # under names that have changed
    whole.detach().copy_(torch.stack(held_by_all(ranks, own, part.detach())).reshape(whole.shape))


def _scatter(ranks: int, own: int, given: dict[str, Any]) -> None:
    if given["scatter_list"]:
        given["tensor"].detach().copy_(given["scatter_list"][own].detach())


def _scatter_reduced(ranks: int, own: int, given: dict[str, Any]) -> None:
    part = given["input_list"][own].detach()
    given["output"].detach().copy_(_reduced(held_by_all(ranks, own, part), given["op"]))


def _scatter_one_reduced(ranks: int, own: int, given: dict[str, Any]) -> None:
    output, whole = list(given.values())[:2]
    part = whole.detach().reshape(ranks, *output.shape)[own]
    output.detach().copy_(_reduced(held_by_all(ranks, own, part), given["op"]))


def _swap(ranks: int, own: int, given: dict[str, Any]) -> None:
    outputs, inputs = list(given.values())[:2]
    for output, value in zip(outputs, held_by_all(ranks, own, inputs[own].detach()), strict=True):
        output.detach().copy_(value)


def _nothing(ranks: int, own: int, given: dict[str, Any]) -> None:
    """What one rank sends to all, all have."""


_ACTS: dict[str, Callable[..., None]] = {
    "all_reduce": _reduce,
    "reduce": _reduce,
    "all_gather": partial(_gather, "tensor_list"),
    "gather": partial(_gather, "gather_list"),
    "all_gather_object": partial(_gather_objects, "object_list", "obj"),
    "gather_object": partial(_gather_objects, "object_gather_list", "obj"),
    "all_gather_into_tensor": _gather_into_one,
    "all_gather_single": _gather_into_one,
    "scatter": _scatter,
    "reduce_scatter": _scatter_reduced,
    "reduce_scatter_tensor": _scatter_one_reduced,
    "reduce_scatter_single": _scatter_one_reduced,
    "all_to_all": _swap,
    "broadcast": _nothing,
    "broadcast_object_list": _nothing,
    "barrier": _nothing,
    "monitored_barrier": _nothing,
}
