"""The share of every batch that one of several processes takes."""

import hashlib
import zlib
from dataclasses import dataclass, field

import numpy as np

from lightning_pac._validation import Count, Natural, checks_itself, validated
from lightning_pac.randomness import SecureGenerator

__all__ = ["RankShare"]


@validated
@dataclass(frozen=True)
class RankShare:
    """Lets several processes draw the same batches and divide them among themselves.

    All of them hold one secret key, so each knows the whole draw and takes every `num_ranks`-th record of it: none
    comes twice, none is padded, and an empty share is possible. Each pass has a generator of its own, so that a pass
    which was cut short leaves no rank behind the others. The key stays in memory.

    Attributes:
        rank: Which share this process takes.
        num_ranks: Number of shares.
        key: 32 bytes from the operating system's randomness, equal on all ranks.

    Example:
        >>> [RankShare(rank, 2, bytes(32)).of([7, 8, 9]) for rank in range(2)]
        [[7, 9], [8]]
    """

    rank: Natural
    num_ranks: Count
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if self.rank >= self.num_ranks:
            raise ValueError(f"rank is {self.rank}, but must be below num_ranks ({self.num_ranks}).")

    def generator(self, num_passes: Natural) -> SecureGenerator:
        """The common generator of the pass that begins after `num_passes` others."""
        return SecureGenerator.from_key(hashlib.sha384(self.key + num_passes.to_bytes(8, "big")).digest())

    @checks_itself
    def of(self, records: list[int]) -> list[int]:
        """This rank's part of a batch, which differs in length by at most one from any other's."""
        return records[self.rank :: self.num_ranks]

    @checks_itself
    def largest(self, records: list[int]) -> int:
        """The number of records of a batch on the rank that takes most of them."""
        return -(-len(records) // self.num_ranks)

    @checks_itself
    def fingerprint(self, records: list[int]) -> int:
        """A checksum of the whole batch, by which ranks can tell that they draw the same."""
        return zlib.crc32(np.asarray(records, dtype="<i8").tobytes())
