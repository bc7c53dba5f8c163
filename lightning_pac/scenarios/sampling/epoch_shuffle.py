"""Shuffled epochs, as an ordinary DataLoader makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from lightning_pac._validation import Count, validated
from lightning_pac.scenarios.sampling.counts import (
    check_differing,
    count_passes,
    hypergeometric_square,
    require_records,
)
from lightning_pac.scenarios.sampling.passes import Passes
from lightning_pac.scenarios.sampling.registry import register_sampling

__all__ = ["EpochShuffle"]


@validated
@register_sampling
@dataclass(frozen=True)
class EpochShuffle(Passes):
    """A fresh, hidden permutation of all records every epoch, cut into batches: an ordinary shuffled DataLoader.

    `sum_t K_t = d` within a pass on every path, so a pass costs at most `floor(d/B) B^2 + (d mod B)^2` and a partial
    pass of n steps at most `min(n, floor(d/B)) B^2`, plus `(d mod B)^2` if `n > floor(d/B)`. `E[K_t^2]` is that of
    `FixedSize`, the last batch with its own size.

    Args:
        batch_size: records in each batch, `B`; a smaller last batch is still divided by `B`.
        drop_last: whether a smaller last batch is left out.
        steps_per_pass: optimizer steps in a pass where they are not `N / B` rounded: fewer where the Trainer's
            `limit_train_batches` cuts passes short.

    Example:
        >>> EpochShuffle(batch_size=512).worst_case_square_sum(num_differing=10, num_records=50_000, num_steps=98)
        100
    """

    _certified: ClassVar[bool] = True
    title: ClassVar[str] = "shuffled epochs"
    condition: ClassVar[str] = (
        "Every record comes at most once in a pass over the data; the bound holds for every order of them."
    )

    @override
    def order(self, num_records: int, seed: str) -> npt.NDArray[np.int64]:
        return np.random.Generator(np.random.PCG64(int(seed, 16))).permutation(num_records)

    @override
    def expected_square_sum(
        self, num_differing: int, num_records: Count | None, num_steps: int | Sequence[int]
    ) -> float:
        records = require_records(self, num_records)
        check_differing(num_differing, records)
        per_pass = self.steps_per_epoch(records)
        size = min(self.batch_size, records)
        last = records % self.batch_size
        complete, partial = count_passes(num_steps, per_pass)
        square = hypergeometric_square(num_differing, records, size)
        total = (complete * per_pass + sum(partial)) * square
        # Only complete passes come to the smaller last batch.
        if last and per_pass > records // self.batch_size:
            total -= complete * (square - hypergeometric_square(num_differing, records, last))
        return total
