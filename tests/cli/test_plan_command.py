"""`lightning-pac plan`: its figures against the composed curve, and the ledger that it leaves."""

import json
from pathlib import Path

import jsonschema
import pytest
from scored_project import PROJECT

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
        values = GaussianRelease(20 * 2**2 / option["noise_of_values"]["metrics"] ** 2)  # each moves by at most two
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
    assert "PrivateMetrics(noise_multiplier=" in capsys.readouterr().out
    words = f"{WORDS} --adjacency add_remove --values metrics=2"
    assert cli.main(words.split()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "DPSGD(sampling=Poisson(" in shown
    assert "│ 2 values │" in shown
    assert cli.main([*words.split(), "--json"]) == 0
    noise = json.loads(capsys.readouterr().out)["options"][-1]["noise_of_values"]["metrics"]
    assert float(shown.partition("PrivateMetrics(noise_multiplier=")[2].split(")")[0]) == noise


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_the_configuration_of_a_plan_runs_and_uses_it_up(
    adjacency: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("planned_project.py").write_text(PROJECT)
    Path("mine.yaml").write_text("model: planned_project.Scored\ndata: planned_project.Data\n")
    words = "plan --num-records 60 --epsilon 3 --delta 1e-5 --batch-size 12 --epochs 2 --ledger a.db"
    words += f" --values metrics=1 --adjacency {adjacency}"
    assert cli.main([*words.split(), "--yaml", "private.yaml"]) == 0
    capsys.readouterr()
    assert cli.main(["check", "--config", "mine.yaml", "--config", "private.yaml", "--json"]) == 0
    noise = json.loads(capsys.readouterr().out)["noise_of_metrics"]["val/accuracy"]
    with PrivacyLedger.read_only(tmp_path / "a.db") as ledger:
        assert not ledger.accounts(), "a dry run writes to copies"
    assert f"noise_multiplier: {noise}" in Path("private.yaml").read_text()
    assert cli.main(["fit", "--config", "mine.yaml", "--config", "private.yaml", "--trainer.logger=false"]) == 0
    capsys.readouterr()
    assert cli.main(["account", "total", "a.db", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert 2.995 < told["epsilon_at_delta"] <= 3.0
    for share in told["shares"]:
        assert share["taken"] == pytest.approx(share["size"], rel=1e-3)
    assert cli.main(["evidence", "a.db", "--output", "evidence"]) == cli.main(["verify", "evidence"]) == 0
    schema = json.loads(Path("evidence/evidence.schema.json").read_text())
    jsonschema.validate(json.loads(Path("evidence/evidence.json").read_text()), schema)
    mine = Path("mine.yaml").read_text()
    assert cli.main([*words.replace("a.db", "b.db").split(), "--yaml", "mine.yaml"]) == 1
    assert "mine.yaml exists, or is named twice, and is not written over" in capsys.readouterr().err
    assert (Path("mine.yaml").read_text(), Path("b.db").exists()) == (mine, False)
    for file in ("b.db", "b.png"):
        assert cli.main([*words.replace("a.db", "b.db").split(), "--plot", "b.png", "--yaml", file]) == 1
        assert "or is named twice" in capsys.readouterr().err
    assert cli.main([*words.replace("a.db", "b.db").split(), "--yaml", "nowhere/b.yaml"]) == 1
    assert not Path("b.db").exists(), "nothing is half done"
    capsys.readouterr()
    without = "plan --num-records 60 --epsilon 3 --delta 1e-5 --values metrics=1 --ledger b.db --yaml b.yaml"
    assert cli.main(without.split()) == 1
    assert "--yaml writes the run of a model" in capsys.readouterr().err
