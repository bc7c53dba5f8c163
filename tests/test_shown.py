"""Objects show what they are and what they have come to, and no secret."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

from lightning_pac import AdaptiveComposition, BalancedSubsets, PACResponder, PrivacyLedger, SecureGenerator, WithIndex
from lightning_pac._shown import shows_itself
from lightning_pac.data import RankShare


def shown(thing: object) -> str:
    return repr(thing) + thing._repr_html_()  # type: ignore[attr-defined]


def test_nothing_secret_is_shown() -> None:
    prior = np.full(4, 0.25)
    assert shown(AdaptiveComposition(prior, 1)) == shown(AdaptiveComposition(prior, 2))
    with pytest.warns(UserWarning, match="for tests only"):
        assert shown(SecureGenerator(seed=1)) == shown(SecureGenerator(seed=2))
    assert shown(RankShare(0, 2, bytes(32))) == shown(RankShare(0, 2, bytes([1]) * 32))
    assert shown(WithIndex([31.0, 32.0])) == shown(WithIndex([7.0, 8.0]))  # a dataset may be a list of records


def test_a_ledger_and_its_accounts_tell_what_is_spent_and_left(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "a.db", budget={"rpp": 8.0}) as ledger:
        account = ledger.account("fit", "rpp")
        account.charge(0.5)
        assert "spent={'rpp': 0.5}" in repr(ledger)
        assert "remaining={'rpp': 7.5}" in repr(ledger)
        assert "spent=0.5, remaining=7.5" in repr(account)
    assert "closed=True" in repr(ledger)
    assert repr(account).startswith("LedgerAccount(name='fit'")


def test_a_long_line_gives_up_arguments_and_keeps_what_was_spent() -> None:
    @shows_itself
    class Run:
        def __init__(self, epsilon: float = 1.0, names: tuple[str, ...] = (), unused: int = 3) -> None:
            self.epsilon, self.names, self.unused, self.spent = epsilon, names, unused, 2.0

        def _shown_state(self) -> dict[str, float]:
            return {"spent": self.spent}

    assert repr(Run()) == "Run(spent=2.0)"
    assert repr(Run(3.0, unused=4)) == "Run(epsilon=3.0, unused=4, spent=2.0)"
    wide = type("W" * 120, (Run,), {})(3.0, ("a" * 40,), 4)
    assert len(repr(wide)) <= 160
    assert repr(wide).endswith("(epsilon=3.0, ..., spent=2.0)")
    assert "&lt;b&gt;" in Run(names=("<b>",))._repr_html_()  # type: ignore[attr-defined]


def test_what_holds_an_open_ledger_says_why_it_is_not_copied(tmp_path: Path) -> None:
    space = BalancedSubsets(8, num_subsets=4)
    secret = space.draw_secret(tmp_path / "a.key")
    with PrivacyLedger(tmp_path / "a.db") as ledger:
        for held in (ledger, ledger.account("fit")):
            for take in (copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="one writer: give others its path as ledger="):
                    take(held)
    responder = PACResponder(np.asarray, secret, 0.01, tmp_path / "b.db")
    with responder, pytest.raises(TypeError, match="give others a SavedResponder"):
        copy.deepcopy(responder)
