"""Ensembles with one member per secret subset, trained together or one by one."""

from lightning_pac.modules.ensembles.learner_ensemble import Learner, LearnerEnsemble
from lightning_pac.modules.ensembles.stacked_network import StackedNetwork
from lightning_pac.modules.ensembles.subset_ensemble import SubsetEnsemble

__all__ = [
    "Learner",
    "LearnerEnsemble",
    "StackedNetwork",
    "SubsetEnsemble",
]
