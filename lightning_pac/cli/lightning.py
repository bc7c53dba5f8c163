"""`lightning-pac fit|validate|test|predict`: Lightning's own command line, which never drops a privacy callback unseen.

A second `--config` with `callbacks:` replaces the list of the first one, without a word. Recipes therefore append
(`callbacks+:`), and before anything starts the callbacks that the user named are compared with those of the Trainer.
"""

import argparse
import contextlib
import pathlib
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.common import add_command, count, say_where
from lightning_pac.cli.named_callbacks import named_callbacks
from lightning_pac.cli.recipes import find_recipe

if TYPE_CHECKING:
    from lightning.pytorch.cli import LightningCLI

__all__ = [
    "add_parser",
    "add_preset_options",
    "add_recipe_option",
    "private_cli_class",
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
_FIRST_REASON = r"^( *)- (?:Problem with given class_path )?(.+?)(?=^\1- |^\S|^ *Given value|\Z)"
_UNNAMED_CLASS = "'lightning.Lightning"
_OWN_MAIN = (
    ": name the class by class_path, with its arguments under init_args, or run the main.py of your own that names it "
    "(`python main.py fit --config ...`), with the callbacks in a second --config"
)
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
        cure = _OWN_MAIN if _UNNAMED_CLASS in shown else ""
        raise argparse.ArgumentError(None, key + say_where(" ".join(shown.split())) + cure) from error
