"""The examples of private responses, run as their readers run them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scripts import run_script

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(folder: Path, *command: str) -> str:
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def figure(output: str, name: str) -> float:
    found = re.search(rf"{name} +(?:at most )?([0-9.e-]+)", output)
    assert found, output
    return float(found[1])


def test_the_table_needs_no_torch_network(tmp_path: Path) -> None:
    output = run_script(EXAMPLES / "responses_table" / "demo.py", "--members", "8", "--output", "out", folder=tmp_path)
    assert figure(output, "one member, no noise") > 0.8
    assert figure(output, "private answers") > 0.6


@pytest.mark.slow
def test_the_same_from_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(EXAMPLES / "responses_digits", folder)
    quiet = ["--trainer.enable_progress_bar=false"]
    few = ["--trainer.max_epochs=3", *quiet]
    command = ["-m", "lightning_pac"]
    run(folder, *command, "fit", "--config", "ensemble.yaml", *few)
    checkpoint = ["--ckpt_path", "runs/ensemble.ckpt"]
    run(folder, *command, "predict", "--config", "ensemble.yaml", "--recipe", "pac_responses", *checkpoint, *quiet)
    run(folder, *command, "fit", "--config", "student.yaml", *few)
    saved = torch.load(folder / "runs" / "student" / "student.ckpt", weights_only=True)
    card = saved["DistilledDataModule"]["privacy_card"]
    assert card["details"]["answers"] == 360 + 539
    shown = run(folder, *command, "audit", "membership", "responses.db", "--records", "898", "--trials", "50")
    assert "stays within the bound" in shown
