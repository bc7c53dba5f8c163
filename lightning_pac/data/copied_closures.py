"""Functions in a deep copy that lead to its parts, where `copy.deepcopy` lets them lead to the original's."""

import copy
import functools
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["copying_closures"]

_dispatch: dict[Any, Any] = copy._deepcopy_dispatch  # type: ignore[attr-defined]


@contextmanager
def copying_closures() -> Iterator[None]:
    """Inside, a deep copy also copies functions whose closure or defaults lead to something that it copies.

    A step that a model keeps as ``self.validation_step = lambda *batch: self.step("val", *batch)`` is such a one: as it
    stands, it would let the copy of a model run the model. Other functions stay the same objects.
    """
    before = _dispatch[types.FunctionType]
    _dispatch[types.FunctionType] = _copied
    try:
        yield
    finally:
        _dispatch[types.FunctionType] = before


def _copied(function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
    memo[id(function)] = function  # it may lead to itself
    cells, leads = [], False
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # it is empty
            held = None
        led = _led(held, memo)
        leads |= led is not held
        cells.append(cell if led is held and held is not function else types.CellType(led))
    defaults, named = _all_led(function.__defaults__, memo), _all_led(function.__kwdefaults__, memo)
    if not leads and defaults is function.__defaults__ and named is function.__kwdefaults__:
        return function
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, defaults, tuple(cells) or None
    )
    for cell in cells:
        if cell.cell_contents is function:
            cell.cell_contents = made
    memo[id(function)] = made
    made.__kwdefaults__ = named
    functools.update_wrapper(made, function, updated=())
    vars(made).update({name: _led(value, memo) for name, value in vars(function).items()})
    return made


def _all_led(values: Any, memo: dict[int, Any]) -> Any:
    """A tuple or dictionary with the copies of what is copied, or itself where there are none."""
    if not values:
        return values
    parts = list(values.values() if isinstance(values, dict) else values)
    copies = [_led(part, memo) for part in parts]
    if all(one is other for one, other in zip(copies, parts, strict=True)):
        return values
    return dict(zip(values, copies, strict=True)) if isinstance(values, dict) else tuple(copies)


def _led(value: Any, memo: dict[int, Any]) -> Any:
    """The copy of what is copied, or of a function that leads to it; anything else as it is."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, types.FunctionType):
        return _copied(value, memo)
    if isinstance(value, types.MethodType):
        holder = _led(value.__self__, memo)
        return value if holder is value.__self__ else types.MethodType(value.__func__, holder)
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        function, arguments, named = _led(value.func, memo), _all_led(value.args, memo), _all_led(value.keywords, memo)
        if any(one is not other for one, other in zip((function, arguments, named), parts, strict=True)):
            return functools.partial(function, *arguments, **named)
    return value
