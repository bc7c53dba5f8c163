"""Whether a collate function makes a batch of its records alone, asked before it has made any."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from lightning_pac.data.records.copied_dataset import apart, copy_of, datasets_inside
from lightning_pac.data.records.partial_copies import taken_out_again
from lightning_pac.data.records.record_digest import FIRST_SEED, load_alone, own_generators, seed_globally
from lightning_pac.data.records.surroundings import Surroundings, copy_small
from lightning_pac.data.value_digest import digest

__all__ = ["check_collated_alone", "fresh_collate"]

_ASKED = 8  # records of a batch
_MORE = 64  # records with which one before begins, where that takes little time
_SECONDS = 0.2

Collate = Callable[[list[Any]], Any]


@contextmanager
def fresh_collate(collate_fn: Collate, dataset: Any) -> Iterator[Collate]:
    """A copy of a collate function, which keeps nothing for the original, and nothing in the dataset of its records."""
    memo: dict[int, Any] = {}
    waiting, seen = [dataset], set[int]()
    for part in waiting:  # from outside in, since a copy shares what is inside
        if id(part) not in seen:
            seen.add(id(part))
            memo.pop(id(part), None)
            memo[id(part)] = copy_of(part, memo) if hasattr(part, "__dict__") else part
            waiting += datasets_inside(part)
    with Surroundings(collate_fn).copied(memo):
        collate = copy_small(collate_fn, memo)
        with taken_out_again(memo):
            yield collate


def check_collated_alone(dataloader: DataLoader[Any]) -> None:
    """Refuse a collate function of which a batch depends on those before, as codes do that names get as they come.

    Later such a memory may hold all names that there are, and show nothing. A function of which the same batch comes
    out otherwise the second time, as with a generator of its own, is left out.

    Args:
        dataloader: Over a map-style dataset, of which a few records are loaded; copies of the function are called.

    Raises:
        ValueError: Says what it does.
    """
    dataset: Any = dataloader.dataset
    collate_fn: Collate = dataloader.collate_fn

    def last(*batches: Sequence[Any]) -> bytes:
        with fresh_collate(collate_fn, dataset) as collate:
            for batch in batches:
                seed_globally(FIRST_SEED)
                made = collate(list(batch))
            return digest(made)

    if getattr(collate_fn, "__module__", "").startswith("torch."):
        return
    with own_generators(), apart(dataset) as fresh:
        try:
            size, half = len(dataset), _ASKED // 2
            started = time.monotonic()
            indices = sorted({size * number // _ASKED for number in range(_ASKED)})
            records = [load_alone(fresh, index, FIRST_SEED) for index in indices]
            before = [[*records[start:], *records[:start]][:half] for start in range(len(records))]
            own = last(records)
            if own != last(records, records):
                return
            found = {last(batch, records) for batch in before}
            for number in range(_MORE):  # one name may be rare
                if len(found) > 1 or time.monotonic() - started > _SECONDS:
                    break
                record = load_alone(fresh, size * number // _MORE, FIRST_SEED)
                found.add(last([record, *records[1:half]], records))
        except Exception:  # if they cannot be loaded or collated at all, the loader will say so
            return
    if found - {own}:
        raise ValueError(
            "collate_fn makes another batch of the same records after it has made others, as codes do that names get "
            "as they come, so that a record enters later batches: compute what all have in common from public data."
        )
