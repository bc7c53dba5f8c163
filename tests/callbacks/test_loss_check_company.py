"""Losses that couple records only where some hold extreme, missing or marked numbers."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from slow_cases import mostly_slow
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import SRPPSGD, TwoWorldScenario
from lightning_pac.callbacks.srpp_sgd.loss_check.check import check_loss
from lightning_pac.gradients import ROUNDING, flat_sum, make_engine

RECORDS = 16


class Linear(pl.LightningModule):
    def __init__(self, step: Callable[[nn.Module, Tensor, Tensor], Tensor], weight: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3)
        self.layer.weight.data.mul_(weight)
        self.step = step

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.step(self.layer, *batch)


def after_the_mean(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda layer, inputs, targets: function(F.mse_loss(layer(inputs), targets))


def hinge_and_contrast(layer: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """A record far enough on its side has the gradient of the second term alone, however small its weight."""
    scores = layer(inputs)
    similar = F.normalize(scores, dim=1) @ F.normalize(scores, dim=1).T
    return F.relu(1 - scores * (targets - 0.5).sign()).mean() + 1e-5 * similar.logsumexp(1).mean()


def masked(is_missing: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def step(layer: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        counts = ~is_missing(targets)
        return (layer(inputs) - targets)[counts].square().mean()

    return step


def positives(layer: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.binary_cross_entropy_with_logits(layer(inputs), targets.clamp(0, 1), reduction="none")
    return (losses * (targets == 1)).sum() / (targets == 1).sum().clamp(min=1) + losses[targets != 1].sum() / len(
        inputs
    )


def quantized(layer: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(layer(inputs / (inputs.abs().max() / 127).clamp(min=1.0)), targets)


def beside_negatives(layer: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(layer(inputs + inputs.roll(1, 0).clamp(max=0.0)), targets)


def norm_clipped(layer: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    scores = layer(inputs)
    return F.mse_loss(scores * (300 / scores.norm()).clamp(max=1.0), targets)


STEPS = {
    "nan_to_num of the mean": after_the_mean(torch.nan_to_num),
    "a mean that counts where it is finite": after_the_mean(lambda loss: torch.where(loss.isfinite(), loss, 0.0)),
    "a skipped step": after_the_mean(lambda loss: loss * 0 if not bool(loss.isfinite()) else loss),
    "a clamped mean": after_the_mean(lambda loss: loss.clamp(max=50.0)),
    "a branch on the mean": after_the_mean(lambda loss: loss * 0 if loss.item() > 50 else loss),
    "flooding": after_the_mean(lambda loss: (loss - 0.01).abs() + 0.01),
    "a mean of what is not NaN": masked(torch.isnan),
    "a mean of what is not -1": masked(lambda targets: targets == -1),
    "a mean over positives": positives,
    "a scale from the largest number": quantized,
    "a neighbour's negative numbers": beside_negatives,
    "activations clipped by their norm in the batch": norm_clipped,
    "a small contrastive term beside a hinge": hinge_and_contrast,
}


def loader(**kwargs: Any) -> DataLoader[Any]:
    inputs, targets = torch.rand(RECORDS, 6), torch.rand(RECORDS, 3)
    return DataLoader(TensorDataset(inputs, targets), batch_size=8, **kwargs)


COSTLY = [name for name in STEPS if name.startswith(("a mean of what is not -1", "a mean over", "a scale", "a small"))]


@pytest.mark.parametrize("name", mostly_slow(STEPS, *(name for name in STEPS if name not in COSTLY)))
def test_couplings_through_unusual_numbers_are_found(name: str) -> None:
    found = check_loss(Linear(STEPS[name]), loader())
    assert found.problem is not None
    assert found.problem.startswith(
        ("couples", "cannot be taken apart", "depends on a number that is read off", "bends a mean")
    )


def hardest(layer: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return (layer(inputs) - targets).square().mean(1).topk(min(12, len(inputs))).values.sum() / len(inputs)


def centred_in_company(layer: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(layer(inputs - inputs.mean(0) if len(inputs) > 8 else inputs), targets)


@pytest.mark.parametrize("step", [hardest, centred_in_company])
def test_couplings_that_begin_above_eight_records_are_found(step: Any) -> None:
    assert check_loss(Linear(step), loader()).problem == (
        "couples the records of a batch of 16, which it does not in one of 8"
    )


@pytest.mark.parametrize(
    "is_rare",
    [
        lambda inputs, loss: loss.item() < 1e-3,
        lambda inputs, loss: loss.detach() < 1e-3,
        lambda inputs, loss: float(inputs.abs().sum()) > 1e12,
    ],
)
def test_a_branch_that_no_synthetic_batch_takes_is_found(is_rare: Any) -> None:
    def step(layer: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        loss = F.mse_loss(layer(inputs), targets)
        return 2 * loss if is_rare(inputs, loss) else loss

    found = check_loss(Linear(step), loader())
    assert found.problem is not None
    assert found.problem.startswith("depends on a number that is read off the batch")


def test_a_record_may_be_branched_on_and_numbers_shown() -> None:
    def step(layer: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        losses = [F.mse_loss(layer(x if x.sum().item() > 3 else -x), y) for x, y in zip(inputs, targets, strict=True)]
        return torch.stack(losses).mean()

    def showing(layer: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        loss = F.mse_loss(layer(inputs), targets)
        f"{loss.item():.3f}, {bool(loss > 1)}"
        return loss

    for function in (step, showing):
        problem = check_loss(Linear(function), loader()).problem
        assert problem is None or "read off the batch" not in problem


@pytest.mark.parametrize("count", [3, pytest.param(None, marks=pytest.mark.slow)])
def test_a_mean_over_masked_entries_passes_where_each_record_has_as_many(count: int | None) -> None:
    """As in masked autoencoders; of masks with any number, the mean weighs a record by those of the others."""

    def step(layer: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        drawn = torch.rand_like(inputs)
        mask = torch.ones_like(inputs).scatter(1, drawn.argsort(1)[:, :3], 0.0) if count else (drawn < 0.5).float()
        errors = layer(inputs * (1 - mask)).mean(1, keepdim=True) - inputs
        return (errors.square() * mask).sum() / mask.sum()

    found = check_loss(Linear(step), loader())
    if count is None:  # by chance of the masks it is found out, or only told of
        assert found.problem is not None or found.unchecked is not None
    else:
        assert (found.problem, found.unchecked) == (None, None)


def test_one_record_that_is_not_finite_would_move_all_others() -> None:
    """The reason: under `nan_to_num` of the mean, the sum of 16 equal records is lost for one that is NaN."""
    sums = []
    for last in (1.0, torch.nan):
        model, engine = Linear(STEPS["nan_to_num of the mean"]), make_engine()
        inputs, targets = torch.ones(RECORDS, 6), torch.ones(RECORDS, 3)
        inputs[-1] = last
        engine.attach(model)
        model.training_step((inputs, targets), 0).backward()
        sums.append(flat_sum(engine.clipped_sum(0.01)[0]).clone())
        engine.detach()
    assert float((sums[1] - sums[0]).norm()) > 0.15 > 2 * (1 + ROUNDING) * 0.01


SOUND = {
    "squares": after_the_mean(lambda loss: loss),
    "a scaled mean": after_the_mean(lambda loss: 3.0 * loss - 1.0),
    "means within records": lambda layer, x, y: torch.nan_to_num((layer(x) - y).square()).mean(),
    "an absolute value": lambda layer, x, y: F.l1_loss(layer(x), y),
    "normalized records": lambda layer, x, y: F.mse_loss(layer(F.normalize(x, dim=1)), y),
    "a record's own scale": lambda layer, x, y: F.mse_loss(layer(x / x.abs().amax(1, keepdim=True).clamp(min=1)), y),
    "a part that is never used": lambda layer, x, y: F.mse_loss(F.linear(x, layer.weight), y),
}


@pytest.mark.parametrize("name", SOUND)
def test_means_over_records_pass_with_unusual_numbers(name: str) -> None:
    found = check_loss(Linear(SOUND[name]), loader())
    assert (found.problem, found.unchecked) == (None, None)


@pytest.mark.parametrize("score", [94.0, 96.0, 98.0, 100.0])
def test_rounding_is_no_coupling(score: float) -> None:
    """Sure and right about every record: gradients of e^-94 are denormal in float32, and err by their whole size."""
    model = Linear(lambda layer, inputs, labels: F.cross_entropy(layer(inputs)[:, :2], labels))
    model.layer.bias.data = torch.tensor([-score / 2, score / 2, 0.0])
    labels = torch.tensor([0, 1]).repeat(RECORDS // 2)
    found = check_loss(model, DataLoader(TensorDataset(torch.rand(RECORDS, 6), labels), batch_size=8), repeated=1)
    assert (found.problem, found.unchecked) == (None, None)


def test_a_hook_on_an_activation_is_found() -> None:
    def step(layer: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        scores = layer(inputs)
        scores.register_hook(lambda gradient: gradient / 2)
        return F.mse_loss(scores, targets)

    found = check_loss(Linear(step), loader())
    assert found.problem is not None
    assert "hook" in found.problem


class Later(Linear):
    """Couples records in the steps that it is given a condition for."""

    def __init__(self, when: Callable[[int], bool]) -> None:
        super().__init__(STEPS["nan_to_num of the mean"])
        self.when = when

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.layer(batch[0])
        return F.mse_loss(scores - scores.mean(0) if self.when(batch_idx) else scores, batch[1])


@pytest.mark.parametrize("when", [lambda number: number % 10 == 9, lambda number: number > 500])
def test_what_begins_at_a_later_step_is_found_before(when: Any) -> None:
    found = check_loss(Later(when), loader())
    assert found.problem is not None


class InSome(pl.LightningModule):
    """Couples records in the batches that meet a condition on the model and the batch."""

    def __init__(self, when: Callable[["InSome", Tensor, int], bool]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.when, self.begun = nn.Linear(6, 3), when, False

    def on_train_start(self) -> None:
        self.begun = True

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.layer(batch[0])
        return F.mse_loss(scores - scores.mean(0) if self.when(self, scores, batch_idx) else scores, batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.0)


SOMETIMES: dict[str, Callable[[InSome, Tensor, int], bool]] = {
    "batches of the loader's size": lambda model, scores, number: len(scores) == 12,
    "batches of an odd number of records": lambda model, scores, number: len(scores) % 2 == 1,
    "batches of the last one's size": lambda model, scores, number: len(scores) == 11,
    "last batch": lambda model, scores, number: number == model.trainer.num_training_batches - 1 > 0,
    "what the Trainer calls last": lambda model, scores, number: model.trainer.is_last_batch,
    "late steps": lambda model, scores, number: model.global_step > 5,
    "late epochs": lambda model, scores, number: model.current_epoch > 5,
    "begun": lambda model, scores, number: model.begun,
}


FAST = ["batches of the loader's size", "batches of an odd number of records", "last batch", "late steps", "begun"]


@pytest.mark.checks_each_fit
@pytest.mark.parametrize("name", mostly_slow(SOMETIMES, *FAST))
def test_what_couples_some_batches_is_found_before_the_first(name: str, tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(35, 6), torch.randn(35, 3))
    private = SRPPSGD(TwoWorldScenario(num_differing=1), noise_multiplier=1.0, renyi_order=4)
    off = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    options: dict[str, Any] = {"accelerator": "cpu", "default_root_dir": tmp_path, **dict.fromkeys(off, False)}
    trainer = pl.Trainer(max_epochs=2, callbacks=[private], **options)
    with pytest.raises(MisconfigurationException, match="couples the records"):
        trainer.fit(InSome(SOMETIMES[name]), DataLoader(data, batch_size=12))
    assert trainer.global_step == 0


@pytest.mark.parametrize(
    "draw",
    [lambda: random.random(), lambda: np.random.rand(), lambda: float(torch.rand(()))],  # noqa: NPY002
)
@pytest.mark.parametrize("is_rare", [lambda drawn: drawn < 0.06, lambda drawn: drawn > 0.94])
def test_what_couples_records_seldom_is_found(draw: Any, is_rare: Any) -> None:
    assert check_loss(InSome(lambda *_: is_rare(draw())), loader()).problem is not None


def test_a_repetition_is_made_at_the_step_that_is_to_come() -> None:
    model = Later(lambda number: number == 15)
    assert check_loss(model, loader(), None, 1).problem is None
    assert check_loss(model, loader(), None, 1, (), 15).problem is not None


class Tokens(pl.LightningModule):
    def __init__(self, function: Callable[[Tensor], Tensor], pixels: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Embedding(300, 4), nn.Linear(4, 3), nn.Linear(5, 3)])
        self.function, self.pixels = function, pixels

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        integers, labels = batch
        table, head, of_pixels = self.layers
        scores = of_pixels(integers.float() / 255) if self.pixels else head(table(integers).mean(1))
        return self.function(F.cross_entropy(scores, labels, reduction="none"))


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "mean": (torch.mean, False),
    "clamped losses": (lambda losses: torch.nan_to_num(losses).clamp(max=5).mean(), False),
    "nan_to_num": (lambda losses: torch.nan_to_num(losses.mean()), True),
    "clamped mean": (lambda losses: losses.mean().clamp(max=20), True),
    "flooding": (lambda losses: (losses.mean() - 0.01).abs() + 0.01, True),
}


@pytest.mark.parametrize(
    ("name", "pixels"),
    mostly_slow(
        itertools.product(FUNCTIONS, [False, True]),
        *(("mean", False), ("clamped losses", True), ("nan_to_num", False), ("clamped mean", True)),
    ),
)
def test_what_integers_are_turned_into_is_made_unusual(name: str, pixels: bool) -> None:
    function, is_coupled = FUNCTIONS[name]
    integers, labels = torch.randint(256, (RECORDS, 5)), torch.randint(3, (RECORDS,))
    data = TensorDataset(integers.to(torch.uint8) if pixels else integers, labels)
    found = check_loss(Tokens(function, pixels), DataLoader(data, batch_size=8))
    assert (found.problem is not None, found.unchecked) == (is_coupled, None)


class Tail(pl.LightningModule):
    """Rare classes go through a layer of their own, which a batch may give a single record."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.AdaptiveLogSoftmaxWithLoss(6, 210, [150])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(*batch).loss


def test_a_layer_that_one_record_of_a_batch_goes_through_is_no_mean_over_the_batch() -> None:
    """Labels up to 194, since the synthetic ones of that range have one rare class in both batches compared."""
    records = TensorDataset(torch.rand(64, 6), torch.arange(64) * 194 // 63)
    assert check_loss(Tail(), DataLoader(records, 8)).problem is None
