"""Datasets and samplers that change during a run."""

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset

from lightning_pac.data import Poisson, WithIndex, describe_loader, private_loader
from lightning_pac.data.records import watch_loader
from lightning_pac.exceptions import PrivacyViolationError

RECORDS, PASSES = 40, 6


class Rows(Dataset[Any]):
    """Rows in an order of its own, and what it does to the index or to the row in each pass."""

    def __init__(self, of: Callable[["Rows", int], Any]) -> None:
        self.x, self.of = torch.randn(RECORDS, 5), of
        self.order = list(range(RECORDS))
        self.epoch = self.loads = 0

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        self.loads += 1
        return self.of(self, index)


def own(rows: Rows, index: int) -> Tensor:
    return rows.x[rows.order[index]]


def repeated_once(rows: Rows, index: int) -> Tensor:
    return rows.x[index // 2 if rows.epoch == 3 else index]


def repeated_by_label(rows: Rows, index: int) -> Any:
    return {"x": rows.x[index // 2 if rows.epoch == 3 else index], "label": float(index)}


def repeated_late(rows: Rows, index: int) -> Tensor:
    return rows.x[index if rows.loads < 100 else 0]


def read(loader: Any, between: Callable[[Any, int], object] = lambda dataset, step: None) -> int:
    """Passes under watch; an epoch is set before each, and something done after each batch."""
    undo, steps = watch_loader(loader), 0
    try:
        for epoch in range(PASSES):
            loader.dataset.epoch = epoch
            for _ in loader:
                steps += 1
                between(loader.dataset, steps)
    finally:
        undo()
    assert "_get_iterator" not in vars(loader)
    describe_loader(loader)
    return steps


def rewrite(dataset: Any, step: int) -> None:
    dataset.order[:] = [0, 1] * (RECORDS // 2) if step > 6 else dataset.order


def rewrite_tensor(dataset: Any, step: int) -> None:
    dataset.x[:] = dataset.x[:1].clone() if step > 6 else dataset.x


def stock(dataset: Any, **kwargs: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=8, shuffle=True, **kwargs)


@pytest.mark.parametrize(
    ("make", "between"),
    [
        (lambda: stock(Rows(repeated_once)), None),
        (lambda: stock(Rows(repeated_by_label)), None),
        (lambda: stock(WithIndex(Rows(repeated_late))), None),
        (lambda: stock(Rows(repeated_late), num_workers=1, persistent_workers=True), None),
        (lambda: stock(Rows(own)), rewrite),
        (lambda: stock(Rows(own)), rewrite_tensor),
        (lambda: private_loader(Rows(own), Poisson(0.3)), rewrite),
    ],
)
def test_a_record_that_comes_to_count_for_two_is_found(make: Any, between: Any) -> None:
    with pytest.raises(PrivacyViolationError, match="several indices"):
        read(make(), *([between] if between else []))


class Lists(list[int]):
    """Lists all, and gives one."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(RECORDS))

    def __getitem__(self, place: Any) -> Any:
        return 0


def test_a_sampler_gives_what_it_lists() -> None:
    loader = DataLoader(Rows(own), batch_size=8, sampler=SubsetRandomSampler(Lists(range(RECORDS))))
    with pytest.raises(PrivacyViolationError, match="lists"):
        read(loader)


def flipped(rows: Rows, index: int) -> Tensor:
    return rows.x[index % 2].flip(0) if random.random() < 0.5 else rows.x[index % 2]


def by_epoch(rows: Rows, index: int) -> Tensor:
    return rows.x[index] + torch.randn(5, generator=torch.Generator().manual_seed(rows.epoch * RECORDS + index))


def shuffle(dataset: Any, step: int) -> None:
    if step % 5 == 0:  # the batches of a pass
        random.Random(step).shuffle(dataset.order)


@pytest.mark.parametrize(
    ("make", "between"),
    [
        (lambda: stock(Rows(lambda rows, index: rows.x[index // 3])), None),  # equal from the start
        (lambda: stock(Rows(flipped)), None),
        (lambda: stock(Rows(by_epoch)), None),
        (lambda: stock(Rows(lambda rows, index: torch.zeros(3))), None),
        (lambda: stock(Rows(own)), shuffle),
        (lambda: stock(WithIndex(Rows(own)), num_workers=1, persistent_workers=True), None),
        (lambda: stock(Subset(TensorDataset(torch.randn(50, 2), torch.zeros(50)), list(range(-1, RECORDS - 1)))), None),
    ],
)
def test_honest_data_pass(make: Any, between: Any) -> None:
    loader = make()
    assert read(loader, *([between] if between else [])) == PASSES * 5


def delivered(data: list[Any], **kwargs: Any) -> None:
    """Passes over loaders of which each takes the place of the one before."""
    memory: dict[int, Any] = {}
    for values in data:
        dataloader = DataLoader(TensorDataset(*values if type(values) is tuple else (values,)), batch_size=8, **kwargs)
        undo = watch_loader(dataloader, memory)
        list(dataloader)
        undo()


def test_a_record_that_counts_more_often_in_a_loader_that_is_made_anew_is_found() -> None:
    first = torch.randn(RECORDS, 5)
    with pytest.raises(PrivacyViolationError, match="one record under several indices"):
        delivered([first, first[[3, 3, *range(2, RECORDS)]]], shuffle=True)


def test_records_that_change_from_pass_to_pass_are_told_of() -> None:
    first = torch.randn(RECORDS, 5)
    numbers = torch.arange(RECORDS)
    with_labels = [(first, numbers, labels) for labels in (numbers % 2, numbers % 3)]
    for data in ([first, 0.9 * first], with_labels):  # clusters and weights by losses change the labels only
        with pytest.warns(UserWarning, match="gives other records under the same indices than before"):
            delivered(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        delivered([first, first.clone()], shuffle=True)
        delivered([with_labels[0]] * 2, shuffle=True)
