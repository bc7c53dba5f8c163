"""The common part of schemes that draw every batch anew."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from lightning_pac._validation import Count, validated
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios.sampling.counts import as_stretches, check_count, check_differing, require_records
from lightning_pac.scenarios.sampling.scheme import Sampling

__all__ = ["FreshBatches", "SizedBatches"]


@validated
class FreshBatches(Sampling):
    """Every batch drawn anew, whatever came before, so that all steps cost the same."""

    @abstractmethod
    def draw_batch(self, num_records: Count, generator: SecureGenerator) -> npt.NDArray[np.int64]:
        """Indices of the records of one batch."""

    @abstractmethod
    def largest_count(self, num_differing: int) -> int:
        """The most differing records that one batch can hold."""

    @override
    def worst_case_square_sum(
        self, num_differing: int, num_records: Count | None, num_steps: int | Sequence[int]
    ) -> int:
        check_differing(num_differing, num_records)
        return sum(as_stretches(num_steps)) * self.largest_count(num_differing) ** 2

    @override
    def draw_pass(self, num_records: Count, generator: SecureGenerator) -> Iterator[npt.NDArray[np.int64]]:
        for _ in range(self.steps_per_epoch(num_records)):
            yield self.draw_batch(num_records, generator)

    @override
    def of_passes(self, num_steps: int, num_records: int) -> Sampling:
        return self


@validated
@dataclass(frozen=True)
class SizedBatches(FreshBatches):
    """Batches that all hold `batch_size` draws."""

    batch_size: int

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)

    @override
    def expected_batch_size(self, num_records: Count | None = None) -> float:
        return float(self.batch_size)

    @override
    def steps_per_epoch(self, num_records: Count | None = None) -> int:
        return math.ceil(require_records(self, num_records) / self.batch_size)
