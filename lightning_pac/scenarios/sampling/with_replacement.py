"""Batches of independent draws from all records."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from lightning_pac._validation import Count, validated
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios.sampling.counts import as_stretches, check_differing, require_records
from lightning_pac.scenarios.sampling.fresh_batches import SizedBatches
from lightning_pac.scenarios.sampling.registry import register_sampling
from lightning_pac.scenarios.sampling.scheme import Sampling

__all__ = ["WithReplacement"]


@validated
@register_sampling
@dataclass(frozen=True)
class WithReplacement(SizedBatches):
    """Batches of `batch_size` independent draws from all records, the same record possibly several times.

    The cap is `T B^2` for any number of differing records; `E[K_t^2] = mu^2 + B (d/N)(1 - d/N)` with `mu = B d / N`.

    Args:
        batch_size: draws in each batch, `B`.

    Example:
        >>> WithReplacement(batch_size=4).worst_case_square_sum(num_differing=1, num_records=100, num_steps=10)
        160
    """

    _certified: ClassVar[bool] = True
    title: ClassVar[str] = "with replacement"
    condition: ClassVar[str] = "A batch may hold one record many times; the bound allows all of it to be one record."

    @override
    def largest_count(self, num_differing: int) -> int:
        return self.batch_size

    @override
    def expected_square_sum(
        self, num_differing: int, num_records: Count | None, num_steps: int | Sequence[int]
    ) -> float:
        records = require_records(self, num_records)
        check_differing(num_differing, records)
        share = num_differing / records
        # E[K^2] of a binomial count: the square of its mean plus its variance.
        square = (self.batch_size * share) ** 2 + self.batch_size * share * (1 - share)
        return sum(as_stretches(num_steps)) * square

    @override
    def draw_batch(self, num_records: Count, generator: SecureGenerator) -> npt.NDArray[np.int64]:
        return generator.integers(num_records, self.batch_size)

    @override
    def of_step(self, num_batches: int) -> Sampling:
        return dataclasses.replace(self, batch_size=self.batch_size * num_batches)

    @override
    def draw_counts(
        self, group_sizes: Sequence[int], num_records: Count | None, shape: tuple[int, int], rng: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        records = require_records(self, num_records)
        shares = np.array([*group_sizes, records - sum(group_sizes)])
        return rng.multinomial(self.batch_size, shares / records, shape)[..., :-1]
