"""The sliced Wasserstein mechanism, its calibration, and the mechanisms that it is compared with."""

from lightning_pac.mechanisms.sliced_wasserstein.calibration import (
    isotropic_covariance,
    optimized_covariance,
    sliced_cost,
    unsliced_cost,
)
from lightning_pac.mechanisms.sliced_wasserstein.distances import slice_sensitivities, wasserstein, wasserstein_infinity
from lightning_pac.mechanisms.sliced_wasserstein.mechanism import SlicedWassersteinMechanism
from lightning_pac.mechanisms.sliced_wasserstein.other_mechanisms import Baseline, baselines

__all__ = [
    "Baseline",
    "SlicedWassersteinMechanism",
    "baselines",
    "isotropic_covariance",
    "optimized_covariance",
    "slice_sensitivities",
    "sliced_cost",
    "unsliced_cost",
    "wasserstein",
    "wasserstein_infinity",
]
