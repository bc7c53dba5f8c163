"""Noise that only ever adds, and never more than a maximum."""

from lightning_pac import _moved
from lightning_pac.mechanisms.one_sided.distributions import DiscreteNoise, stretch
from lightning_pac.mechanisms.one_sided.laplace import (
    advanced_composition_share,
    biased_laplace,
    biased_laplace_location,
    discrete_biased_laplace,
)
from lightning_pac.mechanisms.one_sided.leakage_channels import LeakageChannel, maximal_leakage, optimal_channel
from lightning_pac.mechanisms.one_sided.pac_release import PACNoise, optimal_pac_noise, two_sided_information
from lightning_pac.mechanisms.one_sided.positive_noise import DPGuarantee, DPNoise, PositiveNoise
from lightning_pac.mechanisms.one_sided.repeated_release import ComposedRelease
from lightning_pac.mechanisms.one_sided.single_release import (
    linear_program_release,
    optimal_release,
    theorem_1_release,
)
from lightning_pac.mechanisms.one_sided.truncated_biased import TruncatedLaplace, discrete_truncated_gaussian
from lightning_pac.mechanisms.one_sided.truncated_gaussian import TruncatedGaussian

__all__ = [
    "ComposedRelease",
    "DPGuarantee",
    "DPNoise",
    "DiscreteNoise",
    "LeakageChannel",
    "PACNoise",
    "PositiveNoise",
    "TruncatedGaussian",
    "TruncatedLaplace",
    "advanced_composition_share",
    "biased_laplace",
    "biased_laplace_location",
    "discrete_biased_laplace",
    "discrete_truncated_gaussian",
    "linear_program_release",
    "maximal_leakage",
    "optimal_channel",
    "optimal_pac_noise",
    "optimal_release",
    "stretch",
    "theorem_1_release",
    "two_sided_information",
]

_moved.keep_function("mechanisms.one_sided", "biased_laplace")
_moved.keep_function("mechanisms.one_sided", "maximal_leakage")
