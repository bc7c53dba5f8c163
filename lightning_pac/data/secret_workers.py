"""Augmentations in worker processes that an adversary who knows the seed cannot foresee."""

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from lightning_pac._validation import validated
from lightning_pac.randomness import seed_globally_in_secret

__all__ = ["SecretWorkerSeeds", "hide_worker_seeds"]


@validated
class SecretWorkerSeeds:
    """Seeds the generators of a worker from the operating system, after what the user does in `worker_init_fn`.

    A DataLoader derives the seeds of its workers from the main process, which `seed_everything` makes public, and what
    a worker draws for one record depends on the records before it: one record more or less would change the
    augmentations of others. Torch's seeds have 32 bits, too, few enough to try them all.

    Args:
        then: The user's `worker_init_fn`.
    """

    def __init__(self, then: Callable[[int], None] | None = None) -> None:
        self.then = then

    def __call__(self, worker_id: int) -> None:
        """Called in the worker when it starts."""
        if self.then is not None:
            self.then(worker_id)
        seed_globally_in_secret()


@validated
def hide_worker_seeds(dataloader: DataLoader[Any]) -> Callable[[], None]:
    """Hide the seeds of a loader's workers, and return how to undo that."""
    own = dataloader.worker_init_fn
    dataloader.worker_init_fn = SecretWorkerSeeds(own)
    dataloader._iterator = None  # workers that persist from an earlier fit may have been seeded otherwise

    def undo() -> None:
        dataloader.worker_init_fn = own

    return undo
