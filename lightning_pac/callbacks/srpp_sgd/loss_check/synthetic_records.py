"""Records with the structure of real ones and none of their values."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["EXAMPLES", "GROUP", "LAWS", "OF_LENGTHS", "SyntheticRecords", "Variation"]

EXAMPLES = 32
"""Real records that are looked at for their structure."""

GROUP = 4
"""Records in each of the four groups that are compared."""

# Synthetic integers stay below these ends and within what the real records show: the first end that the model accepts
# (a class index or token must exist) is taken. At last, also what is smaller than any that is shown is left out.
INTEGER_ENDS = (1000, 100, 10, 5, 3, 2, None)

# What libraries and people give targets that are to be ignored, and the usual padding last.
SPECIAL_INTEGERS = (-100, -1, 255, 0)

LAWS = {
    "wide": "of which some hold large numbers of either sign",
    "bits": "whose numbers are 0 and 1",
    "zeros": "of which some hold zeros alone",
    "marks": "of which some hold the number -1 alone",
    "recurring": "of which some hold a number alone that recurs in the data",
    "missing": "of which one holds numbers that are not finite",
}
"""Laws of floating-point numbers beside the uniform one, in words."""
OF_LENGTHS = "of different lengths"  # the variation of records that are cut
_MOST_NUMBERS = 4096  # of a record, among which one that recurs is looked for

# Eighths of a row that are kept, by record: the groups differ in their longest, and no group is in order of length.
KEPT_EIGHTHS = (8, 5, 7, 6, 6, 3, 5, 4, 2, 5, 3, 4, 1, 4, 2, 3)


class SyntheticRecords:
    """Draws four groups of records with the structure of real ones.

    What is taken from real records is their structure: shapes and types, for each integer field the least and the
    greatest value and negative integers that mark what is ignored, for each other field a number that recurs (it may
    mark what is missing), and which integers give the length of another field. Parts that hold no numbers (texts,
    pictures, objects) are those of real records with numbers of one shape. The values of a single integer are halved at
    random in each draw: one half is for the first two groups, the other for the last two, so that groups which take
    each other's place hold no class in common.

    Args:
        examples: Real records.
        accepts: Called with records; raises where they are no input for the model, and says whether what the model
            makes of them is finite.

    Raises:
        ValueError: If the records hold no number that could be replaced.
        Exception: Whatever `accepts` raises for the narrowest range.
    """

    def __init__(self, examples: Sequence[Any], accepts: Callable[[list[Any]], bool]) -> None:
        self._template = examples[0]
        if not _leaves(self._template):
            raise ValueError(
                f"a record of type {type(self._template).__name__} holds no numbers that could be replaced"
            )
        shown = [leaves for leaves in map(_leaves, examples) if len(leaves) == len(_leaves(self._template))]
        fields = list(zip(*shown, strict=True))
        self._marks = [_marks(field) for field in fields]
        self._shown = [_shown_range(field, marks) for field, marks in zip(fields, self._marks, strict=True)]
        self._recurring = [_recurring(field) for field in fields]
        self._constants = [_constants(field, shown) for field, shown in zip(fields, self._shown, strict=True)]
        self._lengths = _length_fields(fields)
        shapes = [[np.shape(leaf) for leaf in leaves] for leaves in map(_leaves, examples)]
        self._alike = [record for record, own in zip(examples, shapes, strict=True) if own == shapes[0]]
        self._differs = [len(set(map(_length, field))) > 1 for field in fields]
        self._ranges = self._choose_ranges(accepts)

    def draw(self, number: int) -> list[Any]:
        """The records of the draw with that number, the same at every call."""
        return self._draw(number, self._ranges)

    def drawn_by(self, law: str) -> Iterator[list[Any]]:
        """Two groups of records whose floating-point numbers have another law: all of them, or those of one field.

        Args:
            law: One of `LAWS`.
        """
        plain = self.draw(1)[: 2 * GROUP]
        places = [place for place, leaf in enumerate(_leaves(plain[0])) if _is_floating(leaf)]
        if law == "recurring":
            places = [place for place in places if self._recurring[place] is not None]
        for chosen in [places, *([place] for place in places if len(places) > 1)]:
            if chosen:
                generator = torch.Generator().manual_seed(1)
                changes = (_changed_by(law, index, chosen, generator, self._recurring) for index in range(len(plain)))
                yield list(map(_map, plain, changes))

    def varied(self, records: list[Any], ignores: bool, compared: Collection[int] = ()) -> Iterator["Variation"]:
        """The records in different lengths, with fields of one number, and with some integers ignored or padding.

        Args:
            records: What `draw` returned.
            ignores: Whether to try marks of ignored targets that no record shows, which a loss must check to stand.
            compared: Integers that the code looks for, which a record may hold though none does that was looked at.
        """
        leaves, public = _leaves(records[0]), {*SPECIAL_INTEGERS, *compared}
        lengths = [_length(leaf) for leaf in leaves]
        first = [length for length in lengths if length > 1][:1]
        differing = [length for length, differs in zip(lengths, self._differs, strict=True) if length > 1 and differs]
        for length in dict.fromkeys(first + differing):

            def cut(kept: int, length: int = length) -> Callable[[Any, int], Any]:
                return lambda leaf, _: leaf[: -(-length * kept // 8)] if _length(leaf) == length else leaf

            different = [_map(record, cut(kept)) for record, kept in zip(records, KEPT_EIGHTHS, strict=True)]
            yield Variation(OF_LENGTHS, [self._with_lengths(record) for record in different])
        for place, leaf in enumerate(leaves):
            marks, shown = self._marks[place], self._shown[place]
            for special in sorted(public | marks):
                if shown is None or place in self._lengths or not _holds(leaf, special):
                    continue
                occurs = special in marks or special in compared or min(shown[0], 0) <= special <= shown[1]

                def ignore(index: int, place: int = place, special: int = special) -> Callable[[Any, int], Any]:
                    return lambda entry, number: _with_special(entry, special, index) if number == place else entry

                if occurs or (ignores and (special >= 0 or _length(leaf))):
                    ignored = [_map(record, ignore(index)) for index, record in enumerate(records)]
                    what = f"the integer {special}" if special in public else "a negative integer as a mark"
                    yield Variation(f"of which some hold {what}", ignored, occurs or special >= 0)
        for filled, value in ((place, value) for place, found in enumerate(self._constants) for value in found):

            def fill(leaf: Any, place: int, filled: int = filled, value: float = value) -> Any:
                return _filled(leaf, value) if place == filled else leaf

            # Two groups keep theirs, so that one record may end what all have in common.
            alone = [*records[: 2 * GROUP], *(_map(record, fill) for record in records[2 * GROUP :])]
            yield Variation(f"of which some hold the number {value:g} alone", alone)

    def _choose_ranges(self, accepts: Callable[[list[Any]], bool]) -> list[tuple[int, int] | None]:
        accepted, error = None, None
        for end in INTEGER_ENDS:
            ranges = [None if shown is None else _range(*shown, end) for shown in self._shown]
            try:
                if accepts(self._draw(0, ranges)):
                    return ranges
                accepted = accepted or ranges
            except Exception as caught:
                error = caught
        if accepted is None:
            assert error is not None
            raise error
        return accepted

    def _draw(self, number: int, ranges: list[tuple[int, int] | None]) -> list[Any]:
        generator = torch.Generator().manual_seed(number)
        halves = [
            _halves(*(ends or (0, 1)), generator) if _size(leaf) == 1 else None
            for leaf, ends in zip(_leaves(self._template), ranges, strict=True)
        ]

        def random(half: int) -> Callable[[Any, int], Any]:
            def change(leaf: Any, place: int) -> Any:
                values, ends = halves[place], ranges[place] or (0, 1)
                return _random(leaf, torch.arange(ends[0], ends[1] + 1) if values is None else values[half], generator)

            return change

        records = [
            _map(self._alike[(4 * GROUP * number + index) % len(self._alike)], random(index // (2 * GROUP)))
            for index in range(4 * GROUP)
        ]
        return [self._with_lengths(record) for record in records]

    def _with_lengths(self, record: Any) -> Any:
        leaves, lengths = _leaves(record), self._lengths
        return _map(
            record, lambda leaf, place: _filled(leaf, _length(leaves[lengths[place]])) if place in lengths else leaf
        )


@dataclass(frozen=True)
class Variation:
    """Records in a circumstance that equal ones do not show; a model need not accept them.

    Attributes:
        circumstance: What is varied, in words.
        records: Four groups of records.
        occurs: Whether such records are to be expected; otherwise they are what a loss function would take as well.
    """

    circumstance: str
    records: list[Any]
    occurs: bool = True


def _map(record: Any, change: Callable[[Any, int], Any]) -> Any:
    """Change every tensor, array, number and list of numbers; what is none stays as it is."""
    numbers = itertools.count()

    def visit(value: Any) -> Any:
        if _is_leaf(value):
            return change(value, next(numbers))
        if isinstance(value, Mapping):
            return type(value)({key: visit(entry) for key, entry in value.items()})  # type: ignore[call-arg]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(visit(entry) for entry in value))
        if isinstance(value, list | tuple):
            return type(value)(visit(entry) for entry in value)
        return value

    return visit(record)


def _leaves(record: Any) -> list[Any]:
    found: list[Any] = []
    _map(record, lambda leaf, _: found.append(leaf))
    return found


def _is_leaf(value: Any) -> bool:
    if isinstance(value, Tensor | np.generic | bool | int | float):
        return not (isinstance(value, np.generic) and value.dtype.kind not in "biuf")
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    return isinstance(value, list) and bool(value) and all(isinstance(entry, int | float) for entry in value)


def _length(leaf: Any) -> int:
    """Entries along the first dimension; 0 for a single number."""
    if isinstance(leaf, Tensor | np.ndarray):
        return len(leaf) if leaf.ndim else 0
    return len(leaf) if isinstance(leaf, list) else 0


def _marks(field: Sequence[Any]) -> set[int]:
    """The few different negative integers of a field, none if it holds something else or many of them."""
    found = {value for leaf in field for value in np.unique(_integers(leaf).numpy()).tolist() if value < 0}
    return found if len(found) <= 2 else set()


def _shown_range(field: Sequence[Any], marks: set[int]) -> tuple[int, int] | None:
    """The least and the greatest integer of a field but for marks; None if it holds something else."""
    if not all(_holds(leaf, 0) for leaf in field):
        return None
    ends = [part.aminmax() for part in map(_integers, field) if part.numel()]
    least, greatest = (min(int(end.min) for end in ends), max(int(end.max) for end in ends)) if ends else (0, 0)
    return (min(0, greatest) if marks else least), greatest


def _recurring(field: Sequence[Any]) -> float | None:
    """Of the numbers that come in several records of a field, the one that is farthest from zero, beside 1 and -1."""
    rows = [torch.as_tensor(leaf).reshape(-1)[:_MOST_NUMBERS] for leaf in field if _is_floating(leaf)]
    times = Counter(number for row in rows if not row.is_complex() for number in set(row.tolist()))
    found = [number for number, count in times.items() if count > 1 and abs(number) not in (0, 1, math.inf)]
    return max(found, key=abs, default=None)


def _constants(field: Sequence[Any], shown: tuple[int, int] | None) -> list[float]:
    """The two numbers that most records of a field hold alone, as an empty mask does.

    Where records lack some integers of others, the least: what is drawn lacks none.
    """
    size = max(map(_size, field))
    sampled = [torch.as_tensor(leaf).reshape(-1)[:: 1 + _size(leaf) // _MOST_NUMBERS] for leaf in field]
    rows = [row.unique() for row in sampled]  # type: ignore[no-untyped-call]
    if rows[0].is_complex() or (size == 1 and shown):
        return []  # single integers are of different classes in the groups
    times = Counter(float(row[0]) for row in rows if len(row) == 1 and bool(row.isfinite()))
    found = [value for value, count in times.most_common(2) if size > 1 or count > 1]
    return [float(shown[0])] if shown and not found and len(set(map(len, rows))) > 1 else found


def _range(least: int, greatest: int, end: int | None) -> tuple[int, int]:
    """The least and the greatest synthetic integer, at least two different ones unless nothing else is accepted."""
    if end is None:
        return least, greatest
    least = min(least, 0)
    return least, min(max(greatest, least + 1), least + end - 1)


def _length_fields(fields: Sequence[Sequence[Any]]) -> dict[int, int]:
    """Places of single integers that are the length of another field in every record, and the places of those."""
    found: dict[int, int] = {}
    for place, field in enumerate(fields):
        if all(_holds(leaf, 0) and _integers(leaf).numel() == 1 for leaf in field):
            values = [int(_integers(leaf)) for leaf in field]
            for other, measured in enumerate(fields):
                if len(set(values)) > 1 and other != place and values == [_length(leaf) for leaf in measured]:
                    found[place] = other
    return found


def _integers(leaf: Any) -> Tensor:
    """The integers of a leaf in one row; none if it holds something else."""
    return torch.as_tensor(leaf).reshape(-1).long() if _holds(leaf, 0) else torch.empty(0, dtype=torch.long)


def _halves(least: int, greatest: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two parts of the integers between these, without one in common if there are two."""
    order = torch.randperm(greatest - least + 1, generator=generator) + least
    middle = len(order) // 2
    return order[middle:], order[: max(middle, 1)]


def _random(leaf: Any, values: Tensor, generator: torch.Generator) -> Any:
    if isinstance(leaf, Tensor):
        return _random_like(leaf, values, generator)
    if isinstance(leaf, np.ndarray | np.generic):
        drawn = _random_like(torch.as_tensor(np.asarray(leaf)), values, generator).numpy()
        return drawn if isinstance(leaf, np.ndarray) else leaf.dtype.type(drawn)
    return _random_like(torch.as_tensor(leaf), values, generator).tolist()


def _random_like(leaf: Tensor, values: Tensor, generator: torch.Generator) -> Tensor:
    if leaf.is_floating_point() or leaf.is_complex():
        return torch.rand(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.dtype)
    return values[torch.randint(len(values), leaf.shape, generator=generator)].to(leaf.dtype)


def _is_floating(leaf: Any) -> bool:
    return not isinstance(leaf, bool | int) and torch.as_tensor(leaf).is_floating_point()


def _changed_by(
    law: str, index: int, places: list[int], generator: torch.Generator, recurring: list[float | None]
) -> Callable[[Any, int], Any]:
    return lambda leaf, place: (
        _by_law(leaf, law, index, generator, recurring[place] or 0.0) if place in places else leaf
    )


def _by_law(leaf: Any, law: str, index: int, generator: torch.Generator, recurring: float) -> Any:
    """Numbers of another law for the record with that index in two groups."""
    if not isinstance(leaf, Tensor):
        changed = _by_law(torch.as_tensor(leaf), law, index, generator, recurring)
        if isinstance(leaf, np.ndarray | np.generic):
            return changed.numpy() if isinstance(leaf, np.ndarray) else leaf.dtype.type(changed)
        return changed.tolist()
    normal = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
    group, place = divmod(index, GROUP)
    values = {
        # Places 0 to 3 of a group differ in scale by up to 10^6. Of bits, a quarter are set in the first group, and
        # three quarters in the second: P(N > 0.7) = 0.24.
        "wide": lambda: normal * 100.0**place,
        "bits": lambda: normal * 0 + ((place == 0) != group) if leaf.numel() == 1 else normal > 0.7 - 1.4 * group,
        "zeros": lambda: normal * 0 if place % 2 else leaf,
        "marks": lambda: normal * 0 - 1 if place % 2 else leaf,
        "recurring": lambda: normal * 0 + recurring if place % 2 else leaf,
        "missing": lambda: normal + torch.nan if place == 1 else leaf,
    }
    return values[law]().to(leaf.dtype)


def _size(leaf: Any) -> int:
    return leaf.numel() if isinstance(leaf, Tensor) else np.asarray(leaf).size


def _filled(leaf: Any, value: float) -> Any:
    if isinstance(leaf, Tensor):
        return torch.full_like(leaf, value)
    if isinstance(leaf, np.ndarray):
        return np.full_like(leaf, value)
    return [type(leaf[0])(value)] * len(leaf) if isinstance(leaf, list) else type(leaf)(value)


def _holds(leaf: Any, special: int) -> bool:
    """Whether the leaf is made of integers of which one can have that value."""
    if isinstance(leaf, list):
        return all(isinstance(entry, int) and not isinstance(entry, bool) for entry in leaf)
    if isinstance(leaf, Tensor | np.ndarray | np.generic):
        dtype = torch.as_tensor(np.asarray(leaf)).dtype if not isinstance(leaf, Tensor) else leaf.dtype
        if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
            return False
        return torch.iinfo(dtype).min <= special <= torch.iinfo(dtype).max
    return isinstance(leaf, int) and not isinstance(leaf, bool)


def _with_special(leaf: Any, special: int, index: int) -> Any:
    """The record's integers, the last of them special; of single numbers and short rows all, in some records."""
    if isinstance(leaf, list):
        return _with_special(torch.tensor(leaf), special, index).tolist()
    if isinstance(leaf, np.ndarray | np.generic):
        values = _with_special(torch.as_tensor(np.asarray(leaf)), special, index).numpy()
        return values if isinstance(leaf, np.ndarray) else leaf.dtype.type(values)
    if isinstance(leaf, int):
        return int(_with_special(torch.tensor(leaf), special, index))
    group, place = divmod(index, GROUP)
    values = leaf.clone().reshape(-1)
    size = len(values)
    # In rows of eight and more, what is beyond their eighths; of shorter ones, all in the first g records of group g.
    number = size - -(-size * KEPT_EIGHTHS[index] // 8) if size >= 8 else size * (place < group)
    if number:
        values[-number:] = special
    return values.reshape(leaf.shape)
