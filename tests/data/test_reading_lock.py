"""What a lock on training data shows and what it refuses, by trying every way to read a record."""

import copy
import pickle
import threading
from collections import UserDict
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset

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
    "series": torch.zeros(3 * ROWS),
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


def test_threads_of_the_data_read_on_and_those_of_a_hook_do_not() -> None:
    data, found, go = make(), list[Any](), threading.Event()

    def read() -> None:
        go.wait()
        try:
            found.append(data[3][0].tolist())
        except PrivacyViolationError:
            found.append("refused")

    before = threading.Thread(target=read)
    before.start()
    with ReadingLock(DataLoader(data)).closed("A hook"):
        later = threading.Thread(target=read)
        later.start()
        go.set()
        before.join()
        later.join()
    assert sorted(found, key=str) == [[6, 7], "refused"]


def test_copies_made_meanwhile_are_closed() -> None:
    data = Subset(make(), range(5))
    lock = ReadingLock(DataLoader(data))
    with lock.closed("A hook"):
        copies = copy.copy(data), copy.deepcopy(data), copy.deepcopy({"of a model": data})["of a model"]
        assert [len(found) for found in copies] == [5] * 3
        for found in (*copies, copies[1].dataset, copies[2].dataset):
            with pytest.raises(PrivacyViolationError):
                _ = found[0]
    assert [found[1][0].tolist() for found in copies] == [[2, 3]] * 3
    with lock.closed("Another hook"), pytest.raises(PrivacyViolationError):
        _ = copies[0][0]
    lies = copies[2].dataset.tensors[0].data_ptr()
    assert [table is not None for table in (found[0]() for found in lock.memory if found[1] == lies)] == [True]
    del found, copies  # where it lay, a weight may lie now
    assert [found[0]() for found in lock.memory if found[1] == lies] == [None]


def test_other_datasets_of_the_same_records_can_be_locked() -> None:
    data, other = make(), make()
    with ReadingLock(DataLoader(data), [other]).closed("A hook"), pytest.raises(PrivacyViolationError):
        _ = other[0]


def test_whole_numbers_shapes_and_names_made_of_records_can_be_read() -> None:
    class Properties(Rows):
        @property
        def rows(self) -> int:
            return len(self.held)

        @property
        def columns(self) -> list[str]:
            return [f"{key}" for key in self.held[:2]]

        @property
        def shape(self) -> torch.Size:
            return torch.tensor(self.held).shape

        @property
        def mean(self) -> float:
            return sum(self.held) / ROWS

    data = Properties()
    with ReadingLock(DataLoader(data)).closed("A hook"):
        assert (data.rows, data.columns, data.shape) == (ROWS, ["0", "1"], torch.Size([ROWS]))
        with pytest.raises(PrivacyViolationError):
            _ = data.mean
        with pytest.raises(PrivacyViolationError):
            _ = data.held


def test_slots_are_attributes() -> None:
    class Slots:
        __slots__ = ("held", "name")

        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, index: int) -> int:
            return index

    data = Slots()
    data.held, data.name = list(range(ROWS)), "slots"
    with ReadingLock(DataLoader(data)).closed("A hook"):  # type: ignore[arg-type]
        assert (data.name, len(data)) == ("slots", ROWS)
        with pytest.raises(PrivacyViolationError):
            _ = data.held


def test_a_sampler_says_which_records_are_drawn() -> None:
    data = make()
    (held,) = data.tensors
    lock = ReadingLock(DataLoader(data, sampler=SubsetRandomSampler(range(10))))
    with lock.closed("A hook", has_batch=False):
        assert data[12][0].sum() == 49
        for read in (lambda: data[3], lambda: held.sum(), lambda: held[8:12].sum()):
            with pytest.raises(PrivacyViolationError):
                read()
    with lock.closed("A hook", has_batch=False), lock.closed(None):
        rows = held[3], held[12]
    with lock.closed("A hook", has_batch=False):
        assert rows[1].sum() == 49
        with pytest.raises(PrivacyViolationError):
            rows[0].sum()


def test_a_registry_of_classes_sees_none_of_the_locks() -> None:
    found = []

    class Base(Rows):
        def __init_subclass__(cls, key: str) -> None:
            found.append(key)

    class Mine(Base, key="mine"):
        pass

    data = Mine()
    with ReadingLock(DataLoader(data)).closed("A hook"), pytest.raises(PrivacyViolationError):
        _ = data[0]

    class Other(Mine, key="other"):
        pass

    assert found == ["mine", "other"]


def test_copies_have_the_class_of_old() -> None:
    data = Rows()
    with ReadingLock(DataLoader(data)).closed("A hook"):
        copies = copy.deepcopy(data), copy.copy(data), pickle.loads(pickle.dumps(data))
    assert {type(found) for found in (data, *copies)} == {Rows}
    assert [found.held for found in copies] == [data.held] * 3


def test_what_cannot_be_locked_is_left_alone() -> None:
    class Meta(type):
        def __new__(cls, name: str, bases: Any, names: Any) -> Any:
            if name in [base.__name__ for base in bases]:
                raise TypeError("final")
            return super().__new__(cls, name, bases, names)

    class Final(metaclass=Meta):
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, index: int) -> int:
            return index

    data: Any
    for data in ([1.0] * ROWS, Final()):
        with ReadingLock(DataLoader(data)).closed("A hook"):
            _ = data[0]
    with pytest.raises(TypeError):
        subclassed(bool, {})
