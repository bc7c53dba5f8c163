"""The request for correlated noise, as a user makes it."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_pac._validation import Count, validated
from lightning_pac.accountants.correlated_noise.matrix import BandedMatrix
from lightning_pac.accountants.correlated_noise.workload import SGDWorkload, optimal_bands

__all__ = ["Banded"]


@validated
@dataclass(frozen=True)
class Banded:
    """Noise that is correlated over `bands` steps, optimised for what the optimizer does with it.

    More bands leave less noise in the weights, at the same guarantee, as long as they fit into one pass; memory is
    `bands - 1` times the trainable parameters, in float64.

    Args:
        bands: steps over which noise is correlated, at least 2 and at most the steps of a pass.

    Example:
        >>> Banded(bands=4).matrix(SGDWorkload(num_steps=1000)).num_bands
        4
    """

    bands: Count

    def __post_init__(self) -> None:
        if self.bands < 2:
            raise ValueError("bands is 1, which is independent noise: leave noise out, or give at least 2 bands.")

    def matrix(self, workload: SGDWorkload) -> BandedMatrix:
        """The correlation for one run.

        Args:
            workload: what its optimizer does with the noise.
        """
        return optimal_bands(workload, self.bands)
