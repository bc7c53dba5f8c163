"""Copies of objects of which some parts are large, or cannot be copied."""

import functools
import types
from collections import Counter, OrderedDict, defaultdict
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
    is_container = isinstance(value, dict | list)
    parts = value if is_container else getattr(value, "__dict__", None)
    if not depth or parts is None or len(parts) > _MOST_PARTS:
        return memo.setdefault(id(value), value)
    fresh = copied_once(value)
    if fresh is value:
        return memo.setdefault(id(value), value)
    memo[id(value)] = fresh
    held = fresh if is_container else vars(fresh)
    for name, part in [*(parts.items() if isinstance(parts, dict) else enumerate(parts))]:
        held[name] = copied_apart(part, memo, depth - 1)
    return fresh


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
    kinds = dict, list, defaultdict, OrderedDict, Counter  # others may order their entries otherwise
    before = [(value, len(value)) for value in memo.values() if type(value) in kinds and len(value) > _LARGEST]
    try:
        yield
    finally:
        for value, length in before:
            while len(value) > length:
                value.pop() if isinstance(value, list) else value.popitem()
