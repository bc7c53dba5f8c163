"""Every public function and constructor refuses a bad argument by a sentence that begins with the argument's name.

What is accepted has the type that the argument is declared with, and counts as that. A new public name needs a recipe
of valid arguments in `argument_recipes.py`.
"""

import functools
import importlib
import inspect
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import argument_recipes
import numpy as np
import pytest

from lightning_pac.exceptions import LedgerError
from lightning_pac.randomness import SecureGenerator

PACKAGES = [name.removeprefix("of_") for name in vars(argument_recipes) if name.startswith("of_")]

BAD = [
    "8", "", b"x", object(), None, True, 1j, 3.5, -1, 0, math.nan, math.inf, -math.inf, 1e-320, 1e308, 10**400,
    [], (), {}, [math.nan], [[1.0], [1.0, 2.0]], ["x"], [None],
]  # fmt: skip


def public_names(package: str) -> set[str]:
    """Functions, constructors, and what else constructs an object."""
    module = importlib.import_module(f"lightning_pac.{package}")
    callables = {name for name in module.__all__ if callable(getattr(module, name))}
    called = callables - set(argument_recipes.NOT_CALLED.get(package, "").split())
    read_back = {"from_dict", "from_json", "register_strategies", "small_cases"}
    return called | {
        f"{name}.{method}"
        for name in called
        for method, value in vars(getattr(module, name)).items()
        if isinstance(value, classmethod | staticmethod) and not method.startswith("_") and method not in read_back
    }


def is_of_the_type(value: Any, valid: Any, default: Any) -> bool:
    """Whether a value may be accepted where `valid` is: told from the recipe, not from the annotation."""
    if value is None:
        return default is None or valid is None
    if isinstance(valid, Path):
        return isinstance(value, str)
    if isinstance(valid, bool | str | bytes):
        return type(value) is type(valid)
    if isinstance(valid, int):
        return type(value) is int
    if isinstance(valid, float):
        return type(value) in (int, float)
    if isinstance(valid, list | tuple | np.ndarray):
        return isinstance(value, list | tuple | int | float) and not isinstance(value, bool)
    return isinstance(value, type(valid))


def equal(first: Any, second: Any) -> bool:
    """Whether two results are the same; those that do not compare by value are taken to be."""
    if type(first) is not type(second):
        return False
    if isinstance(first, float | np.ndarray):
        return np.array_equal(np.asarray(first), np.asarray(second), equal_nan=True)
    try:
        return bool(first == second) if "__eq__" in vars(type(first)) else True
    except ValueError:  # arrays inside
        return True


def called(function: Callable[..., Any], **arguments: Any) -> Any:
    """The result, closed where it keeps a file open."""
    result = function(**arguments)
    getattr(result, "close", lambda: None)()
    return result


def unclear_answers(function: Callable[..., Any], valid: dict[str, Any], trace: Callable[[], Any]) -> list[str]:
    """A line for each bad argument that is not refused clearly, before the trace of what was written or drawn moves."""
    parameters = inspect.signature(function).parameters
    found = []

    def as_float(name: str, bad: int) -> Any:
        return called(function, **valid | {name: float(bad)})

    anything = argument_recipes.ANYTHING.get(function.__name__, ())
    for name, usual in valid.items():
        for bad in BAD if name not in anything else ():
            optional = name in argument_recipes.OPTIONAL.get(function.__name__, ())
            of_the_type = is_of_the_type(bad, usual, None if optional else parameters[name].default)
            before = trace()
            # A number of the right type may contradict another argument, which is then the one that is named.
            names = "|".join(parameters) if of_the_type or usual is None else name
            try:
                result = called(function, **{**valid, name: bad})
            except Exception as error:
                # What lies, or does not lie, at a path is told by errors of files and ledgers, which name the path.
                of_a_file = of_the_type and isinstance(error, OSError | LedgerError)
                named = isinstance(error, TypeError | ValueError) and re.match(rf"({names})\b", str(error))
                if not (named or of_a_file):
                    found.append(f"{name}={bad!r:.30}: {type(error).__name__}: {error}")
                elif named and trace() != before:
                    found.append(f"{name}={bad!r:.30}: refused after something was written or drawn")
                continue
            if not of_the_type:
                found.append(f"{name}={bad!r:.30}: accepted")
            elif bad in (0, -1) and type(usual) is float and not equal(result, as_float(name, bad)):
                found.append(f"{name}={bad!r:.30}: counts as something else than a float")
    return found


def named(package: str, name: str) -> Callable[..., Any]:
    return functools.reduce(getattr, name.split("."), importlib.import_module(f"lightning_pac.{package}"))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_recipe_for_all_its_arguments(package: str, tmp_path: Path) -> None:
    recipes = getattr(argument_recipes, f"of_{package}")(tmp_path)
    assert public_names(package) <= set(recipes)
    for name, valid in recipes.items():
        parameters = inspect.signature(named(package, name)).parameters.values()
        assert {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)} == set(valid), name


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A function that returns what was written in the current folder, and how often randomness was drawn."""
    draws = []

    def counted(draw: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: draws.append(0) or draw(*args)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "urandom", counted(os.urandom))
    monkeypatch.setattr(SecureGenerator, "_words", counted(SecureGenerator._words))
    return lambda: (len(draws), {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(tmp_path)})


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.filterwarnings("ignore")
def test_a_bad_argument_is_named(package: str, tmp_path: Path, trace: Callable[[], Any]) -> None:
    lines = []
    for name, valid in getattr(argument_recipes, f"of_{package}")(tmp_path).items():
        function = named(package, name)
        called(function, **valid)
        lines += [f"{name}: {line}" for line in unclear_answers(function, valid, trace)]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.filterwarnings("ignore")
def test_a_number_of_numpy_counts_as_that_of_python(package: str, tmp_path: Path) -> None:
    for name, valid in getattr(argument_recipes, f"of_{package}")(tmp_path).items():
        function = named(package, name)
        usual = called(function, **valid)
        is_drawn = any(isinstance(value, SecureGenerator) for value in valid.values())
        is_drawn = is_drawn or not equal(usual, called(function, **valid))
        for argument, value in valid.items():
            if type(value) in (int, float):
                scalar = np.asarray(np.float64(value) if type(value) is float else np.int64(value))
                converted = called(function, **valid | {argument: scalar})
                assert is_drawn or equal(converted, usual), f"{name}({argument}={value})"
