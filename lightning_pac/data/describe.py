"""Read from a DataLoader how it draws its batches."""

import sys
from collections.abc import Sized
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)

from lightning_pac.data.batch_samplers import (
    FixedSizeBatchSampler,
    PoissonBatchSampler,
    ShuffledBatchSampler,
    WithReplacementBatchSampler,
)
from lightning_pac.data.loader import PrivateDataLoader
from lightning_pac.scenarios import EpochShuffle, FixedSize, Poisson, Sampling, Sequential, WithReplacement

__all__ = ["batch_sizes", "count_records", "describe_loader", "order_is_public"]

WAY_OUT = "pass sampling= to let our own sampler draw the batches, for instance Poisson(rate=...)"

TWICE = "holds records twice, so a record counts more than once in a pass: list each once."

# The default seed of torch's generator has 53 random bits; seeds that people and `seed_everything` choose have 32.
CHOSEN_SEEDS = 2**32


def describe_loader(dataloader: Any) -> Sampling:
    """Read what a DataLoader does, as a public descriptor of its sampling.

    Args:
        dataloader: A `torch.utils.data.DataLoader` over a map-style dataset.

    Returns:
        `EpochShuffle`, `Sequential`, `WithReplacement`, `FixedSize` or `Poisson`, with the loader's own batch size.

    Raises:
        TypeError: If it is no DataLoader, or its dataset is iterable.
        ValueError: If nothing bounds how often a record is drawn: a weighted, padding, stratified or unknown sampler,
            a dataset that holds a record twice, no automatic batching.

    Example:
        >>> describe_loader(DataLoader(range(100), batch_size=8, shuffle=True))
        EpochShuffle(batch_size=8, drop_last=False, steps_per_pass=None)
    """
    if not isinstance(dataloader, DataLoader):
        raise TypeError(f"{type(dataloader).__name__} is not a torch DataLoader, so its draws are unknown: {WAY_OUT}.")
    if isinstance(dataloader.dataset, IterableDataset):
        raise TypeError(
            f"{type(dataloader.dataset).__name__} is an iterable dataset, and nothing bounds how often it yields a "
            "record: use a map-style dataset, with __getitem__ and __len__."
        )
    _check_each_record_once(dataloader.dataset)
    if isinstance(dataloader, PrivateDataLoader):
        return dataloader.sampling
    if (
        type(dataloader).__iter__ is not DataLoader.__iter__
        and type(dataloader).__module__.split(".")[0] != "torchdata"
    ):
        raise ValueError(
            f"{type(dataloader).__name__} iterates in its own way, and nothing bounds how often it yields a record: "
            f"use torch's DataLoader, or {WAY_OUT}."
        )
    batch_sampler = dataloader.batch_sampler
    if batch_sampler is None:
        raise ValueError(
            "The DataLoader has no automatic batching (batch_size=None), so one item may hold any number of records: "
            "let the dataset return single records, and give the DataLoader a batch_size."
        )
    if type(batch_sampler) is BatchSampler:
        return _describe_sampler(batch_sampler, dataloader)
    return _describe_batch_sampler(batch_sampler)


def count_records(dataloader: DataLoader[Any]) -> int:
    """How many records the loader draws from: its dataset's, or those of a `SubsetRandomSampler`.

    Args:
        dataloader: Any loader.

    Example:
        >>> count_records(DataLoader(range(100), batch_size=8))
        100
    """
    inner = getattr(dataloader.batch_sampler, "sampler", None)
    if isinstance(inner, SubsetRandomSampler):
        return len(inner.indices)
    return len(cast(Sized, dataloader.dataset))


def batch_sizes(dataloader: DataLoader[Any]) -> frozenset[int] | None:
    """The numbers of records that a stock DataLoader's batches have; None where they are drawn at random.

    Example:
        >>> sorted(batch_sizes(DataLoader(range(100), batch_size=8)))
        [4, 8]
    """
    batch_sampler: Any = dataloader.batch_sampler
    if type(batch_sampler) is BatchSampler:
        records = len(cast(Sized, batch_sampler.sampler))
    elif type(batch_sampler) is ShuffledBatchSampler:
        records = batch_sampler.num_records
    elif isinstance(batch_sampler, FixedSizeBatchSampler):
        return frozenset({batch_sampler.batch_size})
    else:
        return None
    size, rest = batch_sampler.batch_size, records % batch_sampler.batch_size
    return frozenset(
        ({size} if records >= size else set()) | ({rest} if rest and not batch_sampler.drop_last else set())
    )


def order_is_public(dataloader: DataLoader[Any]) -> bool:
    """Whether an adversary may know the order of the batches: no shuffling, or shuffling from a seed that was chosen.

    Our own loaders draw from the operating system. A stock loader shuffles with torch's global generator, which
    `seed_everything` seeds (Lightning's command line does so with 0 by default), or with a generator it was given.

    Args:
        dataloader: Any loader.
    """
    if isinstance(dataloader, PrivateDataLoader):
        return not dataloader.sampling.random_draws
    inner = getattr(dataloader.batch_sampler, "sampler", None)
    if isinstance(inner, SequentialSampler):
        return True
    generator = dataloader.generator or getattr(inner, "generator", None)
    return generator is not None or torch.initial_seed() < CHOSEN_SEEDS


def _describe_sampler(batch_sampler: BatchSampler, dataloader: DataLoader[Any]) -> Sampling:
    sampler, size, drop_last = batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last
    if type(sampler) is SequentialSampler:
        return Sequential(size, drop_last)
    if type(sampler) is RandomSampler:
        records = len(cast(Sized, dataloader.dataset))
        if sampler.replacement:
            return WithReplacement(size)
        if sampler.num_samples > records:
            raise ValueError(
                f"RandomSampler draws {sampler.num_samples} of {records} records without replacement, so records come "
                f"twice in a pass: leave num_samples out, or {WAY_OUT}."
            )
        shortened = sampler.num_samples < records
        return EpochShuffle(size, drop_last, steps_per_pass=len(batch_sampler) if shortened else None)
    if type(sampler) is SubsetRandomSampler:
        _check_distinct(sampler.indices, "SubsetRandomSampler")
        return EpochShuffle(size, drop_last)
    raise ValueError(_refusal(sampler))


def _describe_batch_sampler(batch_sampler: Any) -> Sampling:
    if type(batch_sampler) is PoissonBatchSampler:
        return Poisson(batch_sampler.rate)
    if type(batch_sampler) is WithReplacementBatchSampler:
        return WithReplacement(batch_sampler.batch_size)
    if type(batch_sampler) is FixedSizeBatchSampler:
        return FixedSize(batch_sampler.batch_size)
    if type(batch_sampler) is ShuffledBatchSampler:
        kind = EpochShuffle if batch_sampler.shuffle else Sequential
        return kind(batch_sampler.batch_size, batch_sampler.drop_last)
    opacus = sys.modules.get("opacus.utils.uniform_sampler")
    if opacus is not None and type(batch_sampler) is opacus.UniformWithReplacementSampler:
        return Poisson(batch_sampler.sample_rate, secret_draws=False)
    raise ValueError(_refusal(batch_sampler))


def _refusal(sampler: Sampler[Any] | Any) -> str:
    name = type(sampler).__name__
    if "Weighted" in name or "Stratified" in name or "Balanced" in name:
        reason = "draws by weights or labels, so the secret itself may decide how often a record is drawn"
    elif "Distributed" in name:
        reason = "pads its passes by repeating records"
    else:
        reason = "is unknown, and nothing bounds how often it draws a record"
    return f"The sampler {name} {reason}: use shuffle=True, or leave it out and {WAY_OUT}."


def _check_each_record_once(dataset: Any) -> None:
    if isinstance(dataset, Subset):
        _check_distinct(_positions(dataset), "Subset")
        _check_each_record_once(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            _check_each_record_once(part)
        _check_parts_apart(dataset)


def _check_distinct(indices: Any, name: str) -> None:
    values = indices.tolist() if hasattr(indices, "tolist") else list(indices)
    if len(set(values)) != len(values):
        raise ValueError(f"{name} {TWICE}")


def _check_parts_apart(dataset: ConcatDataset[Any]) -> None:
    """Parts of one dataset, as in oversampling, must not overlap."""
    places: dict[int, list[np.ndarray[Any, np.dtype[np.int64]]]] = {}
    for part in dataset.datasets:
        for source, indices in _places(part):
            places.setdefault(id(source), []).append(indices)
    for parts in places.values():
        if len(parts) > 1 and len(np.unique(np.concatenate(parts))) < sum(map(len, parts)):
            raise ValueError(f"ConcatDataset {TWICE}")


def _places(dataset: Any) -> list[tuple[Any, "np.ndarray[Any, np.dtype[np.int64]]"]]:
    """The datasets at the bottom, and which of their records are in this one."""
    if isinstance(dataset, ConcatDataset):
        return [place for part in dataset.datasets for place in _places(part)]
    if not isinstance(dataset, Subset):
        return [(dataset, np.arange(len(dataset)))]
    chosen = _positions(dataset)
    found, start = [], 0
    for source, indices in _places(dataset.dataset):
        inside = chosen[(chosen >= start) & (chosen < start + len(indices))] - start
        found.append((source, indices[inside]))
        start += len(indices)
    return found


def _positions(subset: Subset[Any]) -> "np.ndarray[Any, np.dtype[np.int64]]":
    # A negative index counts from the end.
    return np.asarray(subset.indices, dtype=np.int64) % len(cast(Sized, subset.dataset))
