"""State that code keeps beside its objects, and copies of it, so that what code remembers can be tried out."""

import asyncio
import functools
import random
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from lightning_pac.data.records.files_apart import files_apart
from lightning_pac.data.records.libraries import is_library
from lightning_pac.data.records.partial_copies import copied_apart, copied_once
from lightning_pac.data.value_digest import digest
from lightning_pac.gradients.calls import as_written

__all__ = ["LARGE", "DataMemo", "Scope", "Surroundings", "copy_small", "outline"]

LARGE = 2**16
"""Values of what is shared by copies."""

_MOST_PARTS = 2000  # that are looked at of one value; a larger one is shared
_MOST_OBJECTS = 5000  # that are followed
_SCALARS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_CACHE = type(functools.cache(id))
_DESCRIPTORS = (property, classmethod, staticmethod, types.GetSetDescriptorType, types.MemberDescriptorType)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, _CACHE, *_DESCRIPTORS)
# `from random import uniform` gives a method of the first, of which a copy would not be seeded with it.
_GENERATORS: tuple[Any, ...] = (random.choice.__self__, np.random.rand.__self__)  # type: ignore[attr-defined]
_MISSING: Any = type("Missing", (), {})  # shared by copies


@dataclass(frozen=True, eq=False)
class Scope:
    """A place for state.

    Attributes:
        owner: A class or function, the variables of a module, or the cell of a closure.
        read: Gives what an owner holds, by name.
        write: Lets an owner hold that.
    """

    owner: Any
    read: Callable[[Any], dict[str, Any]]
    write: Callable[[Any, Mapping[str, Any]], object]


class Surroundings:
    """State in closures, default arguments, global variables, attributes of classes and functions, and caches.

    A copy of an object shares all of this with the original, so a memory of earlier records may lie there. Code of
    torch, NumPy, Lightning and of Python itself is not followed. Datasets, loaders and what is large are shared, and a
    `functools.cache` that holds something already is left as it is.

    Args:
        objects: Whose code is followed: that of their classes, and of what they hold.

    Example:
        >>> def count(seen=[]):
        ...     seen.append(1)
        ...     return len(seen)
        >>> count.__module__ = "__main__"  # code of the library itself is not followed
        >>> surroundings = Surroundings(count)
        >>> counted = []
        >>> for _ in range(2):
        ...     with surroundings.copied({}):
        ...         counted.append((count(), count()))
        >>> counted
        [(1, 2), (1, 2)]
    """

    def __init__(self, *objects: Any) -> None:
        self._owners: list[Any] = []  # classes and functions, of which all attributes may be state
        self._globals: dict[int, tuple[dict[str, Any], set[str]]] = {}
        self._cells: dict[int, tuple[str, types.CellType]] = {}
        self._caches: list[Any] = []
        self._own = {id(value) for value in objects}
        self._own |= {id(part) for value in objects if isinstance(value, nn.Module) for part in value.modules()}
        seen: dict[int, Any] = {}
        waiting = list(objects)
        while waiting and len(seen) < _MOST_OBJECTS:
            value = waiting.pop()
            if not isinstance(value, (*_SCALARS, Tensor, np.ndarray)) and id(value) not in seen:
                seen[id(value)] = value
                waiting += self._follow(value)
        self._caches = [cache for cache in self._caches if not cache.cache_info().currsize]

    @property
    def scopes(self) -> list["Scope"]:
        """Where state lies."""
        found = [Scope(owner, _attributes, _set_attributes) for owner in self._owners]
        found += [
            Scope(space, partial(_named, names=names), partial(_set_names, names=names))
            for space, names in self._globals.values()
        ]
        found += [Scope(cell, partial(_contents_of, name), partial(_fill, name)) for name, cell in self._cells.values()]
        functions = [owner for owner in self._owners if isinstance(owner, types.FunctionType)]
        return found + [Scope(function, _defaults, _set_defaults) for function in functions]

    @contextmanager
    def copied(self, memo: dict[int, Any]) -> Iterator[None]:
        """Let code see copies of the state meanwhile, and the state as it was afterwards.

        Args:
            memo: Copies of other objects, as in `copy.deepcopy`; those that are made here join them. Code that sees one
                of these copies already goes on seeing it, rather than a copy of the copy.
        """
        memo.update({id(found): found for found in [*memo.values(), *_GENERATORS]})
        held = [(scope, scope.read(scope.owner)) for scope in self.scopes]
        try:
            self._clear_caches()
            for scope, values in held:
                scope.write(scope.owner, {name: _copy_of_state(value, memo) for name, value in values.items()})
            with files_apart(), as_written():  # a compiler would miss its files
                yield
        finally:
            for scope, values in held:
                scope.write(scope.owner, values)
            self._clear_caches()

    def digest(self) -> bytes:
        """A digest of all of this, but for the objects themselves and modules in them.

        Of what is large, only the length counts, and how often it was written to.
        """
        found: list[Any] = [scope.read(scope.owner) for scope in self.scopes]
        found.append([cache.cache_info().currsize for cache in self._caches])

        def others(value: Any) -> Any:
            return () if id(value) in self._own else outline(value)

        return b"".join(digest(values, view=others) for values in found)

    def _clear_caches(self) -> None:
        for cache in self._caches:
            cache.cache_clear()

    def _follow(self, value: Any) -> list[Any]:
        """All that is reached from a value; what of it is a place for state is noted."""
        if isinstance(value, types.FunctionType):
            return [] if is_library(value.__module__) else self._follow_function(value)
        if isinstance(value, type):
            if is_library(value.__module__) or issubclass(value, Enum):
                return []
            self._owners.append(value)
            return [*value.__mro__[1:], *vars(value).values()]
        if isinstance(value, types.MethodType):
            return [value.__func__, value.__self__]
        if isinstance(value, functools.partial):
            return [value.func, *value.args, *value.keywords.values()]
        if isinstance(value, _CACHE):
            self._caches.append(value)
            return [value.__wrapped__]
        if isinstance(value, property):
            return [value.fget, value.fset]
        if isinstance(value, classmethod | staticmethod):
            return [value.__func__]
        if isinstance(value, types.ModuleType | types.BuiltinFunctionType):
            return []
        return [] if _is_apart(value) else [*(_parts(value) if _size(value) <= LARGE else []), type(value)]

    def _follow_function(self, function: types.FunctionType) -> list[Any]:
        self._owners.append(function)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        self._cells |= {id(cell): (name, cell) for name, cell in cells}
        reached = [*map(_contents, function.__closure__ or ()), *vars(function).values()]
        reached += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        used, space = _names_in(function.__code__), function.__globals__
        modules = [value for name in used if isinstance(value := space.get(name), types.ModuleType)]
        for names in (space, *(vars(module) for module in modules if not is_library(module.__name__))):
            self._globals.setdefault(id(names), (names, set()))[1].update(used)
            reached += [names[name] for name in used if name in names]
        return reached


class DataMemo(dict[int, Any]):
    """Copies of objects, as in `copy.deepcopy`, among them data that are copied once they are come across.

    Args:
        places: Numbers of the data, by the identity of what is copied.
        make: Makes the copies; where that fails, the data are copied as everything else is.

    Attributes:
        taken: What it made; None where nothing led to the data.
    """

    def __init__(self, places: Mapping[int, int], make: Callable[[], list[Any]]) -> None:
        super().__init__(dict.fromkeys(places))
        self._places, self._make = places, make
        self.taken: list[Any] | None = None

    @override
    def get(self, key: int, default: Any = None) -> Any:
        if self.taken is None and key in self._places:
            try:
                self.taken = self._make()
            except Exception:  # open files and the like
                for place in self._places:
                    del self[place]
                self._places = {}
            else:
                self.update({place: self.taken[number] for place, number in self._places.items()})
                self.update({id(value): value for value in self.taken})
        return super().get(key, default)

    def leads_to(self, value: Any) -> bool:
        """Whether a loader or a dataset takes its records from the data."""
        return any(id(part) in self._places for part in vars(value).values())


def copy_small(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy that shares code, datasets, entries of long containers, large arrays and what cannot be copied.

    Args:
        value: Anything.
        memo: Copies of other objects, as in `copy.deepcopy`.
    """
    shared = _shared(value, memo)
    if shared is None:  # a datamodule with its records, say
        shared = _shared(value, memo, LARGE // 64)
    if shared is None:
        return value
    memo.update(shared)
    return copied_apart(value, memo)


def _copy_of_state(value: Any, memo: dict[int, Any]) -> Any:
    return value if isinstance(value, _SCALARS) or _is_code(value) else copy_small(value, memo)


def _shared(value: Any, memo: dict[int, Any], large: int = LARGE) -> dict[int, Any] | None:
    """What stands for the parts that are not copied deeply, for `copy.deepcopy`; None if a copy shares all."""
    shared: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, _SCALARS) or id(part) in seen or id(part) in memo or _is_code(part):
            continue
        seen[id(part)] = part
        if len(seen) > _MOST_PARTS:
            return None
        if isinstance(part, Dataset | DataLoader) and isinstance(memo, DataMemo) and memo.leads_to(part):
            waiting += _parts(part)
        elif isinstance(part, Dataset | DataLoader) or _is_apart(part) or _size(part) > large:
            is_container = isinstance(part, dict | list | set) and not isinstance(part, Dataset)
            shared[id(part)] = copied_once(part) if is_container else part
        else:
            waiting += _parts(part)
    return shared


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.values(), *([value.default_factory] if isinstance(value, defaultdict) else [])]
    if isinstance(value, list | tuple | set | frozenset):
        return [*value]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    try:
        return [*getattr(value, "__dict__", {}).values()]
    except Exception:  # a stand-in that answers no attribute
        return []


def _size(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel()
    if isinstance(value, np.ndarray):
        return value.size
    return 64 * len(value) if isinstance(value, list | tuple | dict | set | frozenset) else 0


def outline(value: Any) -> Any:
    """What counts of a value in its `digest`: all that copies would not share, and how often the rest was written."""
    if _is_code(value) or value is _MISSING or _is_apart(value) or isinstance(value, Dataset | DataLoader):
        return ()
    if _size(value) > LARGE:
        return len(value), value._version if isinstance(value, Tensor) else None
    if isinstance(value, (*_SCALARS, Tensor, np.ndarray, dict, list, tuple, set, frozenset)):
        return value
    return getattr(value, "__dict__", ())


def _is_code(value: Any) -> bool:
    return isinstance(value, _CODE)


def _is_apart(value: Any) -> bool:
    """A Trainer and the like, which hold all there is, or an event loop, whose failed copies complain when they go."""
    if isinstance(value, asyncio.AbstractEventLoop):
        return True
    # That of a function of Cython is no text.
    return str(type(value).__module__).startswith("lightning") and not isinstance(value, nn.Module | dict)  # hparams


@functools.cache
def _names_in(code: types.CodeType) -> frozenset[str]:
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return frozenset(code.co_names).union(*map(_names_in, inner))


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _MISSING


def _contents_of(name: str, cell: types.CellType) -> dict[str, Any]:
    return {name: _contents(cell)}


def _fill(name: str, cell: types.CellType, values: Mapping[str, Any]) -> None:
    value = values.get(name, _MISSING)
    if value is not _MISSING:
        cell.cell_contents = value
    elif _contents(cell) is not _MISSING:
        del cell.cell_contents


def _attributes(owner: Any) -> dict[str, Any]:
    """Those of a class or a function that may be state."""
    return {name: value for name, value in vars(owner).items() if not name.startswith("__") and not _is_code(value)}


def _set_attributes(owner: Any, attributes: Mapping[str, Any]) -> None:
    found = _attributes(owner)
    for name in found.keys() - attributes.keys():
        with suppress(AttributeError, TypeError):  # a class that forbids it
            delattr(owner, name)
    for name, value in attributes.items():
        if found.get(name, _MISSING) is not value:
            with suppress(AttributeError, TypeError):
                setattr(owner, name, value)


def _named(space: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: space.get(name, _MISSING) for name in names}


def _set_names(space: dict[str, Any], values: Mapping[str, Any], names: set[str]) -> None:
    for name in names:
        value = values.get(name, _MISSING)
        if value is _MISSING:
            space.pop(name, None)
        else:
            space[name] = value


def _defaults(function: types.FunctionType) -> dict[str, Any]:
    return {"defaults": function.__defaults__, "keywords": function.__kwdefaults__}


def _set_defaults(function: types.FunctionType, values: Mapping[str, Any]) -> None:
    given = values.get("defaults"), values.get("keywords")
    if given[0] is not function.__defaults__ or given[1] is not function.__kwdefaults__:
        function.__defaults__, function.__kwdefaults__ = given
