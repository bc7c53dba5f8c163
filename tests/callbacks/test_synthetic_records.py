"""What synthetic records take from real ones, and what they show of a loss."""

import random
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from slow_cases import mostly_slow, slow
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from lightning_pac.callbacks.srpp_sgd.loss_check.check import check_loss
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import SyntheticRecords

CLASSES, FRAMES = 6, 20


class Speech(pl.LightningModule):
    """Frames in, a text without alignment out."""

    def __init__(self, mean_over_targets: bool = False, given_lengths: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Linear(4, CLASSES)
        self.mean_over_targets, self.given_lengths = mean_over_targets, given_lengths

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        frames, targets, frame_lengths, target_lengths = batch
        log_probs = self.network(frames).log_softmax(-1).transpose(0, 1)
        if not self.given_lengths:
            frame_lengths = torch.full((len(frames),), frames.shape[1])
        losses = F.ctc_loss(log_probs, targets, frame_lengths, target_lengths, reduction="none", zero_infinity=True)
        return losses.sum() / target_lengths.sum() if self.mean_over_targets else losses.mean()


def texts(varied: bool) -> list[Any]:
    """Frames, targets (padded, or each in its length), and the lengths of both."""
    generator = torch.Generator().manual_seed(0)
    records = []
    for index in range(40):
        length, frames = 2 + index % 4, FRAMES - (index % 5 if varied else 0)
        targets = torch.randint(1, CLASSES, (length if varied else 5,), generator=generator)
        records.append((torch.randn(frames, 4, generator=generator), targets, frames, length))
    return records


def pad(records: list[Any]) -> Any:
    frames, targets, frame_lengths, target_lengths = zip(*records, strict=True)
    lengths = torch.tensor(frame_lengths), torch.tensor(target_lengths)
    return pad_sequence(frames, True), pad_sequence(targets, True), *lengths


def concatenate(records: list[Any]) -> Any:
    frames, _, *lengths = pad(records)
    return frames, torch.cat([record[1][: record[3]] for record in records]), *lengths


@pytest.mark.parametrize(
    ("varied", "collate_fn"), [(False, concatenate), (True, pad), *slow((False, pad), (True, concatenate))]
)
def test_ctc_is_checked_with_targets_and_lengths_that_exist(collate_fn: Any, varied: bool) -> None:
    loader: Any = DataLoader(texts(varied), batch_size=4, collate_fn=collate_fn)  # type: ignore[arg-type]
    found = check_loss(Speech(given_lengths=True), loader)
    assert (found.problem, found.unchecked) == (None, None)
    found = check_loss(Speech(mean_over_targets=True), loader)
    assert found.problem is not None


@pytest.mark.parametrize("width", mostly_slow(range(1, 25), 1, 4, 8, 13, 24))
@pytest.mark.parametrize("classes", [2, 3])
def test_a_class_weighted_mean_is_found_for_every_width(width: int, classes: int) -> None:
    class Weighted(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(width)
            self.network = nn.Linear(width, classes)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            weight = torch.ones(classes).index_fill(0, torch.tensor([1]), 5.0)
            return F.cross_entropy(self.network(batch[0]), batch[1], weight=weight)

    records: Any = [(torch.zeros(width), index % classes) for index in range(30)]
    found = check_loss(Weighted(), DataLoader(records, batch_size=4))
    assert found.problem is not None


def test_integers_stay_within_what_each_field_shows() -> None:
    examples = [
        (torch.tensor([3, 9 + index]), 700 + index, [5, 6], index % 2, -100 * (index == 3)) for index in range(5)
    ]
    wide = SyntheticRecords(examples, lambda records: True)
    exact = SyntheticRecords(examples, lambda records: min(record[1] for record in records) >= 700)
    for synthetic, least in ((wide, (0, 0, 0, 0, 0)), (exact, (3, 700, 5, 0, 0))):
        fields = zip(*(record for draw in range(20) for record in synthetic.draw(draw)), strict=True)
        for field, low, high in zip(fields, least, (13, 704, 6, 1, 1), strict=True):
            values = torch.tensor([torch.as_tensor(leaf).tolist() for leaf in field])
            assert low <= int(values.min()) <= int(values.max()) <= high


@pytest.mark.parametrize("labels", [[0, 1], [4, 5, 6], [False, True]])
def test_groups_that_take_each_others_place_hold_no_class_in_common(labels: list[int]) -> None:
    examples = [(torch.zeros(3), label) for label in labels]
    synthetic = SyntheticRecords(examples, lambda records: True)
    seen = set()
    for draw in range(40):
        groups = [record[1] for record in synthetic.draw(draw)]
        assert not set(groups[:8]) & set(groups[8:])
        seen.update(groups)
    assert seen == set(range(max(labels) + 1))


def test_what_is_said_of_a_failure_holds_nothing_of_a_record() -> None:
    class Fails(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Linear(3, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            raise KeyError(batch)

    said = {check_loss(Fails(), DataLoader([(torch.zeros(3), name)] * 5)).unchecked for name in ("Ann", "Bob")}  # type: ignore[arg-type]
    assert len(said) == 1
    assert "KeyError in training_step" in str(said)


class Picture:
    """A part of a record that is no number, as of an imaging library."""

    def __init__(self, values: Any) -> None:
        self.values = values


def centred(records: list[Any]) -> Any:
    inputs, labels = as_tensors(records)
    return inputs - inputs.mean(0), labels


def as_tensors(records: list[Any]) -> Any:
    return torch.stack([picture.values for picture, _ in records]), torch.tensor([label for _, label in records])


def as_words(records: list[Any]) -> Any:
    counts = torch.tensor([[float(text.count(letter)) for letter in "abcd"] for text, _ in records])
    return counts - counts.mean(0), torch.tensor([label for _, label in records])


class OfFour(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layer(batch[0]), batch[1])


@pytest.mark.parametrize(("collate_fn", "is_coupled"), [(centred, True), (as_tensors, False), (as_words, True)])
def test_what_a_collate_function_makes_of_parts_without_numbers_is_seen(collate_fn: Any, is_coupled: bool) -> None:
    drawn = random.Random(0)
    records = [(Picture(torch.randn(4)), index % 3) for index in range(40)]
    texts = [("".join(drawn.choice("abcd") for _ in range(12)), index % 3) for index in range(40)]
    data: Any = texts if collate_fn is as_words else records
    found = check_loss(OfFour(), DataLoader(data, batch_size=8, collate_fn=collate_fn))
    assert (found.problem is not None) is is_coupled
