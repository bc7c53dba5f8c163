"""Memories that stand beside what cannot be copied, or are large, in datasets and in collate functions."""

import functools
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lightning_pac.data import check_records_alone
from lightning_pac.data.records import check_collated_alone, copy_of

CITIES = ("rome", "oslo", "bern")


def asks_itself() -> Any:
    codes: Any = defaultdict()
    codes.default_factory = codes.__len__
    return codes


class Coder:
    """Numbers names as they come."""

    def __init__(self, codes: Any, beside: Any = None) -> None:
        self.codes, self.beside = codes, beside

    def __call__(self, name: str) -> int:
        if name not in self.codes:
            self.codes[name] = len(self.codes)
        return int(self.codes[name])


CODERS: dict[str, Callable[[], Callable[[str], int]]] = {
    "asks itself": lambda: functools.partial(lambda codes, name: codes[name], asks_itself()),
    "beside a lock": lambda: Coder({}, threading.Lock()),
    "beside a connection": lambda: Coder({}, [sqlite3.connect(":memory:", check_same_thread=False)]),
    "public words before": lambda: Coder({f"word {number}": number for number in range(3000)}),
}


class Rows(Dataset[Any]):
    def __init__(self, coder: Callable[[str], int] | None, size: int = 64, rare: int | None = None) -> None:
        self.rows = [CITIES[int(number == rare) if rare is not None else number * number % 3] for number in range(size)]
        self.coder = coder

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        name = self.rows[index]
        return torch.full((3,), float(index)), name if self.coder is None else self.coder(name)


class Collate:
    def __init__(self, coder: Callable[[str], int]) -> None:
        self.coder = coder

    def __call__(self, rows: list[Any]) -> Any:
        return torch.stack([row for row, _ in rows]), torch.tensor([self.coder(name) for _, name in rows])

    def method(self, rows: list[Any]) -> Any:
        return self(rows)


@pytest.mark.parametrize("name", CODERS)
def test_codes_of_a_dataset_are_found_beside_what_cannot_be_copied(name: str) -> None:
    with pytest.raises(ValueError, match="Rows gives a record otherwise after another one"):
        check_records_alone(Rows(CODERS[name]()))


@pytest.mark.parametrize("is_method", [False, True])
@pytest.mark.parametrize("name", CODERS)
def test_codes_of_a_collate_function_are_found_beside_what_cannot_be_copied(name: str, is_method: bool) -> None:
    collate = Collate(CODERS[name]())
    chosen: Any = collate.method if is_method else collate
    with pytest.raises(ValueError, match="collate_fn makes another batch of the same records after"):
        check_collated_alone(DataLoader(Rows(None), batch_size=8, collate_fn=chosen))


@pytest.mark.parametrize("rare", [0, 625])
def test_codes_of_a_rare_name_are_found(rare: int) -> None:
    data = Rows(None, 4000, rare)
    with pytest.raises(ValueError, match="collate_fn makes another batch of the same records after"):
        check_collated_alone(DataLoader(data, batch_size=8, collate_fn=Collate(Coder({}))))
    data.coder = Coder({})
    with pytest.raises(ValueError, match="Rows gives a record otherwise after another one"):
        check_records_alone(data)


class Open(Dataset[Any]):
    """Reads from a connection, and closes it with its end."""

    def __init__(self, closes: bool) -> None:
        self.connection, self.seen = sqlite3.connect(":memory:"), [np.zeros(3)]
        if closes:
            self.__class__ = Closing

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        (number,) = self.connection.execute("select ?", (index,)).fetchone()
        return torch.tensor([number])


class Closing(Open):
    def __del__(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()


@pytest.mark.parametrize("closes", [False, True])
def test_copies_leave_open_what_they_share(closes: bool) -> None:
    data = Open(closes)
    fresh = copy_of(data)
    assert fresh.connection is data.connection
    assert (fresh.seen is data.seen) == closes
    del fresh
    check_records_alone(data)
    assert data[3] == 3


class Drawing(Open):
    """Draws by a generator that cannot be copied."""

    def __getitem__(self, index: int) -> Any:
        return self.connection.execute("select random()").fetchone()


def test_a_state_that_copies_share_is_no_memory() -> None:
    check_records_alone(Drawing(closes=False))
