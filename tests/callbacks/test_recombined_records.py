"""Losses of records whose values cannot be made up: times, codes with gaps, distributions, texts, pictures, objects."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, default_collate

from lightning_pac.callbacks.srpp_sgd.loss_check.check import LossCheck, check_loss

GENERATOR = np.random.default_rng(0)
INPUTS = torch.as_tensor(GENERATOR.normal(size=(60, 6)), dtype=torch.float32)
LABELS = (INPUTS[:, 0] > 0).long() + (INPUTS[:, 1] > 0.5)
TIMES = torch.as_tensor(GENERATOR.integers(1_600_000_000, 1_630_000_000, size=60))
WEIGHTS = torch.tensor([1.0, 1.0, 30.0])
YEAR = 365 * 86400


class Model(pl.LightningModule):
    def __init__(self, step: Callable[["Model", Any], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.step = nn.Linear(6, 3), step

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.step(self, batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.0)


def found(step: Callable[[Model, Any], Tensor], records: Any, collate: Any = default_collate) -> LossCheck:
    return check_loss(Model(step), DataLoader(records, 10, collate_fn=collate))


def plain(model: Model, batch: Any) -> Tensor:
    return F.cross_entropy(model.layer(batch[0]), batch[1])


def by_age(now: Callable[[Tensor], Any]) -> Callable[[Model, Any], Tensor]:
    def step(model: Model, batch: Any) -> Tensor:
        inputs, labels, times = batch
        losses = F.cross_entropy(model.layer(inputs), labels, reduction="none")
        return (losses * torch.exp((times - now(times)).float() / YEAR)).mean()

    return step


TIMED = list(zip(INPUTS, LABELS, TIMES, strict=True))


@pytest.mark.parametrize("unit", [1, 10**9], ids=["seconds", "nanoseconds"])
def test_the_newest_of_a_batch_as_now_is_found(unit: int) -> None:
    """One record moved a sum by 9 norms: made-up integers were so small that all were of one moment."""
    records = [(inputs, label, time * unit) for inputs, label, time in TIMED]

    def step(model: Model, batch: Any) -> Tensor:
        return by_age(torch.max)(model, [*batch[:2], torch.div(batch[2], unit, rounding_mode="floor")])

    assert "couples the records" in (found(step, records).problem or "")


def test_a_centred_amount_is_found() -> None:
    amounts = torch.as_tensor(GENERATOR.integers(1_000_000, 90_000_000, size=60))

    def step(model: Model, batch: Any) -> Tensor:
        amount = batch[2].float() / 1e7
        return F.cross_entropy(
            model.layer(torch.cat([batch[0][:, 1:], (amount - amount.mean())[:, None]], 1)), batch[1]
        )

    assert found(step, list(zip(INPUTS, LABELS, amounts, strict=True))).problem is not None


def test_ages_on_a_fixed_day_pass() -> None:
    """Refused before, for gradients too small to be squared: those of records from 1970."""
    assert found(by_age(lambda _: 1_640_000_000), TIMED) == found(plain, TIMED)


CODES = {11: 0, 21: 1, 43: 2}


def of_codes(weight: Tensor | None) -> Callable[[Model, Any], Tensor]:
    def step(model: Model, batch: Any) -> Tensor:
        labels = torch.tensor([CODES[int(code)] for code in batch[1]])
        return F.cross_entropy(model.layer(batch[0]), labels, weight=weight)

    return step


def of_shares(weight: Tensor | None) -> Callable[[Model, Any], Tensor]:
    def step(model: Model, batch: Any) -> Tensor:
        losses = -torch.distributions.OneHotCategorical(logits=model.layer(batch[0])).log_prob(batch[1])
        weights = torch.ones(len(losses)) if weight is None else batch[1] @ weight
        return (weights * losses).sum() / weights.sum()

    return step


def of_rows(weight: Tensor | None) -> Callable[[Model, Any], Tensor]:
    def step(model: Model, batch: Any) -> Tensor:
        return F.cross_entropy(model.layer(batch[0][:, :-1]), batch[0][:, -1].long() - 1, weight=weight)

    return step


CODED = [(inputs, list(CODES)[label]) for inputs, label in zip(INPUTS, LABELS, strict=True)]
SHARED = list(zip(INPUTS, F.one_hot(LABELS, 3).float(), strict=True))
ROWS = [(row,) for row in torch.cat([INPUTS, LABELS[:, None] + 1.0], 1)]


@pytest.mark.parametrize(
    ("make", "records"), [(of_codes, CODED), (of_shares, SHARED), (of_rows, ROWS)], ids=["codes", "shares", "rows"]
)
def test_weights_of_classes_are_found_whatever_names_a_class(make: Any, records: Any) -> None:
    """One record moved a sum by 4 norms, and a warning said only that nothing could be shown."""
    assert found(make(WEIGHTS), records).problem is not None
    honest = found(make(None), records)
    assert (honest.problem, honest.unchecked) == (None, None)


@dataclass
class Case:
    inputs: Tensor
    label: int


def pictures_of(inputs: Tensor) -> Image.Image:
    return Image.fromarray((inputs.sigmoid() * 255).numpy().astype(np.uint8)[None])


def of_pictures(records: list[Any]) -> Any:
    pixels = [torch.from_numpy(np.asarray(picture).copy()).float().flatten() / 255 for picture, _ in records]
    return torch.stack(pixels), torch.tensor([label for _, label in records])


def of_lines(records: list[str]) -> Any:
    numbers = torch.tensor([[float(cell) for cell in line.split(";")] for line in records])
    return numbers[:, :-1], numbers[:, -1].long()


def of_cases(records: list[Case]) -> Any:
    return torch.stack([case.inputs for case in records]), torch.tensor([case.label for case in records])


LISTED = [(inputs, int(label)) for inputs, label in zip(INPUTS, LABELS, strict=True)]
KINDS = {
    "pictures": ([(pictures_of(inputs), label) for inputs, label in LISTED], of_pictures),
    "lines": ([";".join(map(str, [*inputs.tolist(), label])) for inputs, label in LISTED], of_lines),
    "objects": ([Case(inputs, label) for inputs, label in LISTED], of_cases),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_of_the_batch_is_found_in_what_holds_no_numbers(kind: str) -> None:
    """All pictures and objects of a made-up batch were one and the same, or there was no batch at all."""
    records, collate = KINDS[kind]

    def scaled(rows: list[Any]) -> Any:
        inputs, labels = collate(rows)
        return inputs / inputs.abs().amax(0), labels

    assert found(plain, records, scaled).problem is not None
    honest = found(plain, records, collate)
    assert (honest.problem, honest.unchecked, honest.unseen) == (None, None, ())


LENGTHS = torch.as_tensor(GENERATOR.integers(1, 7, size=60))
MASKS = (torch.arange(6) < LENGTHS[:, None]).float()


@pytest.mark.parametrize("per_record", [True, False])
def test_fields_that_go_together_are_tried_as_they_are(per_record: bool) -> None:
    """Neither made-up values nor those of several records pass the model's own check, so that nothing was shown."""

    def step(model: Model, batch: Any) -> Tensor:
        inputs, masks, lengths, labels = batch
        assert torch.equal(masks.sum(1).long(), lengths)
        losses = F.cross_entropy(model.layer(inputs * masks), labels, reduction="none")[:, None] * masks
        return (losses.sum(1) / lengths).mean() if per_record else losses.sum() / masks.sum()

    outcome = found(step, list(zip(INPUTS, MASKS, LENGTHS, LABELS, strict=True)))
    assert (outcome.problem is None, outcome.unchecked) == (per_record, None)


@pytest.mark.parametrize("centred", [True, False])
def test_short_numbers_are_put_together_too(centred: bool) -> None:
    def step(model: Model, batch: Any) -> Tensor:
        inputs = batch[0].float()
        inputs = inputs - inputs.mean(0) if centred else inputs
        labels = torch.tensor([CODES[int(code)] for code in batch[1]])
        return F.cross_entropy(model.layer(inputs), labels)

    outcome = found(step, [(inputs.bfloat16(), code) for inputs, code in CODED])
    assert (outcome.problem is not None, outcome.unchecked) == (centred, None)
