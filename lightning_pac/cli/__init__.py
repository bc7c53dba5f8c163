"""The `lightning-pac` command.

Each subcommand is one module of this package, or a package of its own where it takes several files, with two
functions: `add_parser(subparsers)`, which declares its options through `common.add_command`, and `run(args) -> int`,
which returns the exit code. To add one, write the module: every one here that has `add_parser` is a command. A module
imports nothing heavy at its top, so that `lightning-pac --help` answers at once.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 a privacy budget would be passed, 130 interrupted, 141 the
reader of the output has stopped reading.
"""

import argparse
import contextlib
import importlib
import io
import os
import pkgutil
import re
import sys
from collections.abc import Sequence
from types import ModuleType

from lightning_pac import __version__
from lightning_pac.cli.common import check_numbers, check_plot, name_numbers, say_where
from lightning_pac.exceptions import BudgetExceededError, PrivacyError

__all__ = ["build_parser", "main"]

# The first of `lightning-pac --help`; the others follow by name.
_FIRST = ("lightning", "check", "calibrate")

_DESCRIPTION = "Provably private training and inference for PyTorch Lightning."
_EPILOG = "`lightning-pac COMMAND --help` shows the options of a command, with examples."
# How the math module and NumPy refuse a number.
_RAW_ERRORS = ("math domain error", "math range error", "Maximum allowed size exceeded")
_PLAIN_ERRORS = (ValueError, OSError, ImportError, PrivacyError, argparse.ArgumentError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    An error is one line on standard error, or one for each problem of a fit; with `--debug` it is a traceback.

    Args:
        arguments: The words after `lightning-pac`; those of the process by default.

    Example:
        >>> from lightning_pac.cli import main
        >>> main(["no-such-command"])
        Traceback (most recent call last):
        SystemExit: 2
    """
    parser = build_parser()
    args, unknown = parser.parse_known_args(arguments)
    if args.passes_unknown:
        args.arguments = unknown
    elif unknown:
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        _write_any_name()
        check_numbers(args)
        check_plot(args)
        code = int(args.run(args))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:
        # Lightning ends an interrupted fit by exit(1).
        if isinstance(error.__context__, KeyboardInterrupt):
            return 130
        raise
    except BrokenPipeError:
        _drop_output()
        return 141
    except Exception as error:
        if args.debug:
            raise
        print(f"lightning-pac {args.command}: error: {_describe(error, args)}", file=sys.stderr)
        return 3 if isinstance(error, BudgetExceededError) else 2 if isinstance(error, argparse.ArgumentError) else 1


def build_parser() -> argparse.ArgumentParser:
    """The parser with all subcommands; their modules are imported, and nothing heavy with them."""
    parser = argparse.ArgumentParser("lightning-pac", description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"lightning-pac {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in _modules():
        if hasattr(module, "add_parser"):
            module.add_parser(subparsers)
    return parser


def _modules() -> list[ModuleType]:
    names = {module.name for module in pkgutil.iter_modules(__path__)}
    return [importlib.import_module(f"{__name__}.{name}") for name in (*_FIRST, *sorted(names.difference(_FIRST)))]


def _write_any_name() -> None:
    """Let names that are no text, or have letters that the terminal lacks, be shown and not end a command half-way."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # what was opened as a file and is a pipe by now
                stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Let what is still to be written go nowhere, or Python would complain about the pipe once more at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _describe(error: Exception, args: argparse.Namespace) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, ArithmeticError | MemoryError) or text in _RAW_ERRORS:
        return f"A number is too large or too small to compute with ({text.rstrip('.')}): check {name_numbers(args)}."
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{' '.join(str(error.filename).split())}: {error.strerror}."
    # Lightning's class is recognized by name: importing it takes seconds, and an error should not.
    if type(error).__name__ == "MisconfigurationException":
        return "\n".join(" ".join(problem.split()) for problem in re.split(r"(?<=\.)\n", str(error)))
    if isinstance(error, _PLAIN_ERRORS):
        return say_where(text) if isinstance(error, ModuleNotFoundError) else text
    return f"{type(error).__name__}: {text} (`--debug` shows where)"
