"""The common part of schemes that go through all records, pass after pass."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import Self, override

from lightning_pac._validation import Count, validated
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios.sampling.counts import check_count, check_differing, count_passes, require_records
from lightning_pac.scenarios.sampling.scheme import Sampling

__all__ = ["Passes"]


@validated
@dataclass(frozen=True)
class Passes(Sampling):
    """Every record at most once a pass, in batches of `batch_size`, the last one smaller unless it is dropped."""

    batch_size: int
    drop_last: bool = False
    steps_per_pass: int | None = None

    each_record_once: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = False
    """Whether all passes of a run take the order of the first."""
    needs_num_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        if self.steps_per_pass is not None:
            check_count("steps_per_pass", self.steps_per_pass)

    @abstractmethod
    def order(self, num_records: int, seed: str) -> npt.NDArray[np.int64]:
        """All records in the order of the pass that follows from a seed of 128 bits, written in hexadecimal."""

    def cut(self, order: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """The batches of a whole pass in that order."""
        stop = len(order) // self.batch_size * self.batch_size if self.drop_last else len(order)
        return [order[start : start + self.batch_size] for start in range(0, stop, self.batch_size)]

    @override
    def draw_pass(self, num_records: Count, generator: SecureGenerator) -> Iterator[npt.NDArray[np.int64]]:
        steps = self.steps_per_epoch(num_records)
        yield from self.cut(self.order(num_records, generator.bytes(16).hex()))[:steps]

    @override
    def worst_case_square_sum(
        self, num_differing: int, num_records: Count | None, num_steps: int | Sequence[int]
    ) -> int:
        records = require_records(self, num_records)
        check_differing(num_differing, records)
        # Squares are convex: a pass costs most where the differing records fill whole batches, and the rest share one.
        full, rest = divmod(num_differing, self.batch_size)

        def square(steps: int) -> int:
            return min(steps, full) * self.batch_size**2 + (rest**2 if steps > full else 0)

        per_pass = self.steps_per_epoch(records)
        complete, partial = count_passes(num_steps, per_pass)
        return complete * square(per_pass) + sum(square(steps) for steps in partial)

    @override
    def expected_batch_size(self, num_records: Count | None = None) -> float:
        return float(self.batch_size)

    @override
    def steps_per_epoch(self, num_records: Count | None = None) -> int:
        records = require_records(self, num_records)
        full, batches = records // self.batch_size, math.ceil(records / self.batch_size)
        if self.steps_per_pass is not None:
            if self.steps_per_pass > batches:
                raise ValueError(f"steps_per_pass is {self.steps_per_pass}, but a pass has {batches} batches.")
            return self.steps_per_pass
        if self.drop_last and not full:
            raise ValueError(
                f"drop_last drops the only batch: batch_size is {self.batch_size} and there are {records} records."
            )
        return full if self.drop_last else batches

    @override
    def of_step(self, num_batches: int) -> Self:
        return dataclasses.replace(self, batch_size=self.batch_size * num_batches)

    @override
    def of_passes(self, num_steps: int, num_records: int) -> Self:
        natural = dataclasses.replace(self, steps_per_pass=None)
        try:
            whole = num_steps == natural.steps_per_epoch(num_records)
        except ValueError:  # drop_last drops the only batch of a step, though not of a microbatch
            whole = False
        return natural if whole else dataclasses.replace(self, steps_per_pass=num_steps)

    @override
    def draw_counts(
        self, group_sizes: Sequence[int], num_records: Count | None, shape: tuple[int, int], rng: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        num_runs, num_steps = shape
        records = require_records(self, num_records)
        shares = np.array([*group_sizes, records - sum(group_sizes)])
        per_pass = self.steps_per_epoch(records)
        if self.keeps_order and num_steps > per_pass:
            first = self.draw_counts(group_sizes, records, (num_runs, per_pass), rng)
            return np.tile(first, (1, -(-num_steps // per_pass), 1))[:, :num_steps]
        # Deal the records out batch by batch: what one batch took is missing from the next.
        # Urns of shape (runs, passes, groups + 1), the last group holding all other records.
        left = np.broadcast_to(shares, (num_runs, -(-num_steps // per_pass), len(shares))).copy()
        batches = []
        for step in range(per_pass):
            size = min(self.batch_size, records - step * self.batch_size)
            batches.append(_draw_without_replacement(left, size, rng))
            left -= batches[-1]
        return np.stack(batches, axis=2).reshape(num_runs, -1, len(shares))[:, :num_steps, :-1]


def _draw_without_replacement(
    left: npt.NDArray[np.int64], size: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Multivariate hypergeometric draws from urns that differ, group after group, shape of `left`."""
    drawn, wanted = np.zeros_like(left), np.full(left.shape[:-1], size)
    for group in range(left.shape[-1] - 1):
        # A chain of two-colour draws: each group against all groups after it, among the draws that are left.
        others = left[..., group + 1 :].sum(axis=-1)
        drawn[..., group] = generator.hypergeometric(left[..., group], others, wanted)
        wanted = wanted - drawn[..., group]
    drawn[..., -1] = wanted
    return drawn
