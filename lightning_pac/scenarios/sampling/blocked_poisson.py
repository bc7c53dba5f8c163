"""Poisson draws from fixed blocks of records, taken in turn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from lightning_pac._validation import Count, checks_itself, validated
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios.sampling.counts import as_stretches, check_count, check_differing, require_records
from lightning_pac.scenarios.sampling.registry import register_sampling
from lightning_pac.scenarios.sampling.scheme import Sampling

__all__ = ["BlockedPoisson"]


@validated
@register_sampling
@dataclass(frozen=True)
class BlockedPoisson(Sampling):
    """Records in `blocks` public blocks; step t draws from block t modulo `blocks`, by Poisson, in secret.

    A record is in an average batch with probability `rate`, in those of its block with `blocks * rate`, and never
    sooner than `blocks` steps after the last time. So correlated noise of as many bands keeps its shares apart, and
    each is amplified (Choquette-Choo et al. 2023): one record that differs costs `ceil(m / blocks)` steps of Poisson
    sampling at rate `blocks * rate` in a stretch of m steps. Several may be in different blocks. They are changed one
    after the other, over the whole run (`SpreadSteps`), which costs about what they cost in one block.

    A record's block is its position modulo `blocks`, so the scheme is for `replace` and `zero_out`.

    Args:
        rate: probability `q` that a record enters an average batch.
        blocks: number of blocks, with `blocks * rate` at most 1.
        batch_size: the public constant `B` by which the noised sum is divided; `q N` if left out.

    Example:
        >>> BlockedPoisson(rate=0.01, blocks=4).steps_per_epoch()
        100
    """

    rate: float
    blocks: int
    batch_size: int | None = None

    _certified: ClassVar[bool] = True
    amplifies_one_record: ClassVar[bool] = True
    title: ClassVar[str] = "Poisson within blocks"
    condition: ClassVar[str] = (
        "Records of the block whose turn it is enter a batch independently, and an empty batch still takes a noised "
        "step."
    )

    def __post_init__(self) -> None:
        check_count("blocks", self.blocks)
        if not 0 < self.rate * self.blocks <= 1:
            raise ValueError(
                f"rate is {self.rate}, and {self.blocks} blocks draw {self.blocks} times as often at their turns, but "
                "that must be a probability in (0, 1]: take fewer blocks, or a lower rate."
            )
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)

    @property
    @override
    def amplified_rate(self) -> float | None:
        return self.rate * self.blocks if self.is_certified else None

    @override
    @checks_itself
    def amplified_steps(self, num_steps: int | Sequence[int]) -> int:
        return sum(-(-steps // self.blocks) for steps in as_stretches(num_steps))

    @override
    @checks_itself
    def separation(self, num_records: Count | None) -> int:
        return self.blocks

    @override
    def worst_case_square_sum(
        self, num_differing: int, num_records: Count | None, num_steps: int | Sequence[int]
    ) -> int:
        check_differing(num_differing, num_records)
        return self.amplified_steps(num_steps) * num_differing**2

    @override
    def expected_square_sum(
        self, num_differing: int, num_records: Count | None, num_steps: int | Sequence[int]
    ) -> float:
        check_differing(num_differing, num_records)
        mean = num_differing * self.rate * self.blocks  # all of them in one block is the worst
        # E[K^2] of a binomial count: its variance plus the square of its mean.
        return self.amplified_steps(num_steps) * (mean * (1 - self.rate * self.blocks) + mean**2)

    @override
    def expected_batch_size(self, num_records: Count | None = None) -> float:
        if self.batch_size is not None:
            return float(self.batch_size)
        return self.rate * require_records(self, num_records)

    @override
    def steps_per_epoch(self, num_records: Count | None = None) -> int:
        return math.ceil(1 / (self.rate * self.blocks)) * self.blocks

    @override
    def of_passes(self, num_steps: int, num_records: int) -> Sampling | None:
        return self if num_steps % self.blocks == 0 else None  # the next pass begins with the first block again

    @override
    def inclusion_rate(self, num_records: Count | None = None) -> float:
        return self.rate

    @override
    def draw_pass(self, num_records: Count, generator: SecureGenerator) -> Iterator[npt.NDArray[np.int64]]:
        for step in range(self.steps_per_epoch(num_records)):
            block = np.arange(step % self.blocks, num_records, self.blocks)
            yield block[generator.bernoulli(self.rate * self.blocks, len(block))]
