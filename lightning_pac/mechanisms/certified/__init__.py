"""Proven upper bounds on what a noised output tells, and the mechanisms that may be released by them."""

from lightning_pac.mechanisms.certified.certificate import (
    Certificate,
    certify_finite_secret,
    check_weights,
    donsker_varadhan_correction,
    empirical_bernstein_margin,
    merge_equal,
)
from lightning_pac.mechanisms.certified.joint_release import JointRelease
from lightning_pac.mechanisms.certified.mixture_noise import MixtureNoise
from lightning_pac.mechanisms.certified.noise_certificate import (
    bounded_output_information,
    certify_noise,
    logdet_information,
    scale_to_bound,
)
from lightning_pac.mechanisms.certified.non_gaussianity import (
    certified_correction,
    density_critic,
    sliced_wasserstein_correction,
    transport_critic,
)
from lightning_pac.mechanisms.certified.output_laws import BoundedOutputs, FiniteOutputs, KnownMoments, OutputLaw
from lightning_pac.mechanisms.certified.released_mechanism import (
    Composed,
    ReleasedMechanism,
    certify_mechanism,
    compose_releases,
)
from lightning_pac.mechanisms.certified.scaling import scale_to_budget

__all__ = [
    "BoundedOutputs",
    "Certificate",
    "Composed",
    "FiniteOutputs",
    "JointRelease",
    "KnownMoments",
    "MixtureNoise",
    "OutputLaw",
    "ReleasedMechanism",
    "bounded_output_information",
    "certified_correction",
    "certify_finite_secret",
    "certify_mechanism",
    "certify_noise",
    "check_weights",
    "compose_releases",
    "density_critic",
    "donsker_varadhan_correction",
    "empirical_bernstein_margin",
    "logdet_information",
    "merge_equal",
    "scale_to_bound",
    "scale_to_budget",
    "sliced_wasserstein_correction",
    "transport_critic",
]
