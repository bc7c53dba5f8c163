"""SR-PAC: a game between noise and a decoder, whose outcome is certified apart from it."""

from lightning_pac.modules.srpac.decoders import (
    Decoder,
    GaussianDecoder,
    MembershipDecoder,
    MixtureDecoder,
    PosteriorDecoder,
    SoftmaxDecoder,
)
from lightning_pac.modules.srpac.joint_decoding import JointDecoding
from lightning_pac.modules.srpac.perturbations import (
    DiagonalGaussian,
    FixedNoise,
    FullGaussian,
    GaussianMixture,
    IsotropicGaussian,
    LowRankGaussian,
    Perturbation,
    TaskSubspaceGaussian,
)
from lightning_pac.modules.srpac.secret_table import SecretTable
from lightning_pac.modules.srpac.stackelberg_game import StackelbergGame
from lightning_pac.modules.srpac.stackelberg_round import Penalty, StackelbergPlay, budget_penalty
from lightning_pac.modules.srpac.utility import SquaredNorm, SubspaceNorm, WeightedNorm

__all__ = [
    "Decoder",
    "DiagonalGaussian",
    "FixedNoise",
    "FullGaussian",
    "GaussianDecoder",
    "GaussianMixture",
    "IsotropicGaussian",
    "JointDecoding",
    "LowRankGaussian",
    "MembershipDecoder",
    "MixtureDecoder",
    "Penalty",
    "Perturbation",
    "PosteriorDecoder",
    "SecretTable",
    "SoftmaxDecoder",
    "SquaredNorm",
    "StackelbergGame",
    "StackelbergPlay",
    "SubspaceNorm",
    "TaskSubspaceGaussian",
    "WeightedNorm",
    "budget_penalty",
]
