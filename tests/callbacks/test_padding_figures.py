"""Figures of padded observations where what is seen may decide whether there is another one."""

import math
from pathlib import Path

import numpy as np
import pytest

from lightning_pac.accountants import dp_success_bound
from lightning_pac.callbacks import PositiveDelay
from lightning_pac.callbacks.padding.card import Noise
from lightning_pac.callbacks.padding.noise_account import NoiseAccount
from lightning_pac.cards import PrivacyCard
from lightning_pac.cli import main
from lightning_pac.evidence.claims import current_card
from lightning_pac.exceptions import LedgerMismatchError
from lightning_pac.ledger import PrivacyLedger, restore_ledger
from lightning_pac.mechanisms.one_sided import PositiveNoise

CHANNEL = PositiveNoise.for_maximal_leakage(
    np.arange(6), np.full(6, 1 / 6), np.tile(np.arange(6.0), (6, 1)), math.log(2)
)
PAC = PositiveNoise.for_pac(4.0, 10.0, 20.0)
DECIDED = "was decided beforehand: where what was seen decides"


def observe(noise: Noise, ledger: Path | None, times: int, *conditions: str, closed: bool = True) -> PrivacyCard:
    """The card of a process that makes so many observations, or is killed after them."""
    account = NoiseAccount(noise, "time", ledger, "positive_delay")
    account.open()
    for _ in range(times):
        account.pay({}, lambda: None)
    if closed:
        card = account.card("Durations", "How long a step took.", conditions)
        account.close()
        return card
    account.close()
    return PrivacyCard("", "", (), ())


@pytest.mark.parametrize(("noise", "currency"), [(CHANNEL, "maximal_leakage"), (PAC, "mutual_information")])
def test_observations_that_may_decide_their_own_end_are_bounded_by_the_budget(
    noise: Noise, currency: str, tmp_path: Path
) -> None:
    with PrivacyLedger(tmp_path / "bounded.db", budget={f"time_{currency}": 2.5}):
        pass
    bounded, open_ended = (observe(noise, tmp_path / name, 3) for name in ("bounded.db", "open.db"))
    alone = observe(noise, None, 3)
    assert bounded.guarantees[0].value == 2.5
    assert DECIDED not in " ".join(bounded.conditions)
    for card in (open_ended, alone):
        assert card.guarantees[0].value == pytest.approx(3 * NoiseAccount(noise, "time", None, "").cost)
        assert card.guarantees[0].value < 2.5
        assert DECIDED in " ".join(card.conditions)
    if currency == "maximal_leakage":
        assert "at most 12.19 times" in bounded.guarantees[0].meaning  # e^2.5


def test_what_was_lost_beyond_the_design_costs_the_promise_again(tmp_path: Path) -> None:
    noise = PositiveNoise.for_dp(1.0, 1e-3, compositions=4)
    path = tmp_path / "study.db"
    assert observe(noise, path, 4).guarantees[1].value == 1.0
    restore_ledger(path, {"positive_delay": 5.0})
    with PrivacyLedger.read_only(path) as ledger:
        assert current_card(ledger.accounts()[0]) is None
    card = observe(noise, path, 0)
    success, epsilon = card.guarantees
    # Three times four hold the nine that may have been made, each four of them one promise.
    assert epsilon.value == 3.0
    assert success.value == dp_success_bound(3.0, 3e-3)
    assert "(epsilon, delta) of 12 observations together at delta = 0.003; 9 were made." in epsilon.meaning
    with PrivacyLedger.read_only(path) as ledger:
        assert current_card(ledger.accounts()[0]) == card


def test_a_card_states_what_other_runs_overran(tmp_path: Path) -> None:
    observe(CHANNEL, tmp_path / "study.db", 2, "Steps that overran: 2.")
    assert "Steps that overran: 2." in observe(CHANNEL, tmp_path / "study.db", 1, "A clock.").conditions


def test_the_card_of_an_earlier_process_does_not_stand_for_one_that_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.db"
    observe(CHANNEL, path, 1)
    with PrivacyLedger.read_only(path) as ledger:
        assert current_card(ledger.accounts()[0]) == ledger.accounts()[0].card
    observe(CHANNEL, path, 5, closed=False)
    with PrivacyLedger.read_only(path) as ledger:
        assert current_card(ledger.accounts()[0]) is None
    assert main(["account", str(path)]) == 0
    assert "times as likely" not in capsys.readouterr().out


def test_a_budget_that_was_lowered_after_a_look_bounds_nothing_lower(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with PrivacyLedger(path, budget={"time_maximal_leakage": 5.0}):
        pass
    observe(CHANNEL, path, 2)
    assert main(["account", "budget", str(path), "2", "--currency", "time_maximal_leakage"]) == 0
    assert observe(CHANNEL, path, 0).guarantees[0].value == 5.0


def test_a_checkpoint_is_gone_on_with_by_its_noise_and_in_its_ledger(tmp_path: Path) -> None:
    """Of two noises that keep (1, 1e-3) each, the card said that all observations of both do."""
    designed = PositiveNoise.for_dp(1.0, 1e-3, compositions=4)
    first = PositiveDelay(designed)
    for _ in range(3):
        first._account.pay({}, lambda: None)
    saved = first.state_dict()
    with pytest.raises(LedgerMismatchError, match=r"padded by another noise .* resume with that noise"):
        PositiveDelay(PositiveNoise.for_dp(1.0, 1e-3, compositions=40)).load_state_dict(saved)
    again = PositiveDelay(designed)
    again.load_state_dict(saved)
    again._account.pay({}, lambda: None)
    assert not again._account.affords_another()
    elsewhere = PositiveDelay(designed, ledger=tmp_path / "study.db")
    elsewhere._account.open()
    elsewhere.load_state_dict(saved)
    with pytest.raises(LedgerMismatchError, match=r"knows 3 observations, of which .*study\.db has 0"):
        elsewhere._account.affords_another()
    elsewhere._account.close()
