"""The request for correlated noise, as a user makes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

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

    With `bands="best"`, `best_bands` decides on their number before the run, for the promise asked for: in one order
    mostly a whole pass, and with `Poisson` draws also the number of blocks that take turns (`BlockedPoisson`).

    Args:
        bands: steps over which noise is correlated, at least 2 and at most the steps of a pass; or `"best"`.
        at_most: with `"best"`, the most bands that memory allows; as many as the sampling does if left out.

    Raises:
        ValueError: if there are fewer than 2 bands, or `at_most` goes with a number of bands.

    Example:
        >>> Banded(bands=4).matrix(SGDWorkload(num_steps=1000)).num_bands
        4
    """

    bands: Count | Literal["best"]
    at_most: Count | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.bands == "best":
            return
        if self.bands < 2:
            raise ValueError("bands is 1, which is independent noise: leave noise out, or give at least 2 bands.")
        if self.at_most is not None:
            raise ValueError(
                f"at_most is {self.at_most}, but bands is {self.bands} already: leave at_most out, or give "
                "bands='best'."
            )

    def matrix(self, workload: SGDWorkload) -> BandedMatrix:
        """The correlation for one run.

        Args:
            workload: what its optimizer does with the noise.

        Raises:
            ValueError: if the number of bands is still to be decided.
        """
        if self.bands == "best":
            raise ValueError(
                "bands is 'best', which is decided at the promise of a run: ask best_bands for their number."
            )
        return optimal_bands(workload, self.bands)
