"""The generators that layers and augmentations draw from, seeded so that nobody can foresee them."""

import random
import secrets
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["seed_globally_in_secret"]

# Layout of torch's CPU generator state: seed, two flags, position, 624 words of the Mersenne Twister, cached normals.
_STATE_BYTES = 5056
_WORDS = slice(3, 3 + 624)


def seed_globally_in_secret() -> None:
    """Seed the global generators of torch, NumPy and Python from the operating system.

    Raises:
        RuntimeError: If torch keeps its state in another way than expected.

    Example:
        >>> import torch
        >>> state = torch.get_rng_state()
        >>> seed_globally_in_secret()
        >>> torch.equal(torch.get_rng_state(), state)
        False
    """
    import torch

    torch.manual_seed(secrets.randbits(63))
    torch.set_rng_state(_secret_state(torch.get_rng_state()))
    # 256 bits for each of the two.
    np.random.seed([secrets.randbits(32) for _ in range(8)])  # noqa: NPY002
    random.seed(secrets.token_bytes(32))


def _secret_state(state: "torch.Tensor") -> "torch.Tensor":
    """Fill the state itself: `manual_seed` keeps 32 bits of its argument, few enough to try them all."""
    import torch

    if len(state) != _STATE_BYTES:
        raise RuntimeError(
            f"Torch's generator state has {len(state)} bytes instead of {_STATE_BYTES}, so it cannot be drawn in "
            "secret: use a release of torch that lightning-pac was tested with."
        )
    words = state.clone().view(torch.int64)
    words[_WORDS] = torch.tensor([secrets.randbits(32) for _ in range(624)])
    return words.view(torch.uint8)
