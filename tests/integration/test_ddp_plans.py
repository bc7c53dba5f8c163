"""Several processes that draw on one plan, and that correlate their noise: one account, one set of parameters."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_ranks import on_ranks
from tiny_fits import Classifier, make_loader, make_private, make_trainer

from lightning_pac import Banded, CyclicShuffle, Poisson, PrivacyLedger, TwoWorldScenario
from lightning_pac.accountants import PlannedLedger
from lightning_pac.exceptions import BudgetExceededError

SCENARIO = TwoWorldScenario(num_differing=1, num_records=60, adjacency="zero_out")


def fit(folder: Path, size: int, private: Any, **options: Any) -> torch.Tensor:
    model = Classifier()
    trainer = make_trainer(folder, private, devices=size, strategy="ddp_private", **options)
    trainer.fit(model, make_loader())
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def promised_and_correlated(rank: int, size: int, folder: Path) -> Any:
    torch.manual_seed(0)
    ledger = PlannedLedger(folder / "study.db", epsilon=3.0, delta=1e-5)
    terms = {"scenario": SCENARIO, "noise_multiplier": 4.0, "renyi_order": None}
    first = fit(folder, size, make_private(**terms, sampling=Poisson(1 / 6), ledger=ledger), max_epochs=2)
    try:
        fit(folder, size, make_private(**terms, sampling=Poisson(1 / 6), ledger=ledger), max_epochs=2000)
        refused = ""
    except BudgetExceededError as error:
        refused = str(error)
    banded = make_private(**terms, sampling=CyclicShuffle(10), noise=Banded(4))
    second = fit(folder, size, banded, max_epochs=2)
    return first, refused, second, banded.state_dict()["correlation"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2])
def test_ranks_draw_on_one_promise_and_correlate_one_noise(size: int, tmp_path: Path) -> None:
    (first, refused, second, bands), *others = on_ranks(promised_and_correlated, size, tmp_path)
    assert "promises" in refused
    for other in others:
        assert torch.equal(first, other[0])
        assert torch.equal(second, other[2])
        assert other[1]
        assert other[3] == bands
    with PrivacyLedger.read_only(tmp_path / "study.db") as opened:
        charged = [account for account in opened.accounts() if account.num_charges]
        assert [sum(attempt.num_steps for attempt in account.attempts()) for account in charged] == [12]
