"""Outputs that mean the same, in one form: what differs only in order, sign or basis costs no noise."""

from lightning_pac.mechanisms.canonical.forest import FixedForest
from lightning_pac.mechanisms.canonical.forms import (
    AlignBasis,
    AlignClusters,
    CanonicalForm,
    FixSigns,
    SortRows,
)

__all__ = ["AlignBasis", "AlignClusters", "CanonicalForm", "FixSigns", "FixedForest", "SortRows"]
