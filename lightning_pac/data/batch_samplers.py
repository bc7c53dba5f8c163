"""Batch samplers that draw from the operating system's randomness, one index list for each optimizer step."""

import math
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import Sampler
from typing_extensions import override

from lightning_pac.randomness import SecureGenerator, secure_generator

__all__ = ["FixedSizeBatchSampler", "PoissonBatchSampler", "ShuffledBatchSampler", "WithReplacementBatchSampler"]


class PoissonBatchSampler(Sampler[list[int]]):
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
        num_records: int,
        rate: float,
        num_batches: int | None = None,
        generator: SecureGenerator | None = None,
    ) -> None:
        _check_at_least_one("num_records", num_records)
        if not 0 < rate <= 1:
            raise ValueError(f"rate is {rate}, but a sampling rate lies in (0, 1].")
        self.num_records = num_records
        self.rate = rate
        self.num_batches = math.ceil(1 / rate) if num_batches is None else num_batches
        _check_at_least_one("num_batches", self.num_batches)
        self.generator = generator

    @override
    def __iter__(self) -> Iterator[list[int]]:
        generator = self.generator or secure_generator()
        for _ in range(self.num_batches):
            yield np.flatnonzero(generator.bernoulli(self.rate, self.num_records)).tolist()

    def __len__(self) -> int:
        return self.num_batches


class FixedSizeBatchSampler(Sampler[list[int]]):
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

    _distinct = True

    def __init__(
        self,
        num_records: int,
        batch_size: int,
        num_batches: int | None = None,
        generator: SecureGenerator | None = None,
    ) -> None:
        _check_batch_size(batch_size, num_records if self._distinct else batch_size)
        _check_at_least_one("num_records", num_records)
        self.num_records = num_records
        self.batch_size = batch_size
        self.num_batches = math.ceil(num_records / batch_size) if num_batches is None else num_batches
        _check_at_least_one("num_batches", self.num_batches)
        self.generator = generator

    @override
    def __iter__(self) -> Iterator[list[int]]:
        generator = self.generator or secure_generator()
        for _ in range(self.num_batches):
            keys = generator.uniform(self.num_records)
            yield np.argpartition(keys, self.batch_size - 1)[: self.batch_size].tolist()

    def __len__(self) -> int:
        return self.num_batches


class WithReplacementBatchSampler(FixedSizeBatchSampler):
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

    _distinct = False

    @override
    def __iter__(self) -> Iterator[list[int]]:
        generator = self.generator or secure_generator()
        for _ in range(self.num_batches):
            yield generator.integers(self.num_records, self.batch_size).tolist()


class ShuffledBatchSampler(Sampler[list[int]]):
    """Every record once in each pass, in batches of `batch_size`; it can continue a pass that was interrupted.

    Every iteration is a fresh pass, unless a state was loaded: the next iteration is then the rest of that pass. The
    order of a pass follows from a seed of 128 bits that the operating system draws.

    Args:
        num_records: Records in a pass.
        batch_size: Records in each batch.
        drop_last: Whether a smaller last batch is left out.
        shuffle: False keeps the order of the dataset.
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
        num_records: int,
        batch_size: int,
        drop_last: bool = False,
        shuffle: bool = True,
        generator: SecureGenerator | None = None,
    ) -> None:
        _check_batch_size(batch_size, num_records if drop_last else max(num_records, batch_size))
        _check_at_least_one("num_records", num_records)
        self.num_records = num_records
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.generator = generator
        self._seed = ""
        self._order = np.arange(num_records)
        self._next_start: int | None = None

    @override
    def __iter__(self) -> Iterator[list[int]]:
        start, self._next_start = self._next_start, None
        if start is None:
            self._begin_pass((self.generator or secure_generator()).bytes(16).hex())
        for batch in range(start or 0, len(self)):
            yield self._order[batch * self.batch_size : (batch + 1) * self.batch_size].tolist()

    def __len__(self) -> int:
        if self.drop_last:
            return self.num_records // self.batch_size
        return math.ceil(self.num_records / self.batch_size)

    def state_dict(self, num_batches: int) -> dict[str, Any]:
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
        if self.shuffle and seed:
            self._order = np.random.Generator(np.random.PCG64(int(seed, 16))).permutation(self.num_records)

    def _fingerprint(self) -> int:
        facts = f"{self.batch_size} {self.drop_last} {self.shuffle} {self.num_records}".encode()
        return zlib.crc32(self._order.astype("<i8").tobytes(), zlib.crc32(facts))


def _check_batch_size(batch_size: int, num_records: int) -> None:
    _check_at_least_one("batch_size", batch_size)
    if batch_size > num_records:
        raise ValueError(f"batch_size is {batch_size}, but there are only {num_records} records.")


def _check_at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} is {value}, but it must be at least 1.")
