"""Noise that is correlated over steps, so that most of it cancels in what the optimizer adds up."""

from lightning_pac.accountants.correlated_noise.banded import Banded
from lightning_pac.accountants.correlated_noise.matrix import BandedMatrix
from lightning_pac.accountants.correlated_noise.workload import SGDWorkload, optimal_bands

__all__ = ["Banded", "BandedMatrix", "SGDWorkload", "optimal_bands"]
