"""What a model and its callbacks keep beside weights and buffers, and where that is another than before."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_pac.data.records import digest, is_installed, outline

__all__ = ["Place", "changed_places", "own_attributes", "set_parts"]

Place = tuple[int, str, str]
"""The number of an object, the name of its attribute, and the `repr` of a key or an attribute inside, or ``""``."""


def own_attributes(holder: Any) -> dict[str, Any]:
    """Those that are not every model's, and hold no code."""
    return {name: value for name, value in vars(holder).items() if name not in _plain_names() and not callable(value)}


def changed_places(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> set[Place]:
    """Where attributes of the same objects differ; of what is large, writes to it in place.

    Args:
        before: Attributes of each object, or copies of them.
        after: The same at another time.
    """
    first, second = (dict(_digests(attributes)) for attributes in (before, after))
    return {place for place in first.keys() | second.keys() if first.get(place) != second.get(place)}


def set_parts(attributes: dict[str, Any], given: Mapping[str, Any], name: str, parts: Collection[str] | None) -> None:
    """Make an attribute, or these parts of it, what they are among the given ones; what is not there is taken away.

    Args:
        attributes: Of the object that is changed.
        given: Of another one.
        name: Of the attribute.
        parts: As in a `Place`; None for all of it.
    """
    inside, source = (_container(held.get(name)) for held in (attributes, given))
    if parts is None or inside is None or source is None:
        inside, source, keys = attributes, given, {name}
    else:
        keys = {key for key in inside.keys() | source.keys() if repr(key) in parts}
    for key in keys:
        if key in source:
            inside[key] = source[key]
        else:
            del inside[key]


def _digests(attributes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Place, bytes]]:
    for number, held in enumerate(attributes):
        for name, value in held.items():
            container = _container(value)
            parts = {"": value} if container is None else {repr(key): part for key, part in container.items()}
            for part, inner in parts.items():
                try:
                    yield (number, name, part), digest(inner, view=outline)
                except TypeError:  # a sparse tensor and the like
                    yield (number, name, part), b""


def _container(value: Any) -> Any:
    """What has parts of its own: a dictionary, or the attributes of an object of the user's."""
    if type(value) is dict:
        return value
    is_whole = isinstance(value, Tensor | nn.Module | Optimizer | ModuleType) or is_installed(type(value).__module__)
    return None if is_whole or not hasattr(value, "__dict__") else vars(value)


@cache
def _plain_names() -> frozenset[str]:
    return frozenset(vars(pl.LightningModule()))
