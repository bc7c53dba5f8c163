"""Datasets that draw other records from files and databases, which no attribute of theirs holds."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from lightning_pac.data import check_records_alone

ROWS = 40


class Stored(Dataset[Any]):
    """Reads records from a file, or from a database, that is opened for each."""

    def __init__(self, folder: Path, values: Any, rows: int = ROWS) -> None:
        self.path, self.database, self.rows = folder / "values.npy", folder / "values.db", rows
        np.save(self.path, values)
        with sqlite3.connect(self.database) as connection:
            connection.execute("create table records (id, a, b, c, d)")
            connection.executemany(
                "insert into records values (?, ?, ?, ?, ?)", list(map(self.named, enumerate(values)))
            )

    @staticmethod
    def named(pair: Any) -> list[float]:
        return [pair[0], *pair[1].tolist()]

    def __len__(self) -> int:
        return self.rows

    def load(self, index: int) -> Any:
        return torch.tensor(np.load(self.path, mmap_mode="r")[index])

    def look_up(self, index: int) -> Any:
        with closing(sqlite3.connect(self.database)) as connection:
            return torch.tensor(connection.execute("select a, b, c, d from records where id = ?", (index,)).fetchone())

    def __getitem__(self, index: int) -> Any:
        return self.load(index), index % 2


class Negatives(Stored):
    def __getitem__(self, index: int) -> Any:
        return {"anchor": self.load(index), "negative": self.load(np.random.randint(self.rows)), "label": index % 2}  # noqa: NPY002


class Positives(Stored):
    def __getitem__(self, index: int) -> Any:
        partner = (index + 2 * int(torch.randint(1, self.rows // 2, ()))) % self.rows
        return self.look_up(index), self.look_up(partner), self.look_up(index) + torch.randn(4)


class Seldom(Stored):
    def __getitem__(self, index: int) -> Any:
        other = self.look_up(int(torch.randint(self.rows, ()))) if torch.rand(()) < 0.5 else self.look_up(index)
        return self.look_up(index), other


class Noisy(Stored):
    def __getitem__(self, index: int) -> Any:
        return self.load(index) + torch.randn(4), self.load(index)


class Flipped(Stored):
    """A view in which some bits are others, as those of other records may be."""

    def __getitem__(self, index: int) -> Any:
        bits = (self.load(index) > 0.5).float()
        return bits, torch.where(torch.rand(4) < 0.3, 1 - bits, bits)


class Following(Stored):
    """Two tensors of its own row, of which one is in the next row, too."""

    def __getitem__(self, index: int) -> Any:
        return self.load(index), self.load(index) + 1


@pytest.mark.parametrize("kind", [Negatives, Positives, Seldom])
def test_records_that_are_drawn_from_files_are_refused(kind: type[Stored], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__} draws other records to go with one"):
        check_records_alone(kind(tmp_path, np.random.default_rng(0).random((ROWS, 4))))


def test_some_of_many_records_meet(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((20_000, 4))
    with pytest.raises(ValueError, match="draws other records"):
        check_records_alone(Negatives(tmp_path, values, len(values)))


@pytest.mark.parametrize("kind", [Stored, Noisy, Flipped, Following])
@pytest.mark.parametrize("values", [np.random.default_rng(0).random((ROWS, 4)), np.arange(4.0 * ROWS).reshape(ROWS, 4)])
def test_draws_for_a_record_alone_are_none(kind: type[Stored], values: Any, tmp_path: Path) -> None:
    check_records_alone(kind(tmp_path, values))
