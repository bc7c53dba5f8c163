"""LightningModules: the subset ensemble, the Stackelberg game and the student."""

from lightning_pac.modules.learner_ensemble import Learner, LearnerEnsemble
from lightning_pac.modules.stacked_network import StackedNetwork
from lightning_pac.modules.subset_ensemble import SubsetEnsemble

__all__ = ["Learner", "LearnerEnsemble", "StackedNetwork", "SubsetEnsemble"]
