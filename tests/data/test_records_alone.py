"""Datasets that put other records into one."""

import asyncio
import functools
import importlib
import pickle
import random
import sys
import warnings
from array import array
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from random import uniform
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from numpy.random import rand
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from lightning_pac.data import WithIndex, check_records_alone
from lightning_pac.data.records import Surroundings, check_each_record_once

ROWS = 12


class Rows(Dataset[Any]):
    def __init__(self, values: Any = None) -> None:
        self.values = torch.randn(ROWS, 3) if values is None else values
        self.offsets = torch.arange(ROWS)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return self.values[index]


class Cached(Rows):
    """Remembers, and draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Tensor] = {}
        self.drawn = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return self.cache.setdefault(index, self.values[index] + self.drawn.uniform() + torch.randn(3))


class Permuted(Rows):
    def __getitem__(self, index: int) -> Any:
        return self.values[(index + 5) % ROWS]


class MadeAnew(Rows):
    def __getitem__(self, index: int) -> Any:
        return TensorDataset(self.values)[index]


class Centred(Rows):
    """Subtracts a running mean of what was read so far."""

    mean: Any = 0.0
    count = 0

    def __getitem__(self, index: int) -> Any:
        row = super().__getitem__(index)
        self.count += 1
        self.mean = self.mean + (row - self.mean) / self.count
        return row - self.mean


class CentredInPlace(Centred):
    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(3)

    def __getitem__(self, index: int) -> Any:
        self.mean.mul_(0.9).add_(0.1 * self.values[index])
        return self.values[index] - self.mean


class ScaledOnceKnown(Rows):
    """By the first hundred records that it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.seen = torch.randn(400, 3), list[Any]()

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        row = self.values[index]
        if len(self.seen) < 100:
            self.seen.append(row)
            return row
        return row / torch.stack(self.seen).std(0)


class Mixed(Rows):
    def __getitem__(self, index: int) -> Any:
        return 0.7 * self.values[index] + 0.3 * self.values[int(torch.randint(ROWS, ()))]


class MixedNowAndThen(Rows):
    """Flips a coin that the first two draws of each seed leave out."""

    def __getitem__(self, index: int) -> Any:
        row = self.values[index]
        return 0.7 * row + 0.3 * self.values[int(torch.randint(ROWS, ()))] if torch.rand(()) < 0.25 else row


class OtherNames(Rows):
    """Draws by names that were imported, of the global generators' methods."""

    def __getitem__(self, index: int) -> Any:
        row = self.values[index]
        return row * uniform(0.9, 1.1) if rand() < 0.5 else row  # noqa: NPY002


Record = TypeVar("Record")


class Typed(Rows, Generic[Record]):
    """Holds its own type, by which objects and not itself have a length."""


class Triplet(Rows):
    """Partners from a generator of its own."""

    def __init__(self) -> None:
        super().__init__(np.random.default_rng(0).normal(size=(ROWS, 3)))
        self.drawn = np.random.default_rng(1)

    def __getitem__(self, index: int) -> Any:
        return self.values[index], self.values[self.drawn.integers(ROWS)]


class Weighted(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.rand(ROWS)

    def __getitem__(self, index: int) -> Any:
        return self.values[index], self.weights[index] / self.weights.sum()


class Again(Rows):
    """Takes the next record for one that is broken."""

    def __getitem__(self, index: int) -> Any:
        return self[index - 1] if index == ROWS // 2 else self.values[index]


class Bootstrap(Rows):
    """Draws a row for every index, by Python's generator, one of its own, or below the index's own part."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.drawn = how, np.random.default_rng(0)
        self.kept = {"few": self.values} if how == "few" else {}

    def __getitem__(self, index: int) -> Any:
        if self.how == "few":
            return self.kept["few"][random.randrange(5)]
        if self.how == "class":
            return self.values[index % 3 + 3 * random.randrange(ROWS // 3)]
        return self.values[random.randrange(ROWS) if self.how == "global" else self.drawn.integers(ROWS)]


class Config:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset


class Nested(Rows):
    def __init__(self) -> None:
        super().__init__(0)
        self.config = Config(Rows())

    def __getitem__(self, index: int) -> Any:
        return self.config.dataset[index // 2]


def enclosing() -> Dataset[Any]:
    hidden = Rows()

    class Enclosed(Rows):
        def __getitem__(self, index: int) -> Any:
            return hidden[index // 2]

    return Enclosed(0)


class Kept(Rows):
    """Rows in one of several forms, of which a record takes its own, or also the one before."""

    def __init__(self, keep: Any, take: Any, partners: bool) -> None:
        super().__init__()
        self.rows, self.take, self.partners = keep(self.values), take, partners
        del self.values

    def __getitem__(self, index: int) -> Any:
        own = self.take(self.rows, index)
        return own + self.take(self.rows, (index - 1) % ROWS) if self.partners else own


def saved(values: Tensor, folder: Path) -> list[tuple[str, int]]:
    names = [(str(folder / f"{row}.pt"), row % 3) for row in range(ROWS)]
    for (name, _), value in zip(names, values, strict=True):
        torch.save(value.clone(), name)
    return names


def in_threads(values: Any) -> dict[str, Any]:
    return {f"thread {first}": values[first : first + 4] for first in range(0, ROWS, 4)}


class Post:
    def __init__(self, value: Tensor) -> None:
        self.value, self.before = value, self


def linked(values: Tensor) -> list[Post]:
    posts = [Post(value) for value in values]
    for number, post in enumerate(posts):
        post.before = posts[number - 1]
    return posts


class Split(NamedTuple):
    x: Tensor
    y: Any


@dataclass(slots=True)
class Slots:
    x: Tensor


def archived(values: Tensor, folder: Path) -> Any:
    np.savez(folder / "rows.npz", x=values.numpy())
    return np.load(folder / "rows.npz")


class Serialized:
    """One buffer of bytes in which records lie one behind the other, as detection libraries keep them."""

    def __init__(self, values: Tensor) -> None:
        parts = [pickle.dumps(value.tolist()) for value in values]
        self.ends, self.buffer = np.cumsum([len(part) for part in parts]), np.frombuffer(b"".join(parts), np.uint8)

    def __getitem__(self, index: int) -> Tensor:
        start = self.ends[index - 1] if index else 0
        return torch.tensor(pickle.loads(self.buffer[start : self.ends[index]].tobytes()))


def kept_forms(folder: Path) -> dict[str, tuple[Any, Any]]:
    return {
        "a list": (list, lambda rows, index: rows[index]),
        "a list of pairs": (lambda values: [(0, value) for value in values], lambda rows, index: rows[index][1]),
        "a dictionary": (lambda values: dict(enumerate(values)), lambda rows, index: rows[index]),
        "a tensor below a key": (
            lambda values: {"deeper": {"x": values}},
            lambda rows, index: rows["deeper"]["x"][index],
        ),
        "a tensor in an object": (Config, lambda rows, index: rows.dataset[index]),
        "a table of pandas": (lambda values: pd.DataFrame(values.numpy()), lambda rows, index: rows.iloc[index].values),
        "a sparse matrix": (
            lambda values: scipy.sparse.csr_matrix(values.numpy()),
            lambda rows, index: rows[index].toarray(),
        ),
        "a sparse tensor": (lambda values: values.to_sparse(), lambda rows, index: rows[index].to_dense()),
        "a compressed tensor": (lambda values: values.to_sparse_csr(), lambda rows, index: rows[index].to_dense()),
        "tensors in a dictionary": (in_threads, lambda rows, index: rows[f"thread {index // 4 * 4}"][index % 4]),
        "lists below two keys": (
            lambda values: {name: {"posts": list(part), "title": name} for name, part in in_threads(values).items()},
            lambda rows, index: rows[f"thread {index // 4 * 4}"]["posts"][index % 4],
        ),
        "lists in objects": (
            lambda values: [Config(list(part)) for part in in_threads(values).values()],
            lambda rows, index: rows[index // 4].dataset[index % 4],
        ),
        "tables in a dictionary": (
            lambda values: {name: pd.DataFrame(part.numpy()) for name, part in in_threads(values).items()},
            lambda rows, index: rows[f"thread {index // 4 * 4}"].iloc[index % 4].values,
        ),
        "one buffer": (Serialized, lambda rows, index: rows[index]),
        "stretches of an array": (
            lambda values: values.numpy().flatten(),
            lambda rows, index: rows[3 * index : 3 * index + 3],
        ),
        "the first part of a table": (
            lambda values: torch.cat([values, values[:5] + 9]),
            lambda rows, index: rows[index],
        ),
        "a longer tensor below a key": (
            lambda values: {"x": torch.cat([values, values[:5] + 9]), "y": list(range(ROWS + 5))},
            lambda rows, index: rows["x"][index],
        ),
        "a longer tensor in a pair": (
            lambda values: (torch.cat([values, values[:5] + 9]), torch.arange(ROWS + 5)),
            lambda rows, index: rows[0][index],
        ),
        "a named tuple": (lambda values: Split(values, None), lambda rows, index: rows.x[index]),
        "an object with slots": (Slots, lambda rows, index: rows.x[index]),
        "a queue": (lambda values: deque(values, maxlen=100), lambda rows, index: rows[index]),
        "columns of plain arrays": (
            lambda values: [array("f", column) for column in values.T.tolist()],
            lambda rows, index: torch.tensor([column[index] for column in rows]),
        ),
        "an archive": (lambda values: archived(values, folder), lambda rows, index: rows["x"][index]),
        "the last part of a frame": (
            lambda values: pd.DataFrame(torch.cat([values[:5] + 9, values]).numpy()),
            lambda rows, index: rows.iloc[5 + index].values,
        ),
        "a dictionary that says its length": (
            lambda values: {**dict(enumerate(values)), "length": ROWS},
            lambda rows, index: rows[index],
        ),
        "bytes behind a header": (
            lambda values: b"MNIST" + values.numpy().tobytes(),
            lambda rows, index: np.frombuffer(rows[5 + 12 * index : 17 + 12 * index], np.float32),
        ),
        "bytes": (
            lambda values: values.numpy().tobytes(),
            lambda rows, index: np.frombuffer(rows[12 * index : 12 * index + 12], np.float32),
        ),
        "rows of one length": (
            lambda values: {"all": values.flatten(), "starts": torch.arange(0, 3 * ROWS + 1, 3)},
            lambda rows, index: rows["all"][rows["starts"][index] : rows["starts"][index + 1]],
        ),
        "files": (lambda values: saved(values, folder), lambda rows, index: torch.load(rows[index][0])),
    }


@pytest.mark.parametrize("form", kept_forms(Path()))
def test_partners_are_found_however_rows_are_kept(form: str, tmp_path: Path) -> None:
    check_records_alone(Kept(*kept_forms(tmp_path)[form], partners=False))
    with pytest.raises(ValueError, match=r"makes a record of several rows of 'rows'.*unit=Persons\("):
        check_records_alone(Kept(*kept_forms(tmp_path)[form], partners=True))


class Cut(Rows):
    """Stretches of one long array, taken by a function."""

    def __init__(self, take: Any) -> None:
        super().__init__(torch.randn(ROWS * 5))
        self.take = take

    def __getitem__(self, index: int) -> Any:
        return self.take(self.values, 5 * index)


def test_windows_are_told_from_stretches_that_are_put_together() -> None:
    check_records_alone(Cut(lambda all, start: all[start : start + 5]))
    check_records_alone(Cut(lambda all, start: (all[start : start + 5], all[start + 1 : start + 6])))  # the next token
    check_records_alone(Cut(lambda all, start: all[max(0, start - 10) : start + 5].mean()))  # of which a warning tells
    check_records_alone(Cut(lambda all, start: all[[start % 7, start % 11, 30 + start % 13]]))  # words of a vocabulary
    for take in (
        lambda all, start: all[start : start + 5] - all.mean(),
        lambda all, start: all[start : start + 5] + all[(start + 20) % 60 : (start + 20) % 60 + 5],
        lambda all, start: torch.stack([all[start : start + 5], all[:5]]),
    ):
        with pytest.raises(ValueError, match="makes a record of several rows of 'values'"):
            check_records_alone(Cut(take))


def test_containers_of_several_kinds_pass() -> None:
    def keep(values: Tensor) -> Any:
        return {**in_threads(values), "names": {}, "all": list(range(ROWS))}, [{}, []]

    check_records_alone(Kept(keep, lambda rows, index: rows[0][f"thread {index // 4 * 4}"][index % 4], partners=False))


def frames(values: Tensor) -> list[Post]:
    """Each of a scene, which holds all of its frames."""
    found = [Post(value) for value in values]
    for first in range(0, ROWS, 4):
        scene = Config(found[first : first + 4])
        for frame in found[first : first + 4]:
            frame.scene = scene  # type: ignore[attr-defined]
    return found


def test_other_frames_of_a_scene_are_found() -> None:
    check_records_alone(Kept(frames, lambda rows, index: rows[index].value, partners=False))
    with pytest.raises(ValueError, match="makes a record of several rows of 'rows'"):
        check_records_alone(
            Kept(frames, lambda rows, index: rows[index].value + rows[index].scene.dataset[3].value, partners=False)
        )


@pytest.mark.parametrize("shuffled", [False, True])
def test_objects_that_hold_others_are_no_way_around(shuffled: bool) -> None:
    order = np.random.default_rng(0).permutation(ROWS) if shuffled else np.arange(ROWS)
    check_records_alone(Kept(linked, lambda rows, index: rows[order[index]].value, partners=False))
    with pytest.raises(ValueError, match="makes a record of several rows of 'rows'"):
        check_records_alone(Kept(linked, lambda rows, index: rows[order[index]].before.value + 0, partners=False))


def test_a_patient_may_have_several_rows_where_patients_are_protected() -> None:
    """One mean of earlier visits moved a sum by 2.5 C; with persons as the unit, it is of one person."""

    def with_earlier(rows: Any, index: int) -> Any:
        return rows[f"thread {index // 4 * 4}"][: index % 4 + 1].mean(0)

    visits = Kept(in_threads, with_earlier, partners=False)
    with pytest.raises(ValueError, match="makes a record of several rows of 'rows'"):
        check_records_alone(visits)
    check_records_alone(visits, of_persons=True)


class Windows(Rows):
    """Of one long row, from its start to the next one's."""

    def __init__(self) -> None:
        super().__init__(torch.randn(ROWS * 5))
        self.starts = [5 * row for row in range(ROWS)]

    def __getitem__(self, index: int) -> Any:
        return self.values[self.starts[index] : self.starts[index + 1] if index + 1 < ROWS else None]


class ByFrequency(Rows):
    """Weighs a record by how many have its label."""

    def __getitem__(self, index: int) -> Any:
        return self.values[index] * (self.offsets % 3 == index % 3).sum()


class Together(Rows):
    """Hands out the first of several records for all of them, if `same`."""

    def __init__(self, same: bool = False) -> None:
        super().__init__()
        self.same = same

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[indices[0] if self.same else index] for index in indices]


class BatchRepeats(Together):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[indices[0] if len(indices) > 4 else index] for index in indices]


class ScaledByTheLargest(Rows):
    """What is loaded together is brought below a bound that ordinary records keep."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        rows = self.values[indices]
        return list(rows * min(1.0, 20 / float(rows.abs().max())))


class CentredWithoutGaps(Rows):
    """Missing numbers become the mean of what is loaded together."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        rows = self.values[indices]
        return list(rows - rows.nanmean(0) if rows.isnan().any() else rows)


class DrawsTogether(Together):
    def __getitem__(self, index: int) -> Any:
        return self.values[index] + torch.randn(3)


class NoDataset:
    """Indexed like a list, and no dataset of torch."""

    def __init__(self) -> None:
        self.values = list(torch.randn(ROWS, 3))

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return self.values[index] + self.values[index - 1]


class Files(Rows):
    def __init__(self, root: Path, names: list[Any]) -> None:
        super().__init__()
        self.root, self.names = root, names


class Flips(Rows):
    """Each record is mirrored or not, which under the same seed befalls all alike."""

    def __getitem__(self, index: int) -> Tensor:
        row = super().__getitem__(index)
        return row.flip(0) if float(torch.rand(())) < 0.5 else row


class NumpyIndices(Rows):
    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [self[number] for number in np.asarray(indices)]


@pytest.mark.parametrize(
    "make",
    [
        Rows,
        NumpyIndices,
        lambda: Subset(Flips(), range(ROWS)),
        Cached,
        Permuted,
        MadeAnew,
        Windows,
        Together,
        DrawsTogether,
        OtherNames,
        Typed[Tensor],
        lambda: WithIndex(Rows()),
        lambda: Subset(Rows(), [3, 1, 2]),
        lambda: Subset(Subset(Rows(), range(ROWS)), [3, 1, 2]),  # as a validation split of a fold
    ],
)
def test_records_of_their_own_pass(make: Any) -> None:
    dataset = make()
    check_records_alone(dataset)
    assert not getattr(dataset, "cache", None)
    assert vars(Rows)["__getitem__"].__qualname__ == "Rows.__getitem__"
    assert not hasattr(vars(Rows)["__getitem__"], "__wrapped__")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Centred, "otherwise after another one was loaded"),
        (ByFrequency, "several rows of 'offsets'"),
        (lambda: Together(same=True), "gives other records when several are asked for together"),
        (NoDataset, "several rows of 'values'"),
        (CentredInPlace, "otherwise after another one was loaded"),
        (ScaledOnceKnown, "otherwise after another one was loaded"),
        (lambda: Subset(Centred(), range(ROWS)), "Centred gives a record otherwise"),
        (BatchRepeats, "gives other records when several are asked for together"),
        (ScaledByTheLargest, "gives other records beside one of extreme numbers"),
        (CentredWithoutGaps, "gives other records beside one of extreme numbers"),
        (lambda: Bootstrap("global"), "draws a record at random, whatever the index"),
        (lambda: Bootstrap("own"), "several rows of 'values'"),
        (lambda: Bootstrap("class"), "several rows of 'values'"),
        (lambda: Bootstrap("few"), "draws a record at random, whatever the index"),
        (Mixed, "several rows of 'values'"),
        (MixedNowAndThen, "several rows of 'values'"),
        (Triplet, "several rows of 'values'"),
        (Weighted, "several rows of 'weights'"),
        (Again, "asks itself for another index"),
        (Nested, "hidden in a closure"),
        (enclosing, "hidden in a closure"),
    ],
)
def test_datasets_that_put_other_records_into_one_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_records_alone(make())


@pytest.mark.parametrize("labelled", [False, True])
def test_files_that_are_listed_twice_are_refused(tmp_path: Path, labelled: bool) -> None:
    names = [f"{number}.png" for number in range(ROWS)]
    for name in names:
        (tmp_path / name).touch()

    def listed(names: list[str]) -> list[Any]:
        return [(name, 0) for name in names] if labelled else list(names)

    check_records_alone(Files(tmp_path, listed(names)))
    check_records_alone(Files(tmp_path, ["cat", "dog"] * (ROWS // 2)))
    with pytest.raises(ValueError, match="Files holds records twice"):
        check_records_alone(Files(tmp_path, listed([*names[:-1], names[0]])))


def test_several_records_of_a_file_are_told_from_one_that_is_listed_twice(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{number}.npy") for number in range(16)]
    for file in files:
        np.save(file, np.random.default_rng(int(Path(file).stem)).normal(size=(3, 5)))
    frames = [(files[row // 3], row % 3, row % 2) for row in range(48)]
    check_records_alone(Honest(lambda d, i: np.load(d.frames[i][0])[d.frames[i][1]], frames=frames))
    check_records_alone(
        Honest(lambda d, i: np.load(d.starts[i][0])[d.starts[i][1] :][0], starts=[f[:2] for f in frames])
    )
    check_records_alone(
        Honest(lambda d, i: (np.load(d.asked[i][0])[0], d.asked[i][1]), asked=frames)
    )  # questions on one
    two = [(file, label) for file in files for label in range(3)]
    with pytest.raises(ValueError, match="Honest holds records twice"):
        check_records_alone(Honest(lambda d, i: (np.load(d.labelled[i][0])[0], d.labelled[i][1]), labelled=two))


def test_generators_are_put_back_and_odd_datasets_are_left_out() -> None:
    class Broken(Rows):
        def __getitem__(self, index: int) -> Any:
            raise OSError

    datasets = Broken(), TensorDataset(torch.rand(4, 2)), range(5), DataLoader(Rows()).dataset
    state = torch.get_rng_state()
    for dataset in datasets:
        check_records_alone(dataset)
    assert torch.equal(torch.get_rng_state(), state)


FIRST: dict[str, Tensor] = {}


@functools.cache
def first_seen() -> list[Tensor]:
    return []


class Keeps(Rows):
    """Adds the first record that was ever loaded, or one of some time ago, kept where a copy does not reach."""

    first: Any = None

    def __init__(self, where: str) -> None:
        super().__init__()
        self.queue: deque[Tensor] = deque()
        closure: list[Tensor] = []

        def keep(row: Tensor, default: list[Tensor] = []) -> Tensor:  # noqa: B006
            if where == "class":
                Keeps.first = row if Keeps.first is None else Keeps.first
                return Keeps.first
            if where == "function":
                keep.__dict__.setdefault("first", row)
                return keep.__dict__["first"]
            if where == "global":
                return FIRST.setdefault("first", row)
            if where == "queue":
                self.queue.append(row)
                return self.queue.popleft() if len(self.queue) > 5 else row
            kept = first_seen() if where == "cache" else {"closure": closure, "default": default}[where]
            kept += [] if kept else [row]
            return kept[0]

        self.keep = keep

    def __getitem__(self, index: int) -> Any:
        row = super().__getitem__(index)
        return row + self.keep(row)


@pytest.mark.parametrize("where", ["class", "function", "global", "closure", "default", "cache", "queue"])
def test_a_memory_beside_the_dataset_is_found_and_left_empty(where: str) -> None:
    with pytest.raises(ValueError, match="gives a record otherwise after another"):
        check_records_alone(Keeps(where))
    assert Keeps.first is None
    assert not FIRST
    assert not first_seen.cache_info().currsize


def test_a_tensor_dataset_of_ones_own_is_checked_for_a_memory() -> None:
    class Delayed(TensorDataset):
        kept: Any = ()

        def __getitem__(self, index: int) -> Any:
            row = super().__getitem__(index)[0]
            self.kept = (*self.kept, row)[-6:]
            return row + self.kept[0]

    with pytest.raises(ValueError, match="gives a record otherwise after another"):
        check_records_alone(Delayed(torch.randn(ROWS, 3)))


class Halves(list[Any]):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index // 2)

    def __len__(self) -> int:
        return 2 * super().__len__()


class Repeats(Rows):
    """Gives rows of a shorter table, or of half of its own, in new memory."""

    def __init__(self, kind: str, rows: int) -> None:
        super().__init__(torch.randn(rows, 3))
        self.kind, self.mean = kind, torch.ones(3)

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        return self.values[index // 2 if self.kind == "half" else index % 24] - self.mean


ROW = torch.randn(3)
TWO_PLACES = [
    lambda: Halves([torch.randn(3) for _ in range(2 * ROWS)]),
    lambda: Repeats("half", 24),
    lambda: Repeats("half", 48),
    lambda: Repeats("remainder", 24),
    lambda: Repeats("remainder", 48),
    lambda: [(ROW, 0), (torch.randn(3), 1), (ROW, 0)],
    lambda: deque([ROW, torch.randn(3), ROW[:]]),
]


@pytest.mark.parametrize("number", range(len(TWO_PLACES)))
def test_a_record_under_two_indices_is_found(number: int) -> None:
    dataset: Any = TWO_PLACES[number]()
    check = check_each_record_once if type(dataset) in (list, deque) else check_records_alone
    with pytest.raises(ValueError, match=r"holds records twice|several of one"):
        check(dataset)


class Honest(Dataset[Any]):
    """Records of their own, `make(index)`, and what they are made of in attributes."""

    def __init__(self, make: Any, **attributes: Any) -> None:
        self.make = make
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        return self.make(self, index)


class Shifted(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(part + 1 for part in super().__getitem__(index))


@functools.cache
def encoded(text: str) -> Tensor:
    return torch.tensor([ord(letter) for letter in text])


DESIGN = torch.cartesian_prod(torch.arange(4), torch.arange(6)).repeat(2, 1)  # each setting twice
IMAGES = np.random.default_rng(1).integers(0, 256, (48, 4, 4, 3), dtype=np.uint8)
IMAGES[[1, 47]] = IMAGES[0]
ZEROS = torch.zeros(48, dtype=torch.int64)
SORTED = torch.arange(48) // 2
TEXTS = [f"sentence {number % 24}" for number in range(48)]
EQUAL_RECORDS = {
    "images": lambda: Honest(lambda d, i: (d.data[i], d.targets[i]), data=IMAGES, targets=[0] * 48),
    "augmented": lambda: Honest(lambda d, i: d.data[i][:: random.choice((1, -1))] / 255, data=IMAGES),
    "augmented in turn": lambda: Honest(lambda d, i: d.data[i // 2] * (1 + i % 2), data=IMAGES),
    "design": lambda: Honest(lambda d, i: d.x[i] - d.mean, x=DESIGN.float(), mean=DESIGN.float().mean(0)),
    "one-hot": lambda: Honest(lambda d, i: torch.cat([d.eye[d.x[i, 0]], d.eye[d.x[i, 1]]]), x=DESIGN, eye=torch.eye(6)),
    "looked up": lambda: Honest(lambda d, i: d.table[d.code[i]], code=SORTED, table=torch.randn(24, 3)),
    "pandas": lambda: Honest(lambda d, i: d.frame.iloc[i].to_numpy(), frame=pd.DataFrame(DESIGN.numpy())),
    "constant": lambda: Honest(lambda d, i: d.eye[d.labels[i]], labels=ZEROS, eye=torch.eye(6)),
    "sorted": lambda: Honest(lambda d, i: (d.x[i], d.eye[d.x[i]]), x=SORTED, eye=torch.eye(24)),
    "sentences": lambda: Honest(lambda d, i: encoded(d.texts[i]), texts=TEXTS),
    "of a rule": lambda: Honest(lambda d, i: torch.full((3,), float(i % 24)).sin()),
    "integers": lambda: Shifted(DESIGN, ZEROS),
}


@pytest.mark.parametrize("name", EQUAL_RECORDS)
def test_different_records_may_be_equal(name: str) -> None:
    check_records_alone(EQUAL_RECORDS[name]())
    check_each_record_once(EQUAL_RECORDS[name]())


def test_files_of_equal_contents_pass(tmp_path: Path) -> None:
    for number, row in enumerate(DESIGN.numpy()):
        np.save(tmp_path / f"{number}.npy", row)
    check_records_alone(Honest(lambda d, i: np.load(d.folder / f"{i}.npy"), folder=tmp_path))
    files = [f"{number}.npy" for number in range(48)]
    check_records_alone(Honest(lambda d, i: np.load(d.folder / d.files[i]), folder=tmp_path, files=files))


def test_equal_entries_of_a_list_pass() -> None:
    check_each_record_once([(ROW, 0), (ROW, 1), (ROW.clone(), 0)])
    check_each_record_once([(row, 0) for row in DESIGN])


def test_a_file_of_the_users_with_the_name_of_a_library_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "this.py").write_text("def count(seen=[]):\n    seen.append(1)\n    return len(seen)\n")
    monkeypatch.delitem(sys.modules, "this", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    count = importlib.import_module("this").count
    surroundings = Surroundings(count)
    before = surroundings.digest()
    with surroundings.copied({}):
        assert (count(), count()) == (1, 2)
        assert surroundings.digest() != before
    assert surroundings.digest() == before
    assert count() == 1
    monkeypatch.delitem(sys.modules, "this")


def test_an_event_loop_is_not_taken_apart(monkeypatch):
    """In a notebook the streams lead to one, and each copy that failed halfway printed a traceback."""
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    loop = asyncio.new_event_loop()

    def collate(rows, outer={"stream": [loop]}):  # noqa: B006
        return rows, outer

    with Surroundings(collate).copied({}):
        assert collate([])[1]["stream"][0] is loop
    loop.close()
    assert not complaints


class FalsePairs(Rows):
    """Half of the pictures get the caption of another one, drawn once."""

    def __init__(self, share: float) -> None:
        super().__init__(torch.randn(60, 3))
        draws = np.random.default_rng(3)
        self.captions = torch.randint(64, (60, 5), generator=torch.Generator().manual_seed(0))
        self.order = np.where(draws.random(60) < share, draws.integers(60, size=60), np.arange(60))

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        return self.values[index], self.captions[self.order[index]]


def test_captions_of_false_pairs_count_for_their_own_too() -> None:
    """One record moved a sum by 4 norms under differential privacy, where 1 is paid for."""
    check_records_alone(FalsePairs(0.0))
    with pytest.raises(ValueError, match=r"several rows of 'captions', or several of one"):
        check_records_alone(FalsePairs(0.5))
    alone = FalsePairs(0.0)
    alone.order = (np.arange(60) * 7) % 60  # in another order, each once
    check_records_alone(alone)


class NearestPrices(Rows):
    """The price of another record as a feature."""

    def __init__(self, other: Any) -> None:
        super().__init__(torch.randn(60, 3))
        self.prices, self.other = torch.randn(60, 5), other

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        return self.values[index], self.prices[self.other(index) if callable(self.other) else self.other[index]]


def test_a_column_at_other_rows_counts_for_several_records() -> None:
    """One price moved sums in four steps by 3.3 norms."""
    others = np.random.default_rng(0).integers(60, size=60)
    for nearest in (others, torch.as_tensor(others), lambda index: index // 8 * 8):
        with pytest.raises(ValueError, match=r"reads 'prices' at other rows than 'values'|several of one"):
            check_records_alone(NearestPrices(nearest))
    with pytest.warns(UserWarning, match="reads 'prices' at other rows than 'values'.*one record only"):
        check_records_alone(NearestPrices(lambda index: (index + 1) % 60))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for joined in (np.arange(60), np.random.default_rng(1).permutation(60)):
            check_records_alone(NearestPrices(joined))
