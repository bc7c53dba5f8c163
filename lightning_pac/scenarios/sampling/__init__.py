"""Ways to draw batches: frozen, public-only schemes, each with what it lets the differing records do."""

from lightning_pac.scenarios.sampling.blocked_poisson import BlockedPoisson
from lightning_pac.scenarios.sampling.counts import as_stretches
from lightning_pac.scenarios.sampling.cyclic_shuffle import CyclicShuffle
from lightning_pac.scenarios.sampling.epoch_shuffle import EpochShuffle
from lightning_pac.scenarios.sampling.fixed_size import FixedSize
from lightning_pac.scenarios.sampling.poisson import Poisson
from lightning_pac.scenarios.sampling.registry import (
    register_sampling,
    registered_samplings,
    sampling_from_dict,
)
from lightning_pac.scenarios.sampling.scheme import Sampling
from lightning_pac.scenarios.sampling.sequential import Sequential
from lightning_pac.scenarios.sampling.with_replacement import WithReplacement

__all__ = [
    "BlockedPoisson",
    "CyclicShuffle",
    "EpochShuffle",
    "FixedSize",
    "Poisson",
    "Sampling",
    "Sequential",
    "WithReplacement",
    "as_stretches",
    "register_sampling",
    "registered_samplings",
    "sampling_from_dict",
]
