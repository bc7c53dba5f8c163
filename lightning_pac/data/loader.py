"""A DataLoader that draws batches as a sampling descriptor says, and knows how many records each of them holds."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Annotated, Any, cast

import numpy as np
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from typing_extensions import override

from lightning_pac._validation import Count, Natural, validated
from lightning_pac.data.batch_samplers import PoissonBatchSampler, SchemeBatchSampler, ShuffledBatchSampler
from lightning_pac.data.persons import Persons, UnitRows
from lightning_pac.data.rank_share import RankShare
from lightning_pac.data.with_index import check_records
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.randomness import SecureGenerator, secure_generator
from lightning_pac.scenarios import EpochShuffle, Sampling, Sequential

__all__ = ["PrivateDataLoader", "ResumableDataLoader", "private_loader", "rebuild_loader"]

# A batch in which no record was drawn is delivered as this one, since few networks survive a batch of length zero.
PLACEHOLDER = 0


@validated
class PrivateDataLoader(DataLoader[Any]):
    """A DataLoader whose draws are those of a sampling descriptor; `private_loader` makes it.

    The batch of an optimizer step may be delivered in several microbatches. A microbatch in which no record was drawn
    is delivered as the dataset's first record, because few networks survive a batch of length zero; `num_drawn` is
    then 0, and its gradient must count as zero.

    Where a unit is a person, or a record of several views (`UnitRows`), that is what is drawn, counted and filled up
    with, and it has several rows side by side; below, it is called a record all the same.

    Attributes:
        num_drawn: Records of this process in the microbatch that was delivered last.
        num_rows: Rows in it, with those of dummies and of the placeholder of an empty one.
        unused_rows: Those that do not count, because a person has fewer records; None if all do.
        units: What is drawn, as rows.
        microbatch: Its number within its optimizer step.
        drawn: The records that were drawn for it, secret, in the order of its rows.
        fingerprint: Checksum of it over all processes, None if there is one process only.
        draw_dummies: Asked for every microbatch, in this process and before any of its records is loaded, how many
            dummies follow them (copies of the dataset's first record); None from it ends the pass. No dummies if it is
            None itself. Where several processes share a microbatch, smaller shares are filled up to the largest first,
            so that one number, the same in all processes, tells the size of each.
        fill_to: A public number of rows that every microbatch of this process is filled up to in the same way, so that
            nothing that is computed depends on how many records were drawn; None for no filling.

    Args:
        dataset: A map-style dataset.
        sampling: How the batch of each optimizer step is drawn.
        num_microbatches: Microbatches in each optimizer step (`accumulate_grad_batches`).
        batches: The sampler behind the descriptor.
        share: What this process takes of every microbatch; None takes all.
        units: What is drawn, as rows; each record is one if left out.
        kwargs: Further arguments of `torch.utils.data.DataLoader`.

    Raises:
        ValueError: If batches may come in another order than that in which they were drawn.
    """

    def __init__(
        self,
        dataset: Annotated[Dataset[Any], "any map-style dataset"],
        sampling: Sampling,
        num_microbatches: Count,
        batches: SchemeBatchSampler,
        share: RankShare | None = None,
        units: UnitRows | None = None,
        **kwargs: Any,
    ) -> None:
        if not kwargs.get("in_order", True):
            raise ValueError(
                "in_order is False, but which rows of a batch count is known by the order of the batches: leave it out."
            )
        self.sampling = sampling
        self.units = units or UnitRows(dataset)
        self.unused_rows: Tensor | None = None
        self.num_microbatches = num_microbatches
        self.num_drawn: int | None = None
        self.num_rows: int | None = None
        self.draw_dummies: Callable[[], int | None] | None = None
        self.fill_to: int | None = None
        self.microbatch: int | None = None
        self.drawn: Sequence[int] = ()
        self.fingerprint: int | None = None
        self._microbatches = _MicrobatchSampler(batches, num_microbatches, share, self._padded_size, self.units)
        super().__init__(dataset, batch_sampler=self._microbatches, **kwargs)

    @override
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # A generator starts at the first batch: until then, `skip_microbatches` and `load_state_dict` take effect.
        for batch in super().__iter__():
            drawn, units, self.microbatch, self.fingerprint = self._microbatches.delivered.popleft()
            self.num_drawn, self.num_rows = drawn, len(units) * self.units.size
            self.unused_rows = self.units.unused(units)
            self.drawn = units[:drawn]
            yield batch

    @property
    def num_shares(self) -> int:
        """Among how many processes its microbatches are divided."""
        return self._microbatches.num_shares

    @property
    def padded_with_dummies(self) -> bool:
        """Whether the rows after the first `num_drawn` are no records."""
        return self.draw_dummies is not None or self.fill_to is not None

    @property
    def num_ahead(self) -> int:
        """Microbatches that workers have been given and that are not delivered yet."""
        return len(self._microbatches.delivered)

    def _padded_size(self, largest: int) -> int | None:
        """Rows that a microbatch is filled up to whose largest share holds so many records; None ends the pass."""
        if not self.padded_with_dummies:
            return 0
        if self.fill_to is not None and largest > self.fill_to:
            raise PrivacyViolationError(
                f"A batch holds more records than the {self.fill_to} rows it is filled up to, so its size would "
                "show in the rounding of gradients: state the batch size that the rate gives, in Poisson(rate, "
                "batch_size)."
            )
        dummies = self.draw_dummies() if self.draw_dummies is not None else 0
        return None if dummies is None else max(1, largest, self.fill_to or 0) + dummies

    def skip_microbatches(self, count: Natural) -> None:
        """Leave out the first microbatches of the first optimizer step that the next iteration draws.

        A run that resumes between two microbatches of a step must not fill the step up from the next draw: a record
        could then enter one step twice.
        """
        self._microbatches.skip = count


@validated
class ResumableDataLoader(PrivateDataLoader):
    """A `PrivateDataLoader` over passes, which Lightning saves into checkpoints and restores.

    It counts the batches that were delivered, not those that workers have fetched ahead. Resumed at a checkpoint, it
    gives the rest of the interrupted pass: no record twice, none never.

    Attributes:
        last_is_unused: Set by the training loop until the last batch is used; a checkpoint of then has it come again.
    """

    last_is_unused = False
    _delivered = 0

    @override
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._delivered = self._microbatches.position
        for batch in super().__iter__():
            self._delivered += 1
            yield batch

    @property
    def within_pass(self) -> bool:
        """Whether the next iteration continues a pass that a loaded state describes."""
        return self._microbatches.position > 0

    @property
    def is_complete(self) -> bool:
        """Whether the pass has given all of its batches."""
        return self._delivered >= len(self._microbatches)

    def state_dict(self) -> dict[str, Any]:
        """The pass and the position in it, as plain values."""
        steps, rest = divmod(self._delivered - self.last_is_unused, self.num_microbatches)
        return {**self._passes.state_dict(steps), "num_microbatches": rest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration the rest of the pass that the state describes.

        Raises:
            ValueError: If the state belongs to another dataset or batch size.
        """
        self._passes.load_state_dict(state)
        steps = state["num_batches"] if state["num_batches"] < len(self._passes) else 0
        self._microbatches.skip = state["num_microbatches"]
        self._microbatches.position = steps * self.num_microbatches + state["num_microbatches"]
        self._delivered = self._microbatches.position

    @override
    def skip_microbatches(self, count: Natural) -> None:
        state = self.state_dict()
        # What was delivered stays delivered, so the pass goes on at the next step if this one is past the place.
        steps = state["num_batches"] + (state["num_microbatches"] > count)
        if self.within_pass:
            self.load_state_dict({**state, "num_batches": steps, "num_microbatches": count})
        else:
            super().skip_microbatches(count)

    @property
    def _passes(self) -> ShuffledBatchSampler:
        assert isinstance(self._microbatches.batches, ShuffledBatchSampler)
        return self._microbatches.batches


@validated
def private_loader(
    dataset: Annotated[Dataset[Any], "any map-style dataset"],
    sampling: Sampling,
    num_microbatches: Count = 1,
    share: RankShare | None = None,
    persons: Persons | None = None,
    views: Count = 1,
    **kwargs: Any,
) -> PrivateDataLoader:
    """Build the DataLoader that draws as `sampling` says, from the operating system's randomness.

    Args:
        dataset: A map-style dataset.
        sampling: How the batch of each optimizer step is drawn. `EpochShuffle` and `Sequential` give a loader that can
            be resumed within a pass; the others have no state, and a run that resumes begins a fresh pass.
        num_microbatches: Microbatches in each optimizer step (`accumulate_grad_batches`).
        share: What this process takes of every microbatch, where several draw together; None takes all.
        persons: Who is drawn in place of single records; sizes and rates count persons then.
        views: How often each record is loaded, side by side.
        kwargs: Further arguments of `torch.utils.data.DataLoader`, such as `num_workers` or `collate_fn`.

    Raises:
        TypeError: If the dataset is iterable or has no length, or the scheme is not registered.
        ValueError: If the sizes do not fit, or Poisson draws are declared public.

    Example:
        >>> from lightning_pac.scenarios import Poisson
        >>> loader = private_loader(range(100), Poisson(rate=0.1), num_workers=0)
        >>> sum(1 for batch in loader), loader.sampling
        (10, Poisson(rate=0.1, batch_size=None, secret_draws=True))
    """
    check_records(dataset, "dataset")
    if len(cast(Sized, dataset)) < 1:
        raise ValueError("dataset is empty: give one that has records.")
    units = UnitRows(dataset, persons, views)
    records = units.num_units
    sampling.check_drawable(records)
    if isinstance(sampling, EpochShuffle | Sequential):
        # The seed of a pass is saved, so only passes whose price holds for any order are resumed within one.
        passes = ShuffledBatchSampler(
            records,
            sampling.batch_size,
            sampling.drop_last,
            shuffle=isinstance(sampling, EpochShuffle),
            keeps_order=sampling.keeps_order,
        )
        return ResumableDataLoader(dataset, sampling, num_microbatches, passes, share, units, **kwargs)
    batches = SchemeBatchSampler(sampling, records)
    return PrivateDataLoader(dataset, sampling, num_microbatches, batches, share, units, **kwargs)


@validated
def rebuild_loader(
    dataloader: DataLoader[Any],
    sampling: Sampling,
    num_microbatches: Count = 1,
    share: RankShare | None = None,
    persons: Persons | None = None,
    views: Count = 1,
) -> PrivateDataLoader:
    """Give a DataLoader our draws, and leave all else as it is: workers, collate function, pinned memory.

    Args:
        dataloader: The loader whose dataset, workers and collate function are kept.
        sampling: How the batch of each optimizer step is drawn.
        num_microbatches: Microbatches in each optimizer step.
        share: What this process takes of every microbatch, where several draw together; None takes all.
        persons: Who is drawn in place of single records; sizes and rates count persons then.
        views: How often each record is loaded, side by side.

    Raises:
        TypeError: If its dataset is iterable or has no length.
        ValueError: If it has a sampler of its own, which would be dropped, or no automatic batching. With a share, the
            sampler that Lightning divides records by is no such sampler.
    """
    ours = isinstance(dataloader, PrivateDataLoader) or type(dataloader.batch_sampler) is PoissonBatchSampler
    if not ours and not isinstance(dataloader.dataset, IterableDataset):
        if dataloader.batch_sampler is None:
            raise ValueError(
                f"The DataLoader has no automatic batching (batch_size=None), so {type(sampling).__name__} cannot draw "
                "single records: let the dataset return one record, and give the DataLoader a batch_size."
            )
        inner = getattr(dataloader.batch_sampler, "sampler", None)
        divided = share is not None and divides_all_records(dataloader, share.rank, share.num_ranks)
        if type(inner) not in (RandomSampler, SequentialSampler) and not divided:
            raise ValueError(
                f"The DataLoader has a sampler of its own ({type(inner or dataloader.batch_sampler).__name__}), which "
                f"sampling={type(sampling).__name__} would silently replace: give it the dataset alone (a "
                "torch.utils.data.Subset for some of the records), and weigh losses where it evened out classes."
            )
    kept = _kept_arguments(dataloader)
    return private_loader(dataloader.dataset, sampling, num_microbatches, share, persons, views, **kept)


def divides_all_records(dataloader: DataLoader[Any], rank: int, num_ranks: int) -> bool:
    """Whether torch's own sampler gives that rank its part of the whole dataset, filled up with repeated records."""
    sampler = dataloader.sampler
    return (
        type(sampler) is DistributedSampler
        and type(dataloader.batch_sampler) is BatchSampler
        and sampler.dataset is dataloader.dataset
        and (sampler.rank, sampler.num_replicas) == (rank, num_ranks)
    )


class _MicrobatchSampler(Sampler[list[int]]):
    """Cuts each batch into microbatches and notes, in the order of delivery, how many records each holds."""

    def __init__(
        self,
        batches: SchemeBatchSampler,
        num_microbatches: int,
        share: RankShare | None,
        padded_size: Callable[[int], int | None],
        units: UnitRows,
    ) -> None:
        self.batches = batches
        self.num_microbatches = num_microbatches
        self.delivered: deque[tuple[int, list[int], int, int | None]] = deque()
        self.skip = 0
        self.position = 0
        self._share = share
        self._padded_size = padded_size
        self._units = units
        self._num_passes = 0

    @override
    def __iter__(self) -> Iterator[list[int]]:
        self.delivered.clear()
        skip, self.skip, self.position = self.skip, 0, 0
        generator = self._next_generator()
        for batch in self.batches:
            for number, part in enumerate(self._cut(batch, generator)):
                if number >= skip:
                    size = self._padded_size(len(part) if self._share is None else self._share.largest(part))
                    if size is None:
                        return
                    yield self._deliver(part, number, size)
            skip = 0

    def __len__(self) -> int:
        return len(self.batches) * self.num_microbatches

    @property
    def num_shares(self) -> int:
        return 1 if self._share is None else self._share.num_ranks

    def _next_generator(self) -> SecureGenerator:
        if self._share is None:
            return secure_generator()
        self.batches.generator = self._share.generator(self._num_passes)
        self._num_passes += 1
        return self.batches.generator

    def _deliver(self, part: list[int], number: int, size: int) -> list[int]:
        fingerprint = None
        if self._share is not None:
            fingerprint, part = self._share.fingerprint(part), self._share.of(part)
        filled = part + [PLACEHOLDER] * (max(size, 1) - len(part))
        self.delivered.append((len(part), filled, number, fingerprint))
        return self._units.of(filled)

    def _cut(self, batch: list[int], generator: SecureGenerator) -> list[list[int]]:
        records = np.asarray(batch, dtype=np.int64)
        if self.batches.sampling.independent_draws:
            # In secret random order: one record more takes the place of one other and leaves the rest in theirs.
            records = records[np.argsort(generator.uniform(len(records)))]
            # Where a record goes must not depend on which others were drawn: some microbatches may be left out.
            place = generator.integers(self.num_microbatches, len(records))
            return [records[place == number].tolist() for number in range(self.num_microbatches)]
        return [part.tolist() for part in np.array_split(records, self.num_microbatches)]


def _kept_arguments(dataloader: DataLoader[Any]) -> dict[str, Any]:
    kept = {
        "num_workers": dataloader.num_workers,
        "collate_fn": dataloader.collate_fn,
        "pin_memory": dataloader.pin_memory,
        "timeout": dataloader.timeout,
        "worker_init_fn": dataloader.worker_init_fn,
        "persistent_workers": dataloader.persistent_workers,
    }
    if dataloader.num_workers > 0:
        kept["multiprocessing_context"] = dataloader.multiprocessing_context
        kept["prefetch_factor"] = dataloader.prefetch_factor
    return kept
