"""`lightning-pac completion`: let the shell complete commands and options."""

import argparse
from pathlib import Path
from typing import Any

from lightning_pac.cli.common import add_command, print_json

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "completion",
        run,
        "print a script with which a shell completes commands, options and files",
        """
        lightning-pac completion bash > ~/.local/share/bash-completion/completions/lightning-pac
        lightning-pac completion zsh > ~/.zsh/completions/_lightning-pac
        """,
        """
        The script knows this version's commands and options; print it again after an update. Options that `fit` and its
        kin hand on to LightningCLI are not in it.
        """,
    )
    parser.add_argument("shell", choices=["bash", "zsh", "tcsh"])


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from lightning_pac.cli import build_parser

    parser = build_parser()
    _complete_files(parser, shtab.FILE)
    script = shtab.complete(parser, args.shell)
    if args.json:
        print_json({"shell": args.shell, "script": script})
    else:
        print(script)
    return 0


def _complete_files(parser: argparse.ArgumentParser, completer: Any) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                _complete_files(subparser, completer)
        elif action.type is Path or "LEDGER" in str(action.metavar):
            action.complete = completer  # type: ignore[attr-defined]
