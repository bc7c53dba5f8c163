"""Arguments of public functions and classes, held against their annotations before anything runs.

Of the libraries, pydantic reads `"8"` as 8.0, typeguard takes True for a number and needs a third of a millisecond,
beartype refuses 1 and NumPy scalars where a float is declared, and none words a refusal as a sentence that begins with
the argument's name. What the type cannot say, ranges above all, is checked by the functions themselves.

Public functions and classes are decorated. An argument costs about a microsecond.
"""

import collections
import collections.abc
import functools
import inspect
import math
import numbers
import re
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import numpy as np
import numpy.typing as npt
from typing_extensions import get_protocol_members, is_protocol

__all__ = [
    "Confidence", "Cost", "Count", "Device", "Draws", "Exponent", "Finite", "Matrix", "MatrixLike", "Natural", "Noise",
    "NonNegative", "Numbers", "OpenProbability", "Order", "Positive", "Probability", "Seed", "Vector",
    "VectorLike", "checks_itself", "validated",
]  # fmt: skip


class _Range(NamedTuple):
    """Values that an annotated number may have, and how a refusal goes on."""

    holds: Callable[[Any], bool]
    words: str


Count = Annotated[int, _Range(lambda number: number >= 1, "must be at least 1")]
Natural = Annotated[int, _Range(lambda number: number >= 0, "must not be negative")]
Seed = Natural
Finite = Annotated[float, _Range(math.isfinite, "must be finite")]
NonNegative = Annotated[float, _Range(lambda number: 0 <= number < math.inf, "must be finite and not negative")]
Draws = Annotated[int, _Range(lambda number: number >= 2, "must be at least 2")]
Device = Annotated[
    str, _Range(lambda name: re.fullmatch(r"[a-z]+(:\d+)?", name), "must be a torch device, such as cpu or cuda:0")
]
Confidence = Annotated[float, _Range(lambda number: 0 < 1 - number < 1, "must lie strictly between 0 and 1")]
Positive = Annotated[float, _Range(lambda number: 0 < number < math.inf, "must be positive and finite")]
Exponent = Annotated[float, _Range(lambda number: 0 < number <= 700, "must be positive and at most 700")]
Order = Annotated[float, _Range(lambda number: 1 < number < math.inf, "must be finite and above 1")]
Noise = Annotated[float, _Range(lambda number: 1e-100 <= number <= 1e100, "must lie between 1e-100 and 1e100")]
Cost = Noise
Probability = Annotated[float, _Range(lambda number: 0 <= number <= 1, "must lie in [0, 1]")]
OpenProbability = Annotated[float, _Range(lambda number: 0 < number < 1, "must lie strictly between 0 and 1")]

_NUMBERS = _Range(lambda array: _is_finite(array, np.ndim(array)), "must be finite and not empty")
_VECTOR = _Range(lambda array: _is_finite(array, 1), "must be a finite, non-empty row of numbers")
_MATRIX = _Range(lambda array: _is_finite(array, 2), "must be a finite, non-empty array with two axes")
Vector = Annotated[npt.NDArray[np.float64], _VECTOR]
VectorLike = Annotated[npt.ArrayLike, _VECTOR]
Matrix = Annotated[npt.NDArray[np.float64], _MATRIX]
MatrixLike = Annotated[npt.ArrayLike, _MATRIX]

Numbers = Annotated[npt.ArrayLike, _NUMBERS]

Target = TypeVar("Target")
Method = TypeVar("Method", bound=Callable[..., Any])
_MISMATCH = (TypeError, ValueError, OverflowError, AttributeError, RuntimeError)
_CHECKS_ITSELF = "_checks_itself"


def validated(target: Target) -> Target:
    """Decorate a function or a class so that its arguments are checked, and numbers converted to Python's own.

    A class is checked in its constructor (a dataclass before its `__post_init__`) and in its public methods. Left alone
    are methods that a framework declares and calls (hooks of Lightning, `forward`), and those marked `checks_itself`.
    A subclass that has a constructor or methods of its own is decorated, too. Names that are imported for type checkers
    alone are not checked, nor is what is `Annotated` with something else than one of the ranges above.
    """
    if isinstance(target, type):
        for name, member in list(vars(target).items()):
            if not name.startswith("_") and not _is_of_a_framework(target, name):
                setattr(target, name, _checked_member(member))
        if "__init__" in vars(target):
            target.__init__ = _wrap(target.__init__)  # type: ignore[misc]
        return target
    return typing.cast(Target, _wrap(target))


def checks_itself(method: Method) -> Method:
    """Mark a method that steps and responses call so often that it is left alone.

    It refuses bad arguments in passing, by itself, or only the library calls it.
    """
    setattr(method, _CHECKS_ITSELF, True)
    return method


def _checked_member(member: Any) -> Any:
    if isinstance(member, classmethod | staticmethod):
        return type(member)(_wrap(member.__func__))
    is_left_alone = not inspect.isfunction(member) or hasattr(member, _CHECKS_ITSELF)
    return member if is_left_alone or not inspect.signature(member).parameters.keys() - {"self"} else _wrap(member)


def _is_of_a_framework(target: type, name: str) -> bool:
    package = __name__.partition(".")[0]
    return any(name in vars(base) and base.__module__.partition(".")[0] != package for base in target.__mro__[1:])


def _wrap(function: Any) -> Any:
    names = inspect.unwrap(function).__globals__
    parameters = inspect.signature(function).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    others = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    find = functools.cache(lambda: _rules(function.__annotations__, names, positional))
    tell, refusals = _tell, (_Refused, *_MISMATCH)  # not found among the globals of the function

    def checked(*args: Any, **kwargs: Any) -> Any:
        accepts, rules = find()
        try:
            values = [accept(value) for accept, value in zip(accepts, args, strict=False)]
            if others:
                values += [rules[others[0]].accept(value) for value in args[len(values) :]]
            if kwargs:
                kwargs = {name: rules[name].accept(value) for name, value in kwargs.items()}
        except refusals:
            tell(rules, [*positional, *others * len(args)], args, kwargs)
            raise
        return function(*values, *args[len(values) :], **kwargs)

    # With the globals of the function itself, or doctest takes the wrapper for one that was imported.
    wrapper = types.FunctionType(checked.__code__, names, function.__name__, closure=checked.__closure__)
    return functools.update_wrapper(wrapper, function)


def _tell(rules: "dict[str, _Rule]", positional: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise the sentence about the first argument that is refused."""
    for name, value in (*zip(positional, args, strict=False), *kwargs.items()):
        rules[name].check(value, name)


def _rules(
    annotations: dict[str, Any], names: dict[str, Any], positional: list[str]
) -> "tuple[list[Callable[[Any], Any]], dict[str, _Rule]]":
    """Treatment of the arguments that come without a name, and the rules of all."""
    resolved = {name: _rule(_resolve(annotation, names)) for name, annotation in annotations.items()}
    rules = collections.defaultdict(lambda: _ANYTHING, {name: rule for name, rule in resolved.items() if rule})
    return [rules[name].accept for name in positional], rules


def _resolve(annotation: Any, names: dict[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, names)
    except NameError:
        return Any


class _Refused(Exception):
    """An entry of a collection, or a value of the right type that no function takes; with the rest of the sentence."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _Rule(NamedTuple):
    """The values an annotation allows: `accept` converts one, or raises; in words, of one value and of many."""

    accept: Callable[[Any], Any]
    words: str
    plural: str = "values"

    def check(self, value: Any, name: str) -> Any:
        try:
            return self.accept(value)
        except _Refused as refused:
            raise type(refused.error)(f"{name}{refused.error}") from None
        except _MISMATCH:
            pass
        raise TypeError(f"{name} is {_show(value)}, but must be {self.words}.")


def _rule(annotation: Any) -> _Rule | None:
    """The rule of one annotation, or None where it allows everything."""
    if isinstance(annotation, TypeVar):
        return _rule(annotation.__bound__) if annotation.__bound__ is not None else None
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if annotation == npt.ArrayLike:
        return _Rule(functools.partial(_array, kinds="biuf"), "an array of real numbers", "arrays of real numbers")
    origin, parts = get_origin(annotation), _parts(annotation)
    if origin is Annotated:
        return _in_range(_rule(parts[0]), annotation.__metadata__[0])
    if origin in (Union, types.UnionType):
        return _union([_rule(part) for part in parts])
    if origin is Literal:
        return _Rule(functools.partial(_choice, parts), _either([str(part) for part in parts]))
    if origin is collections.abc.Callable or annotation is collections.abc.Callable:
        return _Rule(_callable, "a function", "functions")
    kind = origin or annotation
    if not isinstance(kind, type) or kind is object:
        return None
    if kind is np.ndarray:
        numeric = bool(parts) and get_args(parts[1])[0] is not Any
        kinds, words = ("biuf", "an array of real numbers") if numeric else ("biufcmMSUV", "an array")
        dtype = np.float64 if numeric and get_args(parts[1])[0] is np.float64 else None
        return _Rule(lambda value: np.asarray(_array(value, kinds), dtype), words, "arrays")
    if kind is tuple and parts and parts[-1] is not ...:
        rules = [_rule(part) for part in parts]
        plural = rules[0].plural if rules[0] else "values"
        return _Rule(functools.partial(_fixed_tuple, rules), f"a tuple of {len(rules)} {plural}", "tuples")
    if parts and kind in (tuple, list, collections.abc.Sequence, collections.abc.Iterable):
        rule = _rule(parts[0])
        plural = rule.plural if rule else "values"
        return _Rule(functools.partial(_sequence, kind, rule), f"a sequence of {plural}", "sequences")
    if parts and kind in (dict, collections.abc.Mapping):
        return _Rule(functools.partial(_mapping, _rule(parts[1])), "a mapping", "mappings")
    has_kind = functools.partial(_has_members if is_protocol(kind) else _is_instance, kind)
    return _Rule(has_kind, f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}", f"{kind.__name__} objects")


def _in_range(rule: _Rule | None, limits: Any) -> _Rule | None:
    if rule is None or not isinstance(limits, _Range):
        return None
    accept, (holds, words) = rule.accept, limits

    def within(value: Any) -> Any:
        if not holds(value := accept(value)):
            shown = f"is {value!r}" if isinstance(value, int | float | str) else f"has shape {np.shape(value)}"
            raise _Refused(ValueError(f" {shown}, but {words}."))
        return value

    return rule._replace(accept=within)


def _is_finite(array: npt.ArrayLike, num_axes: int) -> bool:
    values = np.asarray(array)
    return values.ndim == num_axes and values.size > 0 and bool(np.isfinite(values).all())


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The parameters of an annotation, with `ArrayLike`, a union that other unions dissolve, in one piece."""
    parameters, array_like = get_args(annotation), get_args(npt.ArrayLike)
    if all(part in parameters for part in array_like):
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
        raise _Refused(ValueError(" is too large to compute with: give a smaller number.")) from None
    if math.isnan(number):
        raise _Refused(ValueError(" is nan, but must be a number."))
    return number


def _integer(value: Any) -> int:
    if type(value) is int and abs(value) <= sys.maxsize:
        return value
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError
    if abs(number := int(value)) > sys.maxsize:
        raise _Refused(ValueError(" is too large to compute with: give a smaller number."))
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
    if np.asarray(value).dtype.kind not in kinds:
        raise TypeError
    return value


def _union(rules: list[_Rule | None]) -> _Rule | None:
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
            except _Refused as error:
                refused = refused or error
            except _MISMATCH:
                pass
        raise refused or TypeError

    return _Rule(accept, _either([rule.words for rule in known]), known[0].plural)


def _choice(choices: tuple[Any, ...], value: Any) -> Any:
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return value
    if isinstance(value, str):
        raise _Refused(ValueError(f" is {_show(value)}, but must be {_either([str(choice) for choice in choices])}."))
    raise TypeError


def _fixed_tuple(rules: list[_Rule | None], value: Any) -> Any:
    if len(entries := _entries(value)) != len(rules):
        raise TypeError
    return tuple(_entry(rule, entry, place) for place, (rule, entry) in enumerate(zip(rules, entries, strict=True)))


def _sequence(kind: type, rule: _Rule | None, value: Any) -> Any:
    if kind is collections.abc.Iterable and isinstance(value, collections.abc.Iterator):
        return value
    entries = _entries(value)
    for place, entry in enumerate(entries if rule else ()):
        _entry(rule, entry, place)
    return tuple(entries) if kind is tuple else value


def _mapping(rule: _Rule | None, value: Any) -> Any:
    for key, entry in _is_instance(Mapping, value).items():
        _entry(rule, entry, key)
    return value


def _entry(rule: _Rule | None, entry: Any, place: Any) -> Any:
    try:
        return rule.accept(entry) if rule else entry
    except _Refused as refused:
        error = refused.error
    except _MISMATCH:
        assert rule is not None
        error = TypeError(f" is {_show(entry)}, but must be {rule.words}.")
    raise _Refused(type(error)(f"[{place!r}]{error}"))


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


_ANYTHING = _Rule(lambda value: value, "anything")
_SCALARS: dict[Any, _Rule | None] = {
    Any: None,
    float: _Rule(_real, "a real number", "real numbers"),
    int: _Rule(_integer, "an integer", "integers"),
    bool: _Rule(_boolean, "True or False", "truth values"),
    str: _Rule(functools.partial(_is_instance, str), "a string", "strings"),
    bytes: _Rule(functools.partial(_is_instance, bytes), "bytes"),
    None: _Rule(_nothing, "None"),
    type(None): _Rule(_nothing, "None"),
}


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _show(value: Any) -> str:
    """A short value as it is written, and the type of others."""
    if value is None or isinstance(value, str | bytes | numbers.Number | list | tuple | dict | set):
        return reprlib.repr(value)
    return f"an object of type {type(value).__name__}"
