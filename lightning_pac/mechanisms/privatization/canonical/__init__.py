"""Outputs that mean the same, in one form: what differs only in order, sign or basis costs no noise."""

from lightning_pac.mechanisms.privatization.canonical.forest import FixedForest
from lightning_pac.mechanisms.privatization.canonical.forms import (
    AlignBasis,
    AlignClusters,
    CanonicalForm,
    FixSigns,
    SortRows,
)

__all__ = ["AlignBasis", "AlignClusters", "CanonicalForm", "FixSigns", "FixedForest", "SortRows"]
