"""Accounts that pay beside the responder's own: in the same transaction, in a currency of their own."""

from pathlib import Path

import numpy as np
import pytest

from lightning_pac.exceptions import BudgetExceededError
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import PACResponder
from lightning_pac.scenarios import BalancedSubsets

POOL = BalancedSubsets(num_records=20, num_subsets=8)
BUDGET = 2**-10
SPLIT, AGREED = np.arange(8) % 2, np.zeros(8, dtype=int)


@pytest.fixture
def responder(tmp_path: Path):
    with PACResponder(np.asarray, POOL.draw_secret(tmp_path / "s.key"), BUDGET, tmp_path / "r.db") as opened:
        yield opened


def test_shares_add_up_to_the_total(responder: PACResponder) -> None:
    alice, bob = (responder.ledger.account(name, "by key") for name in ("alice", "bob"))
    responder.release(np.stack([SPLIT, AGREED, SPLIT, SPLIT]), payers=[alice, alice, bob, None])
    assert (alice.spent, bob.spent, responder.spent) == (BUDGET, BUDGET, 3 * BUDGET)
    assert (alice.num_charges, bob.num_charges, responder.num_responses) == (2, 1, 4)


def test_an_account_that_cannot_pay_leaves_everything_as_it_was(responder: PACResponder) -> None:
    poor = responder.ledger.account("poor", "by key", budget=1.5 * BUDGET)
    rich = responder.ledger.account("rich", "by key")
    belief = responder.belief
    with pytest.raises(BudgetExceededError, match="account 'poor'"):
        responder.release(np.stack([SPLIT, SPLIT, SPLIT]), requests=["a", "b", "c"], payers=[rich, poor, poor])
    assert (rich.spent, poor.spent, responder.spent, responder.num_responses) == (0, 0, 0, 0)
    assert responder.belief == pytest.approx(belief, rel=1e-12)
    assert responder.recorded_answer("a") is None
    responder.release(SPLIT[None], requests=["a"], payers=[poor])
    assert poor.spent == responder.spent == BUDGET


def test_an_account_that_would_count_twice_or_elsewhere_is_refused(responder: PACResponder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="would count mutual_information a second time"):
        responder.release(SPLIT[None], payers=[responder.ledger.account("more", "mutual_information")])
    with PrivacyLedger(tmp_path / "other.db") as other, pytest.raises(ValueError, match="is not an account of"):
        responder.release(SPLIT[None], payers=[other.account("alice", "by key")])
    with pytest.raises(ValueError, match="1 answers and 2 payers"):
        responder.release(SPLIT[None], payers=[None, None])
    assert responder.num_responses == 0
