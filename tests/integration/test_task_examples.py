"""The examples of tasks, run as their readers run them, for fewer epochs."""

import csv
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import run_script

from lightning_pac import PrivacyLedger

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not EXAMPLES.exists(), reason="the examples are in a checkout")]


def run(folder: Path, name: str, *words: str) -> dict[str, float]:
    """The figures that an example prints, by their names."""
    printed = run_script(EXAMPLES / name / "demo.py", "--output", "out", *words, folder=folder)
    return {key: float(value) for key, value in re.findall(r"^(.+?)  +\D*?([0-9.]+)", printed, re.MULTILINE)}


def test_images(tmp_path: Path) -> None:
    figures = run(tmp_path, "vision", "--epochs", "2")
    assert figures["Rényi epsilon"] <= 8
    assert 50 < figures["guessing the secret"] < 100


def test_a_frozen_backbone(tmp_path: Path) -> None:
    figures = run(tmp_path, "frozen_backbone", "--epochs", "10")
    assert figures["private head"] > 0.3
    assert figures["guessing the secret"] < 95


def test_texts(tmp_path: Path) -> None:
    """On a corpus made here, in the two forms that AG News comes in."""
    folder = tmp_path / "data" / "ag_news"
    folder.mkdir(parents=True)
    topics = ["trade market", "match goal", "vote law", "chip code"]
    with (folder / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["label", "text"], *([i % 4, f"{topics[i % 4]} today"] for i in range(400))])
    with (folder / "test.csv").open("w", newline="") as file:
        csv.writer(file).writerows([i % 4 + 1, topics[i % 4], "today"] for i in range(40))
    words = ["--data-root", "data", "--steps", "30", "--batch-size", "40", "--public", "80", "--learning-rate", "2"]
    figures = run(tmp_path, "text", *words)
    assert figures["ordinary training"] > 0.9
    assert 0 < figures["differential privacy"] < 4


def test_the_template_trains_and_reports(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(EXAMPLES / "template", folder)
    for words in (["make_table.py"], ["train.py", "--trainer.max_epochs=3"]):
        subprocess.run([sys.executable, *words], cwd=folder, check=True)
    with PrivacyLedger.read_only(folder / "customers.db") as ledger:
        assert sorted(account.num_charges for account in ledger.accounts()) == [0, 30]
    assert [*folder.glob("lightning_logs/**/privacy_card.md")]
