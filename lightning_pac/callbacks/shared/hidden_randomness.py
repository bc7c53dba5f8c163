"""Dropout masks and augmentations that an adversary who knows the seed cannot foresee."""

from contextlib import ExitStack

import torch
from lightning.pytorch.utilities.seed import isolate_rng

from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.randomness import seed_globally_in_secret

__all__ = ["HiddenRandomness"]


class HiddenRandomness:
    """Reseeds the global generators from the operating system, until `restore` puts back what was there.

    The account assumes that a record's gradient is the same whatever else is in the batch. Random layers break that
    under a seed that is known: a mask depends on the record's position, and how many draws were made before it on the
    records before it, so one record more or less gives all others other masks. Drawn in secret, masks are independent
    of the records, and the assumption holds given the masks.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(isolate_rng())
        seed_globally_in_secret()
        self._seed = torch.initial_seed()

    def check(self) -> None:
        """Raise if torch's generator was seeded meanwhile.

        Raises:
            PrivacyViolationError: If masks may have been foreseen.
        """
        if torch.initial_seed() != self._seed:
            raise PrivacyViolationError(
                "A generator was seeded during the private run, so masks and augmentations can be foreseen and a "
                "record moves those of others: call seed_everything and manual_seed before fit only."
            )

    def restore(self) -> None:
        """Put the generators back to where they were."""
        self._stack.close()
