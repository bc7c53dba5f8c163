"""Persons as the unit of privacy: which records are whose, how many of them are used, and their rows in a batch."""

import itertools
import math
import operator
import unicodedata
from collections.abc import Callable, Hashable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_pac._validation import Count, validated
from lightning_pac.data.records import Surroundings, own_generators

__all__ = ["Persons", "UnitRows"]

_ASKED_AGAIN = 8


@validated
@dataclass(frozen=True)
class Persons:
    """Persons, or other groups of records, each of which is drawn and clipped as one.

    With `SRPPSGD(unit=Persons(...))` the two worlds differ in all records of a person: `num_differing` and the rate
    count persons. A person's gradient is the sum over the first `at_most` of that person's records, clipped as one.

    Attributes:
        of: Where a record says whose it is: a key or a position in it, or a function of the record alone that returns a
            number or a text. It is public, and so is what it says in either world but for the persons who differ.
        at_most: Records of a person that are used, in the order of the dataset. A batch has so many rows for every
            person, filled up where there are fewer, so a number that few exceed is best.

    Example:
        >>> Persons(of="user", at_most=2).records_of([{"user": 7}, {"user": 8}, {"user": 7}, {"user": 7}])
        [[0, 2], [1]]
    """

    of: int | str | Callable[[Any], Any]
    at_most: Count

    @property
    def name(self) -> str:
        """The mark that tells persons apart, in words that a ledger keeps."""
        if not callable(self.of):
            return repr(self.of)
        return f"{self.of.__module__}.{getattr(self.of, '__qualname__', type(self.of).__qualname__)}"

    def __str__(self) -> str:
        return f"Persons(of={self.name}, at_most={self.at_most})"

    def records_of(self, dataset: Any) -> list[list[int]]:
        """Indices of each person's records, at most as many as are used, in the order of the dataset.

        Args:
            dataset: A map-style dataset; all of its records are loaded.

        Raises:
            ValueError: If a record does not say whose it is, or a person would be in two groups.
        """
        size = len(cast(Sized, dataset))
        with own_generators():
            alone = self._same_alone(dataset, again := range(0, size, -(-size // _ASKED_AGAIN)))
            said = [self._said_by(dataset[index]) for index in range(size)]
            names = list(map(_name, said))
            changed = any(self._person(dataset[index]) != names[index] for index in again)
            changed |= alone != [names[first] == names[second] for first, second in itertools.pairwise(again)]
        if changed:
            raise ValueError(
                "unit: a record belongs to one person and, when it is asked again or before others, to another, who "
                "would be in two groups: let it be a function of the record alone, that draws and keeps nothing."
            )
        if not callable(self.of) and len({isinstance(value, Tensor | np.ndarray) for value in said}) > 1:
            raise ValueError(
                "unit: persons are named by tensors or arrays in some records and by plain numbers or texts in others, "
                "which default_collate takes for no batch: name them in one way."
            )
        if len({type(name) for name in names}) > 1:
            raise ValueError(
                "unit: persons are named by numbers in some records and by texts in others, so one may be in two "
                "groups: name them in one way."
            )
        groups: dict[Hashable, list[int]] = {}
        for index, name in enumerate(names):
            groups.setdefault(name, []).append(index)
        if len(set(map(_as_read, groups))) < len(groups):
            raise ValueError(
                "unit: names of persons differ in spaces, capitals or the encoding of letters alone, so one may "
                "be in two groups: write them alike."
            )
        return [group[: self.at_most] for group in groups.values()]

    def _same_alone(self, dataset: Any, indices: range) -> list[bool]:
        """Whether each and the next are of one person, where nobody else was asked before."""
        surroundings, found = Surroundings(self.of), []
        for first, second in itertools.pairwise(indices):
            with surroundings.copied({}):
                found.append(self._person(dataset[first]) == self._person(dataset[second]))
        return found

    def _person(self, record: Any) -> Hashable:
        return _name(self._said_by(record))

    def _said_by(self, record: Any) -> Any:
        if callable(self.of):
            return self.of(record)
        try:
            return operator.itemgetter(self.of)(record)
        except (LookupError, TypeError) as error:
            raise ValueError(
                f"unit: a record, of type {type(record).__name__}, has no {self.of!r} that says whose it is: name a "
                "key or a position that all records have, or give a function."
            ) from error


def _name(said: Any) -> Hashable:
    if isinstance(said, Tensor | np.ndarray | np.generic) and math.prod(said.shape) == 1:
        said = said.item()
    if isinstance(said, str) and not said.strip():
        raise ValueError(
            "unit: a record has an empty text for a name, so records of several people would count as one "
            "person's: leave such records out, or give each a name of its own."
        )
    if isinstance(said, bool) or not isinstance(said, int | str):
        raise ValueError(
            f"unit: a record belongs to one person, who has a whole number or a text for a name, and got "
            f"{type(said).__name__}: a record of several persons would put them in two groups, so leave it out or "
            "give it to one."
        )
    return said


def _as_read(name: Hashable) -> str:
    """A name as people read it: an accented letter may be one character or two."""
    return " ".join(unicodedata.normalize("NFKC", str(name)).casefold().split())


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
