"""Where noise enters, and how much of it."""

from lightning_pac.mechanisms.auto_pac import confidence_auto_pac
from lightning_pac.mechanisms.canonical import (
    AlignBasis,
    AlignClusters,
    CanonicalForm,
    FixedForest,
    FixSigns,
    SortRows,
)
from lightning_pac.mechanisms.certificate import Certificate, certify_finite_secret, donsker_varadhan_correction
from lightning_pac.mechanisms.composition import AdaptiveComposition
from lightning_pac.mechanisms.coordinate import StreamingCoordinateNoise
from lightning_pac.mechanisms.estimators import FittedEstimator
from lightning_pac.mechanisms.filters import FilteredLabels, bayes_filter, hypothesis_filter
from lightning_pac.mechanisms.gaussian import GaussianNoise, NoiseRule, calibrate_gaussian
from lightning_pac.mechanisms.individual import coupled_differences, individual_noise
from lightning_pac.mechanisms.joint_release import JointRelease
from lightning_pac.mechanisms.lattice import LatticeNoise, calibrate_lattice
from lightning_pac.mechanisms.mixture_noise import MixtureNoise
from lightning_pac.mechanisms.noise_certificate import bounded_output_information, certify_noise, logdet_information
from lightning_pac.mechanisms.non_gaussianity import (
    certified_correction,
    density_critic,
    sliced_wasserstein_correction,
    transport_critic,
)
from lightning_pac.mechanisms.one_sided import PositiveNoise
from lightning_pac.mechanisms.output_laws import BoundedOutputs, FiniteOutputs, KnownMoments, OutputLaw
from lightning_pac.mechanisms.privatization import privatize
from lightning_pac.mechanisms.privatized_output import PrivatizedOutput
from lightning_pac.mechanisms.release import BatchRelease, Release
from lightning_pac.mechanisms.released import Composed, ReleasedMechanism, certify_mechanism, compose_releases
from lightning_pac.mechanisms.responder import PACResponder
from lightning_pac.mechanisms.secret_account import released_values
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
    "AlignBasis",
    "AlignClusters",
    "Baseline",
    "BatchRelease",
    "BoundedOutputs",
    "CanonicalForm",
    "Certificate",
    "Composed",
    "FilteredLabels",
    "FiniteOutputs",
    "FittedEstimator",
    "FixSigns",
    "FixedForest",
    "GaussianNoise",
    "JointRelease",
    "KnownMoments",
    "LatticeNoise",
    "MixtureNoise",
    "NoiseRule",
    "OutputLaw",
    "PACResponder",
    "PositiveNoise",
    "PrivatizedOutput",
    "Release",
    "ReleasedMechanism",
    "SlicedWassersteinMechanism",
    "SortRows",
    "StreamingCoordinateNoise",
    "baselines",
    "bayes_filter",
    "bounded_output_information",
    "calibrate_gaussian",
    "calibrate_lattice",
    "certified_correction",
    "certify_finite_secret",
    "certify_mechanism",
    "certify_noise",
    "compose_releases",
    "confidence_auto_pac",
    "coupled_differences",
    "density_critic",
    "donsker_varadhan_correction",
    "hypothesis_filter",
    "individual_noise",
    "isotropic_covariance",
    "linear_variances",
    "logdet_bound",
    "logdet_information",
    "logdet_variances",
    "optimized_covariance",
    "privatize",
    "released_values",
    "slice_sensitivities",
    "sliced_cost",
    "sliced_wasserstein_correction",
    "transport_critic",
    "unsliced_cost",
    "wasserstein",
    "wasserstein_infinity",
]
