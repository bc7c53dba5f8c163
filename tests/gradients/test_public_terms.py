"""Penalties on weights join after the noise; parameters on the mean loss have a gradient for every record."""

import copy
import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from per_example_loop import assert_same, clipped_sum_by_loop
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import SRPPSGD, FixedSize, TwoWorldScenario, private_gradients
from lightning_pac.callbacks.srpp_sgd.loss_check import check_loss
from lightning_pac.gradients import ROUNDING, GradientEngine, make_engine
from lightning_pac.strategies import FixedScalePrecision


class TwoTasks(pl.LightningModule):
    """A classification and a regression, put together in one of the ways that people do."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 1)
        self.weights, self.way = nn.Parameter(torch.tensor([0.3, -0.2])), way

    def tasks(self, batch: Any) -> tuple[Tensor, Tensor]:
        x, y, z = batch
        return F.cross_entropy(self.first(x), y), F.mse_loss(self.second(x)[:, 0], z)

    def penalty(self) -> Tensor:
        w = self.first.weight
        return 0.1 * (w @ w.t() - torch.eye(3, dtype=w.dtype)).square().sum() + self.second.weight.abs().sum()

    def training_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        a, b = self.tasks(batch)
        s = self.weights
        if self.way == "penalty":
            return a + 0.5 * b + self.penalty()
        if self.way == "penalty first, in place":
            loss = self.penalty() + a
            loss += 0.5 * b
            return loss / 2
        if self.way == "uncertainty":
            return torch.exp(-s[0]) * a + s[0] + (-s[1]).exp() * b + s[1]
        if self.way == "uncertainty, stacked":
            return (torch.exp(-s) * torch.stack([a, b]) + s).sum()
        if self.way == "deviations":
            return a / s[0].exp() ** 2 + b / (2 * s[1].exp() ** 2) - (-s).sum()
        if self.way == "sum over the batch":
            return s[0].exp() * F.cross_entropy(self.first(batch[0]), batch[1], reduction="sum") / len(batch[0]) + b
        if self.way == "logarithm":
            return (a + self.penalty()).log()
        if self.way == "product":
            return (a + self.penalty()) * b
        if self.way == "per record":
            return ((a + self.penalty()) * batch[2]).mean()
        assert self.way == "a value of the batch"
        return a + float(batch[0].mean()) * self.penalty()


def draw(rows: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, z = torch.randn(rows, 4, generator=generator), torch.randn(rows, generator=generator)
    return [x, torch.randint(3, (rows,), generator=generator), z]


def run(engine: GradientEngine, module: TwoTasks, batch: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    engine.attach(module)
    try:
        module.training_step(batch).backward()
        return engine.clipped_sum(0.5)
    finally:
        engine.detach()


PENALTY = {"penalty": 1.0, "penalty first, in place": 0.5}


@pytest.mark.parametrize("way", PENALTY)
def test_a_penalty_has_a_gradient_of_its_own(way: str) -> None:
    module, batch, engine = TwoTasks(way), draw(), make_engine(public_terms=True)
    share = PENALTY[way]

    def without(module: Any, batch: Any) -> Tensor:
        a, b = module.tasks(batch)
        return share * (a + 0.5 * b)

    assert_same(*run(engine, module, batch), clipped_sum_by_loop(module, batch, without, 0.5), 1e-5)
    parameters = list(module.parameters())
    wanted = torch.autograd.grad(share * module.penalty(), parameters, allow_unused=True, materialize_grads=True)
    assert torch.allclose(engine.public_gradient, torch.cat([part.flatten() for part in wanted]), atol=1e-6)
    assert run(make_engine(public_terms=True), TwoTasks("uncertainty"), batch)
    with pytest.raises(RuntimeError, match="comes after the mean over the batch"):
        run(make_engine(), module, batch)


@pytest.mark.parametrize("way", ["uncertainty", "uncertainty, stacked", "deviations", "sum over the batch"])
def test_parameters_on_the_mean_loss_have_a_gradient_for_each_record(way: str) -> None:
    """What stands beside the mean without records, such as `+ s`, is public: here it is taken off the truth."""
    module, batch, engine = TwoTasks(way), draw(), make_engine(public_terms=True)

    def without(module: Any, batch: Any) -> Tensor:
        alone = {"deviations": module.weights.sum(), "sum over the batch": 0.0}.get(way, module.weights.sum())
        return module.training_step(batch) - alone

    assert_same(*run(engine, module, batch), clipped_sum_by_loop(module, batch, without, 0.5), 1e-5)
    if way == "sum over the batch":
        assert engine.public_gradient is None
    else:
        assert engine.public_gradient.tolist() == [1.0, 1.0] + [0.0] * 20


@pytest.mark.parametrize("way", ["uncertainty", "uncertainty, stacked", "sum over the batch"])
def test_a_record_that_is_not_finite_counts_as_zero_beside_parameters_on_the_mean(way: str) -> None:
    batch = draw()
    whole, _ = run(make_engine(public_terms=True), TwoTasks(way), batch)
    for value in (math.nan, math.inf, 1e30):
        changed = [part.clone() for part in batch]
        changed[0][2] = value
        sums, norms = run(make_engine(public_terms=True), TwoTasks(way), changed)
        assert norms[2] == 0
        moved = torch.cat([(one - other).flatten() for one, other in zip(sums, whole, strict=True)])
        assert moved.norm() < 0.5 * (1 + ROUNDING), "it takes its own share away and nothing else"


@pytest.mark.parametrize("way", ["stacked", "widened"])
def test_means_of_two_precisions_are_means_whatever_the_records_are(way: str) -> None:
    """Autocast rounds one of two tasks to 8 bits: by chance its mean is that of its records, and mostly it is not."""
    for seed in range(12):
        torch.manual_seed(seed)
        module, engine, inputs = TwoTasks("penalty"), make_engine(public_terms=True), torch.randn(64, 4)
        engine.attach(module)
        with torch.autocast("cpu", torch.bfloat16), engine.following((inputs,)):
            output = module.second(inputs)[:, 0]
            first, second = (output - inputs[:, 0]).square().mean(), output.abs().mean()
            if way == "stacked":
                loss = (torch.exp(-module.weights) * torch.stack([first, second])).sum()
            else:
                loss = torch.exp(-module.weights[0]) * (first + 2 * second.float())
        loss.backward()
        losses = [(output.float() - inputs[:, 0]).square(), output.float().abs()]
        scale = torch.exp(-module.weights.detach())
        own = losses[0] * scale[0] if way == "stacked" else (losses[0] + 2 * losses[1]) * scale[0]
        sums, _ = engine.clipped_sum(1e9)
        engine.detach()
        # Parameters are in the order of the module: the weights of the tasks come first.
        assert float(sums[0][0]) == pytest.approx(-float(own.detach().sum()), rel=1e-2)


@pytest.mark.parametrize("made", [1.0, math.nan, math.inf])
def test_no_record_decides_whether_what_bends_a_mean_is_refused(made: float) -> None:
    """A root of means is nearly the mean of roots; and of values that are not finite nothing can be compared."""
    module, engine, values = TwoTasks("penalty"), make_engine(public_terms=True), torch.linspace(0.5, 1.0, 8)
    values[3] = made
    engine.attach(module)
    with engine.following((values,)):
        loss = (values + 0.0 * module.second.bias).mean().sqrt() * torch.exp(module.weights[0])
    with pytest.raises(RuntimeError, match="comes after the mean over the batch"):
        loss.backward()
    engine.detach()


@pytest.mark.parametrize("way", ["divided last", "divided first", "mean"])
def test_a_record_that_makes_the_losses_cancel_leaves_the_others_as_they_are(way: str) -> None:
    """A sum that is zero looks like a mean, of which every record's share is 1 / n of that in a sum."""
    norms = []
    for cancelling in (False, True):
        module, engine = TwoTasks("penalty"), make_engine(public_terms=True)
        values = torch.linspace(0.5, 1.0, 8)
        values[0] = -values[1:].sum() if cancelling else 1.0
        engine.attach(module)
        with engine.following((values,)):
            values = values + 0.0 * module.second.bias
            total = values.mean() if way == "mean" else values.sum()
            scale = torch.exp(module.weights[0])
            loss = total * scale / 8 if way == "divided last" else total * (1.0 if way == "mean" else 1 / 8) * scale
        loss.backward()
        norms.append(engine.clipped_sum(1.0)[1][1:])
        engine.detach()
    assert torch.equal(*norms)


@pytest.mark.parametrize("way", ["logarithm", "product", "per record"])
def test_a_penalty_whose_slope_depends_on_records_is_refused(way: str) -> None:
    with pytest.raises(RuntimeError, match=r"(log|mul) makes what that does to the loss depend on the records"):
        run(make_engine(public_terms=True), TwoTasks(way), draw())


def loader() -> Any:
    return DataLoader(TensorDataset(*draw(24)), batch_size=6)


def test_the_check_of_the_loss_lets_them_pass_and_finds_values_of_the_batch() -> None:
    for way in ("penalty", "uncertainty", "uncertainty, stacked"):
        found = check_loss(TwoTasks(way), loader())
        assert (found.problem, found.unchecked) == (None, None)
    assert "read off the batch" in str(check_loss(TwoTasks("a value of the batch"), loader()).problem)


def both_tasks(module: Any, batch: Any) -> Tensor:
    first, second = module.tasks(batch)
    return first + 0.5 * second


class Fitted(TwoTasks):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("plugins", [None, FixedScalePrecision(2.0**10, "cpu")])
def test_a_fit_takes_the_step_of_the_penalty_beside_the_noised_one(plugins: Any, tmp_path: Path) -> None:
    module, data = Fitted("penalty"), TensorDataset(*draw(6))
    start = copy.deepcopy(module)
    before = torch.cat([parameter.detach().flatten() for parameter in start.parameters()])
    gradients, _ = private_gradients(
        module,
        both_tasks,
        draw(6),
        max_grad_norm=0.5,
        noise_multiplier=1e-7,
        batch_size=6,
        scenario=TwoWorldScenario(num_differing=1),
    )
    private = SRPPSGD(
        TwoWorldScenario(num_differing=1), sampling=FixedSize(6), noise_multiplier=1e-7, max_grad_norm=0.5
    )
    options: dict[str, Any] = {
        "default_root_dir": tmp_path,
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
    }
    trainer = pl.Trainer(max_steps=1, callbacks=[private], accelerator="cpu", plugins=plugins, **options)
    trainer.fit(module, DataLoader(data, batch_size=6))
    after = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    of_penalty = torch.autograd.grad(start.penalty(), [*start.parameters()], allow_unused=True, materialize_grads=True)
    moved = torch.cat([(a + b).flatten() for a, b in zip(gradients.values(), of_penalty, strict=True)])
    assert torch.allclose(before - after, moved, atol=1e-5 if plugins is None else 2e-3)
