"""Dropout masks and augmentations that an adversary who knows the seed cannot foresee."""

import random
import secrets
from contextlib import ExitStack

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng

from lightning_pac.exceptions import PrivacyViolationError

__all__ = ["HiddenRandomness"]

# Layout of torch's CPU generator state: seed, two flags, position, 624 words of the Mersenne Twister, cached normals.
_STATE_BYTES = 5056
_WORDS = slice(3, 3 + 624)


class HiddenRandomness:
    """Reseeds the global generators from the operating system, until `restore` puts back what was there.

    The account assumes that a record's gradient is the same whoever else is in the batch. Random layers break that
    under a seed that is known: a mask depends on the record's position, and how many draws were made before it on the
    records before it, so one record more or less gives all others other masks. Drawn in secret, masks are independent
    of the records, and the assumption holds given the masks.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(isolate_rng())
        torch.manual_seed(secrets.randbits(63))
        torch.set_rng_state(_secret_state(torch.get_rng_state()))
        self._seed = torch.initial_seed()
        np.random.seed([secrets.randbits(32) for _ in range(8)])  # noqa: NPY002
        random.seed(secrets.token_bytes(32))

    def check(self) -> None:
        """Raise if torch's generator was seeded meanwhile.

        Raises:
            PrivacyViolationError: If masks may have been foreseen.
        """
        if torch.initial_seed() != self._seed:
            raise PrivacyViolationError(
                "A generator was seeded during the private run, so that masks and augmentations can be foreseen and a "
                "record moves those of others: call seed_everything and manual_seed before fit only."
            )

    def restore(self) -> None:
        """Put the generators back to where they were."""
        self._stack.close()


def _secret_state(state: torch.Tensor) -> torch.Tensor:
    """Fill the state itself: `manual_seed` keeps 32 bits of its argument, few enough to try them all."""
    if len(state) != _STATE_BYTES:
        raise RuntimeError(
            f"Torch's generator state has {len(state)} bytes instead of {_STATE_BYTES}, so it cannot be drawn in "
            "secret: use a release of torch that lightning-pac was tested with."
        )
    words = state.clone().view(torch.int64)
    words[_WORDS] = torch.tensor([secrets.randbits(32) for _ in range(624)])
    return words.view(torch.uint8)
