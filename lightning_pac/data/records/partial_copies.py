"""Copies of objects of which some parts are large, or cannot be copied."""

import functools
import threading
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning_pac.data.quiet_copies import can_be_quiet, deep_copied, shallow_copied

__all__ = ["copied_apart", "copied_once", "taken_out_again"]

_LARGEST = 2**17  # entries of a container that is copied
_MOST_PARTS = 1000  # that are copied one by one
_DEPTH = 8


def copied_apart(value: Any, memo: dict[int, Any], depth: int = _DEPTH) -> Any:
    """A deep copy that shares what cannot be copied, such as locks, open files and connections, and nothing else.

    Args:
        value: Anything.
        memo: Copies of other objects, as in `copy.deepcopy`.
        depth: Up to which parts are copied one by one.
    """
    known = set(memo)
    try:
        return deep_copied(value, memo)
    except Exception:
        taken = getattr(memo, "taken", None) or ()
        for key in memo.keys() - known - set(map(id, taken)):  # half of a copy
            del memo[key]
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, copied_apart(value.__self__, memo, depth))
    if isinstance(value, functools.partial):
        given, named = (copied_apart(part, memo, depth) for part in ([*value.args], value.keywords))
        return functools.partial(value.func, *given, **named)
    parts = _parts(value)
    if not depth or parts is None or len(parts) > _MOST_PARTS:
        return memo.setdefault(id(value), value)
    if isinstance(value, tuple):
        held = (copied_apart(part, memo, depth - 1) for part in value)
        return memo.setdefault(id(value), getattr(value, "_make", tuple)(held))
    fresh = copied_once(value)
    if fresh is value:
        return memo.setdefault(id(value), value)
    memo[id(value)] = fresh
    put: Any = type(fresh).__setitem__ if isinstance(value, dict | list) else object.__setattr__
    if isinstance(value, threading.local):
        put = setattr
    for name, part in parts.items():
        put(fresh, name, copied_apart(part, memo, depth - 1))
    return fresh


def _parts(value: Any) -> dict[Any, Any] | None:
    """The entries of a dictionary, a list or a tuple, or the attributes of an object, with and without slots."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list) or type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_make")):
        return dict(enumerate(value))
    own = [vars(kind) for kind in type(value).__mro__ if "__slots__" in vars(kind)]
    slots = [name for names in own for name, part in names.items() if isinstance(part, types.MemberDescriptorType)]
    if not slots and not hasattr(value, "__dict__"):
        return None
    return {**{name: getattr(value, name) for name in slots if hasattr(value, name)}, **getattr(value, "__dict__", {})}


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
        fresh = shallow_copied(value)
        factory: Any = getattr(value, "default_factory", None)
        if isinstance(value, dict) and getattr(factory, "__self__", None) is value:
            fresh.default_factory = getattr(fresh, factory.__name__)
        return fresh
    except Exception:  # it cannot be copied
        return value


@contextmanager
def taken_out_again(memo: Mapping[int, Any]) -> Iterator[None]:
    """Take out afterwards what was added meanwhile to dictionaries and lists that are too large to be copied.

    Args:
        memo: Copies of other objects, as in `copy.deepcopy`; what is large stands for itself.
    """
    before = [(value, len(value)) for value in memo.values() if _ends_with_newest(value) and len(value) > _LARGEST]
    try:
        yield
    finally:
        for value, length in before:
            while len(value) > length:
                value.pop() if isinstance(value, list) else value.popitem()


def _ends_with_newest(value: Any) -> bool:
    """Whether what is taken out of a container is what was put in last: subclasses may order entries otherwise."""
    if isinstance(value, dict):
        return type(value).popitem in (dict.popitem, OrderedDict.popitem)
    return isinstance(value, list) and type(value).pop is list.pop
