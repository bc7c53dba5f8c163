"""Two worlds that differ in a secret, and how many records that secret touches."""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import Count, Seed, validated

__all__ = ["Adjacency", "LabelWorlds", "TwoWorldScenario"]

Adjacency = Literal["replace", "add_remove", "zero_out"]
"""The way a differing record differs: in its content, by being there at all, or by counting as zero in one world."""

_UNNAMED = "which of the two worlds the data come from"
_PRESENCE = "whether any one record is in the data"


@validated
@dataclass(frozen=True)
class TwoWorldScenario:
    """A Pufferfish secret with two values, realized as two datasets that differ in at most `num_differing` records.

    The coupling of the two worlds is part of the declaration: record i of one world belongs to record i of the other.
    Only the number of differing records matters to the account, not which they are.

    Args:
        num_differing: records that differ, `d`. Under `add_remove` and `zero_out` an integer means that all of them
            are in one world and none in the other; a pair `(d1, d2)` means d1 records that only the first world has
            and d2 that only the second has. Left out, it follows from `share_differing`.
        num_records: records in the dataset. Left out, it is the dataset's length. Under `add_remove` it is the secret
            and must be left out.
        adjacency: `replace`: a record's content changes (a relabelling, an attribute), so a clipped sum moves by up
            to twice the clipping norm, and the number of records is public, also of those held out. `add_remove`: the
            record is in one world only; Poisson sampling only. `zero_out`: the absent record keeps its index and
            contributes a zero gradient; any sampling.
        nested: with an integer `num_differing` under `add_remove` or `zero_out`, False declares only that at most d
            records differ, in either direction. Irrelevant under `replace`.
        secret: what the two worlds differ in, in words, for the privacy card. Left out, it is named for one record
            under `add_remove`, so that these are the worlds of `differential_privacy()`.
        share_differing: in place of `num_differing`, the share of all records that differ, in (0, 1]; it is rounded up
            to whole records once their number is known, and then None. Not under `add_remove`.

    Raises:
        ValueError: if the numbers do not describe two worlds.

    Example:
        >>> TwoWorldScenario(num_differing=10).sensitivity_factor
        2
        >>> TwoWorldScenario(share_differing=0.01).resolve(1_437).num_differing
        15
        >>> TwoWorldScenario.differential_privacy().num_differing
        1
    """

    num_differing: int | tuple[int, int] = 0
    num_records: int | None = None
    adjacency: Adjacency = "replace"
    nested: bool = True
    secret: str = _UNNAMED
    share_differing: float | None = None

    def __post_init__(self) -> None:
        if self.share_differing is not None:
            self._count_share(self.share_differing)
            if self.num_records is None:
                return
        if not hasattr(self.num_differing, "__index__"):
            object.__setattr__(self, "num_differing", self._checked_pair())
        elif isinstance(self.num_differing, bool) or self.total_differing < 1:
            raise ValueError(
                f"num_differing is {self.num_differing}, but two worlds differ in at least one record: state "
                "how many, or share_differing."
            )
        if (self.secret, self.num_differing, self.adjacency) == (_UNNAMED, 1, "add_remove"):
            object.__setattr__(self, "secret", _PRESENCE)
        if self.num_records is not None:
            self._check_num_records(self.num_records)
            if self.adjacency == "add_remove":
                raise ValueError(
                    f"num_records is {self.num_records}, but under add_remove the number of records is the secret: "
                    "leave it out, or use zero_out where the number is public."
                )

    @classmethod
    def differential_privacy(cls) -> TwoWorldScenario:
        """One record present or absent: the account under Poisson sampling is then that of DP-SGD."""
        return cls(num_differing=1, adjacency="add_remove")

    @classmethod
    def from_labels(
        cls, labels_a: npt.ArrayLike, labels_b: npt.ArrayLike, secret: str | None = None
    ) -> TwoWorldScenario:
        """The scenario of two label vectors over the same records.

        Args:
            labels_a: labels in the first world, shape (num_records,).
            labels_b: labels in the second world, shape (num_records,).
            secret: what the two label vectors differ in, in words.

        Raises:
            ValueError: if the vectors differ in shape, or in no label.

        Example:
            >>> TwoWorldScenario.from_labels([0, 1, 1, 0], [0, 1, 0, 0]).num_differing
            1
        """
        first, second = np.asarray(labels_a), np.asarray(labels_b)
        if first.ndim != 1 or first.shape != second.shape:
            raise ValueError(
                f"labels_a has shape {first.shape} and labels_b {second.shape}, but both worlds label the same records."
            )
        num_differing = int(np.count_nonzero(first != second))
        if not num_differing:
            raise ValueError("labels_a equals labels_b, so there is no secret: pass the labels of two worlds.")
        return cls(num_differing, num_records=len(first), secret=secret or f"{num_differing} labels")

    @classmethod
    def from_prevalence(
        cls,
        labels: npt.ArrayLike,
        secret_class: int,
        p0: float,
        p1: float,
        rng: np.random.Generator | Seed | None = None,
        world: int | None = None,
    ) -> LabelWorlds:
        """Two worlds that differ in how frequent a class is, by minimal relabelling (SRPP paper, appendix O.3).

        First, as few labels as possible are changed at random so that `p0 N` records (rounded) have the secret class;
        from there, as few as possible so that `p1 N` have it. One world is realized, and training sees only that one.

        Args:
            labels: public or original labels, shape (num_records,).
            secret_class: the class whose prevalence is the secret.
            p0: its prevalence in world 0, in [0, 1].
            p1: its prevalence in world 1, in [0, 1].
            rng: generator or seed of the relabelling, which is no secret.
            world: the world to realize, 0 or 1; left out, it is drawn by the operating system's randomness.

        Raises:
            ValueError: if a prevalence is outside [0, 1], both give the same number of records, or there is no other
                class to relabel to.

        Example:
            >>> worlds = TwoWorldScenario.from_prevalence([0] * 50 + [1] * 50, secret_class=1, p0=0.4, p1=0.5, rng=0)
            >>> worlds.scenario.num_differing, len(worlds.labels)
            (10, 100)
        """
        original = np.asarray(labels)
        if original.ndim != 1 or not original.size:
            raise ValueError(f"labels has shape {original.shape}, but must be a row of labels, one a record.")
        for name, prevalence in (("p0", p0), ("p1", p1)):
            if not 0 <= prevalence <= 1:
                raise ValueError(f"{name} is {prevalence}, but a prevalence lies in [0, 1].")
        if world not in (None, 0, 1):
            raise ValueError(f"world is {world}, but must be 0 or 1.")
        count_0, count_1 = (round(prevalence * len(original)) for prevalence in (p0, p1))
        if count_0 == count_1:
            raise ValueError(
                f"p0 is {p0} and p1 {p1}, and both make {count_0} of {len(original)} records members of class "
                f"{secret_class}, so there is no secret: move them further apart."
            )
        generator = np.random.default_rng(rng)
        labels_0 = _relabel(original, secret_class, count_0, generator)
        labels_1 = _relabel(labels_0, secret_class, count_1, generator)
        return LabelWorlds(
            labels_a=labels_0,
            labels_b=labels_1,
            realized=secrets.randbelow(2) if world is None else world,
            secret=f"whether class {secret_class} has prevalence {p0} or {p1}",
        )

    @property
    def sensitivity_factor(self) -> int:
        """The most that one differing record moves the sum of clipped gradients, in clipping norms: kappa."""
        return 2 if self.adjacency == "replace" else 1

    @property
    def total_differing(self) -> int:
        """All records that differ, in either direction.

        Raises:
            ValueError: if they are a share of records whose number is not known yet.
        """
        if self.share_differing is not None:
            raise ValueError(
                f"share_differing is {self.share_differing:g} of a number of records that is not known here: state "
                "num_records, or num_differing itself."
            )
        return sum(self.num_differing) if isinstance(self.num_differing, tuple) else self.num_differing

    @property
    def splits(self) -> tuple[tuple[int, int], ...]:
        """The declared possibilities (only in the first world, only in the second); none under `replace`."""
        if self.adjacency == "replace":
            return ()
        if isinstance(self.num_differing, tuple):
            return (self.num_differing,)
        total = self.num_differing
        return ((total, 0),) if self.nested else tuple((total - other, other) for other in range(total // 2 + 1))

    def describe_secret(self, unit: str = "record") -> str:
        """The secret in sentences for people, with how many records decide it, of how many where that is public.

        Args:
            unit: What a record is, such as "person".

        Example:
            >>> TwoWorldScenario(num_differing=10, num_records=4_000).describe_secret()
            'Any fact that at most 10 of 4,000 records decide.'
            >>> TwoWorldScenario(num_differing=3, secret="whether seven or ten are ill").describe_secret("person")
            'Whether seven or ten are ill. At most 3 persons make the difference.'
        """
        number = self.total_differing
        if self.secret == _PRESENCE and number == 1:
            return f"{_PRESENCE.capitalize().replace('record', unit)}."
        whole = "" if self.num_records is None else f" of {self.num_records:,}"
        plural = "" if number == 1 and not whole else "s"
        units = f"at most {number:,}{whole} {unit}{plural}"
        how = "" if self.adjacency == "replace" else " by being there or not"
        if self.secret == _UNNAMED:
            return f"Any fact that {units} decide{'s' * (number == 1)}{how}."
        makes = f"make{'s' * (number == 1)} the difference"
        secret = f"{self.secret[:1].upper()}{self.secret[1:].removesuffix('.')}"
        return f"{secret}. {units[:1].upper()}{units[1:]} {makes}{how}."

    def resolve(self, num_records: Count) -> TwoWorldScenario:
        """Bind the length of the dataset that is trained on.

        Under `add_remove` the length is the secret: it is not looked at, and the scenario is returned as it is.

        Args:
            num_records: the dataset's length.

        Raises:
            ValueError: if another number of records was declared, or fewer than differ.

        Example:
            >>> TwoWorldScenario(num_differing=10).resolve(50_000).num_records
            50000
        """
        if self.adjacency == "add_remove":
            return self
        if self.num_records is not None and self.num_records != num_records:
            raise ValueError(
                f"The scenario declares {self.num_records} records, but the dataset has {num_records}: "
                "declare the dataset's length, or leave num_records out."
            )
        return dataclasses.replace(self, num_records=num_records)

    def to_dict(self) -> dict[str, Any]:
        """The scenario as plain values, for a ledger's declaration or a card; `from_dict` reads it."""
        values = dataclasses.asdict(self)
        if isinstance(self.num_differing, tuple):
            values["num_differing"] = list(self.num_differing)
        if self.share_differing is None:  # declarations of before it could be stated must stay the same
            del values["share_differing"]
        return values

    def coupling(self) -> dict[str, Any]:
        """The declaration that several releases must share for their costs to add, as plain values.

        The number of records is no part of it: releases may read different parts of the data (training and validation
        records, say), and `num_differing` then counts all records that differ.

        Example:
            >>> TwoWorldScenario(num_differing=10, num_records=500).coupling()["num_differing"]
            10
        """
        values = self.to_dict()
        del values["num_records"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TwoWorldScenario:
        """Rebuild the scenario that `to_dict` wrote."""
        return cls(**values)

    def _count_share(self, share: float) -> None:
        """Round the share up to whole records, once their number is known."""
        if self.num_differing:
            raise ValueError(
                f"num_differing is {self.num_differing} and share_differing is {share}: pass exactly one of them."
            )
        if self.adjacency == "add_remove":
            raise ValueError(
                f"share_differing is {share}, but under add_remove the number of records that it is a share of is the "
                "secret: give num_differing."
            )
        if isinstance(share, bool) or not 0 < share <= 1:
            raise ValueError(f"share_differing is {share}, but a share of the records lies in (0, 1].")
        if self.num_records is not None:
            # As the decimal number that was written: 0.07 of 100 records are 7, whatever its binary digits say.
            object.__setattr__(self, "num_differing", math.ceil(Fraction(str(share)) * self.num_records))
            object.__setattr__(self, "share_differing", None)

    def _checked_pair(self) -> tuple[int, int]:
        try:
            first, second = (int(count) for count in self.num_differing)  # type: ignore[union-attr]
        except (TypeError, ValueError):
            raise TypeError(f"num_differing is {self.num_differing!r}, but it is one whole number or two.") from None
        if self.adjacency == "replace":
            raise ValueError(
                f"num_differing is {self.num_differing}, but under replace a differing record has no direction: "
                "give one number."
            )
        if min(first, second) < 0 or first + second < 1:
            raise ValueError(
                f"num_differing is {self.num_differing}, but both counts are at least 0 and one record must differ."
            )
        return first, second

    def _check_num_records(self, num_records: int) -> None:
        if self.total_differing > num_records:
            raise ValueError(
                f"num_differing is {self.total_differing}, but there are only {num_records} records to differ in."
            )


@validated
@dataclass(frozen=True, eq=False)
class LabelWorlds:
    """Two label vectors over the same records, one of them realized.

    A data module serves `labels`; nothing but an audit reads the other vector.

    Args:
        labels_a: labels in world 0, shape (num_records,).
        labels_b: labels in world 1, shape (num_records,).
        realized: the world that training sees, 0 or 1; it is the secret, so it is not printed.
        secret: what the worlds differ in, in words.
    """

    labels_a: npt.NDArray[Any] = field(repr=False)
    labels_b: npt.NDArray[Any] = field(repr=False)
    realized: int = field(repr=False)
    secret: str

    @property
    def scenario(self) -> TwoWorldScenario:
        """The scenario to declare: the number of labels that differ, under `replace`."""
        return TwoWorldScenario.from_labels(self.labels_a, self.labels_b, secret=self.secret)

    @property
    def labels(self) -> npt.NDArray[Any]:
        """Labels of the realized world, shape (num_records,)."""
        return (self.labels_a, self.labels_b)[self.realized]

    @property
    def differing(self) -> npt.NDArray[np.intp]:
        """Indices of the records whose labels differ, shape (num_differing,)."""
        return np.flatnonzero(self.labels_a != self.labels_b)


def _relabel(
    labels: npt.NDArray[Any], secret_class: int, count: int, generator: np.random.Generator
) -> npt.NDArray[Any]:
    """Change as few labels as possible, at random, so that `count` records have the secret class."""
    relabelled = labels.copy()
    members = np.flatnonzero(labels == secret_class)
    surplus = len(members) - count
    if surplus > 0:
        others = np.unique(labels[labels != secret_class])
        if not len(others):
            raise ValueError(f"Every label is {secret_class}, so there is no other class to relabel to.")
        leaving = generator.choice(members, size=surplus, replace=False)
        relabelled[leaving] = generator.choice(others, size=surplus)
    elif surplus < 0:
        outsiders = np.flatnonzero(labels != secret_class)
        relabelled[generator.choice(outsiders, size=-surplus, replace=False)] = secret_class
    return relabelled
