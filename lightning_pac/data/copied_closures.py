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
def copying_closures(memo: dict[int, Any]) -> Iterator[None]:
    """Inside, a deep copy also copies functions with a closure, and at the end they lead to what was copied.

    A step that a model keeps as ``self.validation_step = lambda *batch: self.step("val", *batch)`` is such a one: as it
    stands, it would let the copy of a model run the model. So are functions whose defaults lead to what is copied.

    Args:
        memo: That of the copy.
    """
    before, closures = _dispatch[types.FunctionType], _Closures(memo)
    _dispatch[types.FunctionType] = closures.copied
    try:
        yield
        closures.fill()
    finally:
        _dispatch[types.FunctionType] = before


class _Closures:
    """Copies functions, of which the cells are filled later: what they lead to may be copied after them."""

    def __init__(self, memo: dict[int, Any]) -> None:
        self._memo = memo
        self._cells: list[tuple[Any, Any]] = []
        self._made: list[tuple[Any, Any]] = []

    def copied(self, function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
        """The copy, or the function itself where it leads to nothing that is copied."""
        own, leads = function, bool(function.__closure__)
        given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        if not leads and not any(self._led(value) is not value for value in given):
            return own
        cells = tuple(self._cell(cell) for cell in function.__closure__ or ())
        made = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, cells or None)
        functools.update_wrapper(made, function, updated=())
        memo[id(function)] = made
        self._made.append((function, made))
        return made

    def fill(self) -> None:
        """Let the functions so far lead to the copies."""
        while self._made or self._cells:
            if self._cells:
                cell, own = self._cells.pop()
                own.cell_contents = self._led(cell.cell_contents)
                continue
            function, made = self._made.pop()
            made.__defaults__ = self._all_led(function.__defaults__)
            made.__kwdefaults__ = self._all_led(function.__kwdefaults__)
            vars(made).update({name: self._led(value) for name, value in vars(function).items()})

    def _cell(self, cell: Any) -> Any:
        """The copy of a cell, which several functions may have in common."""
        if id(cell) not in self._memo:
            self._memo[id(cell)] = own = types.CellType()
            try:
                cell.cell_contents  # noqa: B018
                self._cells.append((cell, own))
            except ValueError:  # it is empty
                pass
        return self._memo[id(cell)]

    def _all_led(self, values: Any) -> Any:
        if isinstance(values, dict):
            return {name: self._led(value) for name, value in values.items()}
        return values if values is None else tuple(map(self._led, values))

    def _led(self, value: Any) -> Any:
        """The copy of what is copied, or of a function; anything else as it is."""
        if id(value) in self._memo:
            return self._memo[id(value)]
        if isinstance(value, types.FunctionType):
            return self.copied(value, self._memo)
        if isinstance(value, types.MethodType):
            holder = self._led(value.__self__)
            return value if holder is value.__self__ else types.MethodType(value.__func__, holder)
        if isinstance(value, functools.partial):
            function, arguments = self._led(value.func), self._all_led(value.args)
            return functools.partial(function, *arguments, **self._all_led(value.keywords))
        return value
