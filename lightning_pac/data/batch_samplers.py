"""Batch samplers that draw from the operating system's randomness, one index list for each optimizer step."""

import itertools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import Sampler
from typing_extensions import override

from lightning_pac._validation import Count, Natural, validated
from lightning_pac.randomness import SecureGenerator, secure_generator
from lightning_pac.scenarios import (
    CyclicShuffle,
    EpochShuffle,
    FixedSize,
    Poisson,
    Sampling,
    Sequential,
    WithReplacement,
)

__all__ = [
    "FixedSizeBatchSampler",
    "PoissonBatchSampler",
    "SchemeBatchSampler",
    "ShuffledBatchSampler",
    "WithReplacementBatchSampler",
]


@validated
class SchemeBatchSampler(Sampler[list[int]]):
    """The batches of any sampling scheme, pass after pass, without a state that could be saved.

    Args:
        sampling: The scheme.
        num_records: Records to draw from.
        num_batches: Batches in one iteration; a pass of the scheme if left out.
        generator: Source of the draws, for tests and for processes that draw together.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> [len(batch) for batch in SchemeBatchSampler(EpochShuffle(batch_size=4), num_records=10)]
        [4, 4, 2]
    """

    def __init__(
        self,
        sampling: Sampling,
        num_records: Count,
        num_batches: Count | None = None,
        generator: SecureGenerator | None = None,
    ) -> None:
        self.sampling = sampling
        self.num_records = num_records
        self.num_batches = sampling.steps_per_epoch(num_records) if num_batches is None else num_batches
        self.generator = generator

    @override
    def __iter__(self) -> Iterator[list[int]]:
        generator = self.generator or secure_generator()
        passes = (self.sampling.draw_pass(self.num_records, generator) for _ in itertools.count())
        for batch in itertools.islice(itertools.chain.from_iterable(passes), self.num_batches):
            yield batch.tolist()

    def __len__(self) -> int:
        return self.num_batches


@validated
class PoissonBatchSampler(SchemeBatchSampler):
    """Every record enters every batch independently with probability `rate`; a batch may be empty.

    The draws are secret: they come from the operating system's randomness and never from torch's global generator, and
    nothing about them is ever saved. That is what amplification by sampling rests on.

    Args:
        num_records: Records to draw from.
        rate: Probability that a record enters a batch, in (0, 1].
        num_batches: Batches in one iteration; `1 / rate` rounded up if left out, which tells nothing about the data.
        generator: Source of the draws, for tests and for processes that draw together.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> batches = list(PoissonBatchSampler(num_records=1000, rate=0.1))
        >>> len(batches), all(len(set(batch)) == len(batch) for batch in batches)
        (10, True)
    """

    def __init__(
        self,
        num_records: Count,
        rate: float,
        num_batches: Count | None = None,
        generator: SecureGenerator | None = None,
    ) -> None:
        super().__init__(Poisson(rate), num_records, num_batches, generator)
        self.rate = rate


@validated
class FixedSizeBatchSampler(SchemeBatchSampler):
    """Batches of `batch_size` distinct records, drawn afresh for every step.

    Args:
        num_records: Records to draw from.
        batch_size: Records in each batch.
        num_batches: Batches in one iteration; `num_records / batch_size` rounded up if left out.
        generator: Source of the draws, for tests and for processes that draw together.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> [len(set(batch)) for batch in FixedSizeBatchSampler(num_records=10, batch_size=4)]
        [4, 4, 4]
    """

    def __init__(
        self,
        num_records: Count,
        batch_size: Count,
        num_batches: Count | None = None,
        generator: SecureGenerator | None = None,
    ) -> None:
        super().__init__(FixedSize(batch_size), num_records, num_batches, generator)
        _check_fits(batch_size, num_records)
        self.batch_size = batch_size


@validated
class WithReplacementBatchSampler(SchemeBatchSampler):
    """Batches of `batch_size` independent draws from all records, the same record possibly several times.

    Args:
        num_records: Records to draw from.
        batch_size: Draws in each batch.
        num_batches: Batches in one iteration; `num_records / batch_size` rounded up if left out.
        generator: Source of the draws, for tests and for processes that draw together.

    Example:
        >>> [len(batch) for batch in WithReplacementBatchSampler(num_records=10, batch_size=4)]
        [4, 4, 4]
    """

    def __init__(
        self,
        num_records: Count,
        batch_size: Count,
        num_batches: Count | None = None,
        generator: SecureGenerator | None = None,
    ) -> None:
        super().__init__(WithReplacement(batch_size), num_records, num_batches, generator)
        self.batch_size = batch_size


@validated
class ShuffledBatchSampler(SchemeBatchSampler):
    """Every record once in each pass, in batches of `batch_size`; it can continue a pass that was interrupted.

    Every iteration is a fresh pass, unless a state was loaded: the next iteration is then the rest of that pass. The
    order of a pass follows from a seed of 128 bits that the operating system draws.

    Args:
        num_records: Records in a pass.
        batch_size: Records in each batch.
        drop_last: Whether a smaller last batch is left out.
        shuffle: False keeps the order of the dataset.
        keeps_order: Whether all passes take the order of the first.
        generator: Source of the seeds, for tests and for processes that draw together.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> sampler = ShuffledBatchSampler(num_records=5, batch_size=2)
        >>> sorted(index for batch in sampler for index in batch)
        [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        num_records: Count,
        batch_size: Count,
        drop_last: bool = False,
        shuffle: bool = True,
        generator: SecureGenerator | None = None,
        keeps_order: bool = False,
    ) -> None:
        scheme = (CyclicShuffle if keeps_order else EpochShuffle) if shuffle else Sequential
        self._passes = scheme(batch_size, drop_last)
        if drop_last:
            _check_fits(batch_size, num_records)
        super().__init__(self._passes, num_records, generator=generator)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.shuffle = shuffle
        self._seed = ""
        self._order = np.arange(num_records)
        self._next_start: int | None = None

    @override
    def __iter__(self) -> Iterator[list[int]]:
        start, self._next_start = self._next_start, None
        if start is None:
            kept = self._seed if self._passes.keeps_order else ""
            self._begin_pass(kept or (self.generator or secure_generator()).bytes(16).hex())
        for batch in self._passes.cut(self._order)[start or 0 :]:
            yield batch.tolist()

    def state_dict(self, num_batches: Natural) -> dict[str, Any]:
        """The state from which `load_state_dict` continues this pass after `num_batches` batches, as plain values."""
        return {"seed": self._seed, "num_batches": num_batches, "fingerprint": self._fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration the rest of the pass that the state describes; a complete pass begins a new one.

        Raises:
            ValueError: If the state belongs to another dataset or batch size, or to a numpy that shuffles differently:
                records would come twice.
        """
        previous = self._seed
        self._begin_pass(state["seed"])
        if self._fingerprint() != state["fingerprint"]:
            self._begin_pass(previous)
            raise ValueError(
                f"The saved pass does not fit {self.num_records} records in batches of {self.batch_size}: resume with "
                "the dataset, batch size (over all devices) and numpy release of the checkpoint, or start a new run."
            )
        unfinished = bool(self._seed) and state["num_batches"] < len(self)
        self._next_start = state["num_batches"] if unfinished else None

    def _begin_pass(self, seed: str) -> None:
        self._seed = seed
        if seed:
            self._order = self._passes.order(self.num_records, seed)

    def _fingerprint(self) -> int:
        facts = f"{self.batch_size} {self.drop_last} {self.shuffle} {self.num_records}".encode()
        return zlib.crc32(self._order.astype("<i8").tobytes(), zlib.crc32(facts))


def _check_fits(batch_size: int, num_records: int) -> None:
    if batch_size > num_records:
        raise ValueError(f"batch_size is {batch_size}, but there are only {num_records} records.")
