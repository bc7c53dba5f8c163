"""Whether a record of a dataset depends on those that were loaded before it."""

import time
from collections.abc import Sequence
from typing import Any

from lightning_pac.data.records.copied_dataset import copy_of
from lightning_pac.data.records.drawn_partners import LET_ONE
from lightning_pac.data.records.partial_copies import taken_out_again
from lightning_pac.data.records.record_digest import digest_of
from lightning_pac.data.records.surroundings import Surroundings

__all__ = ["check_memory"]

_BEFORE = 8  # records that are loaded before another
_MORE = 64  # of which one is loaded before another, where that takes little time
_MANY = 1000  # of which a dataset may gather something, if they are loaded in the same time
_SECONDS = 0.2


def check_memory(dataset: Any, surroundings: Surroundings) -> None:
    """Refuse a dataset that remembers what it has loaded, in its attributes or beside it.

    Raises:
        ValueError: If a record comes out otherwise after others.
    """

    def after(*before: int, index: int) -> tuple[bytes | None, ...]:
        """A record, twice, after others."""
        memo: dict[int, Any] = {}
        fresh = copy_of(dataset, memo)
        with surroundings.copied(memo), taken_out_again(memo):
            return tuple([digest_of(fresh, place) for place in (*before, index, index)][-2:])

    def depends(index: int, *befores: Sequence[int]) -> bool:
        # As many records before, so that a generator of its own has made as many draws.
        found = [after(*before, index=index) for before in befores]
        is_loaded = not any(None in outcomes for outcomes in found)
        # What a copy shares, such as a connection, may have a state of its own.
        return is_loaded and len(set(found)) > 1 and after(*befores[0], index=index) == found[0]

    last, started = len(dataset) - 1, time.monotonic()
    places = [1 + number * last // (2 * _BEFORE) for number in range(2 * _BEFORE)]
    found = depends(0, places[:_BEFORE], places[_BEFORE:])
    # Codes that names get as they come show only where two names differ, and one may be rare.
    first, *few = places[::2]
    found = found or depends(0, [first], *([place] for place in few)) or depends(few[0], [first], [0])
    for number in range(_MORE):
        if found or time.monotonic() - started > _SECONDS:
            break
        found = depends(0, [first], [1 + number * last // _MORE])
    started = time.monotonic()
    after(*places, index=0)
    number = min(2 * last, _MANY, int(_SECONDS * len(places) / (time.monotonic() - started)))
    found = found or depends(0, [1 + load % last for load in range(number)], [1] * number)
    if found:
        raise ValueError(
            f"{type(dataset).__name__} gives a record otherwise after another one was loaded, as running "
            f"statistics do, so each record enters others: {LET_ONE}."
        )
