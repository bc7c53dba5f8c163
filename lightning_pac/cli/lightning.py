"""`lightning-pac fit|validate|test|predict`: Lightning's own command line, which never drops a privacy callback unseen.

A second `--config` with `callbacks:` replaces the list of the first one, without a word. Recipes therefore append
(`callbacks+:`), and before anything starts the callbacks that the user named are compared with those of the Trainer.
"""

import argparse
import contextlib
import importlib.util
import pathlib
import pydoc
import re
import sys
import typing
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.common import add_command, count, say_where
from lightning_pac.cli.recipes import find_recipe

if TYPE_CHECKING:
    from lightning.pytorch.cli import LightningCLI

__all__ = [
    "add_parser",
    "add_preset_options",
    "add_recipe_option",
    "named_callbacks",
    "private_cli_class",
    "read_yaml",
    "readable_errors",
    "run",
    "with_presets",
    "with_recipes",
]

_SUMMARIES = {
    "fit": "train, with the callbacks of the configuration",
    "validate": "run a validation epoch",
    "test": "run a test epoch",
    "predict": "run inference",
}
_ENDINGS = (".yaml", ".yml", ".json")
_FIRST_REASON = r"^( *)- (?:Problem with given class_path )?(.+?)(?=^\1- |^\S|^ *Given value|\Z)"
_DESCRIPTION = """
Lightning's own command line (LightningCLI): every option of the Trainer, the model and the data is available, on the
command line or in YAML files given with --config; --help-all lists them. --recipe NAME appends a recipe for one of our
callbacks; its arguments are then `--trainer.callbacks.ARGUMENT`. The command refuses to start if one of our callbacks
that a configuration file names is missing from the Trainer.
"""


def add_parser(subparsers: Any) -> None:
    """Declare `fit`, `validate`, `test` and `predict`."""
    for command, summary in _SUMMARIES.items():
        parser = add_command(
            subparsers,
            command,
            run,
            summary,
            description=_DESCRIPTION,
            examples=f"""
            lightning-pac {command} --config my_own.yaml --recipe srpp_sgd
            lightning-pac {command} --config my_own.yaml --recipe srpp_sgd --trainer.callbacks.scenario.num_differing=10
            lightning-pac {command} --config my_own.yaml --dp 3 1e-5 --rate 0.1 --batch-size 400
            lightning-pac {command} --config my_own.yaml --config callbacks/srpp_sgd.yaml
            """,
            passes_unknown=True,
        )
        add_recipe_option(parser)
        add_preset_options(parser)
        parser.add_argument("-h", "--help", action="help", help="show this message")
        parser.add_argument("--help-all", action="store_true", help="show all options (some seconds)")


def add_recipe_option(parser: argparse.ArgumentParser) -> None:
    """Declare `--recipe`, which `with_recipes` resolves."""
    parser.add_argument(
        "--recipe", action="append", default=[], metavar="NAME", help="append a recipe; may be given several times"
    )


def run(args: argparse.Namespace) -> int:
    """Hand the command to LightningCLI."""
    if args.help_all:
        args.parser.print_help()
        print("\noptions of LightningCLI:")
        args.arguments.append("--help")
    words = with_presets(args)
    with readable_errors():
        private_cli_class()(args=[args.command, *words], parser_kwargs={"exit_on_error": False})
    return 0


def add_preset_options(parser: argparse.ArgumentParser) -> None:
    """Declare `--dp`, `--rate` and `--batch-size`, which `with_presets` resolves."""
    parser.add_argument(
        "--dp",
        nargs=2,
        type=float,
        metavar=("EPSILON", "DELTA"),
        help="train with differential privacy (recipe dp_sgd); with --rate and --batch-size",
    )
    parser.add_argument("--rate", type=float, metavar="Q", help="Poisson sampling: how likely a record is in a batch")
    parser.add_argument(
        "--batch-size", type=count, metavar="B", help="records in a Poisson batch on average, with --rate"
    )


def with_presets(args: argparse.Namespace) -> list[str]:
    """The command line of LightningCLI with recipes and presets written out.

    Args:
        args: The options of `add_recipe_option` and `add_preset_options`.

    Raises:
        ValueError: If a batch size is given without a rate.
    """
    recipes, options = list(args.recipe), []
    if args.dp is not None:
        recipes += [] if "dp_sgd" in recipes else ["dp_sgd"]
        options += [
            f"--trainer.callbacks.{name}={value!r}" for name, value in zip(("epsilon", "delta"), args.dp, strict=True)
        ]
    if args.rate is not None:
        options += ["--trainer.callbacks.sampling=Poisson", f"--trainer.callbacks.sampling.rate={args.rate!r}"]
    if args.batch_size is not None:
        if args.rate is None:
            raise ValueError("--batch-size says how large a Poisson batch is on average: give --rate as well.")
        options.append(f"--trainer.callbacks.sampling.batch_size={args.batch_size}")
    return with_recipes(args.arguments, recipes, options)


def with_recipes(words: Sequence[str], recipes: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """The command line with each recipe as a `--config` behind the user's own.

    Recipes append to the list of callbacks, so a file of the user must come before them; options that address the last
    callback must come behind.

    Args:
        words: The arguments of LightningCLI.
        recipes: Names of recipes.
        options: Arguments of the last recipe's callback.

    Returns:
        The arguments, with `--config PATH` for each recipe.
    """
    position = 0
    for index, word in enumerate(words):
        if word in ("--config", "-c"):
            position = index + 2
        elif word.startswith("--config="):
            position = index + 1
    added = [part for name in recipes for part in ("--config", str(find_recipe(name)))]
    return [*words[:position], *added, *options, *words[position:]]


def private_cli_class() -> "type[LightningCLI]":
    """LightningCLI with the check that every callback of ours that was named is in the Trainer."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
    from lightning.pytorch.utilities import rank_zero_warn
    from typing_extensions import override

    class PrivateCLI(LightningCLI):
        """Refuses to start without a callback of ours that a given file or argument names."""

        @override
        def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
            self._named = named_callbacks(args)
            # Not the inherited method: it warns about the words in `sys.argv`, which are these.
            self.config = parser.parse_args(args)

        @override
        def after_instantiate_classes(self) -> None:
            super().after_instantiate_classes()
            callbacks = self.trainer.callbacks  # type: ignore[attr-defined]
            present = Counter(type(callback) for callback in callbacks)
            missing = [kind.__name__ for kind, count in self._named.items() if present[kind] < count]
            if missing:
                raise MisconfigurationException(
                    f"The configuration names {', '.join(missing)}, but the Trainer was built without it, because a "
                    "later `callbacks:` replaced the list: write `callbacks+:` in the later file, or give --recipe."
                )
            parts = (*callbacks, self.model, self.datamodule)
            ours = any(kind.__module__.startswith("lightning_pac.") for part in parts for kind in type(part).__mro__)
            if self.subcommand == "fit" and not ours:
                rank_zero_warn(
                    "This fit uses nothing from this package, so it is ordinary training without a guarantee: "
                    "--recipe srpp_sgd makes it private."
                )

    folder = str(pathlib.Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python script.py` does, so that `class_path: my_module.MyModel` is found
    return PrivateCLI


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Turn what jsonargparse says about an argument into the part that concerns the user.

    Its message lists why the value is none of several types; the first reason belongs to the class that was named.
    """
    try:
        yield
    except (argparse.ArgumentError, ValueError) as error:
        text = str(error)
        if not isinstance(error, argparse.ArgumentError) and "Does not validate" not in text:
            raise
        where = re.search(r'Parser key "([^"]+)"', text)
        reason = re.search(_FIRST_REASON, text, re.MULTILINE | re.DOTALL)
        shown = reason.group(2) if reason and "Does not validate" in text else text
        key = f"{where.group(1)}: " if where and where.group(0) not in shown else ""
        raise argparse.ArgumentError(None, key + say_where(" ".join(shown.split()))) from error


def named_callbacks(words: Sequence[str]) -> "Counter[type]":
    """Count the callbacks of this package that a command line names, itself or in the files it gives.

    Two files may set up the same callback, so each class is counted as often as the one file that names it most often.

    Args:
        words: The arguments of LightningCLI.

    Returns:
        How many instances of each class the Trainer must have at least.
    """
    named: list[list[tuple[str, bool]]] = []
    for before, word in zip(("", *words), words, strict=False):
        option, equals, value = word.partition("=")
        if not (equals and word.startswith("-")):
            option, value = before, word
        named += _names_in_value(value, pathlib.Path.cwd(), option)
    # A bare name stands for a class of a module that another name leads to.
    paths = {name for names in named for name, _ in names if "." in name}
    classes = {name for names in named for name, is_class in names if is_class}
    known = {path: _imported(path, path in classes) for path in paths}
    counts: Counter[type] = Counter()
    for names in named:
        found = [known[name] if "." in name else _kind_called(name) for name, _ in names]
        counts |= Counter(kind for kind in found if kind is not None)
    return counts


def _names_in_value(value: str, folder: pathlib.Path, key: str) -> Iterator[list[tuple[str, bool]]]:
    """Lists of the strings that may name a class, one list for the value itself or for each file it leads to.

    Beside each stands whether it does, or else might be any text.
    """
    is_config = key in ("--config", "-c")
    path = folder / value
    is_file = (is_config or value.endswith(_ENDINGS)) and path.is_file()
    if is_file or is_config or value[:1] in ("[", "{"):
        name = str(path) if is_file else f"The argument {value[:40]!r}"
        content, names = read_yaml(path if is_file else value, name)
        kind = type(content)
        if is_config and kind is not dict and (is_file or kind is not str):  # a text names a file that is not there
            raise ValueError(f"{name} holds no settings: name a YAML file, with `trainer:` for instance.")
        yield list(_strings(content, key))
        for name in names if is_file else []:
            if name.endswith(_ENDINGS):
                yield from _names_in_value(name, path.parent, "")
    else:
        yield list(_strings(value, key))


def read_yaml(source: pathlib.Path | str, name: str) -> tuple[Any, list[str]]:
    """The contents of YAML, and every string in it.

    Raises:
        ValueError: If it is none, or has a key twice, of which the first, such as `callbacks`, would be dropped.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(source if isinstance(source, str) else source.read_text(encoding="utf-8"))
        tree = loader.get_single_node()
        for key in _keys_again(tree):
            raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands there twice", key.start_mark)
        node = None if tree is None else loader.construct_document(tree)
        return node, [text for text, _ in _strings(node, "")]
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply to be a configuration.") from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        reason = getattr(error, "problem", None) or getattr(error, "reason", "it is no text")
        raise ValueError(f"{name} is not YAML ({reason}{place}): correct it there.") from error


def _keys_again(node: Any) -> Iterator[Any]:
    """Keys of mappings, as they are written, that have come before in the same mapping."""
    waiting, seen = [node], set[int]()
    while waiting:
        node = waiting.pop()
        if not isinstance(value := getattr(node, "value", None), list) or id(node) in seen:
            continue
        seen.add(id(node))
        keys = [entry[0] for entry in value if isinstance(entry, tuple)]
        names: set[tuple[str, str]] = set()
        for key in keys:
            name = (key.tag, str(key.value))
            if name in names and not key.tag.endswith(":merge"):
                yield key
            names.add(name)
        waiting += [entry[1] if isinstance(entry, tuple) else entry for entry in value]


def _strings(node: Any, key: str) -> Iterator[tuple[str, bool]]:
    """The strings below a key, and whether each must be the path of a class."""
    if isinstance(node, str):
        yield node, key.rstrip("+").endswith(("class_path", "callbacks")) and not node.endswith(_ENDINGS)
    elif isinstance(node, dict):
        for name, value in node.items():
            yield from _strings(value, str(name))
    elif isinstance(node, list):
        for value in node:
            yield from _strings(value, key)


def _imported(path: str, is_class: bool) -> type | None:
    """The callback that a path leads to, if it is one of ours or made of one, whatever module names it.

    Raises:
        ValueError: If what must be the path of a class leads nowhere, so that nobody knows whether it is ours.
    """
    if not (is_class or path.startswith("lightning_pac.")):
        return None  # any text, which might be the name of a script
    try:
        found = pydoc.locate(path)
    except pydoc.ErrorDuringImport as error:
        raise ValueError(
            f"{path} cannot be imported ({error.value}): correct what it names, or leave it out."
        ) from error
    if found is None and is_class:
        module = path.partition(".")[0]
        if "." in path and importlib.util.find_spec(module) is None:
            raise ValueError(say_where(f"{path} cannot be imported: No module named '{module}'"))
        raise ValueError(f"{path} leads to no class: correct the path, or leave it out.")
    if not isinstance(found, type) and callable(found):  # a function that makes one
        with contextlib.suppress(Exception):
            found = typing.get_type_hints(found).get("return")
    return _if_ours(found)


def _kind_called(name: str) -> type | None:
    """The callback of ours, or made of one, that LightningCLI takes a bare name for."""
    import lightning.pytorch as pl

    import lightning_pac.callbacks

    kinds: list[Any] = [getattr(lightning_pac.callbacks, name, None) if name.isidentifier() else None]
    waiting: list[type] = [pl.Callback] if name.isidentifier() else []
    while waiting:
        below: list[type] = waiting.pop().__subclasses__()
        kinds += [kind for kind in below if kind.__name__ == name]
        waiting += below
    return next((kind for kind in map(_if_ours, kinds) if kind is not None), None)


def _if_ours(found: Any) -> type | None:
    import lightning.pytorch as pl

    is_callback = isinstance(found, type) and issubclass(found, pl.Callback)
    return (
        found if is_callback and any(kind.__module__.startswith("lightning_pac.") for kind in found.__mro__) else None
    )
