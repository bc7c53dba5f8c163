"""The directions in which outputs differ, found through the smaller of the two Gram matrices."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from lightning_pac.mechanisms.variances import Array

__all__ = ["Span"]

_COLUMNS_PER_BLOCK = 2**16


@dataclasses.dataclass(frozen=True, eq=False)
class Span:
    """Mean and principal directions of weighted outputs, without their d x d covariance.

    With at most as many coordinates as outputs the orthonormal basis U is stored (d x r). With more, each direction is
    a combination of the m deviations, `U = (Y - mean)^T K`, and only K (m x r) is stored beside the outputs themselves.

    Attributes:
        mean: Weighted mean of the outputs, shape (d,).
        eigenvalues: Variance along each kept direction, shape (r,), raised by the error it was computed with.
        basis: U or None.
        outputs: Y, shape (m, d), where U is implicit.
        coefficients: K, shape (m, r), where U is implicit.
        output_coordinates: Coordinates of each output along the kept directions, shape (m, r).
    """

    mean: Array
    eigenvalues: Array
    output_coordinates: Array
    basis: Array | None = None
    outputs: Array | None = None
    coefficients: Array | None = None

    @classmethod
    def of(cls, outputs: Array, weights: Array) -> "Span":
        """Span of the rows of `outputs` (m x d) of positive weight, under the given weights (any positive sum)."""
        mean = (weights / weights.sum()) @ outputs
        num_outputs, dimension = outputs.shape
        if dimension <= num_outputs:
            deviations = np.sqrt(weights)[:, None] * (outputs - mean)
            eigenvalues, vectors = _leading(deviations.T @ deviations, num_outputs)
            return cls(mean, eigenvalues, (outputs - mean) @ vectors, basis=vectors)
        gram = np.zeros((num_outputs, num_outputs))
        for columns in _column_blocks(dimension):
            deviations = outputs[:, columns] - mean[columns]
            gram += deviations @ deviations.T
        roots = np.sqrt(weights)
        eigenvalues, vectors = _leading(roots[:, None] * gram * roots, dimension)
        coefficients = roots[:, None] * vectors / np.sqrt(eigenvalues)
        return cls(mean, eigenvalues, gram @ coefficients, outputs=outputs, coefficients=coefficients)

    @property
    def rank(self) -> int:
        """Number r of kept directions."""
        return len(self.eigenvalues)

    def coordinates(self, value: Array) -> Array:
        """Coordinates of `value - mean` along the kept directions: (..., d) to (..., r)."""
        deviation = value - self.mean
        if self.basis is not None:
            return np.asarray(deviation @ self.basis)
        assert self.outputs is not None
        assert self.coefficients is not None
        scores = np.zeros((*deviation.shape[:-1], len(self.outputs)))
        for columns in _column_blocks(len(self.mean)):
            scores += deviation[..., columns] @ (self.outputs[:, columns] - self.mean[columns]).T
        return np.asarray(scores @ self.coefficients)

    def expand(self, coordinates: Array) -> Array:
        """The vector with these coordinates, without the mean: (..., r) to (..., d)."""
        if self.basis is not None:
            return np.asarray(coordinates @ self.basis.T)
        assert self.outputs is not None
        assert self.coefficients is not None
        combination = coordinates @ self.coefficients.T
        return np.asarray(combination @ self.outputs - combination.sum(axis=-1, keepdims=True) * self.mean)


def _column_blocks(dimension: int) -> Iterator[slice]:
    for start in range(0, dimension, _COLUMNS_PER_BLOCK):
        yield slice(start, start + _COLUMNS_PER_BLOCK)


def _leading(gram: Array, terms: int) -> tuple[Array, npt.NDArray[np.float64]]:
    """Eigenpairs that stand out of the rounding error of a positive semidefinite matrix, largest first."""
    eigenvalues, vectors = np.linalg.eigh(gram)
    # Each entry of the matrix is a sum of `terms` products; pairwise and blocked summation keep its error far smaller.
    error = 4 * np.finfo(np.float64).eps * (len(gram) + np.sqrt(terms)) * max(eigenvalues[-1], 0.0)
    kept = np.flatnonzero(eigenvalues > error)[::-1]
    return eigenvalues[kept] + error, vectors[:, kept]
