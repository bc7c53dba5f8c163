"""Prices of integer queries with one-sided noise: hybrid Rényi bounds and exact composition over shifts."""

from lightning_pac.accountants.noised_counts.hybrid import HybridRDP, hybrid_rdp, hybrid_rdp_epsilon
from lightning_pac.accountants.noised_counts.shift_composition import ShiftComposition, shift_hockey_stick

__all__ = [
    "HybridRDP",
    "ShiftComposition",
    "hybrid_rdp",
    "hybrid_rdp_epsilon",
    "shift_hockey_stick",
]
