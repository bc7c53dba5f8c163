"""The common ground of all subcommands: how they are declared, and tables for people beside JSON for programs."""

import argparse
import importlib
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_pac.scenarios import SecretSpace

__all__ = [
    "add_command",
    "add_import_option",
    "add_pool_options",
    "check_numbers",
    "check_plot",
    "count",
    "describe_last_charge",
    "import_modules",
    "make_pool",
    "name_numbers",
    "print_json",
    "print_table",
    "say_where",
]

SMALLEST, LARGEST = 1e-50, 1e50

_PICTURES = (".png", ".pdf", ".svg", ".jpg")


def add_command(
    subparsers: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    examples: str,
    description: str = "",
    passes_unknown: bool = False,
) -> argparse.ArgumentParser:
    """Declare a subcommand and return its parser, to which the caller adds the options.

    Every subcommand has `--debug`; those that are not handed on to Lightning also have `--json`.

    Args:
        subparsers: What `main` hands to `add_parser`.
        name: The word on the command line.
        run: Called with the parsed options; returns the exit code.
        summary: One line for `lightning-pac --help`.
        examples: Command lines, shown under the options.
        description: More than the summary, for the command's own help.
        passes_unknown: Whether options that this parser does not know, `--help` among them, are kept in
            `args.arguments` for another parser.
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=textwrap.dedent(description).strip() or summary,
        epilog="examples:\n" + textwrap.indent(textwrap.dedent(examples).strip(), "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=not passes_unknown,
        allow_abbrev=False,
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    if not passes_unknown:
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run, parser=parser, passes_unknown=passes_unknown)
    return parser


def count(text: str) -> int:
    """Read a positive whole number, also one written as 1e6."""
    try:
        value = float(text)
        if 1 <= value <= LARGEST and value == int(value):
            return int(value)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number up to {LARGEST:g}")


def check_numbers(args: argparse.Namespace) -> None:
    """Refuse numbers beyond what any formula here can take, by the name of their option.

    Raises:
        argparse.ArgumentError: If a number is not finite, or its size is outside 1e-50 ... 1e50 and not 0.
    """
    for option, value in _numbers(args):
        if value != 0 and not SMALLEST <= abs(value) <= LARGEST:
            raise argparse.ArgumentError(
                None, f"{option} is {value:g}: give a number of size {SMALLEST:g} to {LARGEST:g}, or 0."
            )


def check_plot(args: argparse.Namespace) -> None:
    """Refuse a picture that could not be written, before a figure is computed for it.

    Raises:
        ValueError: If its ending is none of a picture, or its folder is not there, or it is a folder.
    """
    path: Path | None = getattr(args, "plot", None)
    if path is None:
        return
    if path.suffix.lower() not in _PICTURES:
        raise ValueError(f"--plot {path} does not end like a picture's name: use one of {', '.join(_PICTURES)}.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"There is no folder {path.parent} for --plot: make it first.")
    if path.is_dir():
        raise ValueError(f"--plot {path} is a folder: name a file in it.")


def name_numbers(args: argparse.Namespace) -> str:
    """The numbers of a command line that are not the defaults, by their options, for the error of an overflow."""
    given = {name: value for name, value in vars(args).items() if value != args.parser.get_default(name)}
    return ", ".join(f"{option}={value:g}" for option, value in _numbers(argparse.Namespace(**given)))


def _numbers(args: argparse.Namespace) -> Iterator[tuple[str, float]]:
    for name, given in vars(args).items():
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield f"--{name.replace('_', '-')}", value


def add_import_option(parser: argparse.ArgumentParser) -> None:
    """Let the user name modules, which `import_modules` imports."""
    parser.add_argument(
        "--import", dest="modules", action="append", default=[], metavar="MODULE", help="registers a sampling scheme"
    )


def import_modules(args: argparse.Namespace) -> None:
    """Import what was named, so that its sampling schemes are known."""
    for name in args.modules:
        importlib.import_module(name)


def add_pool_options(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Declare the numbers that a public table of subsets is made from, which `make_pool` reads."""
    parser.add_argument("--records", type=count, required=required, help="number of records in the pool")
    parser.add_argument("--subsets", type=count, default=128, help="number of subsets (128)")
    parser.add_argument("--pool-seed", type=int, default=0, help="public seed of the table (0)")
    parser.add_argument(
        "--pool", choices=["balanced", "halves"], default="balanced", help="kind of the table (balanced)"
    )


def make_pool(args: argparse.Namespace) -> "SecretSpace":
    """The table that the options of `add_pool_options` describe."""
    from lightning_pac.scenarios import BalancedSubsets, ComplementaryHalves

    kind = BalancedSubsets if args.pool == "balanced" else ComplementaryHalves
    return kind(args.records, args.subsets, args.pool_seed)


def describe_last_charge(last: tuple[str, str] | None) -> str:
    """A sentence on `PrivacyLedger.last_charge`, which tells a ledger that was put back as a whole."""
    if last is None:
        return "No charge is known to it."
    return f"Its last charge was made on {last[0]} (UTC) to account {last[1]!r}."


def say_where(text: str) -> str:
    """An error about a module that is not found, with where it is looked for: mostly the wrong folder was chosen."""
    missing = re.search(r"No module named '([\w.]+)'\.?$", text)
    if missing is None:
        return text
    return (
        f"{text.rstrip('.')}: run the command in the folder that holds {missing[1].partition('.')[0]}.py, put that "
        "folder on PYTHONPATH, or install the package."
    )


def print_json(value: Any) -> None:
    """Print `value` as JSON on standard output; infinities and missing numbers become null."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> None:
    """Print a table for people; numbers are aligned to the right and shown with four significant digits.

    Everything is shown as it is: a name or a path may have brackets or colons, which rich would read as markup.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    from typing_extensions import override

    class PipedConsole(Console):
        @override
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit; `main` ends every command alike

    table = Table(title=Text(title, style="table.title") if title else None, title_justify="left")
    for index, column in enumerate(columns):
        numeric = any(isinstance(row[index], int | float) for row in rows)
        table.add_column(Text(column), justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    # In a pipe there is no width to fit into, and a cut-off cell would be a loss.
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    console = PipedConsole(width=None if is_terminal else 240)
    console.print(table)
    if caption:
        console.print(Text(caption), soft_wrap=True)


class Bound(float):
    """A number in a table that was proven and is shown rounded up, or noise that must not be less."""


class Room(float):
    """A number in a table of which no more may be used, shown rounded down."""


def _cell(value: object) -> str:
    if isinstance(value, Bound | Room):
        from lightning_pac.cards import downwards, upwards

        return (upwards if isinstance(value, Bound) else downwards)(float(value), 4)
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
