"""State that a hook leaves behind beside weights, buffers and the optimizer: attributes of a model, data, a batch."""

import functools
import zlib
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lightning_pac.gradients.calls import nested_tensors

__all__ = ["OF_DATASET", "PassingState", "attributes_of", "is_equal"]

BATCH = "the batch"
OF_DATASET = " of the dataset "

_SMALL = 2**18  # bytes of an array that is read whole, since NumPy counts no writes
_FEW = 16  # parts of a list that are looked into


def attributes_of(dataset: Any) -> dict[str, Any]:
    """Attributes of a dataset and of those that it takes records from, by their names in words."""
    found: dict[str, Any] = {}
    while dataset is not None:
        own = getattr(dataset, "__dict__", {})
        kind = type(dataset).__name__
        found |= {f"the attribute {name!r}{OF_DATASET}{kind}": own[name] for name in own if name != "dataset"}
        dataset = own.get("dataset")
    return found


class PassingState:
    """Attributes of a model and of its data, and tensors of a batch, as they are at one moment.

    They are held against those of a later one. Values are compared by identity, tensors also by the version that
    writing in place raises, and small arrays by their contents.

    Args:
        module: The model; those of its layers are its own.
        batch: What a hook is given, if it may change it.

    Example:
        >>> module = pl.LightningModule()
        >>> before = PassingState(module)
        >>> module.shift = 1.0
        >>> before.changed()
        {"the attribute 'shift'"}
    """

    def __init__(self, module: pl.LightningModule, batch: Any = None) -> None:
        self._module, self._batch = module, batch
        self._facts = self._read()

    def changed(self) -> set[str]:
        """Names of what was written to since."""
        now = self._read()
        names = now.keys() | self._facts.keys()
        return {name for name in names if not _same(now.get(name, ()), self._facts.get(name, ()))}

    def _read(self) -> dict[str, tuple[Any, ...]]:
        own = {name: value for name, value in vars(self._module).items() if name not in _plain_names()}
        facts = {f"the attribute {name!r}": _fact(value) for name, value in own.items()}
        loader = getattr(self._module._trainer, "train_dataloader", None)
        facts |= {name: _fact(value) for name, value in attributes_of(getattr(loader, "dataset", None)).items()}
        batch = self._batch
        leaves = [] if batch is None else [*pytree.tree_leaves(batch), *nested_tensors(batch)]  # the latter of any kind
        modes = tuple(layer.training for layer in self._module.modules())
        return {**facts, "the modes of layers": modes, BATCH: tuple(part for leaf in leaves for part in _fact(leaf))}


def _fact(value: Any) -> tuple[Any, ...]:
    if isinstance(value, np.ndarray):
        is_small = value.nbytes <= _SMALL and value.dtype != object
        return (
            (value, zlib.crc32(np.ascontiguousarray(value).data.cast("B"))) if is_small and value.nbytes else (value,)
        )
    if isinstance(value, list | tuple) and len(value) <= _FEW:
        return (value, *(fact for part in value for fact in _fact(part)))
    return (value, value._version) if isinstance(value, Tensor) and not value.is_inference() else (value,)


def _same(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    return len(first) == len(second) and all(
        one is other or (type(one) is int and one == other) for one, other in zip(first, second, strict=True)
    )


@functools.cache
def _plain_names() -> frozenset[str]:
    """Attributes that every model has, of which Lightning writes some in each hook."""
    return frozenset(vars(pl.LightningModule()))


def is_equal(first: Any, second: Any) -> bool:
    """Whether two parts of a state are the same, tensors and arrays number by number."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        is_alike = first.shape == second.shape and first.dtype == second.dtype
        return is_alike and (torch.equal(first, second) or torch.allclose(first, second, 0, 0, equal_nan=True))
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.array_equal(first, second)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(is_equal(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(is_equal, first, second))
    try:
        return bool(first == second)
    except Exception:  # an object that does not compare; it is not equal to a copy of itself, either
        return False
