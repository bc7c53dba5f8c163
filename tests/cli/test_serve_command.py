"""`lightning-pac serve`, but for the server itself."""

from pathlib import Path

import numpy as np
import pytest

from lightning_pac import BalancedSubsets, PACResponder
from lightning_pac.cli.serve import _announce_end


def test_a_stopped_server_says_what_it_spent_and_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = BalancedSubsets(8, num_subsets=4).draw_secret(tmp_path / "a.key")
    with PACResponder(np.asarray, secret, 0.125, tmp_path / "a.db", budget=1.0) as responder:
        responder(np.array([[0, 1, 1, 1]]))
    _announce_end(tmp_path / "a.db")
    told = capsys.readouterr().out
    assert told.startswith(
        "Stopped. The ledger has 1 answer for 0.125 nats, 0.875 are left; the same command continues with "
    )
