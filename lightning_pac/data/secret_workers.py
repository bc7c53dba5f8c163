"""Workers whose augmentations no adversary can foresee, and whose records are those that were checked."""

import secrets
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, get_worker_info

from lightning_pac._validation import validated
from lightning_pac.data.records import apart, digest_loaded_records, digest_together, fresh_collate
from lightning_pac.randomness import seed_globally_in_secret

__all__ = ["SecretWorkerSeeds", "hide_worker_seeds"]

_COMPARED = 8


@validated
class SecretWorkerSeeds:
    """Seeds the generators of a worker from the operating system, after what the user does in `worker_init_fn`.

    A DataLoader derives the seeds of its workers from the main process, which `seed_everything` makes public, and what
    a worker draws for one record depends on the records before it: one record more or less would change the
    augmentations of others. Torch's seeds have 32 bits, too, few enough to try them all.

    A worker has a dataset of its own, which `worker_init_fn` may alter and which may know that it is in a worker. A few
    records are therefore loaded and collated there, alone and as one batch, and must be what they are in the main
    process.

    Args:
        then: The user's `worker_init_fn`.
        check: Called with the worker's dataset after that; raises if its records are others.
    """

    def __init__(self, then: Callable[[int], None] | None = None, check: Callable[[Any], object] | None = None) -> None:
        self.then, self.check = then, check

    def __call__(self, worker_id: int) -> None:
        """Called in the worker when it starts."""
        if self.then is not None:
            self.then(worker_id)
        worker: Any = get_worker_info()
        if self.check is not None and worker is not None:
            self.check(worker.dataset)
        seed_globally_in_secret()


class _SameRecords:
    """Holds records of a worker against those of the main process; none that cannot be loaded here, or is random."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any]) -> None:
        self._key, self._collate_fn = secrets.token_bytes(32), collate_fn
        self._expected = self._digest(dataset)

    def __call__(self, dataset: Any) -> None:
        found = self._digest(dataset)
        if any(ours not in (None, theirs) for ours, theirs in zip(self._expected, found, strict=True)):
            raise ValueError(
                f"The workers of the DataLoader give other records of {type(dataset).__name__} than the main process, "
                "in which they are checked: let neither worker_init_fn nor the number of a worker change what an index "
                "gives or the collate function makes of it."
            )

    def _digest(self, own: Any) -> tuple[bytes | None, bytes | None]:
        with apart(own) as dataset:
            return self._digest_apart(dataset)

    def _digest_apart(self, dataset: Any) -> tuple[bytes | None, bytes | None]:
        def collated(records: list[Any]) -> Any:
            try:
                with fresh_collate(self._collate_fn, dataset) as collate:
                    return collate(records)
            except Exception:  # one that needs several records
                return records

        return (
            digest_loaded_records(dataset, self._key, _COMPARED, collated),
            digest_together(dataset, self._key, _COMPARED, collated),
        )


@validated
def hide_worker_seeds(dataloader: DataLoader[Any]) -> Callable[[], None]:
    """Hide the seeds of a loader's workers, have their records checked, and return how to undo that."""
    own = dataloader.worker_init_fn
    map_style = hasattr(dataloader.dataset, "__getitem__") and hasattr(dataloader.dataset, "__len__")
    checked = dataloader.num_workers > 0 and map_style
    check = _SameRecords(dataloader.dataset, dataloader.collate_fn) if checked else None
    dataloader.worker_init_fn = SecretWorkerSeeds(own, check)
    dataloader._iterator = None  # workers that persist from an earlier fit may have been seeded otherwise

    def undo() -> None:
        dataloader.worker_init_fn = own

    return undo
