"""`lightning-pac tune` on a configuration of a user."""

import json
import warnings

import lightning.pytorch  # noqa: F401  # keeps the stream of its import, which must not be that of one test
import pytest
import torch
import yaml
from scored_project import PROJECT

from lightning_pac import cli
from lightning_pac.accountants import NumberOfRuns
from lightning_pac.ledger import PrivacyLedger


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(NumberOfRuns, "draw", lambda self, generator=None: 2)
    (tmp_path / "tuned_project.py").write_text(PROJECT)
    scenario = {"num_differing": 1, "num_records": 60}
    fit = {
        "scenario": scenario,
        "noise_multiplier": 4.0,
        "sampling": {"class_path": "lightning_pac.data.Poisson", "init_args": {"rate": 0.2}},
    }
    score = {"names": ["val/accuracy"], "scenario": scenario, "epsilon": 0.05, "renyi_order": 16.0, "ledger": "none.db"}
    configuration = {
        "model": {"class_path": "tuned_project.Scored"},
        "data": {"class_path": "tuned_project.Data"},
        "trainer": {
            "max_steps": 3,
            "accelerator": "cpu",
            "callbacks": [
                {"class_path": "lightning_pac.callbacks.SRPPSGD", "init_args": fit},
                {"class_path": "lightning_pac.callbacks.PrivateMetrics", "init_args": score},
            ],
        },
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(configuration))
    (tmp_path / "space.yaml").write_text(
        "model.learning_rate: {log_uniform: [0.01, 1.0]}\ntrainer.log_every_n_steps: {integers: [1, 9]}\n"
    )
    return ["tune", "--config=mine.yaml", "--space", "space.yaml", "--score", "val/accuracy", "--ledger", "study.db"]


def test_tunes_and_charges_once(words, tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cli.main([*words, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)
    assert 0.01 <= best["settings"]["model.learning_rate"] <= 1.0
    assert torch.load(best["weights"], weights_only=True)["score"] == best["score"]
    with PrivacyLedger.read_only(tmp_path / "study.db") as ledger:
        (account,) = ledger.accounts()
        assert [charge.cost > 0 for charge in account.events()] == [True, False]
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("space", "others", "message"),
    [
        ("model.learning_rate: 0.1\n", [], "has one distribution"),
        ("- 1\n", [], "is not a search space"),
        ("model.learning_rate: {choice: [[1]]}\n", [], "values[0] is [1]"),
        ("model.learning_rate: {uniform: [2, 1]}\n", [], "lower end"),
        ("model.learning_rate: {choice: [0.1]}\n", ["--trainer.max_steps=-1"], "max_steps"),
        ("model.learning_rate: {choice: [0.1]}\n", ["--score", "val/other"], "is not private"),
        ("model.learning_rate: {choice: [0.1]}\n", ["--expected-runs", "1"], "above 1"),
        ("model.nothing: {choice: [0.1]}\n", [], "nothing"),
        ("trainer.max_steps: {choice: [3, 2]}\n", [], "max_steps decides what a run releases"),
        ("trainer.max_steps: {integers: [2, 6]}\n", [], "max_steps decides what a run releases"),
        ("trainer.callbacks.epsilon: {uniform: [0.05, 0.06]}\n", [], "callbacks.epsilon decides what a run releases"),
        ("trainer.callbacks: {choice: [null]}\n", [], "names SRPPSGD"),
    ],
)
def test_refuses_in_a_sentence(words, tmp_path, capsys, space, others, message):
    (tmp_path / "space.yaml").write_text(space)
    assert cli.main([*words, *others]) in (1, 2)
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not (tmp_path / "study.db").exists()
