"""Copies of records are found where classes were evened out by them, and nothing else is taken for copies."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from lightning_pac.data.records import copies_of_a_record, names_of_several, row_read_again, some_records
from lightning_pac.data.records.shared_contents import copies

DRAWS = np.random.default_rng(0)


def evened_out(records: Tensor, times: int = 10) -> Tensor:
    """A tenth of the records several times, as libraries for imbalanced classes return them."""
    return torch.cat([records, records[: len(records) // 10].repeat(times - 1, *[1] * (records.ndim - 1))])


def digits() -> Tensor:
    return torch.tensor(load_digits().data)


class Augmented(Dataset[Any]):
    """Moves an image to the side at random when it is asked for."""

    def __init__(self, images: Tensor) -> None:
        self.images, self.loaded = images.reshape(-1, 8, 8), 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        self.loaded += 1
        return {"image": self.images[index].roll(int(torch.randint(8, ())), 1).numpy(), "number": index}


def copies_among(dataset: Any) -> float:
    return copies_of_a_record(some_records(dataset), len(dataset))


def names_among(dataset: Any) -> Any:
    return names_of_several(some_records(dataset), len(dataset))


@pytest.mark.parametrize("times", [5, 10])
@pytest.mark.parametrize(
    "records",
    [digits(), torch.tensor(load_breast_cancer().data), torch.randn(20_000, 6), torch.randint(1000, (5000, 12))],
    ids=["digits", "table", "many", "tokens"],
)
def test_copies_are_found(records: Tensor, times: int) -> None:
    copied = evened_out(records, times)
    assert copies_among(TensorDataset(copied, torch.arange(len(copied))))
    mixed = torch.randperm(len(copied), generator=torch.Generator().manual_seed(0)).tolist()
    assert copies_among(Subset(copied, mixed))  # type: ignore[arg-type]


def test_a_bootstrap_is_found() -> None:
    records = digits()
    assert copies_among(records[torch.as_tensor(DRAWS.integers(len(records), size=len(records)))])


def test_augmented_copies_are_found_from_a_copy_of_the_data_set() -> None:
    state = torch.get_rng_state()
    dataset = Augmented(evened_out(digits()))
    assert copies_among(dataset)
    assert dataset.loaded == 0
    assert torch.equal(state, torch.get_rng_state())
    assert not copies_among(Augmented(digits()))


@pytest.mark.parametrize(
    "dataset",
    [
        digits(),
        torch.tensor(load_breast_cancer().data),
        torch.randint(2, (5000, 8)),
        torch.randint(2, (5000, 20)),
        torch.as_tensor(DRAWS.zipf(1.6, (5000, 8)).clip(0, 500)),
        torch.nn.functional.one_hot(torch.as_tensor(DRAWS.zipf(1.6, (5000, 3)).clip(0, 20))).flatten(1).float(),
        torch.randint(90, (5000, 1)),
        torch.zeros(500, 8),
        torch.complex(digits(), digits().flip(0)),
        torch.cat([digits(), digits()[:20]]),
        [(f"text {number // 10}", number // 10) for number in range(600)],
        [(torch.randn(5 + number % 3), 1) for number in range(600)],
        [torch.randn(3)],
        [],
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_nothing_else_is_taken_for_copies(dataset: Any) -> None:
    assert not copies_among(dataset)


def test_it_loads_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = list[int]()

    def slow(dataset: Any, index: int, seed: int) -> Any:
        time.sleep(0.1)
        loaded.append(index)
        return dataset[index]

    monkeypatch.setattr(copies, "load_alone", slow)
    some_records(digits())
    assert 0 < len(loaded) <= 11


def visits(name_of: Any, kind: type = tuple) -> list[Any]:
    rows = ((float(row), name_of(row)) for row in range(6000))
    return [kind(row) if kind is tuple else {"days": row[0], "patient": row[1]} for row in rows]


DRAWN = np.random.default_rng(0).integers(2000, size=6000).tolist()


@pytest.mark.parametrize(("kind", "place"), [(tuple, 1), (dict, "patient")])
def test_names_that_several_records_share_are_found(kind: type, place: Any) -> None:
    """A colleague left out `unit=`: the promise was about visits, and 3.1 of them were of a patient on average."""
    found = names_among(visits(lambda row: f"patient {DRAWN[row]}", kind))
    assert found is not None
    assert found[0] == place
    assert abs(found[1] - 3.0) < 1.0, "others of a record's patient, of whom each has three visits on average"


@pytest.mark.parametrize(
    "name_of",
    [
        lambda row: f"visit {row}",
        lambda row: f"ward {row % 12}",
        lambda row: f"breed {row % 118}",
        lambda row: row // 3,
        lambda row: "" if row % 3 else f"a note {row}",
    ],
    ids=["of one", "classes", "many classes", "numbers", "often nothing"],
)
def test_texts_that_are_no_names_of_persons_pass(name_of: Any) -> None:
    assert names_among(visits(name_of)) is None


class Repeats(Dataset[Any]):
    """Gives each row of a table several times, with noise of its own."""

    def __init__(self, table: Any, row_of: Any, times: int = 5) -> None:
        self.table, self.row_of, self.times = table, row_of, times
        self.labels = torch.arange(len(table))

    def __len__(self) -> int:
        return self.times * len(self.table)

    def __getitem__(self, index: int) -> Any:
        row = self.row_of(index)
        return torch.as_tensor(self.table[row]) * (1 + 0.1 * (index % 7)) + 0.1 * torch.randn(5), self.labels[row]


TABLE = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("row_of", [lambda index: index // 5, lambda index: index % 60])
@pytest.mark.parametrize("table", [TABLE, TABLE.numpy(), list(TABLE)], ids=["tensor", "array", "list"])
def test_rows_that_are_given_several_times_are_found(table: Any, row_of: Any) -> None:
    before = torch.as_tensor(table[0]).clone()
    assert row_read_again(Repeats(table, row_of)) == ("table", 5)
    assert row_read_again(Subset(Repeats(table, row_of), range(100, 300))) == ("table", 5)
    assert torch.equal(torch.as_tensor(table[0]), before), "the rows stay"


class OfClasses(Repeats):
    """Images, each with what is known of its class, in the order of the classes."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((9,), float(index)), self.table[index // 5]


class InParts(Dataset[Any]):
    """Records that lie in parts: tensors, lists or datasets of 20 each."""

    def __init__(self, part_of: Any) -> None:
        self.parts = [part_of(TABLE[start : start + 20]) for start in range(0, 60, 20)]

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        return self.parts[index // 20][index % 20]


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(TABLE),
        ConcatDataset([TensorDataset(TABLE), TensorDataset(TABLE + 1)]),
        InParts(TensorDataset),
        InParts(list),
        InParts(torch.clone),
        Repeats(TABLE, lambda index: index, 1),
        Subset(Repeats(TABLE, lambda index: index % 60), range(60)),
        Subset(Repeats(TABLE, lambda index: index // 5), range(0, 300, 5)),
        OfClasses(TABLE, None),
        [1, 2],
    ],
    ids=[
        "tensors",
        "joined",
        "in datasets",
        "in lists",
        "in tensors",
        "once",
        "first",
        "first of each",
        "classes",
        "numbers",
    ],
)
def test_rows_that_are_given_once_pass(dataset: Any) -> None:
    assert row_read_again(dataset) is None


class OfEach(Dataset[Any]):
    """Five records of each row: whole, or the five parts of it."""

    def __init__(self, rows: Any, whole: bool) -> None:
        self.rows, self.whole = rows, whole

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index // 5]
        row = torch.as_tensor(row.toarray()[0] if scipy.sparse.issparse(row) else row)
        return (row if self.whole else row.reshape(5, -1)[index % 5]) + 0.01 * (index % 5)


def test_the_parts_of_a_row_are_records_of_their_own() -> None:
    """A panel of users and weeks, or the tiles of a picture, was warned of as if a row came again."""
    panel = torch.randn(60, 5, 4, generator=torch.Generator().manual_seed(1))
    assert row_read_again(OfEach(panel, whole=False)) is None
    assert row_read_again(OfEach(panel, whole=True)) == ("rows", 5)
    assert row_read_again(OfEach(scipy.sparse.csr_matrix(TABLE.numpy()), whole=True)) == ("rows", 5)


class Scaled(Dataset[Any]):
    """Subtracts public means and divides by public deviations, which it keeps as it was given them."""

    def __init__(self, mean: Any, deviation: Any) -> None:
        self.mean, self.deviation = mean, deviation

    def __len__(self) -> int:
        return len(TABLE)

    def __getitem__(self, index: int) -> Any:
        values = zip(TABLE[index, :3], self.mean, self.deviation, strict=True)
        return torch.stack([(value - mean) / deviation for value, mean, deviation in values])


@pytest.mark.parametrize("kept", [list, torch.tensor, np.array])
def test_public_means_are_no_rows(kept: Any) -> None:
    """Every record changes with an entry of them, and not only those that would be given again."""
    assert row_read_again(Scaled(kept([0.485, 0.456, 0.406]), kept([0.229, 0.224, 0.225]))) is None


class Shards(Dataset[Any]):
    """Reads one of twenty records of a file."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / f"{number}.pt" for number in range(3)]
        for number, path in enumerate(self.paths):
            torch.save(TABLE[20 * number : 20 * number + 20].clone(), path)

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        return torch.load(self.paths[index // 20])[index % 20]


def test_a_file_of_several_records_is_no_row(tmp_path: Path) -> None:
    assert row_read_again(Shards(tmp_path)) is None


def test_rows_in_a_joined_dataset_are_found() -> None:
    joined = ConcatDataset([TensorDataset(TABLE), Repeats(TABLE, lambda index: index // 5)])
    assert row_read_again(joined) == ("table", 5)


@pytest.mark.parametrize("held", [lambda rows: (rows, rows + 1), lambda rows: {"x": rows}], ids=["tuple", "dictionary"])
def test_tables_may_be_held_together(held: Any) -> None:
    class Together(Repeats):
        def __getitem__(self, index: int) -> Any:
            table = self.table[0] if isinstance(self.table, tuple) else self.table["x"]
            return table[index // 5] + index

        def __len__(self) -> int:
            return 300

    dataset = Together(TABLE, None)
    dataset.table = held(TABLE)
    assert row_read_again(dataset) == ("table", 5)
