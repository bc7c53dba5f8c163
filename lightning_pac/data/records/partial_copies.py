"""Copies of objects of which some parts are large, or cannot be copied."""

import functools
import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

import numpy as np
from torch import Tensor, nn

from lightning_pac.data.quiet_copies import added_to, bare_copied, can_be_quiet, deep_copied, shallow_copied
from lightning_pac.data.records.libraries import is_installed

__all__ = ["copied_apart", "copied_once", "taken_out_again"]

_LARGEST = 2**17  # entries of a container that is copied
_MOST_PARTS = 1000  # that are copied one by one, and that are looked at for what deep copies share
_DEPTH = 8
_CACHE = type(functools.cache(id))
# By which an object says how it is copied: perhaps not at all, or without what a copy should not have.
_OWN_WAYS = "__new__", "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__"
_ATOMS = (type(None), bool, int, float, complex, str, bytes, type, types.FunctionType, types.ModuleType)


def copied_apart(value: Any, memo: dict[int, Any], depth: int = _DEPTH) -> Any:
    """A deep copy that shares what cannot be copied, such as locks, open files and connections, and nothing else.

    Args:
        value: Anything.
        memo: Copies of other objects, as in `copy.deepcopy`.
        depth: Up to which parts are copied one by one.
    """
    for part in _shared_silently(value, memo) if depth else ():
        _copied_by_parts(part, memo, depth - 1)
    with added_to(memo) as added:
        try:
            return deep_copied(value, memo)
        except Exception:
            taken = getattr(memo, "taken", None) or ()
            for key in {*added()}.difference(map(id, taken)):  # half of a copy
                del memo[key]
    return _copied_by_parts(value, memo, depth)


def _shared_silently(value: Any, memo: Mapping[int, Any]) -> list[Any]:
    """Parts of a value that a deep copy shares, or of which it leaves something out, without an error.

    Methods of built-in types (`codes.setdefault`), caches of methods, and objects that say how they are copied, such as
    those of which there is to be one only.
    """
    found, seen, waiting = [], dict[int, Any](), [value]
    while waiting and len(seen) < _MOST_PARTS:
        part = waiting.pop()
        if isinstance(part, (*_ATOMS, Tensor, np.ndarray, nn.Module)) or id(part) in seen or id(part) in memo:
            continue
        seen[id(part)] = part
        if _is_shared_silently(part):
            found.append(part)
        waiting += _held(part)
    return [] if waiting else found


def _is_shared_silently(part: Any) -> bool:
    if isinstance(part, types.BuiltinMethodType):
        return isinstance(part.__self__, dict | list | set)
    if isinstance(part, _CACHE):
        return isinstance(part.__wrapped__, types.MethodType)
    kind: Any = type(part)
    if is_installed(kind.__module__) or isinstance(part, Enum | tuple):
        return False
    ways = (getattr(kind, name, None) for name in _OWN_WAYS)
    if not any(isinstance(way, types.FunctionType) and not is_installed(way.__module__) for way in ways):
        return False
    # Others, as signs for what is missing, must stay the same.
    return isinstance(part, dict | list) or not all(isinstance(held, _ATOMS) for held in _attributes(part).values())


def _held(value: Any) -> list[Any]:
    """What a value is made of; nothing where it does not say so, as a stand-in that answers no attribute."""
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    try:
        entries = _entries(value) or {}
        return [*entries.values(), *_attributes(value).values()] if len(entries) <= _MOST_PARTS else []
    except Exception:
        return []


def _copied_by_parts(value: Any, memo: dict[int, Any], depth: int) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, copied_apart(value.__self__, memo, depth))
    if isinstance(value, types.BuiltinMethodType):
        return memo.setdefault(id(value), getattr(copied_apart(value.__self__, memo, depth), value.__name__))
    if isinstance(value, _CACHE):
        method: list[Any] = []  # whose object holds the cache
        fresh = functools.lru_cache(**value.cache_parameters())(lambda *args, **named: method[0](*args, **named))
        memo[id(value)] = fresh
        method.append(copied_apart(value.__wrapped__, memo, depth))
        return fresh
    if isinstance(value, functools.partial):
        given, named = (copied_apart(part, memo, depth) for part in ([*value.args], value.keywords))
        return functools.partial(value.func, *given, **named)
    entries, attributes = _entries(value), _attributes(value)
    is_object = bool(attributes) or hasattr(value, "__dict__")
    if not depth or (entries is None and not is_object) or max(len(entries or ()), len(attributes)) > _MOST_PARTS:
        return memo.setdefault(id(value), value)
    if isinstance(value, tuple):
        held = (copied_apart(part, memo, depth - 1) for part in value)
        return memo.setdefault(id(value), getattr(value, "_make", tuple)(held))
    fresh = memo[id(value)] = copied_once(value)
    if fresh is value:
        return value
    for name, part in (entries or {}).items():
        type(fresh).__setitem__(fresh, name, copied_apart(part, memo, depth - 1))
    for name, part in attributes.items():
        _set_attribute(fresh, name, copied_apart(part, memo, depth - 1))
    return fresh


def _entries(value: Any) -> dict[Any, Any] | None:
    """Those of a dictionary, a list or a tuple."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list) or type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_make")):
        return dict(enumerate(value))
    return None


def _attributes(value: Any) -> dict[str, Any]:
    """Those of an object, with and without slots."""
    own = [vars(kind) for kind in type(value).__mro__ if "__slots__" in vars(kind)]
    slots = [name for names in own for name, part in names.items() if isinstance(part, types.MemberDescriptorType)]
    return {**{name: getattr(value, name) for name in slots if hasattr(value, name)}, **getattr(value, "__dict__", {})}


def _set_attribute(value: Any, name: str, part: Any) -> None:
    if name in getattr(value, "__dict__", {}):
        vars(value)[name] = part
    else:
        object.__setattr__(value, name, part)


def copied_once(value: Any) -> Any:
    """A copy of an object or of a container, with the parts of the original; the original where it is very large.

    Args:
        value: Anything; a `defaultdict` goes on asking its copy for a default, if it asks itself.
    """
    try:
        if isinstance(value, dict | list | set) and len(value) > _LARGEST:
            return value
        if not can_be_quiet(value):
            return value
        fresh: Any = bare_copied(value) if _is_shared_silently(value) else shallow_copied(value)
        factory: Any = value.default_factory if isinstance(value, defaultdict) else None
        if getattr(factory, "__self__", None) is value:
            fresh.default_factory = getattr(fresh, factory.__name__)
        if isinstance(value, dict | list | set):  # such as a vocabulary, which lists its words beside
            for name, part in _attributes(value).items():
                if isinstance(part, dict | list | set):
                    _set_attribute(fresh, name, copied_once(part))
        return fresh
    except Exception:  # it cannot be copied
        return value


@contextmanager
def taken_out_again(memo: Mapping[int, Any]) -> Iterator[None]:
    """Take out afterwards what was added to dictionaries and lists that are too large to be copied, or beside these.

    Args:
        memo: Copies of other objects, as in `copy.deepcopy`; what is large stands for itself.
    """
    large = [value for value in memo.values() if _ends_with_newest(value) and len(value) > _LARGEST]
    beside = [(value, _attributes(value)) for value in large]
    held = [*large, *(part for _, attributes in beside for part in attributes.values())]
    before = [(value, len(value)) for value in held if _ends_with_newest(value)]
    try:
        yield
    finally:
        for value, length in before:
            while len(value) > length:
                value.pop() if isinstance(value, list) else value.popitem()
        for value, attributes in beside:
            for name, part in attributes.items():
                _set_attribute(value, name, part)


def _ends_with_newest(value: Any) -> bool:
    """Whether what is taken out of a container is what was put in last: subclasses may order entries otherwise."""
    if isinstance(value, dict):
        return type(value).popitem in (dict.popitem, OrderedDict.popitem)
    return isinstance(value, list) and type(value).pop is list.pop
