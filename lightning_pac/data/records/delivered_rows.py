"""What a loader delivers during a run, held against what it declares and what each index gave before."""

import functools
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler

from lightning_pac.data.records.collated_alone import fresh_collate
from lightning_pac.data.records.copied_dataset import apart, copy_of
from lightning_pac.data.records.record_digest import FIRST_SEED, draws, load_alone, own_generators
from lightning_pac.exceptions import PrivacyViolationError

__all__ = ["DeliveredRows", "WatchedIterators", "delivered_indices", "watch_loader"]

_ASKED = 8  # records that are loaded to see whether they are the same every time
_LOOKED_AT = 32  # integers of 32 bits of a row
_DEPTH = 4  # of containers in a batch
_MOST = 16  # tensors of a batch

_Longs = NDArray[np.int64]


class DeliveredRows:
    """Contents of the rows that one pass delivers, by the indices that they were loaded for.

    Refused is an index that gives what another one gives in the same pass, if it gave something else at first: the
    record counts for two. Records that are equal from the start may stay so, and each pass may have an order of its
    own. Indices that come to give something else are warned of once, be it in other labels or weights only. Of a row,
    32 numbers of its largest tensor are looked at, and as many of each other one.

    Args:
        num_records: How many indices there are.
        is_steady: Whether an index gives the same every time, so that contents can be compared.
        listed: Which indices may come, each once in the pass; None where any may, any number of times.

    Example:
        >>> rows = DeliveredRows(4, is_steady=True)
        >>> rows.see(torch.eye(4), [0, 1, 2, 3])
        >>> rows.next_pass().see(torch.eye(4)[[0, 0, 2, 2]], [0, 1, 2, 3])
        Traceback (most recent call last):
        ...
        lightning_pac.exceptions.PrivacyViolationError: The dataset gives one record under several indices, which it \
did not at first, so that it counts for each of them: let an index give the same record throughout a run.
    """

    def __init__(self, num_records: int, is_steady: bool, listed: NDArray[np.bool_] | None = None) -> None:
        self.num_records, self._is_steady = num_records, is_steady
        self._warned: list[bool] = []  # shared by all passes
        # Of the largest tensor, and of all others; 0 before any.
        self._first: _Longs = np.zeros((num_records if is_steady else 0, 2), dtype=np.int64)
        self._left = None if listed is None else listed.copy()
        self._seen: list[_Longs] = []
        self._of_contents: dict[int, int] | None = None

    def next_pass(self, listed: NDArray[np.bool_] | None = None) -> "DeliveredRows":
        """Those of another pass, perhaps while this one goes on, which knows what indices gave in all of them."""
        other = DeliveredRows(self.num_records, self._is_steady, listed)
        other._first, other._warned = self._first, self._warned
        return other

    def see(self, batch: Any, indices: Sequence[int]) -> None:
        """Hold a batch against what came before.

        Args:
            batch: As collated.
            indices: Of its rows.

        Raises:
            PrivacyViolationError: If a record comes more often than its index.
        """
        places = np.asarray(indices, dtype=np.int64)
        if max(indices, default=0) >= self.num_records:  # the dataset has grown, which the account refuses
            return
        if self._left is not None:
            if not self._left[places].all() or len(set(places.tolist())) < len(places):
                raise PrivacyViolationError(
                    "The sampler gives other indices than those that it lists, or one of them twice in a pass, so that "
                    "a record counts more often than it is charged: let it list each index once, and stay as it is."
                )
            self._left[places] = False
        contents = _contents(batch, places) if self._is_steady else None
        if contents is not None:
            self._hold_against_first(contents, places)
            self._seen.append(places)

    def _hold_against_first(self, contents: _Longs, places: _Longs) -> None:
        first = self._first[places]
        if self._of_contents is None and (first == contents).all():
            return
        first = self._first[places] = np.where(first == 0, contents, first)
        if not np.array_equal(first[:, 1], contents[:, 1]):
            self._warn_of_change()
        first, contents = first[:, 0], contents[:, 0]
        if self._of_contents is None:
            if (first == contents).all():
                return
            # Up to here, each index has given what it gave at first.
            given = [number for seen in self._seen for number in self._first[seen, 0].tolist()]
            self._of_contents = dict(zip(given, given, strict=True))
            self._warn_of_change()
        for content, own in zip(contents.tolist(), first.tolist(), strict=True):
            if self._of_contents.setdefault(content, own) != own:
                raise PrivacyViolationError(
                    "The dataset gives one record under several indices, which it did not at first, so that it counts "
                    "for each of them: let an index give the same record throughout a run."
                )

    def _warn_of_change(self) -> None:
        if not self._warned:
            self._warned.append(True)
            warnings.warn(
                "The dataset gives other records under the same indices than before: make sure that the number of the "
                "epoch decides them, and no private record does (as in a curriculum by the loss, or where a record is "
                "scaled by those that are loaded with it).",
                stacklevel=2,
            )


class WatchedIterators:
    """Makes the iterators of a loader, whose batches are seen by `DeliveredRows`.

    Args:
        dataloader: A loader over a map-style dataset, with automatic batching.
        memory: The rows that loaders before it delivered, by their numbers; its own are added.
        number: Of the loader, among those of a run.

    Attributes:
        stopped: Whether nothing is seen any more.
        delivered: Indices of the batches of the pass that has begun last.
    """

    def __init__(self, dataloader: DataLoader[Any], memory: dict[int, DeliveredRows], number: int) -> None:
        self._dataloader, self._memory, self._number = dataloader, memory, number
        self.stopped, self.delivered = False, list[list[int]]()

    def __call__(self) -> Any:
        """An iterator of the loader, called by the loader."""
        loader = self._dataloader
        noted, own = _NotedBatches(loader.batch_sampler), loader.batch_sampler
        loader.__dict__["batch_sampler"] = noted  # the loader refuses it as an attribute, and checks see its own
        try:
            iterator: Any = type(loader)._get_iterator(loader)
        finally:
            loader.__dict__["batch_sampler"] = own
        kind = type(iterator)
        iterator.__class__ = type(kind.__name__, (_WatchedIterator, kind), {})  # what it is stays to be seen
        iterator.watch, iterator.noted, iterator.rows = self, noted, self.begin_pass()
        return iterator

    def begin_pass(self) -> DeliveredRows:
        """What sees the rows of an iterator that begins."""
        self.delivered = []
        rows, size = self._memory.get(self._number), len(cast(Sized, self._dataloader.dataset))
        if rows is None or rows.num_records != size:
            rows = self._memory[self._number] = DeliveredRows(size, _is_steady(self._dataloader))
        return rows.next_pass(_listed(self._dataloader))


class _WatchedIterator:
    """Mixed into the iterators of torch."""

    watch: WatchedIterators
    noted: "_NotedBatches"
    rows: DeliveredRows

    def _next_data(self) -> Any:
        batch = super()._next_data()  # type: ignore[misc]
        indices = self.noted.waiting.popleft()
        self.watch.delivered.append(indices)
        if not self.watch.stopped:
            self.rows.see(batch, indices)
        return batch

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.rows = self.watch.begin_pass()
        super()._reset(loader, first_iter)  # type: ignore[misc]


class _NotedBatches:
    """The batches of a sampler, which are kept until they are delivered, in that order."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self.waiting: deque[list[int]] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        self.waiting.clear()
        for indices in self._batches:
            self.waiting.append(indices)
            yield indices

    def __len__(self) -> int:
        return len(self._batches)


def watch_loader(
    dataloader: DataLoader[Any], memory: dict[int, DeliveredRows] | None = None, number: int = 0
) -> Callable[[], None]:
    """Hold all that a loader delivers against what it declares, and return how to undo that.

    Args:
        dataloader: Any; one that iterates in a way of its own, or is iterable, is left as it is.
        memory: The rows that loaders before it delivered, which took its place; see `WatchedIterators`.
        number: That of its place.
    """
    is_stock = getattr(type(dataloader), "_get_iterator", None) is DataLoader._get_iterator
    map_style = hasattr(dataloader.dataset, "__getitem__") and hasattr(dataloader.dataset, "__len__")
    if not is_stock or not map_style or dataloader.batch_sampler is None or "_get_iterator" in vars(dataloader):
        return lambda: None
    watched = WatchedIterators(dataloader, {} if memory is None else memory, number)
    dataloader.__dict__["_get_iterator"] = watched
    dataloader._iterator = None  # workers that persist have the watch of an earlier run, or none

    def undo() -> None:
        watched.stopped = True  # workers that persist have its iterator
        dataloader.__dict__.pop("_get_iterator", None)

    return undo


def delivered_indices(dataloader: DataLoader[Any], number: int) -> list[int]:
    """Those of a batch of the pass that goes on, by its number; none where that is not known."""
    watched = vars(dataloader).get("_get_iterator")
    delivered = watched.delivered if isinstance(watched, WatchedIterators) else []
    return delivered[number] if number < len(delivered) else []


def _listed(dataloader: DataLoader[Any]) -> NDArray[np.bool_] | None:
    """Which indices a stock sampler may give, once in a pass; None of another one, and of one that draws again."""
    batches: Any = dataloader.batch_sampler
    sampler = getattr(batches, "sampler", None)
    stock = type(sampler) in (RandomSampler, SequentialSampler, SubsetRandomSampler)
    if type(batches) is not BatchSampler or not stock or getattr(sampler, "replacement", False):
        return None
    records = len(cast(Sized, dataloader.dataset))
    if type(sampler) is not SubsetRandomSampler:
        return np.ones(records, dtype=np.bool_)
    found = np.zeros(records, dtype=np.bool_)
    found[np.asarray([int(index) for index in sampler.indices], dtype=np.int64) % records] = True
    return found


def _is_steady(dataloader: DataLoader[Any]) -> bool:
    """Whether records, loaded twice and collated in other company, stay the same."""
    dataset: Any = dataloader.dataset
    with apart(dataset) as own:
        return _is_steady_apart(own, dataloader.collate_fn)


def _is_steady_apart(dataset: Any, collate_fn: Callable[[list[Any]], Any]) -> bool:
    indices = sorted({len(dataset) * number // _ASKED for number in range(_ASKED)})

    def fresh() -> Any:
        return copy_of(dataset) if hasattr(dataset, "__dict__") else dataset

    def rows(chosen: list[int], seed: int) -> _Longs | None:
        records = [load_alone(fresh(), index, seed) for index in chosen]
        with fresh_collate(collate_fn, dataset) as collate:
            return _contents(collate(records), np.asarray(chosen))

    with own_generators():
        try:
            if not indices or any(draws(fresh(), index) for index in indices):
                return False
            together, turned, alone = (
                rows(chosen, FIRST_SEED + number) for number, chosen in enumerate((indices, indices[::-1], indices[:1]))
            )
        except Exception:  # if it cannot be loaded at all, the loader will say so
            return False
    if together is None or turned is None or alone is None:
        return False
    return np.array_equal(together, turned[::-1]) and np.array_equal(together[:1], alone)


def _contents(batch: Any, indices: _Longs) -> _Longs | None:
    """A number for each row of the largest tensor in a batch, equal where rows are, and one for those of all others.

    Tensors that are larger and hold the indices themselves are left out; None if there is no tensor of rows.
    """
    rows = [
        tensor.detach()
        for tensor in _tensors(batch)
        if tensor.layout == torch.strided and tensor.ndim and len(tensor) == len(indices) and tensor.numel()
    ]
    rows.sort(key=Tensor.numel)
    while rows and rows[-1].ndim == 1 and np.array_equal(rows[-1].cpu().numpy(), indices):
        rows.pop()
    if not rows:
        return None
    found = np.stack([_numbers(tensor) for tensor in rows[: -_MOST - 1 : -1]], axis=1)
    odd = 2 * np.arange(found.shape[1]) + 1
    return np.stack([found[:, 0], found[:, 1:] @ odd[1:]], axis=1) | 1  # 0 is for none


def _numbers(rows: Tensor) -> _Longs:
    """A number for each row of a tensor."""
    values = rows.reshape(len(rows), -1)
    values = torch.view_as_real(values).flatten(1) if values.is_complex() else values
    lanes = values.view({1: torch.int8, 2: torch.int16}.get(values.element_size(), torch.int32))
    chosen, weights = _chosen(lanes.shape[1])
    if lanes.shape[1] > len(chosen):
        lanes = lanes.index_select(1, chosen.to(lanes.device))
    found: _Longs = lanes.cpu().numpy().astype(np.int64) @ weights
    return found


def _tensors(value: Any, depth: int = _DEPTH) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth:
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        for part in parts or vars(value).values() if hasattr(value, "__dict__") else parts:
            yield from _tensors(part, depth - 1)


@functools.cache
def _chosen(width: int) -> tuple[Tensor, _Longs]:
    """Which of so many integers of a row are looked at, and odd numbers to multiply them by."""
    drawn = np.random.default_rng(width)
    places = np.sort(drawn.permutation(width)[:_LOOKED_AT])
    return torch.from_numpy(places), 2 * drawn.integers(-(2**62), 2**62, size=len(places)) + 1
