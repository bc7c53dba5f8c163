"""Automatic privatization: any function of the data, run over a secret space and released with noise."""

from lightning_pac.mechanisms.privatization.black_box import privatize
from lightning_pac.mechanisms.privatization.canonical import (
    AlignBasis,
    AlignClusters,
    CanonicalForm,
    FixedForest,
    FixSigns,
    SortRows,
)
from lightning_pac.mechanisms.privatization.estimators import FittedEstimator
from lightning_pac.mechanisms.privatization.privatized_output import PrivatizedOutput
from lightning_pac.mechanisms.privatization.secret_account import recorded_belief, released_values

__all__ = [
    "AlignBasis",
    "AlignClusters",
    "CanonicalForm",
    "FittedEstimator",
    "FixSigns",
    "FixedForest",
    "PrivatizedOutput",
    "SortRows",
    "privatize",
    "recorded_belief",
    "released_values",
]
