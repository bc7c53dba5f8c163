"""What is secret: scenarios, how batches are drawn, slice profiles and secret spaces."""

from lightning_pac.scenarios.sampling import (
    EpochShuffle,
    FixedSize,
    Poisson,
    Sampling,
    Sequential,
    WithReplacement,
    sampling_from_dict,
)
from lightning_pac.scenarios.two_world import Adjacency, LabelWorlds, TwoWorldScenario

__all__ = [
    "Adjacency",
    "EpochShuffle",
    "FixedSize",
    "LabelWorlds",
    "Poisson",
    "Sampling",
    "Sequential",
    "TwoWorldScenario",
    "WithReplacement",
    "sampling_from_dict",
]
