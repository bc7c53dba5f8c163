"""A lock on training data, so that only the loop that trains on them reads them."""

import copy
import copyreg
import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, Subset, SubsetRandomSampler

from lightning_pac.data.loader import PrivateDataLoader
from lightning_pac.data.tables import datasets_below, own_tables
from lightning_pac.exceptions import PrivacyViolationError

__all__ = ["ReadingLock", "subclassed"]

_DEPTH = 2  # of attributes and keys below one another
_FEW = 16  # parts of a list that are looked into

_TRAINED_ON = (
    "reads the training data, but nothing may leave them without noise except by the loss of training_step: put what "
    "it needs into the batch, compute it from public data, or evaluate with PrivateMetrics."
)

# What tells who was drawn, of a loader that draws, of its units and of its sampler.
_OF_DRAWS = {"num_drawn", "drawn", "unused_rows", "fingerprint"}
_OF_UNITS = {"of", "unused", "_records", "_used"}
_OF_SAMPLER = {"delivered"}


class ReadingLock:
    """Refuses, while closed, to show the records of a loader to the thread that closed it, and to those that it starts.

    Closing gives the loader, its dataset and the datasets below another class for a while, of which iteration,
    ``dataset[i]`` and attributes with an entry for each record are errors, and so is what a `PrivateDataLoader` says of
    who was drawn. Copies that are made meanwhile are closed as well. Lengths and all else can be read, and so can
    records that the loader never draws, as those of the other part of `random_split`; of what properties make of
    records, whole numbers, shapes and names.

    Args:
        loader: The loader that is trained on.
        others: Further datasets of the same records.
        refusal: Says what is wrong with reading them, and what to do instead, behind the name of who reads.

    Attributes:
        refused: Who was refused, in order, with the sentence.
        memory: Where the tensors and arrays of the data lie: a weak reference to each, its first address and the one
            after its last, how far its rows are apart, and which are drawn; None for all.

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

    def __init__(self, loader: DataLoader[Any], others: Iterable[Any] = (), refusal: str = _TRAINED_ON) -> None:
        self._refusal, self.refused = refusal, dict[str, str]()
        self._reader: str | None = None
        self._own_threads: set[int | None] = set()  # of the data, which were there before
        self._within = threading.local()  # whether this thread is in a method that may read
        self._kinds: list[tuple[Callable[[], Any], type, type]] = []
        self.memory: list[tuple[Callable[[], Any], int, int, int, np.ndarray[Any, Any] | None]] = []
        self._add(loader, {"__iter__": _nothing}, hidden=_OF_DRAWS if isinstance(loader, PrivateDataLoader) else ())
        if isinstance(loader, PrivateDataLoader):
            self._add(loader.units, {}, hidden=_OF_UNITS)
            self._add(loader.batch_sampler, {}, hidden=_OF_SAMPLER)
        sampler = getattr(loader.batch_sampler, "sampler", None)
        self._add_data(loader.dataset, sampler.indices if isinstance(sampler, SubsetRandomSampler) else None)
        for dataset in others:
            self._add_data(dataset)

    @contextmanager
    def closed(self, reader: str | None, has_batch: bool = True) -> Iterator[None]:
        """Refuse what is read meanwhile.

        Args:
            reader: Who reads, in words; None lets everybody read.
            has_batch: Whether it is given a batch. Who is not may not use tensors of the data, either.
        """
        before, self._reader = self._reader, reader
        if before is None and reader is not None:
            self._own_threads = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        self._put_on()
        try:
            with nullcontext() if has_batch else _Functions(self):
                yield
        finally:
            self._reader = before
            self._put_on()

    def copied(self) -> AbstractContextManager[None]:
        """Let copies be made meanwhile that are closed whenever this is."""
        return self.closed("A copy")

    def check(self, read: str = "") -> None:
        """Refuse what is read now, in words if they are known, if the lock is closed, and say what to do instead."""
        if self.is_closed:
            assert self._reader is not None
            sentence = f"{self._reader} {self._refusal}{f' It asked for {read}.' if read else ''}"
            raise PrivacyViolationError(self.refused.setdefault(self._reader, sentence))

    def check_memory(self, start: int, end: int) -> None:
        """Refuse, if the lock is closed, what lies where records do, from one address up to another."""
        for table, first, last, width, drawn in self.memory:
            if start < last and first < end and table() is not None:
                rows = None if drawn is None else drawn[max(0, start - first) // width : -(-(end - first) // width)]
                if rows is None or rows.any():
                    self.check()

    @property
    def is_closed(self) -> bool:
        """Whether this thread is refused what it reads."""
        within = self._reader is None or getattr(self._within, "reads", False)
        return not within and threading.get_ident() not in self._own_threads

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Let this thread read."""
        before, self._within.reads = getattr(self._within, "reads", False), True
        try:
            yield
        finally:
            self._within.reads = before

    def _put_on(self) -> None:
        for reference, own, locked in self._kinds:
            part = reference()
            if part is not None:
                object.__setattr__(part, "__class__", own if self._reader is None else locked)

    def _add_data(self, whole: Any, indices: Any = None) -> None:
        """Lock a dataset, and those that it takes its records from.

        Args:
            whole: The dataset.
            indices: Of its records that are drawn; None for all.
        """
        for dataset, drawn in _drawn_from(whole, indices):
            if any(reference() is dataset for reference, _, _ in self._kinds):
                continue
            held = [table for table in own_tables(dataset) if isinstance(table, Tensor | np.ndarray)]
            self.memory += [(_reference(table), *_memory(table), _width(table), drawn) for table in held]
            may_be_read = functools.partial(_spares, drawn)
            reads = dict.fromkeys(("__getitem__", "__getitems__"), may_be_read)
            self._add(dataset, {**reads, "__iter__": _nothing, "__len__": _everything}, has_rows=True)

    def check_draw(self, name: str) -> None:
        """The same for what tells who was drawn.

        Args:
            name: The attribute that is read.
        """
        if self.is_closed:
            raise PrivacyViolationError(
                f"{self._reader} reads {name} of the train loader, but which records a batch holds, and how many, is "
                "secret: divide by a constant, and leave it to SRPPSGD to leave out rows that do not count."
            )

    def _add(
        self,
        part: Any,
        methods: Mapping[str, Callable[..., bool]],
        has_rows: bool = False,
        hidden: Collection[str] = (),
    ) -> None:
        """Lock methods of an object, each but for arguments for which a function is true, and tables if it has rows."""
        own = type(part)
        held = {name: spared for name, spared in methods.items() if hasattr(own, name)}
        found = {name: self._guarded(getattr(own, name), spared) for name, spared in held.items()}
        with suppress(Exception):  # a class that none can be below, and that the checks on copies are left to
            if has_rows:
                found["__getattribute__"] = self._guarded_attributes(own, len(part))
                found["__copy__"] = found["__deepcopy__"] = self._copied()
            elif hidden:
                found["__getattribute__"] = self._without(own, hidden)
            locked = subclassed(own, found)
            for kind in (locked, own):
                object.__setattr__(part, "__class__", kind)
            self._kinds.append((_reference(part), own, locked))

    def _guarded(self, method: Callable[..., Any], spared: Callable[..., bool]) -> Callable[..., Any]:
        @functools.wraps(method)
        def guarded(part: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_closed and not spared(*args, **kwargs):
                self.check(f"{method.__name__} of {type(part).__name__}")
            with self._reading():
                return method(part, *args, **kwargs)

        return guarded

    def _without(self, own: Any, hidden: Collection[str]) -> Callable[..., Any]:
        def guarded(part: Any, name: str) -> Any:
            if name in hidden:
                self.check_draw(name)
            return own.__getattribute__(part, name)

        return guarded

    def _guarded_attributes(self, own: Any, rows: int) -> Callable[..., Any]:
        def guarded(part: Any, name: str) -> Any:
            if not self.is_closed:
                return own.__getattribute__(part, name)
            try:
                value = own.__getattribute__(part, name)
            except PrivacyViolationError:  # a property that reads records
                with self._reading():
                    value = own.__getattribute__(part, name)
                if not _is_plain(value):
                    raise
            if name != "indices" and _is_kept(part, own, name) and _has_rows(value, rows):
                self.check(f"{name} of {own.__name__}")
            return value

        return guarded

    def _copied(self) -> Callable[..., Any]:
        """A method that makes a copy of a dataset, closed like it."""

        def copied(part: Any, memo: dict[int, Any] | None = None) -> Any:
            with self.closed(None):
                found = copy.copy(part) if memo is None else copy.deepcopy(part, memo)
                self._add_data(found)
            return found

        return copied


class _Functions(TorchFunctionMode):
    """Refuses functions of tensors and arrays that share memory with the data, but for their shapes."""

    def __init__(self, lock: ReadingLock) -> None:
        super().__init__()
        self._lock = lock

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name not in _SHAPES:
            # The memo of `copy.deepcopy` holds whatever else was copied.
            for leaf in pytree.tree_leaves(args[:1] if name == "__deepcopy__" else (args, kwargs)):
                if isinstance(leaf, Tensor | np.ndarray):
                    self._lock.check_memory(*_memory(leaf))
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


def _width(table: Any) -> int:
    """How many bytes the rows of a tensor or an array are apart; all, where rows do not follow one another."""
    try:
        width = table.itemsize
        steps = table.strides if isinstance(table, np.ndarray) else tuple(width * step for step in table.stride())
    except Exception:  # sparse tensors
        return 2**63
    return max(1, steps[0]) if steps[0] == max(steps) else 2**63


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
    inherited = vars(kind).get("__init_subclass__")
    type.__setattr__(kind, "__init_subclass__", classmethod(_nothing))  # which may register classes, or ask for more
    try:
        made: type = type(kind)(kind.__name__, (kind,), {**names, "__reduce_ex__": reduce, **methods})
    finally:
        if inherited is None:
            type.__delattr__(kind, "__init_subclass__")
        else:
            type.__setattr__(kind, "__init_subclass__", inherited)
    return made


def _reference(part: Any) -> Callable[[], Any]:
    """What gives an object as long as it is there."""
    try:
        return weakref.ref(part)
    except TypeError:
        return lambda: part


def _is_kept(part: Any, own: type, name: str) -> bool:
    """Whether an attribute is of the object itself."""
    if isinstance(inspect.getattr_static(own, name, None), types.MemberDescriptorType):  # a slot
        return True
    with suppress(AttributeError):
        return name in object.__getattribute__(part, "__dict__")
    return False


def _is_plain(value: Any) -> bool:
    """Whether it is a whole number, a shape, a name, or a few names."""
    names = isinstance(value, list | tuple) and all(isinstance(part, str) for part in value)
    return value is None or names or isinstance(value, int | str | torch.Size)


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


def _drawn_from(dataset: Any, indices: Any = None) -> list[tuple[Any, "np.ndarray[Any, Any] | None"]]:
    """A dataset and those that it takes its records from, each with a mask of those that it takes; None for all."""
    found: list[tuple[Any, np.ndarray[Any, Any] | None]] = []
    drawn: Any = None if indices is None else _mask(dataset, indices)
    while type(dataset) is Subset:
        found.append((dataset, drawn))
        chosen = np.asarray(dataset.indices)
        dataset, drawn = dataset.dataset, _mask(dataset.dataset, chosen if drawn is None else chosen[drawn])
    return [*found, (dataset, drawn), *((part, None) for part in datasets_below(dataset)[1:])]


def _mask(dataset: Any, indices: Any) -> "np.ndarray[Any, Any]":
    mask = np.zeros(len(dataset), dtype=np.bool_)
    mask[np.asarray(indices)] = True
    return mask


def _has_rows(value: Any, rows: int, depth: int = _DEPTH) -> bool:
    """Whether a value has an entry for each record, or something in it does."""
    if isinstance(value, str | bytes | Dataset | DataLoader):  # datasets are locked by themselves
        return False
    with suppress(Exception):
        is_long = isinstance(value, Tensor | np.ndarray) and len(value) > rows  # a series, of which records are parts
        if is_long or rows in getattr(value, "shape", ()) or len(value) == rows:
            return True
    if isinstance(value, Mapping):
        parts = list(value.values())
    else:
        parts = list(value) if type(value) in (list, tuple) else list(getattr(value, "__dict__", {}).values())
    return depth > 0 and len(parts) <= _FEW and any(_has_rows(part, rows, depth - 1) for part in parts)
