"""Slice profiles: the directions in which a sliced guarantee looks, and how much each of them counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import Count, Seed, validated

__all__ = ["SliceProfile"]

_UNIT_TOLERANCE = 1e-6


@validated
@dataclass(frozen=True, eq=False)
class SliceProfile:
    """Unit vectors `u_1, ..., u_m` with weights `w_l` that sum to one (SRPP paper, section 4).

    A profile is public: it is chosen before the data are looked at.

    Args:
        directions: the slices, shape (num_slices, dimension), each of Euclidean norm one.
        weights: their weights, shape (num_slices,), non-negative with sum one; left out, all are equal.

    Raises:
        ValueError: if a slice is not a unit vector or the weights are not a distribution over the slices.

    Example:
        >>> profile = SliceProfile.random(dimension=9, num_slices=200, seed=0)
        >>> profile.project(np.zeros((5, 9))).shape
        (5, 200)
    """

    directions: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        directions = np.array(self.directions, dtype=np.float64)
        if directions.ndim != 2 or 0 in directions.shape:
            raise ValueError(f"directions has shape {directions.shape}, but must be (num_slices, dimension).")
        norms = np.linalg.norm(directions, axis=1)
        off = int(np.argmax(np.abs(norms - 1.0)))
        # Negated, so that a slice with NaN is refused, too.
        if not np.abs(norms[off] - 1.0) <= _UNIT_TOLERANCE:
            raise ValueError(f"Slice {off} has norm {norms[off]:g}, but a slice is a unit vector: divide by its norm.")
        # A slice that is short by the tolerance would make distances along it look smaller by as much.
        directions /= norms[:, None]
        if self.weights is None:
            weights = np.full(len(directions), 1.0 / len(directions))
        else:
            weights = np.array(self.weights, dtype=np.float64)
        if weights.shape != (len(directions),):
            raise ValueError(f"weights has shape {weights.shape}, but there are {len(directions)} slices.")
        if not np.all(weights >= 0) or not abs(weights.sum() - 1.0) <= 1e-9:
            raise ValueError(f"weights sum to {weights.sum():g}, but must be non-negative and sum to 1.")
        for name, array in (("directions", directions), ("weights", weights)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def random(cls, dimension: Count, num_slices: Count, seed: Seed = 0) -> SliceProfile:
        """Directions drawn uniformly from the sphere by a public seed, with equal weights.

        Args:
            dimension: Of the query's outputs.
            num_slices: Number of directions.
            seed: Public.

        Example:
            >>> SliceProfile.random(dimension=3, num_slices=2).num_slices
            2
        """
        # The normal law is invariant under rotations, so its directions are uniform.
        normals = np.random.default_rng(seed).standard_normal((num_slices, dimension))
        return cls(normals / np.linalg.norm(normals, axis=1, keepdims=True))

    @classmethod
    def coordinate(cls, dimension: Count) -> SliceProfile:
        """The coordinate axes, with equal weights.

        Args:
            dimension: Of the query's outputs.

        Example:
            >>> SliceProfile.coordinate(2).directions
            array([[1., 0.],
                   [0., 1.]])
        """
        return cls(np.eye(dimension))

    @classmethod
    def blocks(cls, sizes: Sequence[Count], slices_per_block: Count = 1, seed: Seed = 0) -> SliceProfile:
        """Directions that each lie in one block of coordinates, for gradients that are clipped block by block.

        Args:
            sizes: coordinates in each block, in order.
            slices_per_block: random directions in each block; the weights are equal.
            seed: public seed of the directions.

        Example:
            >>> SliceProfile.blocks([2, 3]).directions.shape
            (2, 5)
        """
        if not len(sizes):
            raise ValueError("sizes is empty, but there must be a block.")
        directions = np.zeros((len(sizes) * slices_per_block, sum(sizes)))
        start = 0
        for block, size in enumerate(sizes):
            rows = slice(block * slices_per_block, (block + 1) * slices_per_block)
            directions[rows, start : start + size] = cls.random(size, slices_per_block, seed + block).directions
            start += size
        return cls(directions)

    @property
    def num_slices(self) -> int:
        """Number of directions."""
        return len(self.directions)

    @property
    def dimension(self) -> int:
        """Dimension of the space that is sliced."""
        return int(self.directions.shape[1])

    def project(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Inner products with all slices: shape (..., dimension) to (..., num_slices).

        Args:
            values: Shape (..., dimension).

        Raises:
            ValueError: If the last dimension is another.
        """
        array = np.asarray(values, dtype=np.float64)
        if array.shape[-1:] != (self.dimension,):
            raise ValueError(f"values have shape {array.shape}, but the slices have dimension {self.dimension}.")
        projected: npt.NDArray[np.float64] = array @ self.directions.T
        return projected

    def to_dict(self) -> dict[str, Any]:
        """Public facts for a card or a ledger's declaration."""
        return {"num_slices": self.num_slices, "dimension": self.dimension}
