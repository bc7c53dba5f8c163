"""Where noise enters, and how much of it."""

from lightning_pac.mechanisms.auto_pac import confidence_auto_pac
from lightning_pac.mechanisms.certificate import Certificate, certify_finite_secret, donsker_varadhan_correction
from lightning_pac.mechanisms.composition import AdaptiveComposition
from lightning_pac.mechanisms.coordinate import StreamingCoordinateNoise
from lightning_pac.mechanisms.filters import FilteredLabels, bayes_filter, hypothesis_filter
from lightning_pac.mechanisms.gaussian import GaussianNoise, NoiseRule, calibrate_gaussian
from lightning_pac.mechanisms.individual import coupled_differences, individual_noise
from lightning_pac.mechanisms.lattice import LatticeNoise, calibrate_lattice
from lightning_pac.mechanisms.one_sided import PositiveNoise
from lightning_pac.mechanisms.release import BatchRelease, Release
from lightning_pac.mechanisms.responder import PACResponder
from lightning_pac.mechanisms.sliced_calibration import (
    isotropic_covariance,
    optimized_covariance,
    sliced_cost,
    unsliced_cost,
)
from lightning_pac.mechanisms.sliced_wasserstein import SlicedWassersteinMechanism
from lightning_pac.mechanisms.variances import linear_variances, logdet_bound, logdet_variances
from lightning_pac.mechanisms.wasserstein import slice_sensitivities, wasserstein, wasserstein_infinity
from lightning_pac.mechanisms.wasserstein_baselines import Baseline, baselines

__all__ = [
    "AdaptiveComposition",
    "Baseline",
    "BatchRelease",
    "Certificate",
    "FilteredLabels",
    "GaussianNoise",
    "LatticeNoise",
    "NoiseRule",
    "PACResponder",
    "PositiveNoise",
    "Release",
    "SlicedWassersteinMechanism",
    "StreamingCoordinateNoise",
    "baselines",
    "bayes_filter",
    "calibrate_gaussian",
    "calibrate_lattice",
    "certify_finite_secret",
    "confidence_auto_pac",
    "coupled_differences",
    "donsker_varadhan_correction",
    "hypothesis_filter",
    "individual_noise",
    "isotropic_covariance",
    "linear_variances",
    "logdet_bound",
    "logdet_variances",
    "optimized_covariance",
    "slice_sensitivities",
    "sliced_cost",
    "unsliced_cost",
    "wasserstein",
    "wasserstein_infinity",
]
