"""Rules from annotations: functions that accept a value, converted, or refuse it in words."""

import collections.abc
import functools
import math
import numbers
import operator
import reprlib
import sys
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import numpy as np
import numpy.typing as npt
from typing_extensions import get_protocol_members, is_protocol

__all__ = ["ANYTHING", "MISMATCH", "Range", "Refused", "Rule", "is_finite", "rule_of"]

MISMATCH = (TypeError, ValueError, OverflowError, AttributeError, RuntimeError)
"""Raised by rules for values that they do not take, beside `Refused`."""


class Range(NamedTuple):
    """Values that an annotated number may have, how a refusal goes on, and whether it may show the value."""

    holds: Callable[[Any], bool]
    words: str
    shown: bool = True

    def __repr__(self) -> str:  # as a command line shows an annotation that an argument does not fit
        return repr(self.words)


class Refused(Exception):
    """An entry of a collection, or a value of the right type that no function takes; with the rest of the sentence."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Rule(NamedTuple):
    """The values an annotation allows: `accept` converts one, or raises; in words, of one value and of many."""

    accept: Callable[[Any], Any]
    words: str
    plural: str = "values"

    def check(self, value: Any, name: str) -> Any:
        try:
            return self.accept(value)
        except Refused as refused:
            raise type(refused.error)(f"{name}{refused.error}") from None
        except MISMATCH:
            pass
        raise TypeError(f"{name} is {_show(value)}, but must be {self.words}.")


def rule_of(annotation: Any) -> Rule | None:
    """The rule of one annotation, or None where it allows everything."""
    if isinstance(annotation, TypeVar):
        return rule_of(annotation.__bound__) if annotation.__bound__ is not None else None
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if annotation == npt.ArrayLike:
        return Rule(_real_array, "an array of real numbers", "arrays of real numbers")
    origin, parts = get_origin(annotation), _parts(annotation)
    if hasattr(origin, "__value__"):  # a generic alias, as NumPy has it from 2.5 on
        return rule_of(origin.__value__[parts])
    if origin is Annotated:
        return _in_range(rule_of(parts[0]), annotation.__metadata__[0])
    if origin in (Union, types.UnionType):
        return _union([rule_of(part) for part in parts])
    if origin is Literal:
        return Rule(functools.partial(_choice, parts), _either([str(part) for part in parts]))
    if origin is collections.abc.Callable or annotation is collections.abc.Callable:
        return Rule(_callable, "a function", "functions")
    kind = origin or annotation
    if not isinstance(kind, type) or kind is object:
        return None
    if kind is np.ndarray:
        numeric = bool(parts) and get_args(parts[1])[0] is not Any
        kinds, words = ("biuf", "an array of real numbers") if numeric else ("biufcmMSUV", "an array")
        dtype = np.float64 if numeric and get_args(parts[1])[0] is np.float64 else None
        return Rule(lambda value: np.asarray(_array(value, kinds), dtype), words, "arrays")
    if kind is tuple and parts and parts[-1] is not ...:
        rules = [rule_of(part) for part in parts]
        plural = rules[0].plural if rules[0] else "values"
        return Rule(functools.partial(_fixed_tuple, rules), f"a tuple of {len(rules)} {plural}", "tuples")
    if parts and kind in (tuple, list, collections.abc.Sequence, collections.abc.Iterable):
        rule = rule_of(parts[0])
        plural = rule.plural if rule else "values"
        return Rule(functools.partial(_sequence, kind, rule), f"a sequence of {plural}", "sequences")
    if parts and kind in (dict, collections.abc.Mapping):
        return Rule(functools.partial(_mapping, rule_of(parts[1])), "a mapping", "mappings")
    has_kind = functools.partial(_has_members if is_protocol(kind) else _is_instance, kind)
    return Rule(has_kind, f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}", f"{kind.__name__} objects")


def _in_range(rule: Rule | None, limits: Any) -> Rule | None:
    if rule is None or not isinstance(limits, Range):
        return None
    accept, (holds, words, shown) = rule.accept, limits

    def hidden(value: Any) -> Any:
        try:
            if holds(value := accept(value)):
                return value
            kind: type[Exception] = ValueError
        except (Refused, *MISMATCH) as error:
            kind = type(error.error) if isinstance(error, Refused) else TypeError
        raise Refused(kind(f" {words}."))

    def within(value: Any) -> Any:
        if not holds(value := accept(value)):
            found = f"is {value!r}" if isinstance(value, int | float | str) else f"has shape {np.shape(value)}"
            raise Refused(ValueError(f" {found}, but {words}."))
        return value

    return rule._replace(accept=within if shown else hidden)


def is_finite(array: npt.ArrayLike, num_axes: int) -> bool:
    values = np.asarray(array)
    return values.ndim == num_axes and values.size > 0 and bool(np.isfinite(values).all())


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The parameters of an annotation, with `ArrayLike` in one piece: before NumPy 2.5 other unions dissolve it."""
    parameters, array_like = get_args(annotation), get_args(npt.ArrayLike)
    if array_like and all(part in parameters for part in array_like):
        return npt.ArrayLike, *(part for part in parameters if part not in array_like)
    return parameters


def _real(value: Any) -> float:
    if type(value) is float and value == value:
        return value
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError
    try:
        number = float(value)
    except OverflowError:
        raise Refused(ValueError(" is too large to compute with: give a smaller number.")) from None
    if math.isnan(number):
        raise Refused(ValueError(" is nan, but must be a number."))
    return number


def _integer(value: Any) -> int:
    if type(value) is int and abs(value) <= sys.maxsize:
        return value
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError
    if abs(number := int(value)) > sys.maxsize:
        raise Refused(ValueError(" is too large to compute with: give a smaller number."))
    return number


def _boolean(value: Any) -> bool:
    if not isinstance(value := _scalar(value), bool):
        raise TypeError
    return value


def _scalar(value: Any) -> Any:
    """The Python number in a NumPy scalar, or in an array or a tensor without axes."""
    return value.item() if getattr(value, "shape", None) == () else value


def _nothing(value: Any) -> None:
    if value is not None:
        raise TypeError


def _array(value: Any, kinds: str) -> Any:
    if value is None or isinstance(value, bool | complex | str | bytes):
        raise TypeError
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        value = value.float()  # NumPy has no such numbers, and all of them are float32's
    if np.asarray(value).dtype.kind not in kinds:
        raise TypeError
    return value


def _real_array(value: Any) -> Any:
    """Numbers in one array, short ones in 64 bits: in 8 bits, -100 and 100 lie 56 apart, and 200 squared is 64."""
    array = np.asarray(_array(value, "biuf"))
    kind, is_short = array.dtype.kind, array.dtype.itemsize < 8
    if kind == "f" and is_short:
        return array.astype(np.float64)[()]
    # Unsigned integers do not index, and beside signed ones they become floats.
    if (kind == "i" and is_short) or (kind == "u" and int(array.max(initial=0)) <= sys.maxsize):
        return array.astype(np.int64)[()]
    return array[()] if hasattr(value, "detach") else value  # a tensor's size is a method


def _union(rules: list[Rule | None]) -> Rule | None:
    known = [rule for rule in rules if rule is not None]
    if len(known) < len(rules):
        return None

    takes_none = _SCALARS[None] in known

    def accept(value: Any) -> Any:
        if value is None and takes_none:
            return None
        refused = None
        for rule in known:
            try:
                return rule.accept(value)
            except Refused as error:
                refused = refused or error
            except MISMATCH:
                pass
        raise refused or TypeError

    return Rule(accept, _either([rule.words for rule in known]), known[0].plural)


def _choice(choices: tuple[Any, ...], value: Any) -> Any:
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return value
    if isinstance(value, str):
        raise Refused(ValueError(f" is {_show(value)}, but must be {_either([str(choice) for choice in choices])}."))
    raise TypeError


def _fixed_tuple(rules: list[Rule | None], value: Any) -> Any:
    if len(entries := _entries(value)) != len(rules):
        raise TypeError
    return tuple(_entry(rule, entry, place) for place, (rule, entry) in enumerate(zip(rules, entries, strict=True)))


def _sequence(kind: type, rule: Rule | None, value: Any) -> Any:
    if kind is collections.abc.Iterable and isinstance(value, collections.abc.Iterator):
        return value
    entries = _entries(value)
    if rule is None:
        return tuple(entries) if kind is tuple else value
    given = list(entries)
    # As numbers of Python's own, which do not overflow.
    accepted = [_entry(rule, entry, place) for place, entry in enumerate(given)]
    if kind is tuple:
        return tuple(accepted)
    return value if all(map(operator.is_, accepted, given)) else accepted


def _mapping(rule: Rule | None, value: Any) -> Any:
    accepted = {key: _entry(rule, entry, key) for key, entry in _is_instance(Mapping, value).items()}
    return value if all(accepted[key] is entry for key, entry in value.items()) else accepted


def _entry(rule: Rule | None, entry: Any, place: Any) -> Any:
    try:
        return rule.accept(entry) if rule else entry
    except Refused as refused:
        error = refused.error
    except MISMATCH:
        assert rule is not None
        error = TypeError(f" is {_show(entry)}, but must be {rule.words}.")
    raise Refused(type(error)(f"[{place!r}]{error}"))


def _entries(value: Any) -> Any:
    """The value itself where it has entries in an order; a string or a mapping is no row of values."""
    if isinstance(value, str | bytes | Mapping | set | frozenset):
        raise TypeError
    if not (hasattr(value, "__getitem__") and hasattr(value, "__iter__")):
        raise TypeError
    len(value)
    return value


def _callable(value: Any) -> Any:
    if not callable(value):
        raise TypeError
    return value


def _has_members(kind: type, value: Any) -> Any:
    if isinstance(value, bool) or not all(hasattr(value, member) for member in get_protocol_members(kind)):
        raise TypeError
    return value


def _is_instance(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


ANYTHING = Rule(lambda value: value, "anything")
_SCALARS: dict[Any, Rule | None] = {
    Any: None,
    float: Rule(_real, "a real number", "real numbers"),
    int: Rule(_integer, "an integer", "integers"),
    bool: Rule(_boolean, "True or False", "truth values"),
    str: Rule(functools.partial(_is_instance, str), "a string", "strings"),
    bytes: Rule(functools.partial(_is_instance, bytes), "bytes"),
    None: Rule(_nothing, "None"),
    type(None): Rule(_nothing, "None"),
}


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _show(value: Any) -> str:
    """A short value as it is written, and the type of others."""
    if value is None or isinstance(value, str | bytes | numbers.Number | list | tuple | dict | set):
        return reprlib.repr(value)
    return f"an object of type {type(value).__name__}"
