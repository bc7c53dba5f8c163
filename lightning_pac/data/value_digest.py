"""Digests of Python values that agree between processes."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["digest"]

_Feed = Callable[[bytes], object]


def digest(value: Any, key: bytes = b"", view: Callable[[Any], Any] = lambda part: part) -> bytes:
    """A hash of a value and of all it is made of, equal for equal values in any process.

    Tensors and arrays count by type, shape and bytes, containers by what they hold, objects by what pickle would keep
    of them, and functions by their names and what they close over.

    Args:
        value: Anything.
        key: Up to 64 bytes without which nobody can compare the digest with that of a guess.
        view: What counts in place of an object, for those that hold more than should.

    Returns:
        32 bytes.

    Raises:
        TypeError: If a part of the value can be neither looked into nor pickled.

    Example:
        >>> digest({"a": torch.ones(2)}) == digest({"a": torch.ones(2)})
        True
    """
    hasher = hashlib.blake2b(key=key, digest_size=32)
    _feed(hasher.update, value, {}, view)
    return hasher.digest()


def _feed(feed: _Feed, value: Any, seen: dict[int, tuple[int, Any]], view: Callable[[Any], Any]) -> None:
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes):
        _add(feed, f"{kind.__name__}:{value!r}")
        return
    if id(value) in seen:  # an object that holds itself, or comes twice
        _add(feed, f"again:{seen[id(value)][0]}")
        return
    seen[id(value)] = len(seen), value  # kept, so that no other object gets its number
    _add(feed, f"{kind.__module__}.{kind.__qualname__}")
    value = view(value)
    if isinstance(value, Tensor):
        _feed_tensor(feed, value)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        _add(feed, f"{value.dtype.str}{value.shape}")
        feed(value.tobytes())
    elif isinstance(value, set | frozenset):
        _feed(feed, sorted(digest(element, view=view) for element in value), seen, view)
    else:
        parts = list(_parts(value))
        _add(feed, f"{len(parts)} parts")
        for part in parts:
            _feed(feed, part, seen, view)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for entry in value.items():
            yield from entry
    elif type(value) in (list, tuple):
        yield from value
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, FunctionType):
        yield f"{value.__module__}.{value.__qualname__}"
        yield from (cell.cell_contents for cell in value.__closure__ or () if cell != CellType())
    elif isinstance(value, type | BuiltinFunctionType | ModuleType):
        yield getattr(value, "__qualname__", value.__name__)
    else:
        yield from _pickled_parts(value)


def _pickled_parts(value: Any) -> Iterator[Any]:
    try:
        reduced: Any = value.__reduce_ex__(4)
    except Exception:
        raise TypeError(f"{type(value).__name__} can be neither looked into nor pickled.") from None
    if isinstance(reduced, str):
        yield reduced
        return
    for part in reduced:
        yield list(part) if isinstance(part, Iterator) else part


def _feed_tensor(feed: _Feed, tensor: Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"A {tensor.layout} tensor cannot be looked into.")
    _add(feed, f"{tensor.dtype}{tuple(tensor.shape)}")
    values = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    feed(values.view(torch.uint8).numpy().tobytes())


def _add(feed: _Feed, text: str) -> None:
    encoded = text.encode("utf-8", "surrogatepass")
    feed(len(encoded).to_bytes(8, "big") + encoded)
