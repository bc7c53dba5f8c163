"""Passes in a public order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from lightning_pac._validation import Count, checks_itself, validated
from lightning_pac.scenarios.sampling.passes import Passes
from lightning_pac.scenarios.sampling.registry import register_sampling

__all__ = ["Sequential"]


@validated
@register_sampling
@dataclass(frozen=True)
class Sequential(Passes):
    """Every record once an epoch in a public order: no shuffling, or shuffling from a public seed.

    The path-wise cap is that of `EpochShuffle`. There is no expectation over a draw that the adversary knows, so the
    mean-square notions are refused.

    Args:
        batch_size: records in each batch, `B`.
        drop_last: whether a smaller last batch is left out.
        steps_per_pass: as for `EpochShuffle`.

    Example:
        >>> Sequential(batch_size=8).worst_case_square_sum(num_differing=10, num_records=100, num_steps=13)
        68
    """

    _certified: ClassVar[bool] = True
    random_draws: ClassVar[bool] = False
    title: ClassVar[str] = "public order"
    condition: ClassVar[str] = (
        "Every record comes at most once in a pass over the data, in an order that may be public."
    )

    @override
    def order(self, num_records: int, seed: str) -> npt.NDArray[np.int64]:
        return np.arange(num_records)

    @override
    @checks_itself
    def separation(self, num_records: Count | None) -> int:
        return self.steps_per_epoch(num_records)

    @override
    def expected_square_sum(
        self, num_differing: int, num_records: Count | None, num_steps: int | Sequence[int]
    ) -> float:
        raise ValueError(
            "The order of the records is public, so there is no draw to average over: "
            'use the notion "ave", "joint" or "rpp".'
        )
