"""Independent draws of every record, the sampling that is amplified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from lightning_pac._validation import Count, validated
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios.sampling.counts import as_stretches, check_count, check_differing
from lightning_pac.scenarios.sampling.fresh_batches import FreshBatches
from lightning_pac.scenarios.sampling.registry import register_sampling

__all__ = ["Poisson"]


@validated
@register_sampling
@dataclass(frozen=True)
class Poisson(FreshBatches):
    """Every record enters every batch independently with probability `rate`.

    The cap is `T d^2`; `E[K_t^2] = d q (1 - q) + d^2 q^2`. With secret draws this is the sampling that is amplified.

    Args:
        rate: probability `q` that a record enters a batch, in (0, 1].
        batch_size: the public constant `B` by which the noised sum is divided. Left out, it is `q N`, which only a
            public number of records allows.
        secret_draws: False for a sampler that draws from a generator the adversary may know (anything but our own);
            the account is then the unamplified one.

    Example:
        >>> Poisson(rate=0.01).expected_batch_size(num_records=50_000)
        500.0
    """

    rate: float
    batch_size: int | None = None
    secret_draws: bool = True

    _certified: ClassVar[bool] = True
    independent_draws: ClassVar[bool] = True
    title: ClassVar[str] = "Poisson, secret draws"
    condition: ClassVar[str] = "Records enter a batch independently, and an empty batch still takes a noised step."

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate is {self.rate}, but a sampling rate lies in (0, 1].")
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)

    @override
    def largest_count(self, num_differing: int) -> int:
        return num_differing

    @override
    def expected_square_sum(
        self, num_differing: int, num_records: Count | None, num_steps: int | Sequence[int]
    ) -> float:
        if not self.secret_draws:
            raise ValueError(
                "These Poisson draws are not secret, so an average over them protects nobody: "
                'use our own Poisson sampler, or the notion "ave", "joint" or "rpp".'
            )
        check_differing(num_differing, num_records)
        mean = num_differing * self.rate
        # E[K^2] of a binomial count: its variance plus the square of its mean.
        return sum(as_stretches(num_steps)) * (mean * (1 - self.rate) + mean**2)

    @override
    def expected_batch_size(self, num_records: Count | None = None) -> float:
        if self.batch_size is not None:
            return float(self.batch_size)
        if num_records is None:
            raise ValueError(
                "num_records is None, as where it is secret (add_remove), so state the batch size: "
                f"Poisson(rate={self.rate}, batch_size=...)."
            )
        return self.rate * num_records

    @override
    def steps_per_epoch(self, num_records: Count | None = None) -> int:
        return math.ceil(1 / self.rate)

    @override
    def draw_batch(self, num_records: Count, generator: SecureGenerator) -> npt.NDArray[np.int64]:
        return np.flatnonzero(generator.bernoulli(self.rate, num_records))

    @override
    def inclusion_rate(self, num_records: Count | None = None) -> float:
        return self.rate

    @property
    @override
    def amplified_rate(self) -> float | None:
        return self.rate if self.secret_draws and self.is_certified else None

    @override
    def check_drawable(self, num_records: Count | None = None) -> None:
        super().check_drawable(num_records)
        if not self.secret_draws:
            raise ValueError("Our Poisson sampler draws in secret: leave secret_draws=False out.")

    @override
    def draw_counts(
        self, group_sizes: Sequence[int], num_records: Count | None, shape: tuple[int, int], rng: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        return np.stack([rng.binomial(size, self.rate, shape) for size in group_sizes], axis=-1)
