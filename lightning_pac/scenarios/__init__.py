"""Secrets and the public facts around them: scenarios, sampling schemes, slice profiles and secret spaces."""

from lightning_pac.scenarios.attribute import AttributeScenario
from lightning_pac.scenarios.sampling import (
    BlockedPoisson,
    CyclicShuffle,
    EpochShuffle,
    FixedSize,
    Poisson,
    Sampling,
    Sequential,
    WithReplacement,
    as_stretches,
    register_sampling,
    registered_samplings,
    sampling_from_dict,
)
from lightning_pac.scenarios.secret_space import (
    BalancedSubsets,
    ComplementaryHalves,
    SecretIndex,
    SecretSpace,
    SubsetTable,
)
from lightning_pac.scenarios.slice_profile import SliceProfile
from lightning_pac.scenarios.two_world import Adjacency, LabelWorlds, TwoWorldScenario

__all__ = [
    "Adjacency",
    "AttributeScenario",
    "BalancedSubsets",
    "BlockedPoisson",
    "ComplementaryHalves",
    "CyclicShuffle",
    "EpochShuffle",
    "FixedSize",
    "LabelWorlds",
    "Poisson",
    "Sampling",
    "SecretIndex",
    "SecretSpace",
    "Sequential",
    "SliceProfile",
    "SubsetTable",
    "TwoWorldScenario",
    "WithReplacement",
    "as_stretches",
    "register_sampling",
    "registered_samplings",
    "sampling_from_dict",
]
