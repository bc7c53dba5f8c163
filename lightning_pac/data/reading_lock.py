"""A lock on training data, so that only the loop that trains on them reads them."""

import copyreg
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import lightning.pytorch as pl
import numpy as np
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, Subset

from lightning_pac.data.tables import datasets_below, own_tables
from lightning_pac.exceptions import PrivacyViolationError

__all__ = ["ReadingLock", "subclassed"]

_DEPTH = 2  # of attributes and keys below one another
_FEW = 16  # parts of a list that are looked into


class ReadingLock:
    """Refuses, while it is closed, to show the records of a loader to the thread that closed it.

    Closing gives the loader, its dataset and the datasets below another class for a while, of which iteration,
    ``dataset[i]`` and attributes with an entry for each record are errors. Lengths and all else can be read, and so can
    records that the loader never draws, as those of the other part of `random_split`.

    Args:
        loader: The loader that is trained on.
        datamodule: What makes such loaders; nobody may ask it for another one meanwhile.

    Attributes:
        memory: Where the tensors and arrays of the data lie, each from its first address up to another.

    Example:
        >>> data = [[1.0], [2.0], [3.0]]
        >>> class Rows(Dataset):
        ...     def __len__(self):
        ...         return len(data)
        ...
        ...     def __getitem__(self, index):
        ...         return data[index]
        >>> loader = DataLoader(Rows())
        >>> with ReadingLock(loader).closed("A hook"):
        ...     print(len(loader.dataset))
        ...     loader.dataset[0]
        Traceback (most recent call last):
        ...
        lightning_pac.exceptions.PrivacyViolationError: A hook reads the training data, but ...
    """

    def __init__(self, loader: DataLoader[Any], datamodule: pl.LightningDataModule | None = None) -> None:
        self._reader: str | None = None
        self._thread = 0
        self._kinds: list[tuple[Any, type, type]] = []
        self._add(loader, {"__iter__": _nothing})
        self._add(datamodule, {"train_dataloader": _nothing})
        self.memory: list[tuple[int, int]] = []
        for dataset, drawn in _drawn_from(loader.dataset):
            if drawn is None:
                self.memory += [
                    _memory(table) for table in own_tables(dataset) if isinstance(table, Tensor | np.ndarray)
                ]
            may_be_read = functools.partial(_spares, drawn)
            reads = dict.fromkeys(("__getitem__", "__getitems__"), may_be_read)
            self._add(dataset, {**reads, "__iter__": _nothing, "__len__": _everything}, has_rows=True)

    @contextmanager
    def closed(self, reader: str | None, has_batch: bool = True) -> Iterator[None]:
        """Refuse what is read meanwhile.

        Args:
            reader: Who reads, in words; None lets everybody read.
            has_batch: Whether it is given a batch. Who is not may not use tensors of the data, either.
        """
        before, self._reader, self._thread = self._reader, reader, threading.get_ident()
        self._put_on()
        try:
            with nullcontext() if has_batch else _Functions(self):
                yield
        finally:
            self._reader = before
            self._put_on()

    def check(self) -> None:
        """Refuse what is read now, if the lock is closed.

        Raises:
            PrivacyViolationError: Names who reads, and says what to do instead.
        """
        if self._is_closed:
            raise PrivacyViolationError(
                f"{self._reader} reads the training data, but nothing may leave them without noise except by the loss "
                "of training_step: put what it needs into the batch, compute it from public data, or evaluate with "
                "PrivateMetrics."
            )

    @property
    def _is_closed(self) -> bool:
        return self._reader is not None and threading.get_ident() == self._thread

    def _put_on(self) -> None:
        for part, own, locked in self._kinds:
            object.__setattr__(part, "__class__", own if self._reader is None else locked)

    def _add(self, part: Any, methods: Mapping[str, Callable[..., bool]], has_rows: bool = False) -> None:
        """Lock methods of an object, each but for arguments for which a function is true, and tables if it has rows."""
        own = type(part)
        held = {name: spared for name, spared in methods.items() if hasattr(own, name)}
        found = {name: self._guarded(getattr(own, name), spared) for name, spared in held.items()}
        with suppress(Exception):  # a class that none can be below, and that the checks on copies are left to
            if has_rows:
                found["__getattribute__"] = self._guarded_attributes(own, len(part))
            locked = subclassed(own, found)
            for kind in (locked, own):
                object.__setattr__(part, "__class__", kind)
            self._kinds.append((part, own, locked))

    def _guarded(self, method: Callable[..., Any], spared: Callable[..., bool]) -> Callable[..., Any]:
        @functools.wraps(method)
        def guarded(part: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_closed:
                return method(part, *args, **kwargs)
            if not spared(*args, **kwargs):
                self.check()
            with self.closed(None):
                return method(part, *args, **kwargs)

        return guarded

    def _guarded_attributes(self, own: Any, rows: int) -> Callable[..., Any]:
        def guarded(part: Any, name: str) -> Any:
            value = own.__getattribute__(part, name)
            is_kept = self._is_closed and name in object.__getattribute__(part, "__dict__")
            if is_kept and name != "indices" and _has_rows(value, rows):
                self.check()
            return value

        return guarded


class _Functions(TorchFunctionMode):
    """Refuses functions of tensors and arrays that share memory with the data, but for their shapes."""

    def __init__(self, lock: ReadingLock) -> None:
        super().__init__()
        self._lock = lock

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") not in _SHAPES:
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor | np.ndarray):
                    start, end = _memory(leaf)
                    if any(start < other_end and other_start < end for other_start, other_end in self._lock.memory):
                        self._lock.check()
        return func(*args, **(kwargs or {}))


_SHAPES = {"__get__", "__len__", "size", "dim", "numel", "is_floating_point"}


def _memory(table: Any) -> tuple[int, int]:
    """The first address of a tensor or an array, and the one after its last; of other tables none."""
    try:
        if isinstance(table, np.ndarray):
            start, width, strides = table.ctypes.data, table.itemsize, table.strides
        else:
            width = table.element_size()
            start, strides = table.data_ptr(), tuple(width * stride for stride in table.stride())
        last = sum((size - 1) * stride for size, stride in zip(table.shape, strides, strict=True))
    except Exception:  # sparse tensors, and those without memory
        return 0, 0
    return (start, start + last + width) if 0 not in table.shape else (0, 0)


def subclassed(kind: type, methods: Mapping[str, Any]) -> type:
    """A class that goes by the name of another one, and has methods in place of its own; copies are of that one.

    Raises:
        TypeError: If there can be none.
    """
    own: Any = kind

    def reduce(part: Any, protocol: Any) -> Any:
        found = own.__reduce_ex__(part, protocol)
        if not isinstance(found, tuple):
            return found
        function, arguments, *rest = found
        if function is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle holds its class against the object's
            function = _new
        return (function, tuple(kind if value is made else value for value in arguments), *rest)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, "__slots__": ()}
    made: type = type(kind)(kind.__name__, (kind,), {**names, "__reduce_ex__": reduce, **methods})
    return made


def _new(kind: Any, *args: Any) -> Any:
    return kind.__new__(kind, *args)


def _nothing(*_: Any) -> bool:
    return False


def _everything(*_: Any) -> bool:
    return True


def _spares(drawn: "np.ndarray[Any, Any] | None", index: Any) -> bool:
    """Whether none of the records with these indices is drawn."""
    if drawn is None:
        return False
    try:
        return not drawn[index if isinstance(index, slice) else np.asarray(index)].any()
    except Exception:  # no index of this dataset
        return False


def _drawn_from(dataset: Any) -> list[tuple[Any, "np.ndarray[Any, Any] | None"]]:
    """A dataset and those that it takes its records from, each with a mask of those that it takes; None for all."""
    found: list[tuple[Any, np.ndarray[Any, Any] | None]] = []
    drawn: Any = None
    while type(dataset) is Subset:
        found.append((dataset, drawn))
        indices = np.asarray(dataset.indices)
        mask: Any = np.zeros(len(dataset.dataset), dtype=np.bool_)  # type: ignore[arg-type]
        mask[indices if drawn is None else indices[drawn]] = True
        dataset, drawn = dataset.dataset, mask
    return [*found, (dataset, drawn), *((part, None) for part in datasets_below(dataset)[1:])]


def _has_rows(value: Any, rows: int, depth: int = _DEPTH) -> bool:
    """Whether a value has an entry for each record, or something in it does."""
    if isinstance(value, str | bytes | Dataset | DataLoader):  # datasets are locked by themselves
        return False
    with suppress(Exception):
        if rows in getattr(value, "shape", ()) or len(value) == rows:
            return True
    if isinstance(value, Mapping):
        parts = list(value.values())
    else:
        parts = list(value) if type(value) in (list, tuple) else list(getattr(value, "__dict__", {}).values())
    return depth > 0 and len(parts) <= _FEW and any(_has_rows(part, rows, depth - 1) for part in parts)
