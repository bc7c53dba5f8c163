"""Which losses give a record a gradient of its own, and which do not."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from slow_cases import mostly_slow, slow
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, default_collate

from lightning_pac.callbacks.srpp_sgd.loss_check.check import check_loss


class Records(Dataset[Any]):
    def __init__(self, record: Any) -> None:
        self.record = record

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.record


class Model(pl.LightningModule):
    def __init__(self, loss: Callable[["Model", Any], Tensor], classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, classes))
        self.embedding = nn.Embedding(50, 4)
        self.loss = loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("train_loss", 0.0)
        self.log_dict({"train_a": 1.0, "train_b": 2.0})
        return self.loss(self, batch)


def cross_entropy(model: Model, batch: Any) -> Tensor:
    return F.cross_entropy(model.network(batch[0]), batch[1])


def mixup(model: Model, batch: Any) -> Tensor:
    inputs = 0.7 * batch[0] + 0.3 * batch[0][torch.randperm(len(batch[0]))]
    return F.cross_entropy(model.network(inputs), batch[1])


PAIR = (torch.zeros(4), 0)
SOUND = [
    (cross_entropy, PAIR),
    (lambda m, b: F.mse_loss(m.network(b[0])[:, 0], b[1]), (torch.zeros(4), 0.0)),
    (lambda m, b: F.mse_loss(m.network(b[0] + torch.randn_like(b[0])), b[1]), (torch.zeros(4), torch.zeros(3))),
    (lambda m, b: F.cross_entropy(m.network(b["x"]), b["y"]), {"x": torch.zeros(4), "y": torch.tensor(1)}),
    (lambda m, b: F.cross_entropy(m.network(m.embedding(b[0]).mean(1)), b[1]), (torch.zeros(7, dtype=torch.long), 0)),
    (lambda m, b: F.cross_entropy(m.network(b[0].float() / 255), b[1]), (np.zeros(4, np.uint8), np.int64(1))),
    (lambda m, b: F.binary_cross_entropy_with_logits(m.network(b[0])[:, 0], b[1].float()), (torch.zeros(4), True)),
]
COUPLED = [
    lambda m, b: F.cross_entropy(m.network(b[0]), b[1], weight=torch.tensor([1.0, 4.0, 2.0])),
    lambda m, b: F.cross_entropy(m.network(b[0]) - m.network(b[0]).mean(0), b[1]),
    lambda m, b: F.cross_entropy(m.network(b[0]) @ m.network(b[0]).T, torch.arange(len(b[0]))),
    mixup,
    lambda m, b: F.cross_entropy(m.network(b[0]), b[1]) ** 2,
    lambda m, b: F.cross_entropy(m.network(b[0]), b[1], reduction="none").max(),
    # Not a number for records of one class.
    lambda m, b: cross_entropy(m, b) - torch.corrcoef(torch.stack([m.network(b[0])[:, 0], b[1].float()]))[0, 1],
]
SCALED = [
    lambda m, b: F.cross_entropy(m.network(b[0]), b[1], reduction="sum"),
    lambda m, b: F.cross_entropy(m.network(b[0]), b[1], reduction="sum") / 32,
]


def autoencoder(model: Model, batch: Any, reduction: Callable[[Tensor], Tensor], draw: str = "randn_like") -> Tensor:
    """Random in evaluation mode, too: the reparametrization of a variational autoencoder."""
    mean = model.network(batch[0])
    if draw == "distribution":
        code = torch.distributions.Normal(mean, 1.0).rsample()
    elif draw == "samples first":
        code = (mean + torch.randn(5, *mean.shape)).mean(0)
    elif draw == "numpy":
        code = mean + torch.from_numpy(np.random.standard_normal(mean.shape)).float()  # noqa: NPY002
    elif draw == "in place":
        code = mean + torch.empty_like(mean).normal_()
    elif draw == "mask":
        code = mean * torch.bernoulli(torch.sigmoid(mean.detach()))
    elif draw == "one time":
        code = mean * torch.rand(1)
    else:
        code = mean + torch.randn_like(mean)
    return reduction((code.square() * batch[0][:, :3].exp()).sum(1))


DRAWS = ["randn_like", "distribution", "samples first", "in place", "mask", "one time"]


@pytest.mark.parametrize("draw", DRAWS)
def test_random_losses_are_means_or_not(draw: str) -> None:
    loader = DataLoader(Records((torch.zeros(4), 0)), batch_size=4)
    mean = check_loss(Model(lambda m, b: autoencoder(m, b, torch.mean, draw)), loader)
    assert (mean.problem, mean.unchecked) == (None, None)
    for wrong in (torch.sum, lambda losses: losses.sum() / 32, lambda losses: losses.sum() / (len(losses) - 1)):
        found = check_loss(Model(lambda m, b, wrong=wrong: autoencoder(m, b, wrong, draw)), loader)
        assert found.problem is not None
        assert "is not the mean" in found.problem


def test_draws_that_cannot_be_held_are_said() -> None:
    loader = DataLoader(Records((torch.zeros(4), 0)), batch_size=4)
    found = check_loss(Model(lambda m, b: autoencoder(m, b, torch.mean, "numpy")), loader)
    assert found.problem is None
    assert found.unchecked is not None
    assert "not torch's" in found.unchecked


class Flips:
    """Turns some records around, one after another, by a generator of Python, or by one of its own."""

    def __init__(self, generator: Any, share: float) -> None:
        self.generator, self.share = generator, share

    def __call__(self, rows: list[Any]) -> Any:
        signs = [1.0 - 2.0 * ((self.generator or random).random() < self.share) for _ in rows]
        return default_collate([(inputs * sign, label) for sign, (inputs, label) in zip(signs, rows, strict=True)])


@pytest.mark.parametrize(
    ("generator", "share"),
    [
        *((None, 0.02), (np.random.default_rng(5), 0.5)),
        *slow((None, 0.1), (None, 0.5), (random.Random(5), 0.1)),
    ],
)
def test_draws_of_a_collate_function_for_single_records_are_no_sum(generator: Any, share: float) -> None:
    """Refused before: rare ones as a coupling of larger batches, those of an own generator as a sum."""
    loader = DataLoader(Records(PAIR), 4, collate_fn=Flips(generator, share))
    assert check_loss(Model(cross_entropy), loader).problem is None
    for coupled in (*SCALED, COUPLED[1]):
        assert check_loss(Model(coupled), loader).problem is not None


@pytest.mark.parametrize(("loss", "record"), SOUND)
@pytest.mark.parametrize("training", [True, False])
def test_means_over_records_pass(loss: Any, record: Any, training: bool) -> None:
    found = check_loss(Model(loss).train(training), DataLoader(Records(record), batch_size=4))
    assert (found.problem, found.unchecked) == (None, None)


FAST = [
    (training, COUPLED[place])
    for place, training in ((0, False), (1, True), (2, True), (3, False), (5, False), (6, True))
]


@pytest.mark.parametrize(("training", "loss"), mostly_slow(itertools.product([True, False], COUPLED), *FAST))
def test_losses_that_couple_records_are_found(loss: Any, training: bool) -> None:
    found = check_loss(Model(loss).train(training), DataLoader(Records(PAIR), batch_size=4))
    assert found.problem is not None
    assert "couples the records" in found.problem


@pytest.mark.parametrize("loss", SCALED)
def test_sums_in_place_of_means_are_found(loss: Any) -> None:
    found = check_loss(Model(loss).eval(), DataLoader(Records(PAIR), batch_size=4))
    assert found.problem is not None
    assert "is not the mean" in found.problem


def test_mixing_in_the_collate_function_or_a_transfer_hook_is_found() -> None:
    def mixing_collate(records: list[Any]) -> Any:
        inputs, labels = default_collate(records)
        return inputs.float().add(inputs.flip(0)), labels

    class Mixing(Model):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return batch[0] + batch[0].flip(0), batch[1]

    loaders = (
        DataLoader(Records(PAIR), batch_size=4, collate_fn=mixing_collate),
        DataLoader(Records(PAIR), batch_size=4),
    )
    for model, loader in zip((Model(cross_entropy), Mixing(cross_entropy)), loaders, strict=True):
        found = check_loss(model.eval(), loader)
        assert found.problem is not None
        assert "couples the records" in found.problem


def test_logged_names_are_collected_and_nothing_is_touched() -> None:
    model = Model(cross_entropy)
    before = [parameter.clone() for parameter in model.parameters()]
    state = torch.get_rng_state()
    found = check_loss(model, DataLoader(Records(PAIR), batch_size=4))
    assert found.logged == ("train_loss", "train_a", "train_b")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, before, model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())


class Running(Model):
    def __init__(self, takes_up: bool) -> None:
        super().__init__(cross_entropy)
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("count", torch.zeros(()))
        self.takes_up = takes_up

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.count += 1
        if self.takes_up:
            self.average.mul_(0.9).add_(0.1 * batch[0].mean(0))
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("takes_up", "names"), [(True, ("average",)), (False, ())])
def test_buffers_that_take_up_records_are_named(takes_up: bool, names: tuple[str, ...]) -> None:
    model = Running(takes_up)
    found = check_loss(model, DataLoader(Records(PAIR), batch_size=4))
    assert found.state == names
    assert not model.average.any()


def fail(model: Model, batch: Any) -> Tensor:
    raise RuntimeError("needs a real image")


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (fail, "RuntimeError in fail, test_loss_check.py line"),
        (lambda m, b: cross_entropy(m, b) * float("nan"), "is not finite"),
        (lambda m, b: cross_entropy(m, b) * 0.0, "is zero"),
        (lambda m, b: cross_entropy(m, b) * np.random.default_rng().uniform(), "changes when it is evaluated again"),
    ],
)
def test_what_cannot_be_shown_is_said(loss: Any, reason: str) -> None:
    found = check_loss(Model(loss), DataLoader(Records(PAIR), batch_size=4))
    assert found.problem is None
    assert found.unchecked is not None
    assert reason in found.unchecked


def test_numbers_are_read_off_batches_of_any_kind() -> None:
    @dataclass
    class Batch:
        inputs: Tensor
        labels: Tensor

    def branching(model: Model, batch: Batch) -> Tensor:
        loss = cross_entropy(model, (batch.inputs, batch.labels))
        return loss * (2.0 if loss.item() > 50 else 1.0)

    found = check_loss(
        Model(branching), DataLoader(Records(PAIR), batch_size=4, collate_fn=lambda rows: Batch(*default_collate(rows)))
    )
    assert found.problem is not None
    assert "read off the batch" in found.problem


KEPT: dict[str, Tensor] = {}


def less_what_was_kept(model: Model, batch: Any, where: str) -> Tensor:
    """Cross entropy less the first mean of a batch, or of a moving average, kept where no copy of the model reaches."""
    mean = batch[0].mean(0).detach()
    if where == "global":
        KEPT.setdefault("mean", mean)
    elif where == "function":
        KEEPER.mean = (getattr(KEEPER, "mean", 0.0) + mean) / 2
    else:
        Model.mean = (getattr(Model, "mean", 0.0) + mean) / 2
    kept = {"global": KEPT.get("mean"), "function": getattr(KEEPER, "mean", 0), "class": getattr(Model, "mean", 0)}
    return F.cross_entropy(model.network(batch[0] - kept[where]), batch[1])


def keeper() -> None: ...


KEEPER: Any = keeper


@pytest.mark.parametrize("where", ["global", "function", "class"])
def test_a_memory_beside_the_model_is_found_and_left_empty(where: str) -> None:
    found = check_loss(Model(lambda m, b: less_what_was_kept(m, b, where)), DataLoader(Records(PAIR), batch_size=4))
    assert found.problem is not None
    assert "earlier batches" in found.problem
    assert not KEPT
    assert not hasattr(KEEPER, "mean")
    assert not hasattr(Model, "mean")


@pytest.mark.parametrize("where", ["closure", "default"])
def test_a_memory_of_a_function_that_a_callback_holds_is_found(where: str) -> None:
    closure: list[Tensor] = []
    default: list[Tensor] = []

    def first(mean: Tensor, default: list[Tensor] = default) -> Tensor:
        kept = closure if where == "closure" else default
        kept += [] if kept else [mean]
        return kept[0]

    class Centres(pl.Callback):
        def __init__(self) -> None:
            self.first = first

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            batch[0].sub_(self.first(batch[0].mean(0)))

    found = check_loss(Model(cross_entropy), DataLoader(Records(PAIR), batch_size=4), callbacks=[Centres()])
    assert found.problem is not None
    assert "earlier batches" in found.problem
    assert not closure
    assert not default


def test_a_memory_of_the_collate_function_is_found() -> None:
    first: list[Tensor] = []

    def collate(records: list[Any]) -> Any:
        inputs, labels = default_collate(records)
        first.extend([inputs.mean(0)] if not first else [])
        return inputs - first[0], labels

    found = check_loss(Model(cross_entropy), DataLoader(Records(PAIR), batch_size=4, collate_fn=collate))
    assert found.problem is not None
    assert "earlier batches" in found.problem


@pytest.mark.parametrize(
    "scale",
    [
        lambda inputs: torch.where(inputs.max() > 1e9, 2.0, 1.0),
        lambda inputs: torch.where((inputs.amax(1) > 1e9).any(), 2.0, 1.0),
        lambda inputs: 1 + (inputs.amax(0) >= 1e9).float().mean(),
    ],
)
def test_a_threshold_between_tensors_that_no_made_number_passes_is_found(scale: Any) -> None:
    found = check_loss(Model(lambda m, b: cross_entropy(m, b) * scale(b[0])), DataLoader(Records(PAIR), batch_size=4))
    assert found.problem is not None
    assert "is read off the batch" in found.problem


def test_a_loss_too_small_for_its_squares_is_told_so() -> None:
    found = check_loss(Model(lambda m, b: cross_entropy(m, b) * 1e-30), DataLoader(Records(PAIR), batch_size=4))
    assert found.problem is not None
    assert found.problem.startswith("has gradients so small")


def test_a_loss_without_a_gradient_passes() -> None:
    found = check_loss(
        Model(lambda m, b: F.relu(m.network(b[0]) - 1e9).mean()), DataLoader(Records(PAIR), batch_size=4)
    )
    assert found.problem is None


def test_power_iterations_that_have_not_settled_pass() -> None:
    fixed = nn.Linear(4, 4).requires_grad_(False)
    turned = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))[0]
    fixed.weight.data = turned * torch.tensor([1.0, 0.95, 0.1, 0.1])  # two of nearly one size, which settle slowly
    model = Model(lambda m, b: F.cross_entropy(m.network(m.fixed(b[0])), b[1]))
    model.network[1] = nn.Identity()
    model.fixed = nn.utils.parametrizations.spectral_norm(fixed)
    found = check_loss(model, DataLoader(Records(PAIR), batch_size=4))
    assert (found.problem, found.unchecked) == (None, None)


def compiled_part(model: Any) -> None:
    model.network = torch.compile(model.network)


def compiled_method(model: Any) -> None:
    model.outputs = torch.compile(model.outputs)


@pytest.mark.parametrize("compile_some", [compiled_part, compiled_method])
@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 5.0])])
def test_compiled_code_is_run_as_written(compile_some: Any, weights: Any) -> None:
    class Compiled(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Linear(3, 2)
            compile_some(self)

        def outputs(self, inputs: Tensor) -> Any:
            return self.network(inputs)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self.outputs(batch[0]), batch[1], weight=weights)

    records: Any = [(torch.randn(3), index % 2) for index in range(20)]
    found = check_loss(Compiled(), DataLoader(records, batch_size=4))
    assert found.unchecked is None
    assert (found.problem is not None) == (weights is not None)
