"""One record more or less under add_remove, where losses are divided by the number of records in few bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from tiny_fits import Classifier, make_loader, make_private, make_trainer
from torch import Tensor, nn

from lightning_pac import Poisson, TwoWorldScenario
from lightning_pac.callbacks.srpp_sgd import callback, first_check
from lightning_pac.callbacks.srpp_sgd.loss_check.check import LossCheck
from lightning_pac.callbacks.srpp_sgd.step import most_records
from lightning_pac.data import private_loader
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.gradients import ROUNDING, make_engine

ADD_REMOVE = TwoWorldScenario.differential_privacy()
SAMPLING = Poisson(rate=0.1, batch_size=6)
FILLED = most_records(6)


class Rows(Classifier):
    """Notes how many rows it is given."""

    def __init__(self, autocast: bool = False) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.autocast = autocast

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.rows.append(len(batch[0]))
        if self.autocast:
            with torch.autocast("cpu", torch.bfloat16):
                return super().training_step(batch, batch_idx)
        return super().training_step([batch[0].to(self.network[0].weight.dtype), batch[1]], batch_idx)


def summed(present: int, rows: int, dtype: torch.dtype, mixed: bool, loss: str, max_grad_norm: float = 1e3) -> Tensor:
    """The clipped sum of equal records, of which the first `present` of all rows are real."""
    torch.manual_seed(0)
    model, engine = nn.Linear(6, 5).to(dtype), make_engine()
    inputs, target = torch.randn(1, 6).expand(rows, 6).to(dtype), torch.randn(1, 5).expand(rows, 5).to(dtype)
    engine.attach(model)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        output = model(inputs)
        losses = {
            "mse": lambda: nn.functional.mse_loss(output, target.to(output.dtype)),
            "mean": lambda: (output * target.to(output.dtype)).sum(1).mean(),
            "cross entropy": lambda: nn.functional.cross_entropy(output, target.argmax(1)),
            "sum over n": lambda: (output - target.to(output.dtype)).square().sum() / len(output),
        }
        losses[loss]().backward()
    sums, _ = engine.clipped_sum(max_grad_norm, num_records=present)
    engine.detach()
    return torch.cat([total.flatten() for total in sums]).double()


@pytest.mark.parametrize("loss", ["mse", "mean", "cross entropy", "sum over n"])
@pytest.mark.parametrize(("dtype", "mixed"), [(torch.float32, True), (torch.bfloat16, False)])
def test_filled_up_batches_hide_their_size_from_bfloat16(dtype: torch.dtype, mixed: bool, loss: str) -> None:
    one = float(summed(1, 2432, dtype, mixed, loss).norm())
    for norm in (one, one / 100):
        for records in (256, 2040):
            sums = [summed(present, 2432, dtype, mixed, loss, norm) for present in (records, records + 1)]
            assert float((sums[1] - sums[0]).norm()) <= norm * (1 + ROUNDING)


def test_batches_of_their_own_size_would_show_it() -> None:
    """The same without filling: the reason for it."""
    one = float(summed(1, 1, torch.bfloat16, False, "mse").norm())
    sums = [summed(rows, rows, torch.bfloat16, False, "mse") for rows in (2040, 2041)]
    assert float((sums[1] - sums[0]).norm()) > 2 * one


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_batches_are_filled_up_where_their_size_would_show(precision: str, tmp_path: Path) -> None:
    model, private = Rows(), make_private(scenario=ADD_REMOVE, sampling=SAMPLING)
    make_trainer(tmp_path, private, precision=precision, max_epochs=2).fit(model, make_loader())
    assert set(model.rows) == {FILLED}
    for adjacency, given in (("zero_out", precision), ("add_remove", "32-true")):
        model, scenario = Rows(), TwoWorldScenario(num_differing=1, adjacency=adjacency)
        private = make_private(scenario=scenario, sampling=SAMPLING)
        make_trainer(tmp_path, private, precision=given, max_epochs=2).fit(model, make_loader())
        assert len(set(model.rows)) > 1


def test_short_products_are_short_floats_too(tmp_path: Path) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        model, private = Rows(), make_private(scenario=ADD_REMOVE, sampling=SAMPLING)
        make_trainer(tmp_path, private).fit(model, make_loader())
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(model.rows) == {FILLED}


def test_an_autocast_of_the_models_own_is_refused_where_it_would_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unchecked = LossCheck(problem=None, unchecked=None, logged=(), state=(), keeps_order=True)
    for module in (callback, first_check):
        monkeypatch.setattr(module, "check_loss", lambda *_: unchecked)  # its tolerance is that of float32
    private = make_private(scenario=ADD_REMOVE, sampling=SAMPLING)
    with pytest.raises(MisconfigurationException, match=r"give the Trainer precision='bf16-mixed'"):
        make_trainer(tmp_path, private).fit(Rows(autocast=True), make_loader())
    private = make_private(scenario=TwoWorldScenario(num_differing=1, adjacency="zero_out"), sampling=SAMPLING)
    make_trainer(tmp_path / "other", private).fit(Rows(autocast=True), make_loader())


def test_a_batch_that_does_not_fit_is_refused() -> None:
    loader = private_loader(range(100), Poisson(rate=0.9))
    loader.fill_to = 40
    with pytest.raises(PrivacyViolationError, match="more records than the 40 rows"):
        next(iter(loader))


def test_records_of_a_poisson_batch_come_in_random_order() -> None:
    batches = [batch.tolist() for batch in private_loader(range(1000), Poisson(rate=0.05))]
    assert any(batch != sorted(batch) for batch in batches)
    firsts = [batch[0] for batch in batches if batch]
    assert max(firsts) > 200, "in the order of the dataset the first of 50 records passes 200 once in 3e4 batches"
