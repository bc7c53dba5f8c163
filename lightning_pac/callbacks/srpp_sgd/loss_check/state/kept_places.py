"""What a model and its callbacks keep beside weights and buffers, and where that is another than before."""

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from lightning_pac.data.records import LARGE, digest, is_installed, outline
from lightning_pac.strategies.whole_copies import plain_attributes

__all__ = [
    "CODE",
    "Place",
    "changed_places",
    "containers",
    "differing",
    "digests_of",
    "own_attributes",
    "set_parts",
    "stateful",
    "without_large",
]

Place = tuple[int, str, tuple[str, ...]]
"""The number of an object, the name of its attribute, and the way to a part of that: ``.name`` or ``[key]`` each."""

CODE = FunctionType, BuiltinFunctionType, type, ModuleType
"""Kinds of objects that are no state, or of which that is asked for by itself."""

_WHOLE = Tensor, Optimizer, Dataset, DataLoader
_DEEP, _LONG, _MANY = 4, 64, 500  # steps of a way, entries of a list, and parts of a value, beyond which it is whole


def own_attributes(holder: Any) -> dict[str, Any]:
    """Those that are not every model's, and hold no code."""
    return stateful(dict(plain_attributes(holder)) if isinstance(holder, nn.Module) else vars(holder))


def stateful(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The same of all attributes."""
    return {
        name: value
        for name, value in attributes.items()
        if name not in _plain_names() and not isinstance(value, nn.Module) and not _is_code(value)
    }


def changed_places(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> set[Place]:
    """Where attributes of the same objects, or of copies of them, differ.

    Args:
        before: Attributes of each object.
        after: The same at another time.
    """
    return differing(digests_of(before, _whole), digests_of(after, _whole))


def differing(first: Mapping[Place, bytes], second: Mapping[Place, bytes]) -> set[Place]:
    """Where digests are others."""
    return {place for place in first.keys() | second.keys() if first.get(place) != second.get(place)}


def digests_of(attributes: Sequence[Mapping[str, Any]], view: Callable[[Any], Any] = outline) -> dict[Place, bytes]:
    """Digests of all places.

    Args:
        attributes: Of each object.
        view: What counts of a part; of large tensors, how often they were written to.
    """
    return {
        (number, name, way): _digest(part, view)
        for number, held in enumerate(attributes)
        for name, value in held.items()
        for way, part in _parts(value)
    }


def containers(value: Any) -> set[int]:
    """The `id` of each container that holds parts of a value."""
    found, waiting = set[int](), [(0, value)]
    while waiting and len(found) < _MANY:
        depth, part = waiting.pop()
        steps = _steps(part) if depth < _DEEP else None
        if steps is not None and id(steps[0]) not in found:
            found.add(id(steps[0]))
            waiting += [(depth + 1, steps[0][key]) for key in steps[1].values()]
    return found


def without_large(copied: dict[str, Any], originals: Mapping[str, Any]) -> dict[str, Any]:
    """With zeros in place of large tensors, which copies share, and which may be written to.

    Args:
        copied: Copies of attributes.
        originals: What they are copies of.
    """
    for name in copied:
        for way, part in list(_parts(copied[name])):
            if isinstance(part, Tensor) and part.numel() > LARGE and part.layout == torch.strided:
                (held, key), (own, _) = (_place_of(attributes, name, way) for attributes in (copied, originals))
                if held is not own:
                    held[key] = part.new_zeros(1).expand(part.shape)
    return copied


def set_parts(
    attributes: dict[str, Any],
    given: Mapping[str, Any],
    name: str,
    ways: Collection[tuple[str, ...]],
    originals: Container[int],
) -> None:
    """Make these parts of an attribute what they are among the given ones; what is not there is taken away.

    Args:
        attributes: Of the copy that is changed.
        given: Of another one.
        name: Of the attribute.
        ways: As in a `Place`; an empty one leads to all of it.
        originals: The `id` of each container that is no copy, and stays as it is; see `containers`.
    """
    start: tuple[Any, ...] = attributes, given, name
    for way in [()] if () in ways else ways:
        inside, source, key = start
        for step in way:
            steps, others = (_steps(held[key]) if _has(held, key) else None for held in (inside, source))
            if steps is None or others is None or not _alike(steps[0], others[0]):
                break
            if step not in steps[1].keys() | others[1].keys():  # it was in a list of another length
                break
            key = steps[1].get(step, others[1].get(step))
            inside, source = steps[0], others[0]
        if id(inside) in originals:
            continue
        if _has(source, key):
            value = source[key]
            inside[key] = value.clone() if isinstance(value, Tensor) and value.numel() > LARGE else value
        elif _has(inside, key):
            del inside[key]


def _whole(value: Any) -> Any:
    return value if isinstance(value, Tensor) else outline(value)


def _digest(value: Any, view: Callable[[Any], Any]) -> bytes:
    try:
        return digest(value, view=view)
    except TypeError:  # a sparse tensor and the like
        return b""


def _is_code(value: Any) -> bool:
    of_holders = nn.Module, pl.Callback, pl.LightningDataModule
    is_bound = isinstance(value, MethodType) and isinstance(value.__self__, of_holders)
    return is_bound or isinstance(value, CODE) or (isinstance(value, MethodType | partial) and not _steps(value))


def _parts(value: Any) -> list[tuple[tuple[str, ...], Any]]:
    """All that a value is made of, with the way there; the value itself where that is too much."""
    found: list[tuple[tuple[str, ...], Any]] = []
    waiting: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while waiting:
        way, part = waiting.pop()
        steps = _steps(part) if len(way) < _DEEP else None
        if steps is not None and steps[1]:
            waiting += [((*way, step), steps[0][key]) for step, key in steps[1].items()]
        elif not way or not (isinstance(part, nn.Module) or _is_code(part)):
            found.append((way, part))
        if len(found) + len(waiting) > _MANY:
            return [((), value)]
    return found


def _steps(value: Any) -> tuple[Any, dict[str, Any]] | None:
    """What holds the parts of a value, and the key of each by its step of a way; None where it counts as a whole."""
    if isinstance(value, dict):
        return value, {f"[{key!r}]": key for key in value}
    if type(value) is list:
        return (value, {f"[{key}]": key for key in range(len(value))}) if len(value) <= _LONG else None
    if isinstance(value, partial):
        arguments: dict[Any, Any] = {**dict(enumerate(value.args)), **value.keywords}
        return arguments, {f"[{key!r}]": key for key in arguments}
    if isinstance(value, MethodType):
        return _steps(value.__self__)
    if isinstance(value, nn.Module):  # in a list, say
        return vars(value), {f".{name}": name for name in ({*vars(value)} - _plain_names() | {"_buffers"})}
    is_whole = isinstance(value, (*CODE, *_WHOLE)) or is_installed(type(value).__module__)
    return (
        None if is_whole or not hasattr(value, "__dict__") else (vars(value), {f".{key}": key for key in vars(value)})
    )


def _place_of(attributes: Mapping[str, Any], name: str, way: tuple[str, ...]) -> tuple[Any, Any]:
    held: Any = attributes
    key: Any = name
    for step in way:
        steps = _steps(held[key])
        assert steps is not None
        held, key = steps[0], steps[1][step]
    return held, key


def _alike(one: Any, other: Any) -> bool:
    """Whether parts of one can stand for those of the other; lists of other lengths are set whole."""
    return type(one) is type(other) and (not isinstance(one, list) or len(one) == len(other))


def _has(held: Any, key: Any) -> bool:
    return key < len(held) if isinstance(held, list) else key in held


@cache
def _plain_names() -> frozenset[str]:
    return frozenset({*vars(pl.LightningModule()), *vars(pl.LightningDataModule())})
