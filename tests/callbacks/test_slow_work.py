"""What takes a while says what it is, in the middle of it."""

import logging
import time

import pytest

from lightning_pac.callbacks.shared import named_if_slow, slow_work
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
