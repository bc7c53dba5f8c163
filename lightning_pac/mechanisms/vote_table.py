"""Votes renumbered, query by query, by the classes that occur."""

import dataclasses

import numpy as np
import numpy.typing as npt

__all__ = ["VoteTable"]

Integers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class VoteTable:
    """For each of n queries, the classes that occur and which of them each secret votes for.

    Attributes:
        inverse: Position of each vote among the query's classes, shape (n, m).
        classes: Classes that occur, ascending, shape (n, K), filled with -1.
        num_classes: Number of classes that occur, shape (n,).
    """

    inverse: npt.NDArray[np.intp]
    classes: Integers
    num_classes: Integers

    @classmethod
    def of(cls, votes: Integers) -> "VoteTable":
        """Renumber votes of shape (n, m)."""
        num_queries, num_secrets = votes.shape
        num_classes = np.ones(num_queries, dtype=np.int64)
        inverse = np.zeros((num_queries, num_secrets), dtype=np.intp)
        mixed = np.flatnonzero((votes != votes[:, :1]).any(axis=1))
        ranks, distinct = _ranks(votes[mixed])
        inverse[mixed] = ranks
        num_classes[mixed] = ranks.max(axis=1, initial=0) + 1
        classes = np.full((num_queries, int(num_classes.max(initial=1))), -1, dtype=np.int64)
        classes[:, 0] = votes[:, 0]
        classes[mixed[distinct[0]], distinct[1]] = distinct[2]
        return cls(inverse, classes, num_classes)

    def __len__(self) -> int:
        return len(self.inverse)


def _ranks(votes: Integers) -> tuple[npt.NDArray[np.intp], tuple[Integers, Integers, Integers]]:
    """Dense rank of each entry within its row, and (row, rank, value) of each distinct entry."""
    # Sorting keys of 16 bits is a radix sort, several times faster than a comparison sort.
    keys = votes.astype(np.uint16) if votes.size and votes.max() < 2**16 else votes
    order = np.argsort(keys, axis=1, kind="stable")
    ordered = np.take_along_axis(votes, order, axis=1)
    first = np.ones(votes.shape, dtype=np.bool_)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    dense = np.cumsum(first, axis=1) - 1
    ranks = np.empty(votes.shape, dtype=np.intp)
    np.put_along_axis(ranks, order, dense, axis=1)
    rows, columns = np.nonzero(first)
    return ranks, (rows, dense[rows, columns], ordered[rows, columns])
