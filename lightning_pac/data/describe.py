"""Read from a DataLoader how it draws its batches."""

import sys
from collections.abc import Sized
from typing import Any, cast

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from lightning_pac._validation import validated
from lightning_pac.data.batch_samplers import (
    FixedSizeBatchSampler,
    PoissonBatchSampler,
    SchemeBatchSampler,
    ShuffledBatchSampler,
    WithReplacementBatchSampler,
)
from lightning_pac.data.loader import PrivateDataLoader, ResumableDataLoader
from lightning_pac.data.persons import UnitRows
from lightning_pac.data.records import TWICE, WatchedIterators, check_each_record_once
from lightning_pac.scenarios import EpochShuffle, Poisson, Sampling, Sequential, WithReplacement

__all__ = ["batch_sizes", "count_records", "describe_loader", "order_is_public"]

WAY_OUT = "pass sampling= to let our own sampler draw the batches, for instance Poisson(rate=...)"

_OUR_BATCH_SAMPLERS = (
    PoissonBatchSampler,
    WithReplacementBatchSampler,
    FixedSizeBatchSampler,
    ShuffledBatchSampler,
)

# The default seed of torch's generator has 53 random bits; seeds that people and `seed_everything` choose have 32.
CHOSEN_SEEDS = 2**32


def describe_loader(dataloader: Any) -> Sampling:
    """Read what a DataLoader does, as a public descriptor of its sampling.

    Args:
        dataloader: A `torch.utils.data.DataLoader` over a map-style dataset.

    Returns:
        The scheme, with the loader's own batch size.

    Raises:
        TypeError: If it is no DataLoader, or its dataset is iterable or has no length.
        ValueError: If nothing bounds how often a record is drawn: a weighted, padding, stratified or unknown sampler,
            a dataset that holds a record twice, no automatic batching.

    Example:
        >>> describe_loader(DataLoader(range(100), batch_size=8, shuffle=True))
        EpochShuffle(batch_size=8, drop_last=False, steps_per_pass=None)
    """
    if not isinstance(dataloader, DataLoader):
        raise TypeError(
            f"dataloader is of type {type(dataloader).__name__} and no torch DataLoader, so its draws are unknown: "
            f"{WAY_OUT}."
        )
    check_each_record_once(dataloader.dataset)
    if type(dataloader) in (PrivateDataLoader, ResumableDataLoader):
        return cast(PrivateDataLoader, dataloader).sampling
    if _iterates_in_its_own_way(dataloader):
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
    return _describe_batch_sampler(batch_sampler, len(cast(Sized, dataloader.dataset)))


@validated
def count_records(dataloader: DataLoader[Any]) -> int:
    """The number of records or persons that the loader draws from: of its dataset, or of a `SubsetRandomSampler`.

    Args:
        dataloader: Any loader.

    Example:
        >>> count_records(DataLoader(range(100), batch_size=8))
        100
    """
    if isinstance(dataloader, PrivateDataLoader):
        units: UnitRows = dataloader.units
        return units.num_units
    inner = getattr(dataloader.batch_sampler, "sampler", None)
    if isinstance(inner, SubsetRandomSampler):
        return len(inner.indices)
    return len(cast(Sized, dataloader.dataset))


@validated
def batch_sizes(dataloader: DataLoader[Any]) -> tuple[int, ...] | None:
    """The number of records in each batch of a pass, in order; None where that is drawn at random.

    Example:
        >>> batch_sizes(DataLoader(range(10), batch_size=4))
        (4, 4, 2)
    """
    batch_sampler: Any = dataloader.batch_sampler
    if type(batch_sampler) is BatchSampler:
        records = len(cast(Sized, batch_sampler.sampler))
    elif type(batch_sampler) is ShuffledBatchSampler:
        records = batch_sampler.num_records
    elif isinstance(batch_sampler, FixedSizeBatchSampler | WithReplacementBatchSampler):
        return (batch_sampler.batch_size,) * len(batch_sampler)
    else:
        return None
    size: int = batch_sampler.batch_size
    full, rest = divmod(records, size)
    return (size,) * full + ((rest,) if rest and not batch_sampler.drop_last else ())


@validated
def order_is_public(dataloader: DataLoader[Any]) -> bool:
    """Whether an adversary may know the order of the batches: no shuffling, or shuffling from a seed that was chosen.

    Our own loaders draw from the operating system. A stock loader shuffles with torch's global generator, which
    `seed_everything` seeds (Lightning's command line does so with 0 by default), or with a generator it was given.

    Args:
        dataloader: Any loader.
    """
    if isinstance(dataloader, PrivateDataLoader):
        return not dataloader.sampling.random_draws
    drawn: Any = dataloader.batch_sampler
    if isinstance(drawn, SchemeBatchSampler) and drawn.generator is not None and drawn.generator.seeded:
        return True
    inner = getattr(dataloader.batch_sampler, "sampler", None)
    if isinstance(inner, SequentialSampler):
        return True
    generator = dataloader.generator or getattr(inner, "generator", None)
    return generator is not None or torch.initial_seed() < CHOSEN_SEEDS


def _describe_sampler(batch_sampler: BatchSampler, dataloader: DataLoader[Any]) -> Sampling:
    sampler, size, drop_last = batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last
    if type(sampler) is SequentialSampler:
        _check_source(sampler, dataloader)
        return Sequential(size, drop_last)
    if type(sampler) is RandomSampler:
        records = _check_source(sampler, dataloader)
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
        records = len(cast(Sized, dataloader.dataset))
        places = {int(index) % records for index in sampler.indices}  # a negative index counts from the end
        if len(places) < len(sampler.indices):
            raise ValueError(f"SubsetRandomSampler {TWICE}")
        return EpochShuffle(size, drop_last)
    raise ValueError(_refusal(sampler))


def _iterates_in_its_own_way(dataloader: DataLoader[Any]) -> bool:
    """Whether something else than torch (or torchdata) decides which batches come."""
    kind = type(dataloader)
    if kind.__module__.split(".")[0] == "torchdata":
        return False
    deciding = ("__iter__", "__getattribute__", "_get_iterator", "_index_sampler", "_auto_collation")
    own = vars(dataloader).get("_get_iterator")
    return any(getattr(kind, name) is not getattr(DataLoader, name) for name in deciding) or not (
        own is None or isinstance(own, WatchedIterators)
    )


def _check_source(sampler: Any, dataloader: DataLoader[Any]) -> int:
    """The number of records that a sampler draws from, which must be the dataset's."""
    records, source = len(cast(Sized, dataloader.dataset)), len(sampler.data_source)
    if source != records:
        raise ValueError(_other_records(sampler, source, records))
    return records


def _other_records(sampler: Any, drawn_from: int, records: int) -> str:
    return (
        f"{type(sampler).__name__} draws from {drawn_from} records, but the dataset has {records}: make the sampler "
        "for the dataset of the loader (a torch.utils.data.Subset for some of its records)."
    )


def _describe_batch_sampler(batch_sampler: Any, records: int) -> Sampling:
    drawn_from = getattr(batch_sampler, "num_records", getattr(batch_sampler, "num_samples", records))
    if drawn_from != records:
        raise ValueError(_other_records(batch_sampler, drawn_from, records))
    if type(batch_sampler) in _OUR_BATCH_SAMPLERS:  # a subclass may draw in any way
        return cast(SchemeBatchSampler, batch_sampler).sampling
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
