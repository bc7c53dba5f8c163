"""Copies whose end closes and removes nothing."""

import copy
import functools
import itertools
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing.sharedctypes import SynchronizedBase
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

__all__ = ["added_to", "bare_copied", "can_be_quiet", "deep_copied", "shallow_copied", "without_graphs"]

_OWN_WAYS = "__new__", "__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"  # of being copied
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: classes that are written in Python, and those of some extensions


def deep_copied(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A deep copy, as by `copy.deepcopy`, in which no `__del__` does anything.

    An object that closes a file or removes a folder with its end has a copy that would do so as well, and does so too
    soon: it lives for one check. The same holds for what was copied before a part turned out to be one that cannot be.

    Args:
        value: Anything.
        memo: Copies of other objects.
    """
    memo = {} if memo is None else memo
    with added_to(memo) as added:
        try:
            return copy.deepcopy(value, memo)
        finally:
            for key in added():
                _make_quiet(memo[key])


@contextmanager
def added_to(memo: dict[int, Any]) -> Iterator[Callable[[], list[int]]]:
    """Give the keys of the copies that have joined others since.

    They are looked for from the end: one memo serves the copies of hundreds of values, and holds thousands of others.
    """
    mark = object()
    memo[id(mark)] = mark
    try:
        yield lambda: list(itertools.takewhile(lambda key: key != id(mark), reversed(memo)))
    finally:
        memo.pop(id(mark), None)


def shallow_copied(value: Any) -> Any:
    """A shallow copy, as by `copy.copy`, whose `__del__` does nothing; of a `threading.local` what this thread sees.

    A future is its own: a thread that has it says only there that it is done.
    """
    if isinstance(value, Future):
        return value
    if type(value) is threading.local:
        local = threading.local()
        vars(local).update(vars(value))
        return local
    try:
        return _make_quiet(copy.copy(value))
    except Exception:
        kind, base = type(value), _built_in(value)
        has_own = any(getattr(kind, name, None) is not getattr(base, name, None) for name in _OWN_WAYS)
        if has_own and not isinstance(value, SynchronizedBase):
            raise
        return bare_copied(value)  # `__getattr__` asked for an attribute that a bare copy lacks


def bare_copied(value: Any) -> Any:
    """A shallow copy, but for slots, in which the object has no say, and whose `__del__` does nothing.

    Args:
        value: An object of a class that is written in Python.

    Raises:
        TypeError: If it is of another class.
    """
    base = _built_in(value)
    fresh = base.__new__(type(value))
    if base in (dict, list):
        (dict.update if base is dict else list.extend)(fresh, value)
    if hasattr(value, "__dict__"):
        vars(fresh).update(vars(value))
    return _make_quiet(fresh)


def _built_in(value: Any) -> Any:
    return next(kind for kind in (dict, list, threading.local, object) if isinstance(value, kind))


def can_be_quiet(value: Any) -> bool:
    """Whether a shallow copy of an object closes nothing with its end."""
    kind: Any = type(value)
    return not hasattr(kind, "__del__") or _quiet_class(kind) is not None


def _make_quiet(value: Any) -> Any:
    kind: Any = type(value)
    if hasattr(kind, "__del__") and (quiet := _quiet_class(kind)) is not None:
        with suppress(TypeError):  # of another layout
            object.__setattr__(value, "__class__", quiet)
    return value


@functools.lru_cache(maxsize=256)
def _quiet_class(kind: Any) -> Any:
    """A class that differs from another by its end alone; None for types that have no subclass of this kind."""
    if not kind.__flags__ & _HEAP_TYPE:
        return None
    same = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    try:
        return types.new_class(kind.__name__, (kind,), exec_body=lambda names: names.update(_QUIET, **same))
    except Exception:  # it may be registered, or must not have subclasses
        return None


def _end(self: Any) -> None:
    """Close and remove nothing."""


_QUIET = {"__slots__": (), "__del__": _end}


def without_graphs(model: torch.nn.Module) -> dict[int, Any]:
    """Copies of tensors that layers and metrics keep with what they were computed from, which have none."""
    kept = [part for layer in model.modules() for part in tree_leaves(list(vars(layer).values()))]
    return {id(part): part.detach().clone() for part in kept if isinstance(part, Tensor) and not part.is_leaf}
