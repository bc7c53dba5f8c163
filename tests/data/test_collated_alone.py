"""Collate functions that remember the records of earlier batches."""

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from lightning_pac.data import check_records_alone
from lightning_pac.data.records import check_collated_alone, fresh_collate, watch_loader

CITIES = ("rome", "oslo", "bern", "kyiv", "lima")
COLLATE = Callable[[list[Any]], Any]


def records(num_cities: int) -> list[Any]:
    drawn = random.Random(num_cities)
    return [(torch.rand(3), CITIES[drawn.randrange(num_cities)], number % 2) for number in range(64)]


def batch(rows: list[Any], code: Callable[[str], int]) -> Any:
    inputs, cities, labels = zip(*rows, strict=True)
    return torch.stack(inputs), torch.tensor([code(city) for city in cities]), torch.tensor(labels)


class Coded:
    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def __call__(self, rows: list[Any]) -> Any:
        return batch(rows, lambda city: self.codes.setdefault(city, len(self.codes)))


def in_closure() -> COLLATE:
    codes: Any = defaultdict(lambda: len(codes))
    return lambda rows: batch(rows, lambda city: codes[city])


SEEN: dict[str, int] = {}


def in_a_global(rows: list[Any]) -> Any:
    return batch(rows, lambda city: SEEN.setdefault(city, len(SEEN)))


class Cached:
    """Codes of a public list, which are looked up once."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def __call__(self, rows: list[Any]) -> Any:
        return batch(rows, lambda city: self.codes.setdefault(city, CITIES.index(city)))


class Masked:
    """Leaves out letters, of which names have more or fewer, by a generator of its own."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng()

    def __call__(self, rows: list[Any]) -> Any:
        return batch(rows, lambda city: int(self.generator.integers(9, size=1 + CITIES.index(city)).sum()))


def drawn(rows: list[Any]) -> Any:
    return batch(rows, lambda city: random.randrange(9) if city > "m" else 0)


class Warming:
    """Grows with the number of batches, whatever they hold."""

    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, rows: list[Any]) -> Any:
        self.batches += 1
        return batch(rows, lambda city: min(self.batches, 100))


@pytest.mark.parametrize("num_cities", [2, 3, 5])
@pytest.mark.parametrize("make", [Coded, in_closure, lambda: in_a_global])
def test_codes_that_names_get_as_they_come_are_refused(make: Callable[[], COLLATE], num_cities: int) -> None:
    loader = DataLoader(records(num_cities), batch_size=8, collate_fn=make())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="collate_fn makes another batch of the same records after"):
        check_collated_alone(loader)
    assert not SEEN


class WithCodes(Dataset[Any]):
    """Holds what a collate function looks up."""

    def __init__(self, cities: int) -> None:
        self.large, self.rows, self.codes = torch.zeros(2**17), records(cities), dict[str, int]()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]

    def collate(self, rows: list[Any]) -> Any:
        return batch(rows, lambda city: self.codes.setdefault(city, len(self.codes)))


class Reading:
    """A method of what holds a dataset, and much besides."""

    def __init__(self, dataset: WithCodes) -> None:
        self.dataset, self.others = dataset, [[number] for number in range(1000)] * 3

    def collate(self, rows: list[Any]) -> Any:
        return self.dataset.collate(rows)


@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize(
    "make",
    [lambda data: data.collate, lambda data: lambda rows: data.collate(rows), lambda data: Reading(data).collate],
)
@pytest.mark.parametrize("num_cities", [2, 5])
def test_codes_that_a_dataset_keeps_are_refused(
    num_cities: int, make: Callable[[WithCodes], COLLATE], is_part: bool
) -> None:
    data = WithCodes(num_cities)
    part: Any = Subset(data, range(60)) if is_part else data
    with pytest.raises(ValueError, match="collate_fn makes another batch of the same records after"):
        check_collated_alone(DataLoader(part, batch_size=8, collate_fn=make(data)))
    assert not data.codes


def test_copies_of_a_method_share_what_is_large() -> None:
    data = WithCodes(5)
    with fresh_collate(data.collate, Subset(data, range(9))) as collate:
        own: Any = collate
        assert own.__self__ is not data
        assert own.__self__.large is data.large
    with fresh_collate(Reading(data).collate, data) as collate:
        own = collate
        assert own.__self__.dataset.large is data.large


class CodedRows(Dataset[Any]):
    def __init__(self, rows: list[Any]) -> None:
        self.rows, self.codes = rows, dict[str, int]()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        inputs, city, label = self.rows[index]
        return inputs, self.codes.setdefault(city, len(self.codes)), label


@pytest.mark.parametrize("seed", range(5))
def test_two_codes_that_a_dataset_gives_as_names_come_are_refused(seed: int) -> None:
    """The first record of all has the other code where one of the other name came before it."""
    names = random.Random(seed)
    rows = [(torch.rand(3), names.choice(CITIES[:2]), 0) for _ in range(64)]
    with pytest.raises(ValueError, match="CodedRows gives a record otherwise after another one"):
        check_records_alone(CodedRows(rows))


@pytest.mark.parametrize("make", [Cached, Masked, Warming, lambda: drawn])
def test_collate_functions_that_remember_no_record_pass(make: Callable[[], COLLATE]) -> None:
    collate = make()
    loader = DataLoader(records(5), batch_size=8, collate_fn=collate)  # type: ignore[arg-type]
    check_collated_alone(loader)
    undo = watch_loader(loader)
    assert len(list(loader)) == 8
    undo()
    assert getattr(collate, "batches", 8) == 8  # and was called for these alone
