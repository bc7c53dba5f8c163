"""LightningModules: the subset ensemble, the Stackelberg game and the student."""

from lightning_pac.modules.batch_norm import fix_batch_norm
from lightning_pac.modules.distilled_data_module import DistilledDataModule
from lightning_pac.modules.learner_ensemble import Learner, LearnerEnsemble
from lightning_pac.modules.private_labels import PrivateLabels, label_privately
from lightning_pac.modules.saved_responder import SavedResponder
from lightning_pac.modules.srpac import (
    Decoder,
    DiagonalGaussian,
    FixedNoise,
    FullGaussian,
    GaussianDecoder,
    GaussianMixture,
    IsotropicGaussian,
    JointDecoding,
    LowRankGaussian,
    MembershipDecoder,
    MixtureDecoder,
    Perturbation,
    PosteriorDecoder,
    SecretTable,
    SoftmaxDecoder,
    SquaredNorm,
    StackelbergGame,
    SubspaceNorm,
    TaskSubspaceGaussian,
    WeightedNorm,
)
from lightning_pac.modules.stacked_network import StackedNetwork
from lightning_pac.modules.subset_ensemble import SubsetEnsemble

__all__ = [
    "Decoder",
    "DiagonalGaussian",
    "DistilledDataModule",
    "FixedNoise",
    "FullGaussian",
    "GaussianDecoder",
    "GaussianMixture",
    "IsotropicGaussian",
    "JointDecoding",
    "Learner",
    "LearnerEnsemble",
    "LowRankGaussian",
    "MembershipDecoder",
    "MixtureDecoder",
    "Perturbation",
    "PosteriorDecoder",
    "PrivateLabels",
    "SavedResponder",
    "SecretTable",
    "SoftmaxDecoder",
    "SquaredNorm",
    "StackedNetwork",
    "StackelbergGame",
    "SubsetEnsemble",
    "SubspaceNorm",
    "TaskSubspaceGaussian",
    "WeightedNorm",
    "fix_batch_norm",
    "label_privately",
]
