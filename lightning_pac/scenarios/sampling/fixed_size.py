"""Batches of a fixed size without replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from lightning_pac._validation import Count, validated
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios.sampling.counts import (
    as_stretches,
    check_differing,
    hypergeometric_square,
    require_records,
)
from lightning_pac.scenarios.sampling.fresh_batches import SizedBatches
from lightning_pac.scenarios.sampling.registry import register_sampling

__all__ = ["FixedSize"]


@validated
@register_sampling
@dataclass(frozen=True)
class FixedSize(SizedBatches):
    """Batches of `batch_size` distinct records, drawn afresh for every step.

    The cap is `T min(d, B)^2`; `K_t` is hypergeometric, `E[K_t^2] = mu^2 + B (d/N)(1 - d/N)(N - B)/(N - 1)` with
    `mu = B d / N`.

    Args:
        batch_size: records in each batch, `B`.

    Example:
        >>> FixedSize(batch_size=512).worst_case_square_sum(num_differing=10, num_records=50_000, num_steps=98)
        9800
    """

    _certified: ClassVar[bool] = True
    title: ClassVar[str] = "fixed size, drawn afresh"
    condition: ClassVar[str] = "Every batch holds distinct records."

    @override
    def largest_count(self, num_differing: int) -> int:
        return min(num_differing, self.batch_size)

    @override
    def expected_square_sum(
        self, num_differing: int, num_records: Count | None, num_steps: int | Sequence[int]
    ) -> float:
        records = require_records(self, num_records)
        check_differing(num_differing, records)
        self._check_fits(records)
        return sum(as_stretches(num_steps)) * hypergeometric_square(num_differing, records, self.batch_size)

    @override
    def draw_batch(self, num_records: Count, generator: SecureGenerator) -> npt.NDArray[np.int64]:
        self._check_fits(num_records)
        # The records of the B smallest of N independent keys: every set of B is equally likely.
        keys = generator.uniform(num_records)
        return np.argpartition(keys, self.batch_size - 1)[: self.batch_size]

    @override
    def check_drawable(self, num_records: Count | None = None) -> None:
        super().check_drawable(num_records)
        if num_records is not None:
            self._check_fits(num_records)

    @override
    def draw_counts(
        self, group_sizes: Sequence[int], num_records: Count | None, shape: tuple[int, int], rng: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        records = require_records(self, num_records)
        shares = np.array([*group_sizes, records - sum(group_sizes)])
        return rng.multivariate_hypergeometric(shares, self.batch_size, shape)[..., :-1]

    def _check_fits(self, num_records: int) -> None:
        if self.batch_size > num_records:
            raise ValueError(f"batch_size is {self.batch_size}, but there are only {num_records} records to draw from.")
