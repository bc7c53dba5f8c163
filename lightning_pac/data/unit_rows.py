"""The rows of a batch that stand for each record or person that is drawn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_pac.data.persons import Persons

__all__ = ["UnitRows"]


class UnitRows:
    """Units that are drawn and clipped as one, records or persons, as rows of a batch: as many for each unit.

    A person with fewer records than the most that are used repeats the first one, in rows that do not count, so that
    the shape of a batch says nothing of how many records anyone has.

    Args:
        dataset: A map-style dataset.
        persons: Whose records are a unit; each record is one of its own if left out.
        views: How often each record is loaded.

    Attributes:
        drawn: Persons and views, as given.
        num_units: Records or persons to draw from.
        records: Records of a unit, used or not.
        size: Rows of a unit.

    Example:
        >>> rows = UnitRows([(1.0, "ann"), (2.0, "bob"), (3.0, "ann")], Persons(of=1, at_most=2), views=1)
        >>> rows.num_units, rows.of([1, 0]), rows.unused([1, 0]).tolist()
        (2, [1, 1, 0, 2], [False, True, False, False])
    """

    def __init__(self, dataset: Any, persons: Persons | None = None, views: int = 1) -> None:
        self.drawn = persons, views
        self._records: NDArray[np.int64] = np.arange(len(dataset))[:, None]
        self._used: NDArray[np.bool_] | None = None
        if persons is not None:
            groups = persons.records_of(dataset)
            self._records = np.asarray([group + group[:1] * (persons.at_most - len(group)) for group in groups])
            used = np.asarray([len(group) for group in groups])[:, None] > np.arange(persons.at_most)
            self._used = np.repeat(used, views, axis=1)
        self.num_units: int = len(self._records)
        self.records: int = self._records.shape[1]
        self.size = self.records * views

    def of(self, units: Sequence[int]) -> list[int]:
        """Indices of the rows, unit after unit."""
        found: list[int] = (
            np.repeat(self._records[np.asarray(units, dtype=np.int64)], self.drawn[1], axis=1).ravel().tolist()
        )
        return found

    def unused(self, units: Sequence[int]) -> Tensor | None:
        """The mask of those rows that do not count; None if all do."""
        return None if self._used is None else torch.from_numpy(~self._used[np.asarray(units, dtype=np.int64)].ravel())
