"""Canonical forms of clusters, bases and signs, each a function of the output and of public references only."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from typing_extensions import override

from lightning_pac._validation import validated
from lightning_pac.information import Array

__all__ = ["AlignBasis", "AlignClusters", "CanonicalForm", "FixSigns", "SortRows"]


class CanonicalForm(ABC):
    """Rewrites one output so that outputs of the same meaning become equal, or nearly so.

    It sees one output and a *public* reference: a constant, a result on public data, or an earlier private release.
    There is no way to fit one to the outputs. A reference taken from a private subset would be a release without noise;
    `privatize` refuses a reference that is one of the outputs. Whatever needs the records themselves belongs inside
    the box.

    Args:
        public: The reference, None where there is none.

    Raises:
        ValueError: If the reference is not a finite matrix.
    """

    def __init__(self, public: npt.ArrayLike | None) -> None:
        self.public: Array | None = None if public is None else _matrix(public, "public")

    @abstractmethod
    def __call__(self, output: npt.ArrayLike) -> Array:
        """The canonical form of one output."""

    def describe(self) -> dict[str, Any]:
        """Public facts for the privacy card."""
        return {"form": type(self).__name__, "reference": None if self.public is None else list(self.public.shape)}


@validated
class AlignClusters(CanonicalForm):
    """Puts cluster centres into the order of the public reference's, one to one, at the least total squared distance.

    Args:
        public: Reference centres, shape (k, d), for instance of public records.

    Source: *PAC-Private Algorithms*, section 5.1; matching by the Hungarian method instead of by labels (ours).

    Example:
        >>> AlignClusters(public=[[0.0], [1.0]])([[1.1], [0.2]]).tolist()
        [[0.2], [1.1]]
    """

    def __init__(self, *, public: npt.ArrayLike) -> None:
        super().__init__(public)

    @override
    def __call__(self, output: npt.ArrayLike) -> Array:
        centers = _like(output, self.public)
        assert self.public is not None
        # One to one: matching every centre to its nearest reference could use one twice and leave another
        # out.
        distances = ((centers[:, None] - self.public) ** 2).sum(axis=2)
        rows, places = linear_sum_assignment(distances)
        ordered = np.empty_like(centers)
        ordered[places] = centers[rows]
        return ordered


@validated
class AlignBasis(CanonicalForm):
    r"""Rotates an orthonormal basis within its span to lie as close as possible to the public reference.

    With rows S of the basis and R of the reference, $\min_Q \|R - Q S\|_F$ over orthogonal Q is solved by $Q = U V^T$
    from the singular value decomposition $R S^T = U \Sigma V^T$ (orthogonal Procrustes). The rows of the result are
    again orthonormal and span the same space.

    The matrix of the paper's Claim 1, the leading block of a product of orthogonal matrices, is in general not
    orthogonal and shortens the rows.

    Args:
        public: Reference rows, shape (k, d), for instance of a PCA of public records, or the first k unit vectors.

    Source: *PAC-Private Algorithms*, section 5.3, corrected; Schönemann (1966).

    Example:
        >>> AlignBasis(public=[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """

    def __init__(self, *, public: npt.ArrayLike) -> None:
        super().__init__(public)

    @override
    def __call__(self, output: npt.ArrayLike) -> Array:
        basis = _like(output, self.public)
        assert self.public is not None
        left, _, right = np.linalg.svd(self.public @ basis.T)
        # Adding zero makes the two zeros one.
        return np.asarray(left @ right @ basis + 0.0)


@validated
class FixSigns(CanonicalForm):
    """Multiplies each row by 1 or -1, such that its product with a public direction is not negative.

    Rows nearly orthogonal to the direction still jump: choose one that they are known to have a part in.

    Args:
        public: One direction for all rows, shape (1, d) or (d,), or one for each, shape (k, d).

    Example:
        >>> FixSigns(public=[1.0, 0.0])([[-2.0, 3.0], [1.0, 5.0]]).tolist()
        [[2.0, -3.0], [1.0, 5.0]]
    """

    def __init__(self, *, public: npt.ArrayLike) -> None:
        super().__init__(np.atleast_2d(np.asarray(public, dtype=np.float64)))

    @override
    def __call__(self, output: npt.ArrayLike) -> Array:
        rows = _matrix(output, "output")
        assert self.public is not None
        if self.public.shape[1] != rows.shape[1] or len(self.public) not in (1, len(rows)):
            raise ValueError(f"Directions of shape {self.public.shape} do not fit an output of shape {rows.shape}.")
        return np.where((rows * self.public).sum(axis=1, keepdims=True) < 0, -rows, rows)


@validated
class SortRows(CanonicalForm):
    """Sorts the rows by their product with a public direction; by the first column, then the next, without one.

    Args:
        public: Direction, shape (d,) or (1, d), or None.

    Example:
        >>> SortRows()([[3.0, 1.0], [2.0, 9.0]]).tolist()
        [[2.0, 9.0], [3.0, 1.0]]
    """

    def __init__(self, *, public: npt.ArrayLike | None = None) -> None:
        super().__init__(None if public is None else np.atleast_2d(np.asarray(public, dtype=np.float64)))

    @override
    def __call__(self, output: npt.ArrayLike) -> Array:
        rows = _matrix(output, "output")
        if self.public is None:
            # The last key of lexsort counts first.
            return rows[np.lexsort(rows.T[::-1])]
        if self.public.shape != (1, rows.shape[1]):
            raise ValueError(f"A direction of shape {self.public.shape} does not fit an output of shape {rows.shape}.")
        return rows[np.argsort(rows @ self.public[0], kind="stable")]


def _matrix(value: npt.ArrayLike, name: str) -> Array:
    matrix = np.asarray(value, dtype=np.float64)
    if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all():
        raise ValueError(f"{name} must be a finite matrix, got shape {matrix.shape}.")
    return matrix


def _like(output: npt.ArrayLike, public: Array | None) -> Array:
    matrix = _matrix(output, "output")
    assert public is not None
    if matrix.shape != public.shape:
        raise ValueError(
            f"The public reference has shape {public.shape} and the output {matrix.shape}: make them equal."
        )
    return matrix
