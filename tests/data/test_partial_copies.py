"""Memories that stand beside what cannot be copied, or are large, in datasets and in collate functions."""

import functools
import gc
import importlib
import itertools
import multiprocessing
import shutil
import sqlite3
import sys
import threading
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from slow_cases import mostly_slow
from torch.utils.data import DataLoader, Dataset

from lightning_pac.data import check_records_alone
from lightning_pac.data.quiet_copies import deep_copied
from lightning_pac.data.records import check_collated_alone, copy_of, copy_small
from lightning_pac.data.records.libraries import is_library

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


class Listed(Coder):
    """Gives a name its place in a list."""

    def __call__(self, name: str) -> int:
        if name not in self.codes:
            self.codes[name] = len(self.beside)
            self.beside.append(name)
        return int(self.codes[name])


class Slotted:
    """As the first, in slots, of which one is a tuple."""

    __slots__ = ("beside", "parts", "unset")

    def __init__(self, *parts: Any) -> None:
        self.parts, self.beside = parts, threading.Lock()

    def __call__(self, name: str) -> int:
        return int(self.parts[0].setdefault(name, len(self.parts[0])))


class Pair(NamedTuple):
    """As the first, in a tuple with names."""

    codes: dict[str, int]
    lock: Any

    def __call__(self, name: str) -> int:
        return self.codes.setdefault(name, len(self.codes))


class Passing(Coder):
    """Passes on attributes, as wrappers do, and never ends where it has nothing yet to pass on to."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.codes, name)


class Looked(Coder):
    """Leaves it to what it holds to number names."""

    def __call__(self, name: str) -> int:
        return int(self.codes[name])


class Single(Coder):
    """Of which there is one, as of a registry: a deep copy is the same."""

    _one: Any = None

    def __new__(cls, *_: Any) -> Any:
        cls._one = cls._one or super().__new__(cls)
        return cls._one


class Dropping(Coder):
    """Leaves out of copies what cannot be pickled, and fails there."""

    def __getstate__(self) -> Any:
        return {"codes": self.codes}

    def __call__(self, name: str) -> int:
        with self.beside:
            return super().__call__(name)


class Cached(Coder):
    """Caches a method for each object."""

    def __init__(self) -> None:
        super().__init__({})
        self.known = functools.lru_cache(maxsize=8)(super().__call__)

    def __call__(self, name: str) -> int:
        return self.known(name)


class Words(dict[str, int]):
    """Lists its words, too."""

    def __init__(self, size: int, beside: Any = None) -> None:
        super().__init__((str(number), number) for number in range(size))
        self.words, self.beside = [*self], beside

    def __call__(self, name: str) -> int:
        if name not in self:
            self[name] = len(self.words)
            self.words.append(name)
        return self[name]


class Named(dict[str, Any]):
    """A configuration whose entries are attributes, and no others."""

    __getattr__ = dict.__getitem__

    def __call__(self, name: str) -> int:
        return int(self.codes.setdefault(name, len(self.codes)))


def shared_numbers() -> Callable[[str], int]:
    return Looked(Counted(multiprocessing.Array("i", 256)))


class Counted(Coder):
    """Numbers names in memory that processes share."""

    def __getitem__(self, name: str) -> int:
        place = ord(name[0])
        self.codes[place] = self.codes[place] or 1 + max(self.codes)
        return int(self.codes[place])


def by_methods(codes: dict[str, int]) -> Callable[[str], int]:
    return functools.partial(lambda put, size, name: put(name, size()), codes.setdefault, codes.__len__)


class Vocabulary(dict[str, int]):
    """Numbers names as they come."""

    def __missing__(self, name: str) -> int:
        self[name] = len(self)
        return self[name]


CODERS: dict[str, Callable[[], Callable[[str], int]]] = {
    "asks itself": lambda: functools.partial(lambda codes, name: codes[name], asks_itself()),
    "beside a lock": lambda: Coder({}, threading.Lock()),
    "beside a connection": lambda: Coder({}, [sqlite3.connect(":memory:", check_same_thread=False)]),
    "public words before": lambda: Coder({f"word {number}": number for number in range(3000)}),
    "very many public words before": lambda: Coder({f"word {number}": number for number in range(2**17 + 1)}),
    "very many in a class of its own": lambda: Looked(Vocabulary.fromkeys(map(str, range(2**17 + 1)), 0)),
    "beside a lock, in slots": lambda: Slotted({}, threading.Lock()),
    "beside a lock, in a named tuple": lambda: Pair({}, threading.Lock()),
    "passes on attributes": lambda: Passing({}),
    "one object only": lambda: Single({}),
    "left out of copies": lambda: Dropping({}, threading.Lock()),
    "a cache of a method": Cached,
    "a list beside": lambda: Words(0, threading.Lock()),
    "a list beside many": lambda: Words(2000),
    "a list beside very many": lambda: Words(2**17 + 1),
    "a configuration": lambda: Named(codes={}, lock=threading.Lock()),
    "shared by processes": shared_numbers,
    "methods of a dictionary": lambda: by_methods({}),
    "very many in a list": lambda: Listed({}, [*map(str, range(2**17 + 1))]),
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


def test_the_check_adds_nothing_to_what_is_too_large_for_copies() -> None:
    coder = Coder(dict.fromkeys(range(2**17 + 1), 0))
    with pytest.raises(ValueError, match="Rows gives a record otherwise after another one"):
        check_records_alone(Rows(coder))
    assert list(coder.codes) == list(range(2**17 + 1))


class Open(Dataset[Any]):
    """Reads from a connection."""

    def __init__(self) -> None:
        self.connection, self.seen = sqlite3.connect(":memory:"), [np.zeros(3)]

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        (number,) = self.connection.execute("select ?", (index,)).fetchone()
        return torch.tensor([number])


def test_copies_leave_open_what_they_share() -> None:
    data = Open()
    fresh = copy_of(data)
    assert fresh.connection is data.connection
    assert fresh.seen is not data.seen
    del fresh
    check_records_alone(data)
    assert data[3] == 3


class Ending(Dataset[Any]):
    """Closes with its end what its records are read from, or removes it."""

    def __init__(self, source: Any, read: Callable[[Any, int], Any], end: Callable[[Any], None], beside: Any) -> None:
        self.source, self.read, self.end, self.beside, self.labels = source, read, end, beside, list(range(20))

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return self.read(self.source, index), self.labels[index]

    def __del__(self) -> None:
        self.end(self.source)


class Kept(Ending):
    """Keeps it in a part."""

    def __init__(self, *args: Any) -> None:
        self.part, self.labels = Ending(*args), list(range(20))

    def __getitem__(self, index: int) -> Any:
        return self.part.read(self.part.source, index), self.labels[index]

    def __del__(self) -> None:
        pass


def folder_of(path: Path) -> str:
    (path / "records").mkdir()
    for number in range(20):
        (path / "records" / str(number)).write_text(str(number))
    return str(path / "records")


def archive_of(path: Path, kind: str) -> Any:
    np.savez(path / "records.npz", **{str(number): np.array(number) for number in range(20)})
    return np.load(path / "records.npz") if kind == "npz" else zipfile.ZipFile(path / "records.npz")


def nothing(source: Any) -> None:
    """The end of the source is its own."""


SOURCES: dict[str, tuple[Any, Any, Any]] = {
    "folder": (folder_of, lambda path, index: Path(path, str(index)).read_text(), shutil.rmtree),
    "zip": (lambda path: archive_of(path, "zip"), lambda file, index: file.read(f"{index}.npy"), nothing),
    "npz": (lambda path: archive_of(path, "npz"), lambda file, index: file[str(index)], nothing),
    "file": (
        lambda path: open(Path(folder_of(path), "7"), "rb"),  # noqa: SIM115
        lambda file, index: (file.seek(0), file.read(), index)[1:],
        lambda file: file.close(),
    ),
}


LOCK = threading.Lock()
FAST = [("folder", Ending, None), ("zip", Ending, LOCK), ("file", Kept, LOCK)]


@pytest.mark.parametrize(
    ("source", "kind", "beside"), mostly_slow(itertools.product(SOURCES, [Ending, Kept], [None, LOCK]), *FAST)
)
def test_the_end_of_a_copy_takes_nothing_from_the_original(source: str, kind: Any, beside: Any, tmp_path: Path) -> None:
    """A check closed an archive, or removed a folder, that the loader then read from."""
    make, read, end = SOURCES[source]
    data = kind(make(tmp_path), read, end, beside)
    before = [data[index] for index in range(20)]
    check_records_alone(data)
    with suppress(TypeError):  # some cannot be copied
        deep_copied(data)
    gc.collect()
    assert [data[index] for index in range(20)] == before
    del data
    gc.collect()
    assert source != "folder" or not (tmp_path / "records").exists()


class Drawing(Open):
    """Draws by a generator that cannot be copied."""

    def __getitem__(self, index: int) -> Any:
        return self.connection.execute("select random()").fetchone()


def test_a_state_that_copies_share_is_no_memory() -> None:
    check_records_alone(Drawing())


def test_a_copy_takes_no_longer_where_many_others_are_known() -> None:
    """The state beside a model with adapters took 0.2 s to copy, three hundred times over."""

    def seconds(num_known: int) -> float:
        kept = [object() for _ in range(num_known)]
        memo = {id(one): one for one in kept}
        start = time.process_time()
        for number in range(300):
            copy_small([number, {"mean": 0.0}], memo)
        return time.process_time() - start

    seconds(10)
    assert seconds(100_000) < 10 * seconds(10)


@pytest.mark.parametrize(("name", "is_ours"), [("peft.tuners.lora", False), ("huggingface_hub", False), ("mine", True)])
def test_what_fetches_weights_is_a_library(name: str, is_ours: bool) -> None:
    """Its clients and progress bars were copied with the state beside each model that has adapters."""
    assert is_library(name) is not is_ours


def test_a_file_that_is_named_as_a_library_is_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "accelerate.py").write_text("seen = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "accelerate", raising=False)
    is_library.cache_clear()
    importlib.import_module("accelerate")
    assert not is_library("accelerate")
    del sys.modules["accelerate"]  # and not by monkeypatch, which would put it back
    is_library.cache_clear()
