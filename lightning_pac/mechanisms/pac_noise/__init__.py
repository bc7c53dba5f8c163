"""Noise calibrated to a budget of mutual information: the Gaussian rules, and a lattice for rare outputs."""

from lightning_pac.mechanisms.pac_noise.auto_pac import confidence_auto_pac
from lightning_pac.mechanisms.pac_noise.gaussian import (
    GaussianNoise,
    NoiseRule,
    calibrate_gaussian,
    calibrate_to_belief,
)
from lightning_pac.mechanisms.pac_noise.individual import coupled_differences, individual_noise
from lightning_pac.mechanisms.pac_noise.lattice import LatticeNoise, calibrate_lattice
from lightning_pac.mechanisms.pac_noise.streaming_coordinate import StreamingCoordinateNoise

__all__ = [
    "GaussianNoise",
    "LatticeNoise",
    "NoiseRule",
    "StreamingCoordinateNoise",
    "calibrate_gaussian",
    "calibrate_lattice",
    "calibrate_to_belief",
    "confidence_auto_pac",
    "coupled_differences",
    "individual_noise",
]
