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
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import argument_recipes
import numpy as np
import pytest
import torch
from argument_recipes import Fresh, Recipes
from typing_extensions import is_protocol

from lightning_pac.accountants import ResidualPrivacy
from lightning_pac.exceptions import PrivacyError
from lightning_pac.ledger import LedgerHandle
from lightning_pac.mechanisms import Certificate
from lightning_pac.randomness import SecureGenerator
from lightning_pac.report import Run

PACKAGES = [name.removeprefix("of_") for name in vars(argument_recipes) if name.startswith("of_")]

BAD = [
    "8", "", b"x", object(), None, True, 1j, 3.5, -1, 0, math.nan, math.inf, -math.inf, 1e-320, 1e308, 10**400,
    [], (), {}, [math.nan], [[1.0], [1.0, 2.0]], ["x"], [None],
]  # fmt: skip


def public_names(package: str) -> set[str]:
    """Functions, constructors, what else constructs an object, and methods that take arguments."""
    module = importlib.import_module(f"lightning_pac.{package}")
    values = {name: getattr(module, name) for name in module.__all__}
    values = {name: value for name, value in values.items() if callable(value) and is_defined_in(package, value)}
    called = values.keys() - set(argument_recipes.NOT_CALLED.get(package, "").split())
    read_back, internal = set(argument_recipes.READ_BACK), set(argument_recipes.INTERNAL)
    return called | {
        f"{name}.{method}"
        for name, value in values.items()
        if inspect.isclass(value) and not is_protocol(value)
        for method in methods(value, of_class=name in called)
        if not {method, f"{name}.{method}"} & (read_back | internal)
    }


def methods(kind: type, of_class: bool) -> set[str]:
    """Methods with arguments that a class defines, or a private base of it; also those of the class itself."""
    found = set()
    for name in dir(kind):
        base = next(base for base in kind.__mro__ if name in vars(base))
        if (name.startswith("_") and name != "__call__") or (base is not kind and is_public(base)):
            continue
        # What a framework declares, it calls, too.
        if any(name in vars(other) and not is_ours(other) for other in kind.__mro__):
            continue
        member = vars(base)[name]
        if isinstance(member, classmethod | staticmethod):
            found |= {name} if of_class else set()
        elif inspect.isfunction(member):
            kinds = [parameter.kind for parameter in inspect.signature(member).parameters.values()]
            found |= {name} if inspect.Parameter.POSITIONAL_OR_KEYWORD in kinds[1:] else set()
    return found


def is_ours(value: Any) -> bool:
    return value.__module__.partition(".")[0] == "lightning_pac"


def is_defined_in(package: str, value: Any) -> bool:
    return f"{value.__module__}.".startswith(f"lightning_pac.{package}.")


def is_public(kind: type) -> bool:
    module = importlib.import_module(".".join(kind.__module__.split(".")[:2]))
    return getattr(module, kind.__name__, None) is kind


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
    except (ValueError, RuntimeError):  # arrays or tensors inside
        return True


def usual_of(value: Any) -> Any:
    return value.make() if isinstance(value, Fresh) else value


def called(function: Callable[..., Any], /, **arguments: Any) -> Any:
    """The result, closed where it keeps a file open."""
    result = function(**{name: usual_of(value) for name, value in arguments.items()})
    getattr(result, "close", lambda: None)()
    return result


def unclear_answers(
    recipe: str, function: Callable[..., Any], valid: dict[str, Any], trace: Callable[[], Any]
) -> list[str]:
    """A line for each bad argument that is not refused clearly, before the trace of what was written or drawn moves."""
    parameters = inspect.signature(function).parameters
    found = []

    def as_float(name: str, bad: int) -> Any:
        return called(function, **valid | {name: float(bad)})

    for name, usual in valid.items():
        for bad in BAD if name not in argument_recipes.ANYTHING.get(recipe, ()) else ():
            optional = any(name in argument_recipes.OPTIONAL.get(key, ()) for key in (recipe, recipe.split(".")[-1]))
            of_the_type = is_of_the_type(bad, usual_of(usual), None if optional else parameters[name].default)
            before = trace()
            # A number of the right type may contradict another argument, which is then the one that is named.
            names = "|".join(parameters) if of_the_type or usual is None else name
            try:
                result = called(function, **{**valid, name: bad})
            except Exception as error:
                # What a path, a name or a number leads to is told by errors of files and ledgers.
                of_a_file = of_the_type and isinstance(error, OSError | PrivacyError)
                named = isinstance(error, TypeError | ValueError) and re.match(rf"({names})\b", str(error))
                if not (named or of_a_file):
                    found.append(f"{name}={bad!r:.30}: {type(error).__name__}: {error}")
                elif named and trace() != before:
                    found.append(f"{name}={bad!r:.30}: refused after something was written or drawn")
                continue
            if not of_the_type:
                found.append(f"{name}={bad!r:.30}: accepted")
            elif bad in (0, -1) and type(usual) is float and not equal(result, as_float(name, bad)):
                # Or it is drawn, or told by a state that the call has changed.
                again, floating = called(function, **{**valid, name: bad}), as_float(name, bad)
                if equal(again, floating) or not all(equal(floating, as_float(name, bad)) for _ in range(9)):
                    continue
                found.append(f"{name}={bad!r:.30}: counts as something else than a float")
    return found


def resolved(package: str, recipe: str, arguments: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function of a recipe, of the object where there is one, and its arguments."""
    if "self" in arguments:
        rest = {name: value for name, value in arguments.items() if name != "self"}
        return getattr(arguments["self"], recipe.partition(".")[2]), rest
    return functools.reduce(getattr, recipe.split("."), importlib.import_module(f"lightning_pac.{package}")), arguments


@pytest.fixture(scope="module", params=PACKAGES)
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(package: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(package)


@pytest.fixture(scope="module")
def recipes(package: str, folder: Path) -> Recipes:
    return getattr(argument_recipes, f"of_{package}")(folder)


def test_every_public_name_has_a_recipe_for_all_its_arguments(package: str, recipes: Recipes) -> None:
    missing = public_names(package) - recipes.keys()
    assert not missing, f"Add valid arguments of {sorted(missing)} to of_{package} in argument_recipes.py."
    for name, arguments in recipes.items():
        function, valid = resolved(package, name, arguments)
        parameters = inspect.signature(function).parameters.values()
        assert {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)} == set(valid), name


@pytest.fixture(scope="module")
def made(package: str, recipes: Recipes, folder: Path) -> list[Any]:
    """Objects of ours that the recipes make and belong to, and how they show themselves: line, table and seconds."""
    found: dict[type, Any] = {}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.chdir(folder)
        warnings.simplefilter("ignore")
        for name, arguments in recipes.items():
            function, valid = resolved(package, name, arguments)
            result = function(**{argument: usual_of(value) for argument, value in valid.items()})
            for thing in (result, arguments.get("self")):
                if is_ours(type(thing)) and type(thing) not in found:
                    repr(thing)  # the first one imports
                    started = time.process_time()
                    found[type(thing)] = (
                        repr(thing),
                        getattr(thing, "_repr_html_", str)(),
                        time.process_time() - started,
                    )
            getattr(result, "close", lambda: None)()
    return list(found.items())


def test_what_is_made_shows_itself_in_a_line(made: list[Any]) -> None:
    problems = []
    for kind, (line, table, seconds) in made:
        # The layers of a module and the groups of an optimizer stand on lines of their own; ranks compare handles.
        is_torchs = issubclass(kind, torch.nn.Module | torch.optim.Optimizer)
        is_short = is_torchs or issubclass(kind, LedgerHandle) or (len(line) <= 160 and "\n" not in line)
        shown = {"no name": kind.__name__ in line, "an address": " at 0x" not in line + table, "too long": is_short}
        shown |= {"too slow": seconds < 0.01, "no table": is_torchs or table.startswith("<table>")}
        problems += [f"{kind.__name__}: {problem}: {line}" for problem, is_kept in shown.items() if not is_kept]
    assert not problems, "\n".join(problems)


@pytest.fixture
def trace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A function that returns what was written in the current folder, but for locks, and how often bits were drawn."""
    draws = []

    def counted(draw: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: draws.append(0) or draw(*args)

    monkeypatch.chdir(folder)
    monkeypatch.setattr(os, "urandom", counted(os.urandom))
    monkeypatch.setattr(SecureGenerator, "_words", counted(SecureGenerator._words))

    def written() -> tuple[int, dict[str, int]]:
        entries = [entry for entry in os.scandir(folder) if not entry.name.endswith(".lock")]
        return len(draws), {entry.name: entry.stat().st_mtime_ns for entry in entries}

    return written


@pytest.mark.filterwarnings("ignore")
def test_a_bad_argument_is_named(package: str, recipes: Recipes, made: list[Any], trace: Callable[[], Any]) -> None:
    lines = []
    for name, arguments in recipes.items():  # of which `made` has tried each as it stands
        function, valid = resolved(package, name, arguments)
        lines += [f"{name}: {line}" for line in unclear_answers(name, function, valid, trace)]
    assert not lines, "\n".join(lines)


def test_each_of_any_number_of_arguments_is_named() -> None:
    with pytest.raises(TypeError, match=r"^names is 3, but must be a string"):
        Run("run").metric("loss", 3)
    with pytest.raises(TypeError, match=r"^others is 'x', but must be a ResidualPrivacy"):
        ResidualPrivacy(2.0, 2.0, Certificate(0.5, 1.0, "by hand")).compose("x")


@pytest.mark.filterwarnings("ignore")
def test_a_number_of_numpy_counts_as_that_of_python(package: str, recipes: Recipes) -> None:
    for name, arguments in recipes.items():
        function, valid = resolved(package, name, arguments)
        numbers = {argument: value for argument, value in valid.items() if type(value) in (int, float)}
        if not numbers:
            continue
        usual = called(function, **valid)
        is_drawn = any(isinstance(value, SecureGenerator) for value in valid.values())
        is_drawn = is_drawn or not equal(usual, called(function, **valid))
        for argument, value in numbers.items():
            scalar = np.asarray(np.float64(value) if type(value) is float else np.int64(value))
            converted = called(function, **valid | {argument: scalar})
            same = is_drawn or equal(converted, usual)
            # Coarse draws may be equal twice by chance.
            assert same or not all(equal(usual, called(function, **valid)) for _ in range(9)), f"{name}({argument})"
