"""Datasets whose copies lack a table that they open anew, or that cannot or will not be copied."""

import threading
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from lightning_pac.data import check_records_alone

ROWS = 40


class Opening(Dataset[Any]):
    """Opens its table with the first record, and leaves it out of what workers get, as is usual with HDF5."""

    def __init__(self, partner: int = 0) -> None:
        self.values, self.partner = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0)), partner
        self.table: Any = None

    def __len__(self) -> int:
        return ROWS

    def rows(self) -> Any:
        if self.__dict__.get("table") is None:
            self.table = {"values": [2 * row for row in self.values]}
        return self.table["values"]

    def __getitem__(self, index: int) -> Any:
        return self.rows()[index] + self.partner * self.rows()[(index + 7) % ROWS]

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]

    def __getstate__(self) -> Any:
        return {**self.__dict__, "table": None}


class Dropping(Opening):
    def __getstate__(self) -> Any:
        return {key: part for key, part in self.__dict__.items() if key != "table"}


class OfThread(Opening):
    """Opens its table once in each thread."""

    def __init__(self, partner: int = 0) -> None:
        super().__init__(partner)
        self.own = threading.local()

    def rows(self) -> Any:
        if not hasattr(self.own, "table"):
            self.own.table = self.values
        return self.own.table


class Refusing(Opening):
    def __getstate__(self) -> Any:
        raise TypeError("not to be pickled")


class Alone(Opening):
    """Is its own copy."""

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class Holding(Opening):
    """Reads from an object that is its own copy."""

    def __init__(self, partner: int = 0) -> None:
        super().__init__(partner)
        self.values = Alone(partner).values
        self.store = Alone(partner)

    def rows(self) -> Any:
        return self.store.values


@pytest.mark.parametrize("kind", [Opening, Dropping, OfThread, Refusing, Alone, Holding])
@pytest.mark.parametrize("is_open", [False, True])
def test_datasets_are_taken_and_left_as_they_are(kind: type[Opening], is_open: bool) -> None:
    dataset, expected = kind(), kind()
    if is_open:
        _ = dataset[0]
    check_records_alone(dataset)
    for index in range(ROWS):
        assert torch.equal(dataset[index], expected[index])


@pytest.mark.parametrize("kind", [Opening, Dropping, OfThread])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_partner_in_such_a_table_is_found(kind: type[Opening], is_open: bool) -> None:
    dataset = kind(partner=1)
    if is_open:
        _ = dataset[0]
    with pytest.raises(ValueError, match="makes a record of several rows of"):
        check_records_alone(dataset)
