"""`lightning-pac plan`: its figures against the composed curve, and the ledger that it leaves."""

import json
from pathlib import Path

import pytest

from lightning_pac import cli
from lightning_pac.accountants import GaussianRelease, PoissonSteps, privacy_curve
from lightning_pac.ledger import PrivacyLedger

WORDS = "plan --num-records 1000 --epsilon 3 --delta 1e-5 --batch-size 50 200 --epochs 5 --parameters 10"


def test_json_has_every_option_and_the_ledger_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, picture = tmp_path / "study.db", tmp_path / "plan.png"
    words = f"{WORDS} --values metrics=20 --answers labels=1000 --ledger {path} --plot {picture}"
    assert cli.main([*words.split(), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    runs = [option["runs"]["model"] for option in told["options"]]
    assert [(run["batch_size"], run["num_steps"]) for run in runs] == [(50, 100), (200, 25)]
    for option, run in zip(told["options"], runs, strict=True):
        steps = PoissonSteps(run["noise_multiplier"], run["rate"], run["num_steps"], 1, "replace")
        values = GaussianRelease(20 * option["epsilon_of_values"]["metrics"] / 8)
        assert 2.995 < privacy_curve([steps, values]).epsilon(1e-5) <= 3.0
    assert picture.stat().st_size > 10_000
    with PrivacyLedger.read_only(path) as ledger:
        assert ledger.budget("mutual_information") == pytest.approx(0.0201355, rel=1e-4)  # kl(0.6, 0.5)
    assert cli.main(["account", "total", str(path), "--json"]) == 0
    assert {share["name"] for share in json.loads(capsys.readouterr().out)["shares"]} == {"model", "metrics"}


def test_people_read_what_to_draw_with(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main([*WORDS.split(), "--runs", "3"]) == 0
    shown = capsys.readouterr().out
    assert "What is affordable" in shown
    assert "1 selection " in shown
    assert "PrivateSelection of SRPPSGD(sampling=Poisson(" in shown
    assert cli.main(["plan", "--num-records", "9", "--world-success-bound", "0.6", "--values", "cells=3"]) == 0
    assert "PrivateMetrics(epsilon=" in capsys.readouterr().out
    words = f"{WORDS} --adjacency add_remove --values metrics=2"
    assert cli.main(words.split()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "DPSGD(sampling=Poisson(" in shown
    assert "2 values, noise multiplier" in shown
    assert cli.main([*words.split(), "--json"]) == 0
    epsilon = json.loads(capsys.readouterr().out)["options"][-1]["epsilon_of_values"]["metrics"]
    # Of order 16 a Gaussian has 16 / (2 sigma^2).
    assert float(shown.partition("values, noise multiplier ")[2].split()[0]) == pytest.approx(
        (16 / 2 / epsilon) ** 0.5, rel=0.05
    )
