"""Passes in one random order, drawn once and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from lightning_pac._validation import Count, checks_itself, validated
from lightning_pac.scenarios.sampling.epoch_shuffle import EpochShuffle
from lightning_pac.scenarios.sampling.registry import register_sampling

__all__ = ["CyclicShuffle"]


@validated
@register_sampling
@dataclass(frozen=True)
class CyclicShuffle(EpochShuffle):
    """One random permutation of all records, kept for every epoch, cut into batches.

    It costs what `EpochShuffle` does, also if the attacker knows the order. A record comes back a whole pass later and
    never sooner, which is what correlated noise needs (`BandedMatrix`).

    Args:
        batch_size: records in each batch, `B`; a smaller last batch is still divided by `B`.
        drop_last: whether a smaller last batch is left out, always the same one.
        steps_per_pass: as for `EpochShuffle`; records beyond these steps are never seen.

    Example:
        >>> CyclicShuffle(batch_size=512).separation(num_records=50_000)
        98
    """

    _certified: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = True
    title: ClassVar[str] = "one order, kept"
    condition: ClassVar[str] = (
        "Every record comes at most once in a pass over the data, and every pass takes them in the same order, which "
        "may be public."
    )

    @override
    @checks_itself
    def separation(self, num_records: Count | None) -> int:
        return self.steps_per_epoch(num_records)
