"""What a lock on training data shows and what it refuses, by trying every way to read a record."""

import copy
import pickle
import threading
from collections import UserDict
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from lightning_pac.data.reading_lock import ReadingLock, subclassed
from lightning_pac.exceptions import PrivacyViolationError

ROWS = 20


class Rows(Dataset[Any]):
    """Keeps its records in an attribute of any kind, beside the names of its classes."""

    classes = ("cat", "dog")

    def __init__(self, held: Any = None) -> None:
        self.held = list(range(ROWS)) if held is None else held
        self.names = ["cat", "dog"]

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(float(index))

    def __iter__(self) -> Any:
        return iter(range(ROWS))


def make() -> TensorDataset:
    return TensorDataset(torch.arange(2.0 * ROWS).view(ROWS, 2))


READS: list[Any] = [
    lambda loader: next(iter(loader)),
    lambda loader: next(iter(DataLoader(loader.dataset, batch_size=3))),
    lambda loader: loader.dataset[3],
    lambda loader: loader.dataset.tensors,
    lambda loader: list(loader.dataset),
    lambda loader: loader.dataset.__getitem__(0),
    lambda loader: list(map(loader.dataset.__getitem__, range(3))),
    lambda loader: Subset(loader.dataset, [1])[0],
    lambda loader: ConcatDataset([loader.dataset, loader.dataset])[ROWS + 1],
    lambda loader: torch.utils.data.default_collate([loader.dataset[number] for number in range(3)]),
]


@pytest.mark.parametrize("number", range(len(READS)))
def test_no_way_to_read_a_record_is_open(number: int) -> None:
    loader = DataLoader(make(), batch_size=4)
    lock = ReadingLock(loader)
    READS[number](loader)
    with lock.closed("A hook"):
        with pytest.raises(PrivacyViolationError, match="A hook reads the training data"):
            READS[number](loader)
        with lock.closed(None):
            READS[number](loader)
    READS[number](loader)
    assert type(loader) is DataLoader
    assert type(loader.dataset) is TensorDataset


HELD: dict[str, Any] = {
    "list": list(range(ROWS)),
    "array": np.zeros((ROWS, 3)),
    "columns": np.zeros((3, ROWS)),
    "tensor": torch.zeros(ROWS),
    "table": pd.DataFrame({"x": range(ROWS)}),
    "by name": {f"n{number}": number for number in range(ROWS)},
    "by column": {"x": list(range(ROWS)), "y": list(range(ROWS))},
    "mapping": UserDict({"x": np.zeros(ROWS)}),
    "object": type("Table", (), {"__len__": lambda self: ROWS, "__getitem__": lambda self, key: key})(),
}


@pytest.mark.parametrize("kind", HELD)
def test_attributes_with_an_entry_for_each_record_are_records(kind: str) -> None:
    data = Rows(HELD[kind])
    with ReadingLock(DataLoader(data)).closed("A hook"):
        with pytest.raises(PrivacyViolationError):
            _ = data.held
        assert (len(data), data.names, data.classes) == (ROWS, ["cat", "dog"], ("cat", "dog"))
        with pytest.raises(PrivacyViolationError):
            iter(data)
    assert data.held is HELD[kind]


def test_records_that_are_never_drawn_can_be_read() -> None:
    whole = make()
    trained, held_out = Subset(whole, range(0, ROWS, 2)), Subset(whole, range(1, ROWS, 2))
    inner = Subset(trained, [0, 1])  # of the first two of those, which are 0 and 2
    for loader, refused in ((DataLoader(trained), range(0, ROWS, 2)), (DataLoader(inner), (0, 2))):
        with ReadingLock(loader).closed("A hook"):
            assert len(list(DataLoader(held_out, batch_size=3))) == 4
            for number in range(ROWS):
                if number in refused:
                    with pytest.raises(PrivacyViolationError):
                        _ = whole[number]
                else:
                    assert whole[number][0][0] == 2 * number
            with pytest.raises(PrivacyViolationError):
                _ = whole[0:4]


class Kept(Dataset[Any]):
    """Takes its records from a dataset in a list."""

    def __init__(self, base: Dataset[Any]) -> None:
        self.bases = [base]

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return self.bases[0][index]


def test_datasets_below_are_locked() -> None:
    base = make()
    with ReadingLock(DataLoader(Kept(base))).closed("A hook"), pytest.raises(PrivacyViolationError):
        _ = base[0]


def test_tensors_of_the_data_cannot_be_computed_with_where_there_is_no_batch() -> None:
    data, other = make(), torch.ones(ROWS, 2)
    (held,) = data.tensors
    lock = ReadingLock(DataLoader(data))
    with lock.closed("A hook", has_batch=False):
        assert held.shape == (ROWS, 2)
        assert float(other.mean()) == 1
        for read in (
            held.mean,
            lambda: held[3:].clone(),
            held.tolist,
            held.numpy,
            lambda: torch.as_tensor(held) + other,
        ):
            with pytest.raises(PrivacyViolationError):
                read()
    array = np.zeros((ROWS, 2))
    with ReadingLock(DataLoader(Rows(array))).closed("A hook", has_batch=False):
        with pytest.raises(PrivacyViolationError):
            torch.tensor(array[::2])
        torch.tensor(np.zeros(3))
    parts = torch.arange(2.0 * ROWS).split(ROWS)  # of one memory, each its own
    with ReadingLock(DataLoader(TensorDataset(parts[0]))).closed("A hook", has_batch=False):
        assert float(parts[1].sum()) == sum(range(ROWS, 2 * ROWS))


def test_a_datamodule_gives_no_other_loader() -> None:
    class Data(pl.LightningDataModule):
        def train_dataloader(self) -> Any:
            return DataLoader(make())

    module = Data()
    with ReadingLock(DataLoader(make()), module).closed("A hook"), pytest.raises(PrivacyViolationError):
        module.train_dataloader()
    assert len(module.train_dataloader()) == ROWS


def test_other_threads_read_on() -> None:
    data, found = make(), list[Any]()
    with ReadingLock(DataLoader(data)).closed("A hook"):
        thread = threading.Thread(target=lambda: found.append(data[3]))
        thread.start()
        thread.join()
    assert found[0][0].tolist() == [6, 7]


def test_copies_have_the_class_of_old() -> None:
    data = Rows()
    with ReadingLock(DataLoader(data)).closed("A hook"):
        copies = copy.deepcopy(data), copy.copy(data), pickle.loads(pickle.dumps(data))
    assert {type(found) for found in (data, *copies)} == {Rows}
    assert [found.held for found in copies] == [data.held] * 3


def test_what_cannot_be_locked_is_left_alone() -> None:
    class Final(Dataset[Any]):
        def __init_subclass__(cls, **kwargs: Any) -> None:
            raise TypeError("final")

        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, index: int) -> int:
            return index

    for data in ([1.0] * ROWS, Final()):
        with ReadingLock(DataLoader(data)).closed("A hook"):  # type: ignore[arg-type]
            _ = data[0]
    with pytest.raises(TypeError):
        subclassed(bool, {})
