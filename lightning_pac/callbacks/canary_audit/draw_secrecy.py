"""Whether the draws of a loader can be foretold by someone who knows the seeds of a program."""

import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng

from lightning_pac.data import PrivateDataLoader

__all__ = ["draws_are_secret"]


def draws_are_secret(loader: PrivateDataLoader) -> bool:
    """Whether no seed decides the draws: neither one of its generator nor one of the global generators.

    Two passes after the same seeds would be equal by chance with a probability far below one in a million, for any
    loader that draws from twenty records or more.
    """
    sampler: Any = loader.batch_sampler
    batches = sampler.batches
    generator = getattr(batches, "generator", None)
    if getattr(generator, "seeded", False):
        return False
    return _pass_after_seeds(batches) != _pass_after_seeds(batches)


def _pass_after_seeds(batches: Any) -> list[list[int]]:
    with isolate_rng():
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - the state that others draw from is the point
        return [list(batch) for batch in batches]
