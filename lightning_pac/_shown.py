"""One line about an object for its reader, and a table of the same in a notebook.

Shown are constructor arguments that the object keeps under their own names and that are not the default, then its
state: properties such as `spent`, and `_shown_state()` where a class has more to say. Attributes with an underscore are
never read, bytes are never shown and arrays only by their shape, so that neither keys nor records reach a log.
"""

import dataclasses
import functools
import html
import inspect
import math
import os
import types
from collections.abc import Mapping
from contextlib import suppress
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any, TypeVar

__all__ = ["shows_itself"]

Kind = TypeVar("Kind", bound=type)

_WIDTH, _VALUE, _CELL = 160, 56, 400  # characters of a line, of a value in it, and of a cell of the table

_STATE = (
    "name", "num_secrets", "num_steps", "num_charges", "num_releases", "num_responses", "num_observations",
    "spent", "epsilon", "remaining", "mutual_information", "path",
)  # fmt: skip
"""Properties that are read where a class has them: none of them computes."""

_RECORDS = ("dataset", "public_dataset", "val_dataset")


def shows_itself(kind: Kind) -> Kind:
    """Give a class the line and the table; one of its own, or that of a framework, is left alone.

    A dataclass keeps its generated line where that is short, since checkpoints compare it.
    """
    own: Any = kind.__repr__
    inherited = own is object.__repr__ or own.__qualname__ == _line.__qualname__
    generated = dataclasses.is_dataclass(kind) and hasattr(own, "__wrapped__")
    if inherited or generated:
        short = None if inherited else own
        shown: Any = functools.wraps(_line)(lambda self: _line(self, short))
        kind.__repr__ = shown  # type: ignore[method-assign]
    elif hasattr(kind, "extra_repr") and not kind.extra_repr.__module__.startswith(__package__):
        kind.extra_repr = _arguments_alone  # a module of torch shows these before its layers
    if not hasattr(kind, "_repr_html_"):
        kind._repr_html_ = _table  # type: ignore[attr-defined]
    return kind


def _line(self: Any, short: Any = None) -> str:
    if short is not None:
        text = short(self)
        if len(text) <= _WIDTH and "\n" not in text and " at 0x" not in text:
            return str(text)
    return _call(self, _arguments(self), _state(self), _WIDTH)


def _call(self: Any, given: dict[str, Any], state: dict[str, Any], width: int) -> str:
    given = {name: value for name, value in given.items() if name not in state}
    come_to = [f"{name}={_brief(value, _VALUE)}" for name, value in state.items()]
    # What it has come to is told last and kept; arguments give way to it: long ones first, then the last ones.
    for room, kept in [(_VALUE, len(given)), *((_VALUE // 2, kept) for kept in range(len(given), -1, -1))]:
        told = [f"{name}={_brief(value, room)}" for name, value in list(given.items())[:kept]]
        left_out = ["..."] if kept < len(given) else []
        text = f"{type(self).__name__}({', '.join([*told, *left_out, *come_to])})"
        if len(text) <= width:
            return text
    return text[: width - 4] + "...)"


def _table(self: Any) -> str:
    facts = {**_arguments(self), **_state(self)}
    rows = [
        f'<tr><th style="text-align:left">{html.escape(name.replace("_", " "))}</th>'
        f'<td style="text-align:left">{html.escape(_brief(value, _CELL))}</td></tr>'
        for name, value in facts.items()
    ]
    return f"<table><caption><b>{type(self).__name__}</b></caption>{''.join(rows)}</table>"


def _arguments_alone(self: Any) -> str:
    given = _arguments(self).items()
    return ", ".join(f"{name}={_brief(value, _VALUE)}" for name, value in given if not _is_module(value))


def _arguments(self: Any) -> dict[str, Any]:
    """Arguments that are kept under their names, in the constructor's order, without those left at their defaults."""
    kept = {**_kept(getattr(self, "arguments", None)), **_kept(self)}
    if dataclasses.is_dataclass(self):
        told = {field.name: field.default for field in dataclasses.fields(self) if field.repr}
    else:
        parameters = inspect.signature(type(self).__init__).parameters.values()
        told = {parameter.name: parameter.default for parameter in parameters}
    given = {name: kept[name] for name, default in told.items() if name in kept}
    return {
        name: _Records(value) if name in _RECORDS else value
        for name, value in given.items()
        if not _is_default(value, told[name])
    }


def _kept(owner: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(owner):
        return {field.name: getattr(owner, field.name) for field in dataclasses.fields(owner)}
    return dict(getattr(owner, "__dict__", {}))


def _is_default(value: Any, default: Any) -> bool:
    if value is None or value is default:
        return True
    return type(value) is type(default) and isinstance(value, bool | int | float | str | tuple) and value == default


def _state(self: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _STATE:
        if isinstance(getattr(type(self), name, None), property):
            with suppress(Exception):  # of a ledger that is closed or gone, which a question to it will tell
                found[name] = getattr(self, name)
    with suppress(Exception):
        found |= self._shown_state() if hasattr(self, "_shown_state") else {}
    return {name: _rounded(name, value) for name, value in found.items() if value is not None and value != math.inf}


def _rounded(name: str, value: Any) -> Any:
    """A cost with the digits that are shown, rounded up, and what is left of a budget, rounded down."""
    if isinstance(value, Mapping):
        return {key: _rounded(name, entry) for key, entry in value.items()}
    if type(value) is not float or not math.isfinite(value):
        return value
    # As `cards.upwards` and `downwards`, which are above this: six digits up to the last bits stay.
    side, rounding = (1, ROUND_FLOOR) if name in ("remaining", "budget") else (-1, ROUND_CEILING)
    return float(Context(prec=6, rounding=rounding).create_decimal(repr(value + side * abs(value) * 1e-14)))


def _brief(value: Any, width: int) -> str:
    text = _spell(value, width)
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _spell(value: Any, width: int) -> str:
    if isinstance(value, float):
        return repr(value) if len(repr(value)) <= 8 else f"{value:.6g}"
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        return repr(path if len(path) <= width - 2 else f"...{path[5 - width :]}")
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"array of shape {tuple(value.shape)}" if value.shape else _spell(value.item(), width)
    if isinstance(value, Mapping):
        return _listed([f"{_spell(key, width)}: {_spell(entry, width)}" for key, entry in value.items()], "{}", width)
    if type(value) in (list, tuple):
        brackets = "[]" if isinstance(value, list) else "()"
        return _listed([_spell(entry, width) for entry in value[:_CELL]], brackets, width)
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        return str(value.__name__)
    if isinstance(value, functools.partial):
        return _spell(value.func, width)
    if _is_module(value):
        return type(value).__name__
    if getattr(type(value), "_repr_html_", None) is _table and type(value).__repr__.__qualname__ == _line.__qualname__:
        return _call(value, _arguments(value), {}, width)
    text, is_ours = repr(value), type(value).__module__.startswith(__package__)
    return type(value).__name__ if " at 0x" in text or "\n" in text or (len(text) > width and not is_ours) else text


def _listed(entries: list[str], brackets: str, width: int) -> str:
    kept = len(entries)
    while kept and sum(map(len, entries[:kept])) + 2 * kept > width - 5:
        kept -= 1
    more = ["..."] if kept < len(entries) else []
    alone = "," * (brackets == "()" and len(entries) == 1)
    return f"{brackets[0]}{', '.join([*entries[:kept], *more])}{alone}{brackets[1]}"


class _Records:
    """Stands for a dataset, which may be a plain list of private records."""

    def __init__(self, dataset: Any) -> None:
        size = f" of {len(dataset)}" if hasattr(dataset, "__len__") else ""
        self._words = f"{type(dataset).__name__}{size}"

    def __repr__(self) -> str:
        return self._words


def _is_module(value: Any) -> bool:
    return hasattr(value, "extra_repr") or hasattr(value, "named_modules")
