"""Parts of records that are no numbers, which a batch makes some of: rare ones are tried, and unknown ones named."""

import datetime
import enum
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from lightning_pac import SRPPSGD, TwoWorldScenario
from lightning_pac.callbacks.srpp_sgd.loss_check.check import LossCheck, check_loss
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import shown_records

NUMBERS = {"genuine": 0, "fraud": 1}
RARE = 397  # of 400 records, none of the 32 that are looked at first


class Status(enum.Enum):
    GENUINE = 0
    FRAUD = 1


class Classifier(pl.LightningModule):
    """A weighted mean of the records' losses, or one of each record's own."""

    def __init__(self, is_coupled: bool, classes: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Linear(3, classes)
        self.is_coupled = is_coupled

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, targets = batch
        weight = torch.ones(self.network.out_features).index_fill(
            0, torch.tensor([-1 % self.network.out_features]), 9.0
        )
        if self.is_coupled:
            return F.cross_entropy(self.network(inputs), targets, weight=weight)
        return (F.cross_entropy(self.network(inputs), targets, reduction="none") * weight[targets]).mean()


def check(is_coupled: bool, names: list[Any], number_of: Callable[[Any], int], classes: int = 2) -> LossCheck:
    def collate(records: list[Any]) -> Any:
        inputs = torch.stack([record["inputs"] for record in records])
        return inputs, torch.tensor([number_of(record["status"]) for record in records])

    records: Any = [{"inputs": torch.zeros(3), "status": name} for name in names]
    return check_loss(Classifier(is_coupled, classes), DataLoader(records, batch_size=8, collate_fn=collate))


def letters(name: str) -> int:
    return min(len(name) % 7, 1)  # genuine: 0, fraud: 1


RARE_PARTS: dict[str, tuple[Any, Any, Callable[[Any], int]]] = {
    "a text": ("genuine", "fraud", letters),
    "None": (None, "2026-01-01", lambda name: int(name is not None)),
    "a date": (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2), lambda date: date.day - 1),
    "a tuple": (("genuine", "eu"), ("fraud", "us"), lambda name: letters(name[0])),
    "a number": (None, 0.5, lambda name: int(isinstance(name, float))),
    "numbers": (None, torch.ones(2), lambda name: int(name is not None)),
}


@pytest.mark.parametrize("is_coupled", [False, True])
@pytest.mark.parametrize("name", list(RARE_PARTS))
def test_what_one_record_in_four_hundred_holds_is_tried(name: str, is_coupled: bool) -> None:
    usual, rare, number_of = RARE_PARTS[name]
    found = check(is_coupled, [rare if index == RARE else usual for index in range(400)], number_of)
    assert (found.problem is not None) == is_coupled
    assert (found.unchecked, found.unseen) == (None, ())


@pytest.mark.parametrize("is_coupled", [False, True])
def test_a_rare_integer_class_is_tried(is_coupled: bool) -> None:
    found = check(is_coupled, [3 if index == RARE else index % 2 for index in range(400)], int, classes=4)
    assert (found.problem is not None) == is_coupled


KNOWN_TO_THE_CODE: dict[str, tuple[Any, Callable[[Any], int]]] = {
    "compared": ("genuine", lambda name: int(name == "fraud")),
    "in a list": ("genuine", lambda name: int(name in ["fraud", "stolen"])),
    "in a table": ("genuine", lambda name: NUMBERS[name]),
    "a member": (Status.GENUINE, lambda status: int(status.value)),
    "None": (None, lambda date: int(date is not None)),
}


@pytest.mark.parametrize("is_coupled", [False, True])
@pytest.mark.parametrize("name", list(KNOWN_TO_THE_CODE))
def test_what_no_record_holds_is_tried_where_the_code_knows_it(name: str, is_coupled: bool) -> None:
    usual, number_of = KNOWN_TO_THE_CODE[name]
    found = check(is_coupled, [usual] * 50, number_of)
    assert (found.problem is not None) == is_coupled
    assert found.unchecked is None


@pytest.mark.parametrize("where", ["transfer", "step"])
def test_texts_are_tried_wherever_they_become_numbers(where: str) -> None:
    class Mapping(Classifier):
        def numbered(self, batch: Any) -> Any:
            return batch["inputs"], torch.tensor([letters(name) for name in batch["status"]])

        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return self.numbered(batch) if where == "transfer" else batch

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(self.numbered(batch) if where == "step" else batch, batch_idx)

    records: Any = [{"inputs": torch.zeros(3), "status": "fraud" if i == RARE else "genuine"} for i in range(400)]
    assert check_loss(Mapping(True), DataLoader(records, batch_size=8)).problem is not None
    assert check_loss(Mapping(False), DataLoader(records, batch_size=8)).problem is None


def test_a_part_of_which_no_other_value_is_known_is_named_if_it_is_used() -> None:
    assert check(True, ["genuine"] * 50, letters).unseen == ("record['status']",)
    assert check(False, ["genuine", "fraud"] * 50, letters).unseen == ()
    assert check(False, ["genuine"] * 50, lambda _: 0).unseen == ()
    records: Any = [(torch.zeros(3), index % 2, "of one source") for index in range(50)]
    collate = lambda records: torch.utils.data.default_collate(records)[:2]  # noqa: E731
    assert check_loss(Classifier(False), DataLoader(records, batch_size=8, collate_fn=collate)).unseen == ()


class Slow(Dataset[Any]):
    """Loads a hundred records in a second."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return torch.zeros(3), self.names[index]


def test_a_part_is_named_if_not_all_records_are_seen_in_time() -> None:
    names = [("genuine", "fraud")[index % 2] for index in range(10_000)]

    def collate(records: list[Any]) -> Any:
        return torch.stack([inputs for inputs, _ in records]), torch.tensor([letters(name) for _, name in records])

    start = time.perf_counter()
    records, all_seen = shown_records(Slow(names))
    assert (len(records), all_seen, time.perf_counter() - start < 3) == (32, False, True)
    assert check_loss(Classifier(False), DataLoader(Slow(names), batch_size=8, collate_fn=collate)).unseen == (
        "record[1]",
    )


def test_many_values_of_a_part_are_left_as_records_hold_them() -> None:
    records = [(torch.zeros(3), f"caption {index}", index % 2) for index in range(400)]
    assert shown_records(records) == (shown_records(records, others=False)[0], True)


@pytest.mark.parametrize("is_coupled", [False, True])
def test_parts_that_do_not_go_together_are_tried_as_records_hold_them(is_coupled: bool) -> None:
    def collate(records: list[Any]) -> Any:
        if any((shop == "online") != (address is None) for _, shop, address in records):
            raise ValueError("Only shops that are not online have an address.")
        return torch.stack([record[0] for record in records]), torch.tensor([int(a is None) for *_, a in records])

    records: Any = [
        (torch.zeros(3), *(("online", None) if index == RARE else ("here", "Main Street"))) for index in range(400)
    ]
    found = check_loss(Classifier(is_coupled), DataLoader(records, batch_size=8, collate_fn=collate))
    assert (found.problem is not None) == is_coupled
    assert found.unchecked is None


def test_the_warning_names_the_part_and_quotes_no_value(tmp_path: Path) -> None:
    class Trained(Classifier):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def collate(records: list[Any]) -> Any:
        return torch.stack([record[0] for record in records]), torch.tensor([letters(name) for _, name in records])

    records: Any = [(torch.randn(3), "genuine") for _ in range(16)]
    private = SRPPSGD(TwoWorldScenario(num_differing=1), renyi_order=4, noise_multiplier=1.0)
    with pytest.warns(UserWarning, match=r"record\[1\], of which other records may hold values") as caught:
        pl.Trainer(
            max_steps=1, callbacks=[private], logger=False, default_root_dir=tmp_path, accelerator="cpu",
            enable_progress_bar=False, enable_model_summary=False,
        ).fit(Trained(False), DataLoader(records, batch_size=8, collate_fn=collate))  # fmt: skip
    assert not any("genuine" in str(warning.message) for warning in caught)
    card = next(tmp_path.rglob("privacy_card.md")).read_text()
    assert "record[1]" not in card
