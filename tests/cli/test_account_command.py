import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from lightning_pac.cards import Guarantee, PrivacyCard
from lightning_pac.cli import main
from lightning_pac.exceptions import BudgetExceededError, LedgerMismatchError
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import PACResponder
from lightning_pac.scenarios import BalancedSubsets


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "study.db"
    with PrivacyLedger(path, budget={"mutual_information": 0.5}) as ledger:
        ledger.account("clusters", declaration={"rule": "logdet"}).charge(0.125)
        account = ledger.account("fit", "rpp", {"coupling": {"num_differing": 10}}, budget=8.0)
        attempt = account.start_attempt()
        for step in range(3):
            attempt.start_step(0.5, step=step)
        account.start_attempt(2).start_step(0.5, step=2)
        account.attach_card(PrivacyCard("Card of the fit", "s", (Guarantee("rpp_epsilon", 2.0, "", "m"),), ()))
    return path


def test_a_table_for_people_with_the_cards(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["account", str(path)]) == 0
    text = capsys.readouterr().out
    for words in ("clusters", "mutual_information", "0.125", "0.375", "fit", "rpp", "Currencies do not add up"):
        assert words in text
    assert "# Card of the fit" in text


def test_json_for_programs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["account", str(path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["currencies"]["mutual_information"] == {"spent": 0.125, "budget": 0.5, "remaining": 0.375}
    assert content["currencies"]["rpp"] == {"spent": 2.0, "budget": None, "remaining": None}
    clusters, fit = content["accounts"]
    assert (clusters["name"], clusters["declaration"], clusters["card"]) == ("clusters", {"rule": "logdet"}, None)
    assert (fit["spent"], fit["remaining"], fit["num_charges"]) == (2.0, 6.0, 4)
    assert fit["attempts"] == [
        {"first_step": 0, "num_steps": 3, "cost": 1.5},
        {"first_step": 2, "num_steps": 1, "cost": 0.5},
    ]
    assert fit["card"]["title"] == "Card of the fit"


def test_it_reads_beside_a_live_writer(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PrivacyLedger(path) as ledger:
        ledger.account("clusters").charge(0.25)
        assert main(["account", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["currencies"]["mutual_information"]["spent"] == 0.375


def test_the_card_of_a_responder_is_that_of_its_last_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = BalancedSubsets(num_records=10, num_subsets=4)
    path = tmp_path / "responses.db"
    with PACResponder(np.asarray, pool.draw_secret(tmp_path / "secret.key"), 2**-8, path) as responder:
        for title in ("Privacy of 1 answer", "Privacy of 2 answers"):
            responder([0, 1, 1, 1])
            assert main(["account", str(path), "--json"]) == 0
            (account,) = json.loads(capsys.readouterr().out)["accounts"]
            assert account["card"] == responder.card().to_dict()
            assert account["card"]["title"] == title
    assert main(["account", str(path)]) == 0
    assert "Membership success bound: 56.25 %" in capsys.readouterr().out  # kl(0.56241, 0.5) = 2 * 2^-8, rounded up


def test_adopt_lets_a_copy_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = BalancedSubsets(num_records=10, num_subsets=4)
    secret = pool.draw_secret(tmp_path / "secret.key")
    with PACResponder(np.asarray, secret, 0.01, tmp_path / "responses.db") as responder:
        responder([0, 1, 1, 1])
    shutil.copy(tmp_path / "responses.db", tmp_path / "copy.db")
    assert main(["account", "adopt", str(tmp_path / "copy.db")]) == 0
    assert "copy.db is now the ledger of responses." in capsys.readouterr().out.replace("\n", "")
    with PACResponder(np.asarray, secret, 0.01, tmp_path / "copy.db") as responder:
        assert responder.num_responses == 1
    assert main(["account", "adopt", str(tmp_path / "copy.db"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accounts"] == ["responses"]


def test_what_cannot_be_shown_is_one_line(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photo.png").write_bytes(b"x" * 1000)
    for words, message in (
        (["missing.db"], "There is no ledger at"),
        (["photo.png"], "is not a privacy ledger"),
        (["adopt", "missing.db"], "There is no ledger at"),
    ):
        assert main(["account", *words[:-1], str(tmp_path / words[-1])]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    assert not (tmp_path / "missing.db").exists()
    with pytest.raises(SystemExit) as error:
        main(["account", str(path), str(path)])
    assert error.value.code == 2


def test_budget_changes_what_may_be_spent_and_stays_on_record(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["account", "budget", str(path), "2^4", "--account", "fit"]) == 0
    assert "The budget of account 'fit' was 8 and is 16 (rpp): 2 is spent.\n14 is left." in capsys.readouterr().out
    assert main(["account", "budget", str(path), "9", "--currency", "rpp", "--json"]) == 0
    change = json.loads(capsys.readouterr().out)
    assert (change["before"], change["budget"], change["spent"], change["remaining"]) == (None, 9.0, 2.0, 7.0)
    with PrivacyLedger(path) as ledger:
        assert ledger.account("fit", "rpp").charge(6.5) == 8.5
    assert main(["account", "budget", str(path), "20", "--account", "fit"]) == 0
    assert "0.5 is left, since all accounts share 9." in capsys.readouterr().out
    assert main(["account", str(path), "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)["budget_changes"]
    assert [(change["account"], change["currency"], change["amount"]) for change in changes] == [
        (None, "mutual_information", 0.5),
        ("fit", "rpp", 8.0),
        ("fit", "rpp", 16.0),
        (None, "rpp", 9.0),
        ("fit", "rpp", 20.0),
    ]
    assert main(["account", str(path)]) == 0
    assert "How budgets were set" in capsys.readouterr().out


def test_a_budget_below_what_is_spent_or_of_nobody_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PrivacyLedger(path) as ledger:
        ledger.account("key bob", "mutual_information by key", {"api_key": "bob"}, kind="api_key")
    before = path.read_bytes()
    for words, message in (
        (["1.9", "--account", "fit"], "2.0 is spent by account 'fit'"),
        (["1.9", "--currency", "rpp"], "2.0 is spent by all rpp accounts together"),
        (["9", "--account", "nobody"], "has no account 'nobody': it has clusters, fit, key bob"),
        (["9", "--currency", "nothing"], "has no currency 'nothing'"),
        (["much", "--account", "fit"], "Budget 'much' is not a positive number"),
        (["inf", "--account", "fit"], "Budget 'inf' is not a positive number"),
        (["9", "--account", "key bob"], "comes from the file of API keys"),
    ):
        assert main(["account", "budget", str(path), *words]) == 1
        assert message in capsys.readouterr().err
    for words in (["9"], ["9", "9", "--account", "fit"], ["--account", "fit"]):
        with pytest.raises(SystemExit, match="2"):
            main(["account", "budget", str(path), *words])
    with pytest.raises(SystemExit, match="2"):
        main(["account", str(path), "--account", "fit"])
    assert main(["account", "budget", str(path.parent / "missing.db"), "9", "--account", "fit"]) == 1
    assert not (path.parent / "missing.db").exists()
    assert path.read_bytes() == before
    assert main(["account", "budget", str(path), "2", "--account", "fit"]) == 0  # no more than what is spent


def test_a_budget_cannot_change_under_a_live_writer(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PrivacyLedger(path) as ledger:
        assert main(["account", "budget", str(path), "16", "--account", "fit"]) == 1
        assert "is already open for writing" in capsys.readouterr().err
        assert ledger.account("fit", "rpp").budget == 8.0


def test_a_responder_goes_on_with_a_raised_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool, path = BalancedSubsets(num_records=10, num_subsets=4), tmp_path / "responses.db"
    secret = pool.draw_secret(tmp_path / "secret.key")
    with PACResponder(np.asarray, secret, 0.01, path, budget=0.015) as responder:
        responder([0, 1, 1, 1])
        with pytest.raises(BudgetExceededError):
            responder([0, 1, 1, 1])
    with pytest.raises(LedgerMismatchError, match="`lightning-pac account budget` changes a budget"):
        PACResponder(np.asarray, secret, 0.01, path, budget=0.025)
    assert main(["account", "budget", str(path), "0.025", "--account", "responses"]) == 0
    for budget in (0.025, None):
        with PACResponder(np.asarray, secret, 0.01, path, budget=budget) as responder:
            assert responder.remaining == pytest.approx(0.015 if budget else 0.005)
            if budget:
                responder([0, 1, 1, 1])


@pytest.mark.parametrize("whole", [False, True])
def test_a_refused_charge_names_the_command_that_raises_the_budget(tmp_path: Path, whole: bool) -> None:
    path = tmp_path / "two words.db"
    with PrivacyLedger(path, budget={"rpp": 1.0} if whole else None) as ledger:
        account = ledger.account("the fit", "rpp", budget=None if whole else 1.0)
        account.charge(0.75)
        with pytest.raises(BudgetExceededError, match=r"0\.75 of 1 is spent and 1\.25 would be") as refused:
            account.charge(0.5)
    assert str(path) in str(refused.value)
    _, *words = shlex.split(str(refused.value).split("`")[1].replace("AMOUNT", "1.25"))
    assert main(words) == 0
    with PrivacyLedger(path) as ledger:
        ledger.account("the fit", "rpp").charge(0.5)


def test_what_is_left_is_rounded_down(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["account", "budget", str(path), "2.49999999", "--account", "fit"]) == 0
    assert "0.499999 is left." in capsys.readouterr().out
    assert main(["account", str(path)]) == 0
    assert "0.4999 " in capsys.readouterr().out
