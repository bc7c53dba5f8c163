import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_pac import cli
from lightning_pac.exceptions import BudgetExceededError


class Command:
    """A subcommand that does what the test tells it to."""

    def __init__(self, error=None):
        self.error = error

    def add_parser(self, subparsers):
        from lightning_pac.cli.common import add_command

        add_command(subparsers, "try", self.run, "a command of the tests", examples="lightning-pac try")

    def run(self, args):
        if self.error is not None:
            raise self.error
        return 0


@pytest.fixture
def install(monkeypatch):
    def with_error(error=None):
        monkeypatch.setitem(sys.modules, "lightning_pac.cli.lightning", Command(error))

    return with_error


def test_help_imports_nothing_heavy():
    commands = next(action for action in cli.build_parser()._actions if action.dest == "command").choices
    code = (
        "import contextlib, sys; from lightning_pac.cli import build_parser, main;"
        "parser = next(action for action in build_parser()._actions if action.dest == 'command');"
        "commands = [[], *([name] for name in parser.choices)]\n"
        "for words in commands:\n"
        "    with contextlib.suppress(SystemExit): main([*words, '--help'])\n"
        "heavy = {'numpy', 'scipy', 'torch', 'lightning', 'opacus', 'jsonargparse', 'rich', 'yaml'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("usage: lightning-pac") == 1 + len(commands)


def test_every_subcommand_explains_itself(capsys):
    parser = cli.build_parser()
    commands = next(action for action in parser._actions if hasattr(action, "choices") and action.choices).choices
    for name, command in commands.items():
        text = command.format_help()
        assert "examples:" in text, name
        assert f"lightning-pac {name}" in text.split("examples:")[1], name
        assert "--debug" in text, name
        assert ("--json" in text) or name in {"fit", "validate", "test", "predict"}, name


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (None, 0, ""),
        (ValueError("epsilon is -1:\n give a positive one."), 1, "epsilon is -1: give a positive one."),
        (BudgetExceededError("The budget is spent."), 3, "The budget is spent."),
        (KeyError("rate"), 1, "KeyError: 'rate' (`--debug` shows where)"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
        (PermissionError(13, "Permission denied", "mine.yaml"), 1, "mine.yaml: Permission denied."),
        (OSError("the model is gone"), 1, "the model is gone"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(install, capsys, error, code, line):
    install(error)
    assert cli.main(["try"]) == code
    stderr = capsys.readouterr().err
    assert "Traceback" not in stderr
    assert stderr == (f"lightning-pac try: error: {line}\n" if line else "")


def test_an_interrupted_fit_is_interrupted(install):
    """Lightning catches Ctrl-C, tears down and calls `sys.exit(1)`."""
    error = SystemExit(1)
    error.__context__ = KeyboardInterrupt()
    install(error)
    assert cli.main(["try"]) == 130
    install(SystemExit(1))
    with pytest.raises(SystemExit, match="1"):
        cli.main(["try"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a shell and /dev/full")
@pytest.mark.parametrize(
    ("words", "end", "code", "message"),
    [
        ("completion bash", "| (exec <&-; sleep 1)", 141, ""),
        ("bounds --json", "| (exec <&-; sleep 3)", 141, ""),
        ("completion bash", "> /dev/full", 1, "lightning-pac completion: error: [Errno 28] No space left on device\n"),
        ("completion bash", ">&-", 0, ""),
    ],
)
def test_nobody_listens(words, end, code, message):
    command = f"set -o pipefail; {shlex.quote(sys.executable)} -m lightning_pac {words} {end}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.stderr == message
    assert result.returncode == code


@pytest.mark.parametrize(
    "words", [["bounds", "--responses", "1e400"], ["bounds", "--responses", "many"], ["bounds", "--responses", "0.5"]]
)
def test_numbers_that_are_none_are_wrong_usage(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    assert f"'{words[-1]}' is not a positive whole number" in capsys.readouterr().err


def test_debug_shows_the_traceback(install):
    install(ValueError("wrong"))
    with pytest.raises(ValueError, match="wrong"):
        cli.main(["try", "--debug"])


def test_unknown_options_are_wrong_usage(install, capsys):
    install()
    with pytest.raises(SystemExit, match="2"):
        cli.main(["try", "--jsn"])
    assert "unrecognized arguments: --jsn" in capsys.readouterr().err


def test_module_entry_point_prints_the_version():
    result = subprocess.run([sys.executable, "-m", "lightning_pac", "--version"], capture_output=True, text=True)
    assert result.stdout.startswith("lightning-pac 0.")
