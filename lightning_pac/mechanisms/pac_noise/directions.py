"""Directions along which noise is added: coordinate axes, a public basis, or the span of the outputs."""

import dataclasses
from typing import Protocol

import numpy as np

from lightning_pac.information import Array

__all__ = ["Axes", "Directions"]


class Directions(Protocol):
    """Orthonormal directions and the mean that coordinates are measured from."""

    @property
    def mean(self) -> Array:
        """Weighted mean of the outputs, shape (d,)."""

    def coordinates(self, value: Array) -> Array:
        """Coordinates of `value - mean`: (..., d) to (..., r)."""

    def expand(self, coordinates: Array) -> Array:
        """The vector with these coordinates, without the mean: (..., r) to (..., d)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Axes:
    """The coordinate axes, or the columns of a public orthonormal basis.

    Attributes:
        mean: Shape (d,).
        basis: Orthonormal columns, d x d; None for the coordinate axes.
    """

    # What was computed without noise stays out of logs.
    mean: Array = dataclasses.field(repr=False)
    basis: Array | None = None

    def coordinates(self, value: Array) -> Array:
        """Coordinates of `value - mean`: (..., d) to (..., d)."""
        deviation = value - self.mean
        return deviation if self.basis is None else np.asarray(deviation @ self.basis)

    def expand(self, coordinates: Array) -> Array:
        """The vector with these coordinates, without the mean."""
        return coordinates if self.basis is None else np.asarray(coordinates @ self.basis.T)
