"""`lightning-pac audit training` tells the verdict that lies beside a ledger."""

import json
import math
from pathlib import Path

import pytest
from scipy.stats import norm

from lightning_pac.accountants import GaussianCurve
from lightning_pac.audits import UNSEEN, TrainingAudit, count_test, exact_test, guess_coins
from lightning_pac.cli import main
from lightning_pac.ledger import PrivacyLedger


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "twin.db"
    with PrivacyLedger(path) as opened:
        for name in ("fit", "other"):
            opened.account(name, "rpp at order 16").charge(1.0)
    return path


def verdict(holds: bool) -> TrainingAudit:
    game = guess_coins("white-box", range(40), [False] * 20 + [True] * 20, GaussianCurve(3.0))
    return TrainingAudit(
        (count_test("number of draws", 5, 9, 0.5), exact_test("multiplicity", holds, "seen")), (game,), 0.01
    )


def test_the_verdict_is_told_with_the_instrument_that_found_it(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict(True).save(ledger.with_name("twin-fit.audit.json"))
    assert main(["audit", "training", str(ledger)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Nothing found by 2 white-box tests and the coins of 40 canaries." in told
    assert "canary game, white-box" in told
    verdict(False).save(ledger.with_name("twin-fit.audit.json"))
    assert main(["audit", "training", str(ledger), "--json"]) == 1
    read = json.loads(capsys.readouterr().out)
    assert read["alarms"] == ["multiplicity"]
    assert read["unseen"] == UNSEEN
    # delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) of a Gaussian (Dong, Roth and Su, corollary 2.13).
    epsilon = read["games"][0]["claimed_epsilon"]
    delta = norm.cdf(1.5 - epsilon / 3) - math.exp(epsilon) * norm.cdf(-1.5 - epsilon / 3)
    assert delta == pytest.approx(1e-5, rel=1e-6)
    assert "multiplicity (white-box test): seen" in verdict(False).summary()


def test_a_verdict_that_is_missing_or_one_of_several_is_refused(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "training", str(ledger)]) == 1
    assert "has no verdict beside it" in capsys.readouterr().err
    for name in ("fit", "other"):
        verdict(True).save(ledger.with_name(f"twin-{name}.audit.json"))
    assert main(["audit", "training", str(ledger)]) == 1
    assert "2 runs" in capsys.readouterr().err
    assert main(["audit", "training", str(ledger), "--account", "fit"]) == 0
    ledger.with_name("twin-fit.audit.json").write_text("{}")
    assert main(["audit", "training", str(ledger), "--account", "fit"]) == 1
    assert "not a verdict of an audit" in capsys.readouterr().err
