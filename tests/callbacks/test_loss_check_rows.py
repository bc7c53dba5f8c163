"""Losses that couple records only where these differ in length or in what is ignored, and rows that are no records."""

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, default_collate

from lightning_pac.callbacks.srpp_sgd.loss_check.check import check_loss
from lightning_pac.gradients.rules import measured_choice

TOKENS, WIDTH = 30, 4


class Tagger(pl.LightningModule):
    """Tokens in, a class for each token out."""

    def __init__(self, loss: Callable[["Tagger", Any], Tensor], dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.positions = nn.Embedding(20, WIDTH)
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(WIDTH, TOKENS))
        self.loss = loss

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).tanh())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self, batch)


def flat_cross_entropy(model: Tagger, batch: Any, **options: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), **options)


def within_records(model: Tagger, batch: Any) -> Tensor:
    """The mean over the records of means over the targets of a record that count."""
    tokens, targets = batch
    losses = F.cross_entropy(model(tokens).mT, targets, reduction="none", ignore_index=-100)
    counts = (targets != -100).sum(1).clamp(min=1)
    return (losses.sum(1) / counts).mean()


def with_positions(model: Tagger, batch: Any) -> Tensor:
    tokens, targets = batch
    hidden = model.embedding(tokens) + model.positions(torch.arange(tokens.shape[1]))
    return F.cross_entropy(model.head(hidden).mean(1), targets[:, 0])


def with_expanded_positions(model: Tagger, batch: Any) -> Tensor:
    tokens, targets = batch
    hidden = model.embedding(tokens) + model.positions(torch.arange(tokens.shape[1]).expand_as(tokens))
    return F.cross_entropy(model.head(hidden).mean(1), targets[:, 0])


def flattened(model: Tagger, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0].flatten()), batch[1].flatten())


def sorted_inside(model: Tagger, batch: Any) -> Tensor:
    """The second layer sees the records in another order than the first."""
    tokens, targets = batch
    order = tokens[:, 0].argsort()
    hidden = model.embedding(tokens).tanh()[order]
    return F.cross_entropy(model.head(hidden).mean(1), targets[order, 0])


def scattered_inside(model: Tagger, batch: Any) -> Tensor:
    """The same, by a function that writes rows to places."""
    tokens, targets = batch
    order = tokens[:, 0].argsort()
    hidden = model.embedding(tokens).tanh()
    hidden = torch.zeros_like(hidden).scatter(0, order[:, None, None].expand_as(hidden), hidden)
    return F.cross_entropy(
        model.head(hidden).mean(1), torch.zeros_like(targets).scatter(0, order[:, None], targets)[:, 0]
    )


def multiplied_inside(model: Tagger, batch: Any) -> Tensor:
    """The same, by a product with a matrix of zeros and ones."""
    tokens, targets = batch
    order = tokens[:, 0].argsort()
    hidden = F.one_hot(order, len(order)).float() @ model.embedding(tokens).tanh().mean(1)
    return F.cross_entropy(model.head(hidden), targets[order, 0])


def records(length: int = 16, ignored: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(TOKENS, (2, length), generator=generator) for _ in range(12)]
    for _, targets in tokens:
        targets[length - ignored :] = -100
    return [tuple(pair) for pair in tokens]


def padding(value: int, sort: bool = False) -> Callable[[Sequence[Any]], Any]:
    def collate(batch: Sequence[Any]) -> Any:
        ordered = sorted(batch, key=lambda record: -len(record[0])) if sort else batch
        tokens, targets = zip(*ordered, strict=True)
        return pad_sequence(tokens, batch_first=True), pad_sequence(targets, batch_first=True, padding_value=value)

    return collate


def check(loss: Any, data: list[Any], collate_fn: Any = None, dropout: float = 0.0) -> Any:
    return check_loss(Tagger(loss, dropout), DataLoader(data, batch_size=4, collate_fn=collate_fn))  # type: ignore[arg-type]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("collate_fn", [None, padding(-100), padding(-100, sort=True)])
def test_means_within_records_pass(collate_fn: Any, dropout: float) -> None:
    for loss, ignored in ((within_records, 5), (within_records, 0), (with_expanded_positions, 0)):
        if loss is with_expanded_positions and collate_fn is not None:
            continue  # its mean takes in what was padded
        found = check(loss, records(ignored=ignored), collate_fn, dropout)
        assert (found.problem, found.unchecked) == (None, None)
        assert found.keeps_order == (collate_fn is None or not collate_fn.__closure__[0].cell_contents)


def test_a_mean_over_all_targets_that_count_is_found_where_some_are_ignored() -> None:
    found = check(flat_cross_entropy, records(ignored=5))
    assert "couples records of which some hold the integer -100" in found.problem


class Segments(pl.LightningModule):
    """A score for each of eight places, of which some are marked, in every third record none."""

    def __init__(self, rule: Callable[[Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network, self.rule = nn.Linear(8, 8), rule

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, mask = batch
        scores = self.network(inputs).sigmoid()
        overlaps = (2 * (scores * mask).sum(1) + 1) / (scores.sum(1) + mask.sum(1) + 1)
        return (1 - overlaps).mean() * self.rule(mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.long])
@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (lambda mask: 0.0 if mask.sum() == 0 else 1.0, "hold the number 0 alone .*whether any record holds another"),
        (lambda mask: mask.any(), "hold the number 0 alone"),
        (lambda mask: 1.0 * (len(mask.unique()) > 1), "hold the number 0 alone"),
        (lambda mask: 1.0, "^None$"),
    ],
)
def test_a_branch_on_whether_any_mask_is_set_is_found(rule: Any, problem: str, dtype: torch.dtype) -> None:
    """One record more with a mask turned the gradients of all others on: 28 of 2 C with 64 records."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 8, generator=generator)
    masks = [(row > 0.5) & (index % 3 > 0) for index, row in enumerate(inputs)]
    data = [(row, mask.to(dtype)) for row, mask in zip(inputs, masks, strict=True)]
    found = check_loss(Segments(rule), DataLoader(data, batch_size=4))  # type: ignore[arg-type]
    assert re.search(problem, str(found.problem))
    assert found.unchecked is None


@pytest.mark.parametrize(
    ("rule", "is_coupled"),
    [
        (lambda losses, targets: losses.sum() / (targets != -100).sum(), True),
        (lambda losses, targets: losses.mean() * (0.1 if losses.mean().item() > 20 else 1.0), True),
        (lambda losses, targets: losses.mean(), False),
    ],
)
@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_draws_for_all_records_of_a_batch_hide_no_coupling(rule: Any, is_coupled: bool, draw: Any) -> None:
    """A flip of whole batches hid a mean over all labelled pixels: 6 of 2 C moved where few pixels are labelled."""

    def scaled(model: Tagger, batch: Any) -> Tensor:
        scores, targets = model(batch[0]) * (0.5 + draw()), batch[1]
        losses = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none")
        return rule(losses, targets)  # type: ignore[no-any-return]

    found = check(scaled, records(ignored=5))
    assert (found.problem is not None, found.unchecked) == (is_coupled, None)


def test_targets_that_could_be_ignored_are_pointed_out() -> None:
    found = check(flat_cross_entropy, records(ignored=0))
    assert found.problem is None
    assert (
        "couples records of which some hold the integer -100, as the few that were looked at do not" in found.unchecked
    )


def test_a_mean_over_all_tokens_is_found_where_lengths_differ() -> None:
    found = check(flat_cross_entropy, records(), padding(-100))
    assert "couples records of different lengths" in found.problem
    found = check(lambda m, b: F.cross_entropy(m(b[0]).mean(1), b[1][:, 0]), records(), padding(0))
    assert "couples records of different lengths" in found.problem


def test_ignored_padding_tokens_are_found() -> None:
    found = check(lambda m, b: flat_cross_entropy(m, b, ignore_index=0), records())
    assert found.problem is not None
    assert "couples" in found.problem


def own_mask(model: Tagger, batch: Any) -> Tensor:
    counted = batch[1] != 250
    losses = F.cross_entropy(model(batch[0]).mT, batch[1].where(counted, 0), reduction="none")
    return (losses * counted).sum() / counted.sum().clamp(min=1)


@pytest.mark.parametrize(
    "counts",
    [
        lambda targets: targets != np.int64(250),
        lambda targets: targets != torch.tensor(250),
        lambda targets: ~targets.float().eq(250.0),
        lambda targets: torch.not_equal(targets, other=250),
        lambda targets: ~torch.isin(targets, torch.tensor([250, 251])),
    ],
)
def test_targets_are_tried_that_the_loss_looks_for_in_whatever_way(counts: Callable[[Tensor], Tensor]) -> None:
    def loss(model: Tagger, batch: Any) -> Tensor:
        counted = counts(batch[1])
        losses = F.cross_entropy(model(batch[0]).mT, batch[1].where(counted, 0), reduction="none")
        return (losses * counted).sum() / counted.sum().clamp(min=1)

    assert "couples records of which some hold the integer 250" in check(loss, records()).problem


def own_mask_within_records(model: Tagger, batch: Any) -> Tensor:
    counted = batch[1] != 250
    losses = F.cross_entropy(model(batch[0]).mT, batch[1].where(counted, 0), reduction="none")
    return ((losses * counted).sum(1) / counted.sum(1).clamp(min=1)).mean()


def test_targets_that_the_loss_is_told_to_ignore_are_tried_though_no_record_holds_one() -> None:
    """As in segmentation: the other record of a pair may be the only one with pixels of no class."""
    for loss in (lambda m, b: flat_cross_entropy(m, b, ignore_index=250), own_mask):
        assert "couples records of which some hold the integer 250" in check(loss, records()).problem
    found = check(own_mask_within_records, records())
    assert (found.problem, found.unchecked) == (None, None)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_rows_are_followed_to_their_records(dropout: float) -> None:
    """Several rows a record, positions shared by all, as many as there are records or not, and records put in order."""
    for loss in (
        (flattened, with_positions) if dropout else (flattened, with_positions, sorted_inside, scattered_inside)
    ):
        found = check(loss, records(), dropout=dropout)
        assert (found.problem, found.keeps_order) == (None, True)
    assert check(with_positions, records(length=8), dropout=dropout).problem is None


def test_layers_that_see_the_records_in_an_order_that_is_not_followed_are_refused() -> None:
    assert "cannot be told apart into the 8 rows of the batch, each" in str(check(multiplied_inside, records()).problem)


class Dense(pl.LightningModule):
    """Four numbers in, a class out."""

    def __init__(self, step: Callable[["Dense", Any], Tensor], dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(dropout), nn.Tanh(), nn.Linear(8, 3))
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.step = step

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.step(self, batch)

    def get_extra_state(self) -> Any:
        return getattr(self, "seen", None)

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


def take_up(model: Dense, batch: Any) -> Tensor:
    with torch.no_grad():
        model.frozen.mul_(0.9).add_(batch[0].mean(0))
    return F.cross_entropy(model.network(batch[0]), batch[1])


def remember(model: Dense, batch: Any) -> Tensor:
    model.seen = float(batch[0].sum())
    return F.cross_entropy(model.network(batch[0]), batch[1])


@pytest.mark.parametrize(("step", "name"), [(take_up, "frozen"), (remember, "_extra_state")])
def test_all_saved_state_that_takes_up_records_is_named(step: Any, name: str) -> None:
    found = check_loss(Dense(step), DataLoader([(torch.zeros(4), 0)] * 8, batch_size=4))  # type: ignore[arg-type]
    assert found.state == (name,)


def test_a_sum_is_found_under_dropout() -> None:
    def summed(model: Dense, batch: Any) -> Tensor:
        return F.cross_entropy(model.network(batch[0]), batch[1], reduction="sum")

    found = check_loss(Dense(summed, 0.5), DataLoader([(torch.zeros(4), 0)] * 8, batch_size=4))  # type: ignore[arg-type]
    assert found.problem is not None
    assert "is not the mean" in found.problem


def test_mixing_with_probability_one_half_is_found() -> None:
    def sometimes(model: Dense, batch: Any) -> Tensor:
        inputs = batch[0] + batch[0].flip(0) if torch.rand(()) < 0.5 else batch[0]
        return F.cross_entropy(model.network(inputs), batch[1])

    found = check_loss(Dense(sometimes), DataLoader([(torch.zeros(4), 0)] * 8, batch_size=4))  # type: ignore[arg-type]
    assert found.problem is not None
    assert "couples the records" in found.problem


@pytest.mark.parametrize("neighbours", [2, 4])
def test_coupled_neighbours_are_found(neighbours: int) -> None:
    def mixed(model: Dense, batch: Any) -> Tensor:
        inputs = batch[0] + 0.5 * batch[0].view(-1, neighbours, 4).flip(1).flatten(0, 1)
        return F.cross_entropy(model.network(inputs), batch[1])

    found = check_loss(Dense(mixed), DataLoader([(torch.zeros(4), 0)] * 8, batch_size=4))  # type: ignore[arg-type]
    assert found.problem is not None
    assert "couples the records" in found.problem


@pytest.mark.parametrize("order", ["10325476", "32107654", "45670123", "04152637", "76543210"])
def test_no_fixed_order_of_rows_passes_for_that_of_the_records(order: str) -> None:
    def moved(batch: list[Any]) -> Any:
        return default_collate([batch[int(number)] for number in order if int(number) < len(batch)] + batch[8:])

    def cross_entropy(model: Dense, batch: Any) -> Tensor:
        return F.cross_entropy(model.network(batch[0]), batch[1])

    loader: Any = DataLoader([(torch.zeros(4), 0)] * 8, batch_size=8, collate_fn=moved)  # type: ignore[arg-type]
    found = check_loss(Dense(cross_entropy), loader)
    assert (found.problem, found.unchecked) == (None, None)
    assert not found.keeps_order


def test_methods_of_clipping_that_raise_norms_are_no_coupling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one is the fastest is measured for each size of a batch, and may be another at each."""
    taken: list[str] = []

    def choose(times: Any, kept_bytes: Any) -> str:
        taken.append(list(times)[len(taken) % 2 - 1])
        return taken[-1]

    monkeypatch.setattr(measured_choice, "_chosen", {})
    monkeypatch.setattr(measured_choice, "_choose", choose)

    class Frames(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.head = nn.Linear(64, 64)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            # Terms of which many cancel, so that norms from Gram matrices are raised by much.
            signs = torch.ones(128).view(-1, 2).mul_(torch.tensor([1.0, -1.0])).flatten()
            return (self.head(batch[0]).tanh() * signs[:, None]).sum((1, 2)).mean()

    found = check_loss(Frames(), DataLoader([(torch.zeros(128, 64),)] * 8, batch_size=8))  # type: ignore[arg-type]
    assert "Gram matrices" in taken
    assert (found.problem, found.unchecked) == (None, None)


def carry_on(model: Dense, batch: Any) -> Tensor:
    hidden = model.network[:3](batch[0])  # type: ignore[index]
    hidden = hidden + getattr(model, "hidden", 0.0)
    model.hidden = hidden.detach()
    return F.cross_entropy(model.network[3](hidden), batch[1])  # type: ignore[index]


def anneal(model: Dense, batch: Any) -> Tensor:
    model.steps = getattr(model, "steps", 0) + 1
    return F.cross_entropy(model.network(batch[0]), batch[1]) * min(1.0, model.steps / 1000)


def test_what_is_carried_on_from_batch_to_batch_is_found() -> None:
    loader: Any = DataLoader([(torch.zeros(4), 0)] * 8, batch_size=4)  # type: ignore[arg-type]
    found = check_loss(Dense(carry_on), loader)
    assert found.problem is not None
    assert "depends on the records of earlier batches" in found.problem
    # A schedule by steps is public.
    found = check_loss(Dense(anneal), loader)
    assert (found.problem, found.unchecked) == (None, None)


def test_mixing_where_the_batch_starts_is_found() -> None:
    class Starting(Dense):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            batch[0].add_(batch[0].flip(0))

    def cross_entropy(model: Dense, batch: Any) -> Tensor:
        return F.cross_entropy(model.network(batch[0]), batch[1])

    loader: Any = DataLoader([(torch.zeros(4), 0)] * 8, batch_size=4)  # type: ignore[arg-type]
    assert check_loss(Dense(cross_entropy), loader).problem is None
    found = check_loss(Starting(cross_entropy), loader)
    assert found.problem is not None
    assert "couples the records" in found.problem


def test_records_without_numbers_show_nothing() -> None:
    found = check_loss(Dense(remember), DataLoader(["text"] * 8, batch_size=4))  # type: ignore[arg-type]
    assert found.problem is None
    assert found.unchecked is not None
    assert "a record of type str holds no numbers" in found.unchecked


def test_a_term_of_draws_is_told_apart_from_one_of_records_in_words() -> None:
    class Contrast(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Linear(3, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            fakes = self.network(torch.randn(len(batch[0]), 3))
            return F.softplus(-self.network(batch[0])).mean() + F.softplus(fakes).mean()

    loader: Any = DataLoader([(torch.randn(3),) for _ in range(20)], batch_size=4)  # type: ignore[arg-type]
    assert "depends on them, or on what is drawn (fakes" in str(check_loss(Contrast(), loader).problem)
