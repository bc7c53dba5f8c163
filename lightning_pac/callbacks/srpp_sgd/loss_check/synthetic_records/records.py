"""Records with the structure of real ones, and values that are made up or those of several of them."""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.fields import (
    constants_of,
    different_leaves,
    halves_of,
    integers_between,
    length_fields,
    marks_of,
    range_up_to,
    recurring_in,
    shown_range,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.leaves import (
    GROUP,
    KEPT_EIGHTHS,
    changed_by,
    filled,
    holds,
    is_floating,
    length_of,
    random_like,
    size_of,
    with_special,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.named_parts import named_parts
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.structure import Path, leaves_of, mapped, name_of

__all__ = ["LAWS", "OF_LENGTHS", "SyntheticRecords", "Variation"]

# Synthetic integers stay below these ends and within what the real records show: the first end that the model accepts
# (a class index or token must exist) is taken. At last, also what is smaller than any that is shown is left out; of
# larger integers, that is tried first.
_LARGE = 1000
INTEGER_ENDS: tuple[int | None, ...] = (_LARGE, 100, 10, 5, 3, 2, None)

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


_Ranges = list[tuple[int, int] | None]


class SyntheticRecords:
    """Draws four groups of records with the structure of real ones.

    What is taken from real records is their structure: shapes and types, for each integer field the least and the
    greatest value and negative integers that mark what is ignored, for each other field a number that recurs (it may
    mark what is missing), and which integers give the length of another field. Parts that hold no numbers (texts,
    pictures, objects) are those of real records with numbers of one shape; of few values, as names of classes have,
    each is drawn from all that are known, where the model takes that. The values of such a part, or of a single
    integer, are halved at random in each draw: one half is for the first two groups, the other for the last two, so
    that groups which take each other's place hold no class in common.

    Args:
        examples: Real records.
        accepts: Called with records; raises where they are no input for the model, and says whether what the model
            makes of them is finite.
        all_seen: Whether there are no other records, as far as parts of few values go.
        recombined: Whether each field is that of one of the examples, drawn anew, and other parts are those of real
            records: codes with gaps, classes that are compared with 1.0, shares that add up to one, objects. Where the
            model takes none of these, the examples themselves are drawn.

    Attributes:
        unseen: Parts of which the model uses values that no synthetic record may hold.

    Raises:
        ValueError: If the records hold no number that could be replaced.
        Exception: Whatever `accepts` raises for the narrowest range.
    """

    def __init__(
        self,
        examples: Sequence[Any],
        accepts: Callable[[list[Any]], bool],
        all_seen: bool = True,
        recombined: bool = False,
    ) -> None:
        self._template = examples[0]
        self._named = {} if recombined else named_parts(examples, all_seen)
        if not recombined and not self._leaves(self._template):
            raise ValueError(
                f"a record of type {type(self._template).__name__} holds no numbers that could be replaced"
            )
        shown = [leaves for leaves in map(self._leaves, examples) if len(leaves) == len(self._leaves(self._template))]
        fields = list(zip(*shown, strict=True))
        self._marks = [marks_of(field) for field in fields]
        self._shown = [shown_range(field, marks) for field, marks in zip(fields, self._marks, strict=True)]
        self._recurring = [recurring_in(field) for field in fields]
        self._constants = [constants_of(field, shown) for field, shown in zip(fields, self._shown, strict=True)]
        self._own = [different_leaves(field) for field in fields] if recombined else []
        self._is_whole = False
        self._lengths = length_fields(fields)
        shapes = [[np.shape(leaf) for leaf in leaves] for leaves in map(self._leaves, examples)]
        self._alike = [record for record, own in zip(examples, shapes, strict=True) if own == shapes[0]]
        self._differs = [len(set(map(length_of, field))) > 1 for field in fields]
        try:
            self._ranges, self._draws_named = self._choose_ranges(accepts)
        except Exception:
            if not recombined:
                raise
            self._own.clear()  # fields go together, as a mask and a length do: records are taken whole
            self._is_whole = True
            self._ranges, self._draws_named = self._choose_ranges(accepts)
        self._try_others(accepts)
        self.unseen = tuple(name_of(path) for path, part in self._named.items() if part.is_open and part.is_used)

    def draw(self, number: int) -> list[Any]:
        """The records of the draw with that number, the same at every call."""
        return self._draw(number, self._ranges, self._draws_named)

    def drawn_by(self, law: str) -> Iterator[list[Any]]:
        """Two groups of records whose floating-point numbers have another law: all of them, or those of one field.

        Args:
            law: One of `LAWS`.
        """
        plain = self.draw(1)[: 2 * GROUP]
        places = [place for place, leaf in enumerate(self._leaves(plain[0])) if is_floating(leaf)]
        if law == "recurring":
            places = [place for place in places if self._recurring[place] is not None]
        for chosen in [places, *([place] for place in places if len(places) > 1)]:
            if chosen:
                generator = torch.Generator().manual_seed(1)
                changes = (changed_by(law, index, chosen, generator, self._recurring) for index in range(len(plain)))
                yield list(map(self._map, plain, changes))

    def varied(self, records: list[Any], ignores: bool, compared: Collection[int] = ()) -> Iterator["Variation"]:
        """The records in different lengths, with fields of one number, and with some integers ignored or padding.

        Args:
            records: What `draw` returned.
            ignores: Whether to try marks of ignored targets that no record shows, which a loss must check to stand.
            compared: Integers that the code looks for, which a record may hold though none does that was looked at.
        """
        leaves, public = self._leaves(records[0]), {*SPECIAL_INTEGERS, *compared}
        lengths = [length_of(leaf) for leaf in leaves]
        first = [length for length in lengths if length > 1][:1]
        differing = [length for length, differs in zip(lengths, self._differs, strict=True) if length > 1 and differs]
        for length in dict.fromkeys(first + differing):

            def cut(kept: int, length: int = length) -> Callable[[Any, int], Any]:
                return lambda leaf, _: leaf[: -(-length * kept // 8)] if length_of(leaf) == length else leaf

            different = [self._map(record, cut(kept)) for record, kept in zip(records, KEPT_EIGHTHS, strict=True)]
            yield Variation(OF_LENGTHS, [self._with_lengths(record) for record in different])
        for place, leaf in enumerate(leaves):
            marks, shown = self._marks[place], self._shown[place]
            for special in sorted(public | marks):
                if shown is None or place in self._lengths or not holds(leaf, special):
                    continue
                occurs = special in marks or special in compared or min(shown[0], 0) <= special <= shown[1]

                def ignore(index: int, place: int = place, special: int = special) -> Callable[[Any, int], Any]:
                    return lambda entry, number: with_special(entry, special, index) if number == place else entry

                if occurs or (ignores and (special >= 0 or length_of(leaf))):
                    ignored = [self._map(record, ignore(index)) for index, record in enumerate(records)]
                    what = f"the integer {special}" if special in public else "a negative integer as a mark"
                    yield Variation(f"of which some hold {what}", ignored, occurs or special >= 0)
        for constant, value in ((place, value) for place, found in enumerate(self._constants) for value in found):

            def fill(leaf: Any, place: int, constant: int = constant, value: float = value) -> Any:
                return filled(leaf, value) if place == constant else leaf

            # Two groups keep theirs, so that one record may end what all have in common.
            alone = [*records[: 2 * GROUP], *(self._map(record, fill) for record in records[2 * GROUP :])]
            yield Variation(f"of which some hold the number {value:g} alone", alone)

    def _choose_ranges(self, accepts: Callable[[list[Any]], bool]) -> tuple[_Ranges, bool]:
        """Those of integers, and whether parts of few values are drawn."""
        accepted, error, ends_tried = None, None, INTEGER_ENDS
        if any(shown is not None and shown[1] >= _LARGE for shown in self._shown):
            ends_tried = (None, *INTEGER_ENDS)  # times, amounts and places: small ones may come to nothing in all
        # What a model makes of one part may not go with what another part of the same record says.
        for named, end in itertools.product((True, False) if self._named else (False,), ends_tried):
            ranges = [None if shown is None else range_up_to(*shown, end) for shown in self._shown]
            try:
                if accepts(self._draw(0, ranges, named)):
                    return ranges, named
                accepted = accepted or (ranges, named)
            except Exception as caught:
                error = caught
        if accepted is None:
            assert error is not None
            raise error
        return accepted

    def _try_others(self, accepts: Callable[[list[Any]], bool]) -> None:
        """Look for values that the code expects and no record shows, where other records may hold some."""
        records = self.draw(0)
        for path, part in self._named.items():
            known = list(part.values)
            if part.is_open:
                part.try_others(partial(_accepts_with, accepts, records, path))
            if len(part.values) > len(known):
                try:
                    accepts(self.draw(0))
                except Exception:  # they are taken alone, but not beside others
                    part.values[:] = known

    def _map(self, record: Any, change: Callable[[Any, int], Any]) -> Any:
        return mapped(record, change, self._named)

    def _leaves(self, record: Any) -> list[Any]:
        return leaves_of(record, self._named)

    def _draw(self, number: int, ranges: _Ranges, named: bool) -> list[Any]:
        generator = torch.Generator().manual_seed(number)
        integers = [(integers_between(*(ends or (0, 1)), generator),) * 2 for ends in ranges]
        for place, leaf in enumerate(self._leaves(self._template)):
            if size_of(leaf) == 1:
                integers[place] = halves_of(integers[place][0], generator)
        values = {path: halves_of(torch.arange(len(part.values)), generator) for path, part in self._named.items()}
        own = [halves_of(torch.arange(len(leaves)), generator) for leaves in self._own]

        def random(half: int) -> Callable[[Any, int], Any]:
            def change(leaf: Any, place: int) -> Any:
                if self._is_whole:
                    return _copied(leaf)
                if not own:
                    return random_like(leaf, integers[place][half], generator)
                chosen = own[place][half]
                return _copied(self._own[place][chosen[torch.randint(len(chosen), (), generator=generator)]])

            return change

        def choose(half: int) -> Callable[[Any, Path], Any]:
            def change(part: Any, path: Path) -> Any:
                chosen = values[path][half]
                place = chosen[torch.randint(len(chosen), (), generator=generator)]
                return self._named[path].values[place](generator) if named else part

            return change

        records = [
            mapped(
                self._alike[(4 * GROUP * number + index) % len(self._alike)],
                random(index // (2 * GROUP)),
                self._named,
                choose(index // (2 * GROUP)),
            )
            for index in range(4 * GROUP)
        ]
        return [self._with_lengths(record) for record in records]

    def _with_lengths(self, record: Any) -> Any:
        leaves, lengths = self._leaves(record), self._lengths
        return self._map(
            record, lambda leaf, place: filled(leaf, length_of(leaves[lengths[place]])) if place in lengths else leaf
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


def _accepts_with(accepts: Callable[[list[Any]], bool], records: list[Any], path: Path, value: Any) -> bool:
    """Whether these records are accepted with that value there in each."""
    return accepts([mapped(record, lambda leaf, _: leaf, (path,), lambda *_: value) for record in records])


def _copied(leaf: Any) -> Any:
    """A copy of its own; `deepcopy` of a row of a table copies the table."""
    return leaf.clone() if type(leaf) is torch.Tensor else deepcopy(leaf)
