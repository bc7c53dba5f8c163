"""Votes renumbered, query by query, by the classes that occur."""

import dataclasses

import numpy as np
import numpy.typing as npt

__all__ = ["VoteTable"]

Integers = npt.NDArray[np.int64]

# Class numbers up to here are tabulated, larger ones sorted.
_MANY_CLASSES = 2**12


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
        ranks, counts, distinct = _ranks(votes[mixed])
        inverse[mixed] = ranks
        num_classes[mixed] = counts
        classes = np.full((num_queries, int(num_classes.max(initial=1))), -1, dtype=np.int64)
        classes[:, 0] = votes[:, 0]
        classes[mixed[distinct[0]], distinct[1]] = distinct[2]
        return cls(inverse, classes, num_classes)

    def __len__(self) -> int:
        return len(self.inverse)


def _ranks(votes: Integers) -> tuple[npt.NDArray[np.intp], Integers, tuple[Integers, Integers, Integers]]:
    """Dense rank of each entry within its row, distinct entries of each row, and (row, rank, value) of all of them."""
    # A table of which classes occur is several times faster than sorting, but needs class numbers of modest size.
    values = np.arange(int(votes.max(initial=0)) + 1) if votes.max(initial=0) < _MANY_CLASSES else np.unique(votes)
    codes = votes if values[-1] < _MANY_CLASSES else np.searchsorted(values, votes)
    # Places in the flattened table: numpy is slower with a pair of indices.
    places = codes + len(values) * np.arange(len(votes))[:, None]
    occurs = np.zeros((len(votes), len(values)), dtype=np.bool_)
    occurs.ravel()[places.ravel()] = True
    # The running count of occurring classes is the rank of each.
    dense = np.cumsum(occurs, axis=1, dtype=np.intp) - 1
    row, code = np.nonzero(occurs)
    return dense.ravel().take(places), dense[:, -1] + 1, (row, dense[row, code], values[code])
