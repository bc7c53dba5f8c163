"""`lightning-pac audit membership` on a real ledger."""

import json
import operator
from pathlib import Path

import numpy as np
import pytest

from lightning_pac.cli import main
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import FiniteOutputs, MixtureNoise, PACResponder, certify_mechanism, privatize
from lightning_pac.mechanisms.privatization.secret_account import KeptSecret
from lightning_pac.scenarios import BalancedSubsets

POOL = BalancedSubsets(num_records=100, num_subsets=16, seed=4)
OPTIONS = ["--records", "100", "--subsets", "16", "--pool-seed", "4"]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """60 answers, each of which could tell a little."""
    votes = np.random.default_rng(0).integers(0, 3, size=(60, 16))
    with PACResponder(
        lambda rows: votes[rows], POOL.draw_secret(tmp_path / "s.key"), 2**-7, tmp_path / "r.db"
    ) as asked:
        for start in (0, 20, 40):
            asked(np.arange(start, start + 20))
    return tmp_path / "r.db"


def test_the_attack_is_set_beside_the_bound(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = ledger.with_name("audit.png")
    command = ["audit", "membership", str(ledger), *OPTIONS, "--trials", "400", "--json", "--plot", str(plot)]
    assert main([*command, "--secret", str(ledger.with_name("s.key"))]) == 0
    found = json.loads(capsys.readouterr().out)
    last = found["rows"][-1]
    assert last["responses"] == 60
    assert last["mutual_information"] == pytest.approx(60 * 2**-7)
    # The bound of 0.469 nats by bisection on the definition, written out here.
    p = np.linspace(0.5, 1, 10**6 + 1)[1:-1]
    information = p * np.log(2 * p) + (1 - p) * np.log(2 * (1 - p))
    assert last["membership_success_bound"] == pytest.approx(p[information <= 60 * 2**-7].max(), abs=2e-6)
    success = [row["membership_attack_success"] for row in found["rows"]]
    assert 0.5 < success[-1] < last["membership_success_bound"]
    assert success[-1] > success[0]
    assert 0 <= found["attack_on_given_answers"] <= 1
    assert not found["refuted"]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_figure_that_names_the_secret_says_so(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything was answered, the share of records told right is that of one subset, and differs for most."""
    from lightning_pac.audits import membership_attack

    pool = BalancedSubsets(num_records=1437, num_subsets=128)
    figures = [f"{100 * membership_attack(pool.prior, index, pool).success:.2f}" for index in range(128)]
    _, counts = np.unique(figures, return_counts=True)
    assert np.log(128) - counts @ np.log(counts) / 128 > 3.5  # nats, of 4.85
    command = ["audit", "membership", str(ledger), *OPTIONS, "--trials", "20"]
    assert main([*command, "--secret", str(ledger.with_name("s.key"))]) == 0
    assert "all but names it: keep it to yourself" in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--secret", str(ledger.with_name("s.key")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_to_be_published"] == ["attack_on_given_answers"]
    assert main(command) == 0
    assert "keep it to yourself" not in capsys.readouterr().out


def test_a_responder_that_leaks_is_refuted(
    ledger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bound a hundred times too optimistic is noticed."""
    from lightning_pac.audits import MembershipAudit

    honest = MembershipAudit.bound
    monkeypatch.setattr(MembershipAudit, "bound", lambda audit, space: (honest(audit, space) - 0.5) / 100 + 0.5)
    assert main(["audit", "membership", str(ledger), *OPTIONS, "--trials", "2000"]) == 1
    assert "REFUTES the bound" in capsys.readouterr().out


def test_the_table_is_for_people(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "membership", str(ledger), *OPTIONS, "--trials", "20"]) == 0
    shown = capsys.readouterr().out
    assert "The attack stays within the bound." in shown
    assert "20 games" in shown


def test_another_pool_or_ledger_is_refused(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "membership", str(ledger), "--records", "99"]) == 1
    assert "give --records, --subsets, --pool-seed and --pool" in capsys.readouterr().err
    assert main(["audit", "membership", str(ledger), *OPTIONS, "--account", "other"]) == 1
    assert "has no account 'other' of answers or values about a secret subset" in capsys.readouterr().err
    assert main(["audit", "membership", str(ledger.with_name("missing.db")), *OPTIONS]) == 1


def test_answers_that_cannot_be_simulated_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    votes = np.tile(np.arange(16) % 2, (4, 1))
    path = tmp_path / "r.db"
    with PACResponder(lambda rows: votes[rows], POOL.draw_secret(tmp_path / "s.key"), 2**-7, path) as asked:
        assert main(["audit", "membership", str(path), *OPTIONS]) == 1
        assert "has no answers yet" in capsys.readouterr().err
        asked(np.arange(4), budget=[0.1, 0.1, 0.2, 0.1])
    assert main(["audit", "membership", str(path), *OPTIONS]) == 1
    assert "games of one budget only" in capsys.readouterr().err
    assert main(["audit", "membership", str(path), *OPTIONS, "--secret", str(tmp_path / "s.key"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trials"] == 0
    assert found["rows"][0]["mutual_information"] == pytest.approx(0.5)


def test_scores_are_attacked_as_they_were_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At so large a budget the posterior names the subset, and so all memberships."""
    scores, secret = np.random.default_rng(1).random((12, 16, 2)), POOL.draw_secret(tmp_path / "s.key")
    with PACResponder(lambda rows: scores[rows], secret, 2.0, tmp_path / "r.db") as asked:
        asked(np.arange(12))
    assert main(["audit", "membership", str(tmp_path / "r.db"), *OPTIONS]) == 1
    assert "give --secret to attack those that were given" in capsys.readouterr().err
    command = ["audit", "membership", str(tmp_path / "r.db"), *OPTIONS, "--secret", str(tmp_path / "s.key")]
    assert main([*command, "--json"]) == 0
    # Twelve answers of 2 nats about a secret of 2.77: the wrong subset would get about half of the memberships.
    assert json.loads(capsys.readouterr().out)["attack_on_given_answers"] > 0.9
    assert main([*command, "--plot", str(tmp_path / "a.png")]) == 1
    assert "Only games can be drawn" in capsys.readouterr().err


def test_values_of_privatize_are_attacked_with_their_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records, path = np.random.default_rng(2).normal(size=(100, 3)), tmp_path / "study.db"
    secret = POOL.draw_secret(tmp_path / "s.key")
    for budget in (0.1, 2.0):
        privatize(np.mean, secret, budget, data=records, workers=1, ledger=path, progress=False)
    command = ["audit", "membership", str(path), *OPTIONS]
    assert main(command) == 1
    assert "holds values of privatize" in capsys.readouterr().err
    POOL.draw_secret(tmp_path / "other.key")
    assert main([*command, "--secret", str(tmp_path / "other.key")]) == 1
    assert "is not the secret that account 'privatize'" in capsys.readouterr().err
    assert main([*command, "--secret", str(tmp_path / "s.key"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    belief = KeptSecret(secret, path, "privatize", None).belief()
    members = POOL.membership_table()
    right = (members @ belief > 0.5) == members[:, operator.index(secret)]
    assert found["attack_on_given_answers"] == pytest.approx(right.mean())
    assert found["rows"][0]["mutual_information"] == pytest.approx(2.1)
    assert main([*command, "--secret", str(tmp_path / "s.key")]) == 0
    assert "can neither refute it nor prove it" in capsys.readouterr().out


def test_a_single_release_and_other_accounts_are_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = np.random.default_rng(2).normal(size=(100, 3))
    privatize(np.mean, POOL, 0.1, data=records, workers=1, ledger=tmp_path / "single.db", progress=False)
    accounts = {"fit": "rpp", "delay": "time_releases", "static release": "static_pufferfish"}
    for name, currency in accounts.items():
        with PrivacyLedger(tmp_path / f"{name}.db") as opened:
            opened.account(name, currency, {"noise": 1.0}).charge(1)
    law = FiniteOutputs(np.array([[0.0], [1.0]]))
    released = certify_mechanism(MixtureNoise.gaussian([[1.0]]), law, 0.3, secret="One bit.")
    with PrivacyLedger(tmp_path / "predictions.db") as opened:
        released.open_account(opened, "predictions").charge(0.3)
    PrivacyLedger(tmp_path / "empty.db").close()
    sentences = {
        "single": "whose index was drawn and forgotten",
        **{name: f"its accounts: '{name}' ({currency})" for name, currency in accounts.items()},
        "predictions": "its accounts: 'predictions' (mutual_information)",
        "empty": "its accounts: none",
    }
    for name, sentence in sentences.items():
        assert main(["audit", "membership", str(tmp_path / f"{name}.db"), *OPTIONS]) == 1
        shown = capsys.readouterr().err
        assert sentence in shown
        assert shown.count("\n") == 1


def test_what_is_not_there_is_said_before_games_are_played(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, sentence in (
        (["--secret", "nowhere.key"], "There is no secret file at nowhere.key"),
        (["--plot", "nowhere/plot.png"], "There is no folder nowhere"),
        (["--trials", "0"], "0 games show nothing"),
    ):
        assert main(["audit", "membership", str(ledger), *OPTIONS, *options]) == 1
        assert sentence in capsys.readouterr().err
