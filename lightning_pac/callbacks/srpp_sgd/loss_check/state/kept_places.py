"""What a model and its callbacks keep beside weights and buffers, and where that is another than before."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    "differing",
    "digests_of",
    "own_attributes",
    "set_parts",
    "without_large",
]

Place = tuple[int, str, str]
"""The number of an object, the name of its attribute, and the `repr` of a key or an attribute inside, or ``""``."""


CODE = FunctionType, MethodType, BuiltinFunctionType, type, partial, nn.Module
"""Kinds of objects whose attributes are no state, or are asked for by themselves."""

_WHOLE = Tensor, nn.Module, Optimizer, ModuleType, Dataset, DataLoader


def own_attributes(holder: Any) -> dict[str, Any]:
    """Those that are not every model's, and hold no code."""
    return {
        name: value
        for name, value in (plain_attributes(holder) if isinstance(holder, nn.Module) else vars(holder).items())
        if name not in _plain_names() and not isinstance(value, CODE)
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
    return dict(_digests(attributes, view))


def without_large(copied: dict[str, Any], originals: Mapping[str, Any]) -> dict[str, Any]:
    """With zeros in place of large tensors, which copies share, and which may be written to.

    Args:
        copied: Copies of attributes.
        originals: What they are copies of.
    """
    containers = [(_container(value), _container(originals[name])) for name, value in copied.items()]
    for held in (copied, *(held for held, original in containers if held is not None and held is not original)):
        for name, value in list(held.items()):
            if isinstance(value, Tensor) and value.numel() > LARGE and value.layout == torch.strided:
                held[name] = value.new_zeros(1).expand(value.shape)
    return copied


def set_parts(
    attributes: dict[str, Any],
    given: Mapping[str, Any],
    name: str,
    parts: Collection[str] | None,
    originals: Mapping[str, Any],
) -> None:
    """Make an attribute, or these parts of it, what they are among the given ones; what is not there is taken away.

    Args:
        attributes: Of the copy that is changed.
        given: Of another one.
        name: Of the attribute.
        parts: As in a `Place`; None for all of it.
        originals: Attributes of what it is a copy of, which stays as it is where the two share something.
    """
    inside, source = (_container(held.get(name)) for held in (attributes, given))
    if parts is None or inside is None or source is None:
        inside, source, keys = attributes, given, {name}
    elif inside is _container(originals.get(name)):
        return
    else:
        keys = {key for key in inside.keys() | source.keys() if repr(key) in parts}
    for key in keys:
        if key in source:
            value = source[key]
            inside[key] = value.clone() if isinstance(value, Tensor) and value.numel() > LARGE else value
        else:
            del inside[key]


def _whole(value: Any) -> Any:
    return value if isinstance(value, Tensor) else outline(value)


def _digests(attributes: Sequence[Mapping[str, Any]], view: Callable[[Any], Any]) -> Iterator[tuple[Place, bytes]]:
    for number, held in enumerate(attributes):
        for name, value in held.items():
            container = _container(value)
            parts = {"": value} if container is None else {repr(key): part for key, part in container.items()}
            for part, inner in parts.items():
                try:
                    yield (number, name, part), digest(inner, view=view)
                except TypeError:  # a sparse tensor and the like
                    yield (number, name, part), b""


def _container(value: Any) -> Any:
    """What has parts of its own: a dictionary, or the attributes of an object of the user's."""
    if type(value) is dict:
        return value
    is_whole = isinstance(value, _WHOLE) or is_installed(type(value).__module__)
    return None if is_whole or not hasattr(value, "__dict__") else vars(value)


@cache
def _plain_names() -> frozenset[str]:
    return frozenset({*vars(pl.LightningModule()), *vars(pl.LightningDataModule())})
