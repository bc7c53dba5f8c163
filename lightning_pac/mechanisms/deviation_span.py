"""The directions in which outputs differ, found through the smaller of the two Gram matrices."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from lightning_pac.information import Array

__all__ = ["Span", "check_resolution", "check_spread", "resolved_variances"]

# The m x d deviations are never stored whole, but this many columns at a time.
_COLUMNS_PER_BLOCK = 2**16

# 128 MiB. Up to here an orthonormal basis is stored, also where there are more coordinates than outputs.
_STORED_VALUES = 2**24

# Directions from a Gram matrix are orthogonal up to its rounding error over their variance, which this keeps small.
_IMPLICIT_MARGIN = 2.0**10

# Variances of noise are larger still, by a factor of one over the budget, and must be numbers too.
_LARGEST_VARIANCE = 2.0**700
_SMALLEST_VARIANCE = 2.0**-700  # far above where numbers lose digits, and noise with them

# The release grid is 2**-10 of the noise's deviation; what a float rounds away must be no more.
_RESOLUTION = 2.0**10


@dataclasses.dataclass(frozen=True, eq=False)
class Span:
    """Mean and principal directions of weighted outputs, without their d x d covariance.

    The orthonormal basis U (d x r) is stored. Where it would be too large, each direction is a combination of the m
    deviations, `U = (Y - mean)^T K`, and only K (m x r) is stored beside the outputs themselves.

    Attributes:
        mean: Weighted mean of the outputs, shape (d,).
        eigenvalues: Variance along each kept direction, shape (r,), raised by the error it was computed with.
        basis: U or None.
        outputs: Y, shape (m, d), where U is implicit.
        coefficients: K, shape (m, r), where U is implicit.
        output_coordinates: Coordinates of each output along the kept directions, shape (m, r).
    """

    # What was computed without noise stays out of logs.
    mean: Array = dataclasses.field(repr=False)
    eigenvalues: Array
    output_coordinates: Array = dataclasses.field(repr=False)
    basis: Array | None = dataclasses.field(default=None, repr=False)
    outputs: Array | None = dataclasses.field(default=None, repr=False)
    coefficients: Array | None = dataclasses.field(default=None, repr=False)

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # what overflows is refused
    def of(cls, outputs: Array, weights: Array, stored: bool = False) -> "Span":
        """Span of the rows of `outputs` (m x d) of positive weight, under the given weights (any positive sum).

        Args:
            outputs: Y, shape (m, d).
            weights: Shape (m,).
            stored: Whether to store the basis whatever its size, so that `coordinates` undoes `expand`.
        """
        mean = (weights / weights.sum()) @ outputs
        num_outputs, dimension = outputs.shape
        if stored or dimension <= num_outputs or dimension * num_outputs <= _STORED_VALUES:
            # A combination of the deviations would lose its orthogonality where their variances differ by much.
            axes, deviations = (None, outputs - mean) if dimension <= num_outputs else _reduced(outputs - mean)
            # The covariance is D^T D for D of rows sqrt(P_j) (Y_j - mean).
            weighted = np.sqrt(weights)[:, None] * deviations
            eigenvalues, vectors = _leading(weighted.T @ weighted, num_outputs)
            basis = vectors if axes is None else axes @ vectors
            return cls(mean, eigenvalues, deviations @ vectors, basis=basis)
        gram = np.zeros((num_outputs, num_outputs))
        for columns in _column_blocks(dimension):
            deviations = outputs[:, columns] - mean[columns]
            gram += deviations @ deviations.T
        # With D of rows sqrt(P_j) (Y_j - mean), D D^T has the eigenvalues l of D^T D, and its eigenvectors v
        # give the directions D^T v / sqrt(l).
        roots = np.sqrt(weights)
        eigenvalues, vectors = _leading(roots[:, None] * gram * roots, dimension, _IMPLICIT_MARGIN)
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
        # Inner products with every output's deviation, shape (..., m), block by block.
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
        # (Y - mean)^T k = Y^T k - (sum of k) mean, without the deviations.
        combination = coordinates @ self.coefficients.T
        return np.asarray(combination @ self.outputs - combination.sum(axis=-1, keepdims=True) * self.mean)


def resolved_variances(variances: Array) -> Array:
    """Variances with all their digits, and 0 in place of those that underflow: nothing is shown along those."""
    return np.where(variances < _SMALLEST_VARIANCE, 0.0, variances)


def check_spread(variances: Array) -> None:
    """Raise a `ValueError` where outputs lie so far apart that their variances, or those of noise, are no numbers."""
    # In this form NaN is refused too.
    if not (variances <= _LARGEST_VARIANCE).all():
        raise ValueError("The outputs lie so far apart that their variance overflows: rescale them.")


def check_resolution(mean: Array, deviations: Array) -> None:
    """Raise a `ValueError` where floating-point numbers around the outputs are too coarse to show the noise.

    Bayes' rule is applied to the value that is released. If that were rounded by much more than the grid, the belief
    would no longer be what the value tells, and the noise of the next release would be made for the wrong one.
    """
    # About how far rounding moves a release near the mean, all coordinates at once.
    if deviations.size and _RESOLUTION * np.linalg.norm(np.spacing(np.abs(mean))) > deviations.min():
        raise ValueError(
            f"The outputs lie so far from zero, at about {np.abs(mean).max():.3g}, that floating-point numbers there "
            f"are too coarse for noise of deviation {deviations.min():.3g}: subtract a public constant from them."
        )


def _column_blocks(dimension: int) -> Iterator[slice]:
    for start in range(0, dimension, _COLUMNS_PER_BLOCK):
        yield slice(start, start + _COLUMNS_PER_BLOCK)


def _reduced(deviations: Array) -> tuple[Array, Array]:
    """An orthonormal basis of a space that holds all rows, shape (d, m), and the coordinates of the rows in it."""
    check_spread((deviations**2).sum(axis=1))
    # D^T = Q R: deviation j is column j of R in the basis Q.
    axes, coordinates = np.linalg.qr(deviations.T)
    return axes, coordinates.T


def _leading(gram: Array, terms: int, margin: float = 1.0) -> tuple[Array, Array]:
    """Eigenpairs that stand out of the rounding error of a positive semidefinite matrix, largest first."""
    check_spread(np.diagonal(gram))
    eigenvalues, vectors = np.linalg.eigh(gram)
    eigenvalues = resolved_variances(eigenvalues)
    # Each entry of the matrix is a sum of `terms` products; pairwise and blocked summation keep its error far smaller.
    error = 4 * np.finfo(np.float64).eps * (len(gram) + np.sqrt(terms)) * max(eigenvalues[-1], 0.0)
    kept = np.flatnonzero(eigenvalues > margin * error)[::-1]
    return eigenvalues[kept] + error, vectors[:, kept]
