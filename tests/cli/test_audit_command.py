"""`lightning-pac audit membership` on a real ledger."""

import json
from pathlib import Path

import numpy as np
import pytest

from lightning_pac.cli import main
from lightning_pac.mechanisms import PACResponder
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
    assert "has none as accounts of a responder" in capsys.readouterr().err
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
