"""Arguments of public functions and classes, held against their annotations before anything runs.

Of the libraries, pydantic reads `"8"` as 8.0, typeguard takes True for a number and needs a third of a millisecond,
beartype refuses 1 and NumPy scalars where a float is declared, and none words a refusal as a sentence that begins with
the argument's name. What the type cannot say, ranges above all, is checked by the functions themselves.

Public functions and classes are decorated. An argument costs about a microsecond.
"""

import collections
import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt

from lightning_pac._annotations import ANYTHING, MISMATCH, Range, Refused, Rule, is_finite, rule_of
from lightning_pac._shown import shows_itself

__all__ = [
    "Confidence", "Cost", "Count", "Device", "Draws", "Exponent", "Finite", "Matrix", "MatrixLike", "Natural", "Noise",
    "NonNegative", "Numbers", "OpenProbability", "Order", "Positive", "PrivateInteger", "PrivateNumbers",
    "PrivateReal", "Probability", "Seed", "TrueOrFalse", "Vector", "VectorLike", "checks_itself", "validated",
]  # fmt: skip


Count = Annotated[int, Range(lambda number: number >= 1, "must be at least 1")]
Natural = Annotated[int, Range(lambda number: number >= 0, "must not be negative")]
Seed = Natural
Finite = Annotated[float, Range(math.isfinite, "must be finite")]
# Of values that are private, as those that noise is to be added to: a refusal does not say them.
PrivateInteger = Annotated[int, Range(lambda number: True, "must be an integer below 2**63", shown=False)]
PrivateReal = Annotated[float, Range(math.isfinite, "must be a finite number", shown=False)]
PrivateNumbers = Annotated[npt.ArrayLike, Range(lambda array: True, "must be numbers in one array", shown=False)]
NonNegative = Annotated[float, Range(lambda number: 0 <= number < math.inf, "must be finite and not negative")]
Draws = Annotated[int, Range(lambda number: number >= 2, "must be at least 2")]
Device = Annotated[
    str, Range(lambda name: re.fullmatch(r"[a-z]+(:\d+)?", name), "must be a torch device, such as cpu or cuda:0")
]
Confidence = Annotated[float, Range(lambda number: 0 < 1 - number < 1, "must lie strictly between 0 and 1")]
Positive = Annotated[float, Range(lambda number: 0 < number < math.inf, "must be positive and finite")]
Exponent = Annotated[float, Range(lambda number: 0 < number <= 700, "must be positive and at most 700")]
Order = Annotated[float, Range(lambda number: 1 < number < math.inf, "must be finite and above 1")]
Noise = Annotated[float, Range(lambda number: 1e-100 <= number <= 1e100, "must lie between 1e-100 and 1e100")]
Cost = Noise
Probability = Annotated[float, Range(lambda number: 0 <= number <= 1, "must lie in [0, 1]")]
OpenProbability = Annotated[float, Range(lambda number: 0 < number < 1, "must lie strictly between 0 and 1")]

_NUMBERS = Range(lambda array: is_finite(array, np.ndim(array)), "must be finite and not empty")
_VECTOR = Range(lambda array: is_finite(array, 1), "must be a finite, non-empty row of numbers")
_MATRIX = Range(lambda array: is_finite(array, 2), "must be a finite, non-empty array with two axes")
Vector = Annotated[npt.NDArray[np.float64], _VECTOR]
VectorLike = Annotated[npt.ArrayLike, _VECTOR]
Matrix = Annotated[npt.NDArray[np.float64], _MATRIX]
MatrixLike = Annotated[npt.ArrayLike, _MATRIX]

Numbers = Annotated[npt.ArrayLike, _NUMBERS]
# Of numbers other than these, such as the sides -1 and 1, all but 0 would count as True.
TrueOrFalse = Annotated[
    npt.ArrayLike, Range(lambda array: np.isin(array, (0, 1)).all(), "must be True or False, 1 or 0")
]

Target = TypeVar("Target")
Method = TypeVar("Method", bound=Callable[..., Any])
_CHECKS_ITSELF = "_checks_itself"


def validated(target: Target) -> Target:
    """Decorate a function or a class so that its arguments are checked, and numbers converted to Python's own.

    A class is checked in its constructor (a dataclass before its `__post_init__`), its public methods and its call; and
    it shows itself in one line (`_shown`).
    Left alone are methods that a framework declares and calls (hooks of Lightning, `forward`), and those marked
    `checks_itself`. A subclass that has a constructor or methods of its own is decorated, too. Names that are imported
    for type checkers alone are not checked, nor is what is `Annotated` with something else than one of the ranges
    above.
    """
    if isinstance(target, type):
        shows_itself(target)
        for name, member in list(vars(target).items()):
            if (name == "__call__" or not name.startswith("_")) and not _is_of_a_framework(target, name):
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
    tell, refusals = _tell, (Refused, *MISMATCH)  # not found among the globals of the function

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


def _tell(rules: dict[str, Rule], positional: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise the sentence about the first argument that is refused."""
    for name, value in (*zip(positional, args, strict=False), *kwargs.items()):
        rules[name].check(value, name)


def _rules(
    annotations: dict[str, Any], names: dict[str, Any], positional: list[str]
) -> tuple[list[Callable[[Any], Any]], dict[str, Rule]]:
    """Treatment of the arguments that come without a name, and the rules of all."""
    resolved = {name: rule_of(_resolve(annotation, names)) for name, annotation in annotations.items()}
    rules = collections.defaultdict(lambda: ANYTHING, {name: rule for name, rule in resolved.items() if rule})
    return [rules[name].accept for name in positional], rules


def _resolve(annotation: Any, names: dict[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, names)
    except NameError:
        return Any
