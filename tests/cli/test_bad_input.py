"""Numbers, files and names that no command can use, or that a terminal library would read as something else."""

import argparse
import contextlib
import json
import sys
from pathlib import Path

import pytest

from lightning_pac import cli
from lightning_pac.cli.common import check_numbers, print_table
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.serve import APIKeys

ODD = "[bold]a[/red] :smile: [x"

COMMANDS = {
    "calibrate": "calibrate --num-records=1000 --num-differing=2 --batch-size=50 --steps=20",
    "noise dp": "noise dp --epsilon=1 --delta=1e-4 --max-value=60",
    "noise pac": "noise pac --output-variance=20 --max-value=10 --second-moment=25",
    "noise leakage": "noise leakage --states=4 --leakage=1",
    "bounds": "bounds --budget=2^-8 --responses=10",
    "keys": "keys add keys.json alice --budget=1",
}
OPTIONS = {
    "calibrate": "num-differing num-records batch-size rate steps epsilon noise-multiplier renyi-order",
    "noise dp": "epsilon delta compositions sensitivity max-value",
    "noise pac": "output-variance max-value second-moment",
    "noise leakage": "states leakage",
    "bounds": "budget responses prior epsilon delta",
    "keys": "budget",
}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e308", "1e-320", "1e400", "x"])
@pytest.mark.parametrize(
    ("command", "option"), [(command, option) for command, names in OPTIONS.items() for option in names.split()]
)
def test_a_number_that_cannot_be_is_refused_in_a_sentence_that_names_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    option: str,
    value: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word for word in COMMANDS[command].split() if not word.startswith(f"--{option}=")]
    try:
        code = cli.main([*words, f"--{option}={value}"])
    except SystemExit as error:  # of argparse, which shows the usage first
        code = error.code
    output, errors = capsys.readouterr()
    assert code in (1, 2)
    assert output == ""
    last = errors.splitlines()[-1]
    assert option in last.lower()
    assert "--debug" not in last
    assert not list(tmp_path.iterdir())


def test_a_number_in_a_list_and_one_that_overflows_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(argparse.ArgumentError, match="--epsilon is inf: give a number"):
        check_numbers(argparse.Namespace(epsilon=[1.0, float("inf")], name="x", on=True))
    assert cli.main(["noise", "dp", "--epsilon=1000", "--delta=1e-4", "--max-value=60"]) == 1
    assert "epsilon must be at most 256, got 1000" in capsys.readouterr().err


def test_a_table_shows_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(ODD, [ODD, "n"], [[ODD, 1.0], ["[/]", 2]], ODD)
    assert capsys.readouterr().out.count(ODD) == 4


def test_every_command_that_prints_a_table_shows_folders_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("[red]a[/bold] :smile:")
    run = folder / "[x]"
    run.mkdir(parents=True)
    APIKeys(folder / "keys.json").add("alice")
    with PrivacyLedger(folder / "ledger.db") as ledger:
        ledger.account("[bold]one[/red]").charge(1.0)
    (run / "metrics.csv").write_text("step,privacy/rpp_epsilon\n1,2\n")
    (folder / "metrics.csv").write_text("step,privacy/rpp_epsilon\n1,2\n")
    for words, expected in (
        (["keys", "list", f"{folder}/keys.json"], f"{folder}/keys.json"),
        (["account", f"{folder}/ledger.db"], "[bold]one[/red]"),
        (["report", str(folder)], "[x]"),
        (["report", str(run)], f"The report is {run}/report.html"),
    ):
        assert cli.main(words) == 0
        shown = capsys.readouterr().out
        assert "".join(expected.split()) in "".join(shown.split())  # a title is as wide as its table
    assert cli.main(["audit", "membership", f"{folder}/none.db", "--records", "20"]) == 1
    assert f"{folder}/none.db" in capsys.readouterr().err
    for command in list(COMMANDS.values())[:-1]:
        assert cli.main(command.split()) == 0


@pytest.mark.parametrize("command", ["check", "fit"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"trainer: [1\n  x: }", "is not YAML (expected ',' or ']', but got ':' at line 2, column 4)"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"a: \x00", "is not YAML"),
        (b"[" * 3000 + b"]" * 3000, "is nested too deeply"),
    ],
)
def test_a_configuration_that_is_no_yaml_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    content: bytes,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("[mine].yaml").write_bytes(content)
    assert cli.main([command, "--config", "[mine].yaml"]) == 1
    errors = capsys.readouterr().err
    assert "[mine].yaml" in errors
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert "--debug" not in errors


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"step,loss\n1,abc\n", 2),
        (b"step,loss\n1,2\nx,2\n", 3),
        (b"step,loss\n1,2,3\n", 2),
        (b"step,loss\ninf,2\n", 2),
        (b"step,loss\n1,\x00\n", 2 if sys.version_info >= (3, 11) else 1),  # csv itself refuses it, before it counts
        (b"step,loss\n1," + b"9" * 200_000 + b"\n", 1),
        (b"\xff\xfe\x00\x01", 0),
    ],
)
def test_metrics_that_are_no_table_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, line: int
) -> None:
    (tmp_path / "metrics.csv").write_bytes(content)
    assert cli.main(["report", str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert f"{tmp_path}/metrics.csv is not a table of numbers at line {line} (" in errors
    assert len(errors.splitlines()) == 1
    assert "--debug" not in errors


@pytest.mark.parametrize("content", ["{", "[1]", '{"guarantees": 1}', "[" * 100_000])
def test_a_card_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (tmp_path / "privacy_card.json").write_text(content)
    assert cli.main(["report", str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert f"{tmp_path}/privacy_card.json is not a privacy card" in errors
    assert "--debug" not in errors


def test_odd_numbers_of_a_server_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "r.db", "--ensemble", "a.ckpt", "--network", "a.b", "--records", "20"]
    assert cli.main([*words, "--timeout=nan"]) == 2
    assert "--timeout is nan: give a number" in capsys.readouterr().err
    for option in ("--max-batch-size=0", "--input-shape=0", "--records=-1"):
        with pytest.raises(SystemExit, match="2"):
            cli.main([*words, option])
        assert option.split("=")[0] in capsys.readouterr().err


def test_json_shows_names_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PrivacyLedger(tmp_path / "l.db") as ledger:
        ledger.account(ODD).charge(1.0)
    assert cli.main(["account", str(tmp_path / "l.db"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accounts"][0]["name"] == ODD


@pytest.mark.parametrize(
    "words",
    [
        "serve a.db --ensemble a.ckpt --network my_own_project.make --records 5 --budget 1",
        "check --config own.yaml --dp 3 1e-5",
    ],
)
def test_a_module_that_is_elsewhere_is_told_where_it_is_looked_for(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text("model: {class_path: my_own_project.Classifier}\n")
    with contextlib.suppress(SystemExit):
        assert cli.main(words.split()) != 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert "No module named 'my_own_project': run the command in the folder that holds my_own_project.py" in last
