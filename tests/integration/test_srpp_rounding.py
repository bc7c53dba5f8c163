"""One record more or less under add_remove, where the number of rows decides how sums are rounded."""

from collections import UserDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from tiny_fits import Classifier, make_loader, make_private, make_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_pac import Poisson, TwoWorldScenario
from lightning_pac.callbacks.srpp_sgd import callback, first_check
from lightning_pac.callbacks.srpp_sgd.batch_shape import BatchShape
from lightning_pac.callbacks.srpp_sgd.loss_check.check import LossCheck
from lightning_pac.data import private_loader
from lightning_pac.data.public_rows import largest_mean, most_records
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.gradients import ROUNDING, make_engine

ADD_REMOVE = TwoWorldScenario.differential_privacy()
SAMPLING = Poisson(rate=0.1, batch_size=6)
FILLED = most_records(largest_mean(6))


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


WIDTH, NEIGHBOURS = 784, (15, 16)


def on_a_kink(layer: nn.Linear) -> Tensor:
    """Fifteen records at the zero of the first unit: not above it in a batch of 15, and above it in one of 16."""
    weight, found = layer.weight.detach(), list[Tensor]()
    few, more = NEIGHBOURS
    for _ in range(400):
        rows = torch.randn(more, WIDTH)
        rows[:, -1] = -(rows[:, :-1].double() @ weight[0, :-1].double()) / weight[0, -1].double()
        before = nn.functional.linear(rows[:few], weight)[:, 0]
        after = nn.functional.linear(rows, weight)[:few, 0]
        found += list(rows[:few][(before <= 0) & (after > 0)])
    return torch.stack(found[:few]) if len(found) >= few else torch.empty(0, WIDTH)


def test_records_on_a_kink_do_not_move_with_another_one() -> None:
    """Libraries order sums by the number of rows; where they do not, there is nothing to show."""
    torch.manual_seed(0)
    model, engine = nn.Sequential(nn.Linear(WIDTH, 128, bias=False), nn.ReLU()), make_engine()
    records, other = on_a_kink(model[0]), torch.randn(1, WIDTH)
    if not len(records):
        pytest.skip("products of this machine do not depend on the number of rows")
    engine.attach(model)

    def total(rows: Tensor, present: int | None = None) -> Tensor:
        (1e9 * model(rows)[:, 0]).mean().backward()
        return torch.cat([part.flatten() for part in engine.clipped_sum(1.0, num_records=present)[0]]).double()

    both = torch.cat([records, other])
    moved = float((total(both) - total(records)).norm())
    filled = [torch.cat([rows, records[:1].expand(FILLED - len(rows), -1)]) for rows in (both, records)]
    moved_filled = float((total(filled[0], len(both)) - total(filled[1], len(records))).norm())
    engine.detach()
    assert moved_filled <= 1 + ROUNDING
    assert moved > 2, "the reason for filling"


@pytest.mark.parametrize(
    "precision", ["32-true", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bf16-mixed", "bf16-true"))]
)
def test_batches_are_filled_up_where_their_size_is_secret(precision: Any, tmp_path: Path) -> None:
    model, private = Rows(), make_private(scenario=ADD_REMOVE, sampling=SAMPLING)
    make_trainer(tmp_path, private, precision=precision, max_epochs=2).fit(model, make_loader())
    assert set(model.rows) == {FILLED}
    scenario = TwoWorldScenario(num_differing=1, adjacency="zero_out")
    model, private = Rows(), make_private(scenario=scenario, sampling=SAMPLING)
    make_trainer(tmp_path, private, precision=precision, max_epochs=2).fit(model, make_loader())
    assert len(set(model.rows)) > 1


def test_an_autocast_of_the_models_own_is_filled_up_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unchecked = LossCheck(problem=None, unchecked=None, logged=(), state=(), keeps_order=True)
    for module in (callback, first_check):
        monkeypatch.setattr(module, "check_loss", lambda *_: unchecked)  # its tolerance is that of float32
    model, private = Rows(autocast=True), make_private(scenario=ADD_REMOVE, sampling=SAMPLING)
    make_trainer(tmp_path, private).fit(model, make_loader())
    assert set(model.rows) == {FILLED}


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


def test_shapes_are_read_from_batches_of_any_kind() -> None:
    @dataclass
    class Record:
        inputs: Tensor

    for kind in (Record, lambda inputs: [{"inputs": inputs}], lambda inputs: UserDict(inputs=inputs)):
        shapes = [BatchShape.of(kind(torch.zeros(4, length)), 4) for length in (5, 5, 6)]
        assert shapes[0].matches(shapes[1])
        assert not shapes[0].matches(shapes[2])


def pad_to(length: int | None) -> Any:
    def collate(records: list[Any]) -> Any:
        longest = max(len(inputs) for inputs, _ in records) if length is None else length
        inputs = [nn.functional.pad(inputs, (0, longest - len(inputs))) for inputs, _ in records]
        return torch.stack(inputs), torch.stack([label for _, label in records])

    return collate


class OfAnyLength(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs = nn.functional.pad(batch[0], (0, 40))[:, :6]
        return super().training_step((inputs, batch[1]), batch_idx)


@pytest.mark.checks_each_fit
@pytest.mark.parametrize(("rare", "error"), [(False, MisconfigurationException), (True, PrivacyViolationError)])
def test_no_record_chooses_the_shape_of_a_batch(rare: bool, error: type[Exception], tmp_path: Path) -> None:
    data = [(torch.randn(6 + (number % 3) * (not rare)), torch.tensor(number % 3)) for number in range(60)]
    data[2] = (torch.randn(30), torch.tensor(0))  # none of those that the check at the start looks at
    private = make_private()
    with pytest.raises(error, match="a record may choose the shape in which all others are computed"):
        make_trainer(tmp_path, private).fit(OfAnyLength(), DataLoader(data, batch_size=10, collate_fn=pad_to(None)))
    assert rare or private.account is None, "refused before anything is spent"
    make_trainer(tmp_path, make_private()).fit(
        OfAnyLength(), DataLoader(data, batch_size=7, collate_fn=pad_to(30), shuffle=True)
    )


def test_a_stated_batch_size_that_the_data_pass_is_refused(tmp_path: Path) -> None:
    few = make_private(scenario=ADD_REMOVE, sampling=Poisson(rate=0.5, batch_size=20), ledger=tmp_path / "run.db")
    with pytest.raises(MisconfigurationException, match="more than the 49 records for which a rate") as error:
        make_trainer(tmp_path, few).fit(Classifier(), make_loader())
    assert "60" not in str(error.value), "how many records there are is the secret"
    assert few.account is None
    # A round number that is a little too small will do.
    private = make_private(scenario=ADD_REMOVE, sampling=Poisson(rate=0.5, batch_size=25))
    make_trainer(tmp_path, private, max_steps=2).fit(Classifier(), make_loader())


def test_batches_that_may_not_fit_are_charged_to_delta(tmp_path: Path) -> None:
    private = make_private(scenario=ADD_REMOVE, sampling=SAMPLING)
    trainer = make_trainer(tmp_path, private, max_steps=2, accumulate_grad_batches=3)
    trainer.fit(model := Classifier(), make_loader())
    values = sum(parameter.numel() for parameter in model.parameters()) + 1
    assert private.account.draws_per_step == values + 3
    others = make_private(scenario=TwoWorldScenario(1, adjacency="zero_out"), sampling=SAMPLING)
    make_trainer(tmp_path, others, max_steps=2).fit(Classifier(), make_loader())
    assert others.account.draws_per_step == values
