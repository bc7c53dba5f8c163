"""What tests of whole fits share."""

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import pytest

_outcomes: dict[Any, Any] = {}


@pytest.fixture
def checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fits of one model on one kind of dataset share the outcomes of the loss check, most of a tiny fit's time.

    For tests of what a fit does once its loss has passed; the check has tests of its own.
    """
    from lightning_pac.callbacks.srpp_sgd import callback, first_check
    from lightning_pac.callbacks.srpp_sgd.loss_check import check_loss

    def check(
        pl_module: pl.LightningModule,
        dataloader: Any,
        datamodule: Any = None,
        repeated: int = 0,
        callbacks: Sequence[pl.Callback] = (),
        batch_idx: int = 0,
    ) -> Any:
        key = type(pl_module), repr(pl_module), type(dataloader.dataset), repeated > 0, tuple(map(type, callbacks))
        if key not in _outcomes:
            _outcomes[key] = check_loss(pl_module, dataloader, datamodule, repeated, callbacks, batch_idx)
        return _outcomes[key]

    for module in (first_check, callback):
        monkeypatch.setattr(module, "check_loss", check)
