"""Outputs in groups that the noise keeps apart, so that no figure is the difference of two large ones."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lightning_pac.information import Array

__all__ = ["Cluster", "cluster_outputs", "clusters_entropy", "covariance_of"]

# In deviations of the noise: to take one of two outputs this far apart for the other has probability e^-500.
_APART = 64.0

# Squares up to this radius leave at least 26 bits behind the point.
_RADIUS = 2.0**13


@dataclasses.dataclass(frozen=True, eq=False)
class Cluster:
    r"""Some of the outputs, measured from their own mean.

    Which cluster C an output lies in is a function of the secret, so for *every* partition
    $I(S; Y) \le I(S; Y, C) = H(C) + \sum_c P(c)\, I(S; Y \mid C = c)$, with equality where the noise never takes one
    cluster for another.

    Attributes:
        rows: Which outputs.
        deviations: Their deviations from the cluster's mean, shape (k, d).
        whitened: The same in units of the noise, shape (k, r).
        weights: Their probabilities given the cluster, shape (k,).
        probability: P(c).
    """

    rows: npt.NDArray[np.intp]
    deviations: Array
    whitened: Array
    weights: Array
    probability: float


def cluster_outputs(
    points: Array, mass: Array, whiten: Callable[[Array], Array], narrowing: float = 1.0
) -> list[Cluster]:
    """Clusters of distinct outputs, each within a radius in which floating-point numbers resolve the noise.

    Differences of outputs are formed before anything else is done with them, so what is far away costs no digits.
    Outputs are divided where a coordinate has a gap that no noise bridges and, beyond the radius, at the widest gap.

    Args:
        points: Distinct outputs, shape (m, d).
        mass: Probability of each, shape (m,).
        whiten: Linear map to units of the noise, (n, d) to (n, r).
        narrowing: How many times a unit of its narrowest component goes into one of these, at most.

    Raises:
        ValueError: If differences of outputs overflow.
    """
    pending, clusters = [np.arange(len(points))], []
    while pending:
        rows = pending.pop()
        with np.errstate(over="ignore", invalid="ignore"):
            shifted = points[rows] - points[rows[0]]
            local = whiten(shifted) if np.isfinite(shifted).all() else shifted
        if not np.isfinite(local).all():
            raise ValueError("The outputs lie so far apart that their distance overflows: rescale them.")
        parts = _divide(local, _RADIUS / narrowing)
        if len(parts) > 1:
            pending += [rows[part] for part in parts]
            continue
        probability = float(mass[rows].sum())
        weights = mass[rows] / probability
        # About the cluster's mean: the log-det bound and `covariance_of` need sum_j w_j W_j = 0.
        centred = (shifted - weights @ shifted, local - weights @ local)
        clusters.append(Cluster(rows, *centred, weights, probability))
    return clusters


def clusters_entropy(clusters: list[Cluster]) -> float:
    """H(C): what is told for certain."""
    # A sum of probabilities may round to above 1, where -p ln p is negative.
    return sum(-cluster.probability * math.log(min(1.0, cluster.probability)) for cluster in clusters)


def covariance_of(values: Array, weights: Array) -> Array:
    """Covariance of weighted rows of mean zero."""
    return np.asarray((weights * values.T) @ values)


def _divide(local: Array, radius: float) -> list[npt.NDArray[np.intp]]:
    if len(local) == 1:
        return [np.arange(1)]
    # Gaps between neighbours along each coordinate, shape (k - 1, r).
    order = np.argsort(local, axis=0, kind="stable")
    gaps = np.diff(np.take_along_axis(local, order, axis=0), axis=0)
    axis = int(np.argmax(gaps.max(axis=0)))
    along, widest = gaps[:, axis], float(gaps[:, axis].max())
    if widest <= _APART and float(np.linalg.norm(local, axis=1).max()) <= radius:
        return [np.arange(len(local))]
    # The widest gap is always a cut, so that a cluster beyond the radius gets smaller.
    return np.split(order[:, axis], np.flatnonzero((along > _APART) | (along == widest)) + 1)
