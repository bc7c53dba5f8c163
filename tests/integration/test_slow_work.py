"""What takes a while says what it is, in the middle of it."""

import logging
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_fits import Classifier, make_loader, make_private, make_trainer

from lightning_pac.callbacks.shared import named_if_slow, slow_work
from lightning_pac.callbacks.srpp_sgd import callback
from lightning_pac.callbacks.srpp_sgd.loss_check import LossCheck
from lightning_pac.data.records import Surroundings

LOGGER = "lightning.pytorch.utilities.rank_zero"


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_slow_work_is_named_while_it_goes_on(
    seconds: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks of copies log nothing of their own, and stood in silence for minutes."""
    monkeypatch.setattr(slow_work, "_SECONDS", 0.1)
    with caplog.at_level(logging.INFO), named_if_slow("Checking the loss"), Surroundings().copied({}):
        logging.getLogger(LOGGER).info("of a copy")
        time.sleep(seconds)
        found = list(caplog.messages)
    time.sleep(0.2)
    assert found == caplog.messages == ["Checking the loss ..."] * (seconds > 0)


def test_what_was_told_is_not_told_again(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on a slow machine named its repeated checks nine times."""
    monkeypatch.setattr(slow_work, "_SECONDS", 0.05)
    told = set[str]()
    with caplog.at_level(logging.INFO):
        for seconds in (0.0, 0.3, 0.3):  # the first is too quick to be told
            with named_if_slow("Checking again", told):
                time.sleep(seconds)
            assert caplog.messages == ["Checking again ..."] * (seconds > 0)


def test_a_run_names_its_repeated_checks_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_work, "_SECONDS", 0.0)
    checks = []

    def slow_check(*args: Any, **kwargs: Any) -> LossCheck:
        checks.append(args)
        time.sleep(0.1)
        return LossCheck(None, None, (), (), True)

    monkeypatch.setattr(callback, "check_loss", slow_check)
    for run in (1, 2):
        checks.clear(), caplog.clear()
        with caplog.at_level(logging.INFO):
            make_trainer(tmp_path / str(run), make_private(), max_steps=4).fit(Classifier(), make_loader())
        assert len(checks) >= 2, "before the steps 2 and 4"
        assert sum("synthetic records again" in message for message in caplog.messages) == 1
