"""Plans and promises of a ledger on the command line and in YAML."""

import json
from pathlib import Path

import pytest

from lightning_pac.accountants import GaussianRelease, LedgerBudget, LedgerPlan, PoissonSteps, SuccessBound
from lightning_pac.cli import main
from lightning_pac.ledger import PrivacyLedger

PLAN = LedgerPlan(
    {"fit": PoissonSteps(8.0, 0.1, 40, 2, "replace"), "metrics": GaussianRelease(0.02)}, SuccessBound(0.9)
)


def charge(path: Path, share: str | None) -> None:
    coupling = {"scenario": {"num_differing": 2}, "renyi_order": 16.0}
    declaration = {"coupling": coupling, "epsilon_of_each": 0.04, **({} if share is None else {"share": share})}
    with PrivacyLedger(path) as ledger:
        ledger.account("metrics a", "rpp", declaration).charge(0.04, {"mu_squared": 0.005})


def test_a_plan_is_declared_from_a_file_and_told_with_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, source = tmp_path / "study.db", tmp_path / "plan.json"
    source.write_text(json.dumps(PLAN.to_dict()))
    for _ in range(2):
        assert main(["account", "plan", str(path), str(source)]) == 0
    with PrivacyLedger.read_only(path) as ledger:
        assert LedgerPlan.of(ledger) == PLAN
    charge(path, "metrics")
    capsys.readouterr()
    assert main(["account", "total", str(path), "--delta", "1e-6", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["basis"], told["delta"]) == ("plan", 1e-6)
    assert [(share["name"], share["taken"], share["left"]) for share in told["shares"]] == [
        ("fit", 0.0, 40.0),
        ("metrics", 0.005, pytest.approx(0.015)),
    ]
    assert main(["account", "total", str(path)]) == 0
    text = capsys.readouterr().out
    for words in ("a guess of the world is right at most", "epsilon at delta 1e-05", "metrics"):
        assert words in text
    assert "Rényi" not in text  # which a plan does not promise
    assert main(["account", "total", str(path), "--delta", "1.0000004e-6"]) == 0
    assert "epsilon at delta 1.00001e-06" in capsys.readouterr().out
    source.write_text(json.dumps(LedgerPlan([GaussianRelease(0.1)]).to_dict()))
    assert main(["account", "plan", str(path), str(source)]) == 1
    assert "was declared with another plan" in capsys.readouterr().err


def test_a_promise_is_stated_and_raised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.db"
    assert main(["account", "budget", str(path), "--epsilon", "3", "--delta", "1e-5"]) == 0
    first = LedgerBudget(epsilon=3.0, delta=1e-5)
    words = capsys.readouterr().out
    assert "promises epsilon 3 at delta 1e-05, which is a cap of " in words
    assert f"order {first.renyi_order:g}" in words
    shown = float(words.partition("a cap of ")[2].split()[0])
    assert first.cap <= shown < first.cap + 2e-5
    assert main(["account", "budget", str(path), "--epsilon", "4", "--delta", "1e-5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["before"]["epsilon"], told["promise"]["epsilon"]) == (3.0, 4.0)
    with PrivacyLedger.read_only(path) as ledger:
        assert ledger.budget("rpp") == told["cap"] > first.cap


def test_bad_plans_and_promises_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, source = tmp_path / "study.db", tmp_path / "plan.json"
    for text, sentence in (
        ("{", "is not a plan (Expecting"),
        ("[]", "is not a plan (no mapping)"),
        ("{}", "is not a plan, which has shares"),
        ('{"shares": {"fit": {"kind": "laplace"}}}', "'laplace' is not known"),
    ):
        source.write_text(text)
        assert main(["account", "plan", str(path), str(source)]) == 1
        assert sentence in capsys.readouterr().err
    assert main(["account", "plan", str(path), str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err
    for words, sentence in (
        (["--epsilon", "3"], "epsilon=3 says nothing by itself"),
        (["--epsilon", "3", "--delta", "0"], "delta is 0.0"),
        (["--world-success-bound", "0.5"], "must lie above 0.5"),
        (["--world-success-bound", "0.6", "--epsilon", "3"], "one promise and epsilon with delta another"),
    ):
        assert main(["account", "budget", str(path), *words]) == 1
        assert sentence in capsys.readouterr().err
    assert not path.exists()
    for words in (["budget", "9", "--epsilon", "3"], ["total", "--epsilon", "3"], ["--delta", "1e-5"], ["plan"]):
        action, rest = (words[0], words[1:]) if words[0][0] != "-" else ("show", words)
        with pytest.raises(SystemExit, match="2"):
            main(["account", *([] if action == "show" else [action]), str(path), *rest])
    charge(path, None)
    assert main(["account", "budget", str(path), "--epsilon", "3", "--delta", "1e-5"]) == 1
    assert "holds charges already" in capsys.readouterr().err
