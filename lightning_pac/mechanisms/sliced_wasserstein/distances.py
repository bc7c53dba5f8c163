"""Exact Wasserstein distances of empirical laws on the line, over many slices at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import validated
from lightning_pac.information import Array
from lightning_pac.scenarios.attribute import AttributeScenario
from lightning_pac.scenarios.slice_profile import SliceProfile

__all__ = ["quantile_differences", "slice_sensitivities", "wasserstein", "wasserstein_infinity"]

# Projections held at a time: 32 MB.
_CHUNK_ELEMENTS = 4_000_000


@validated
def wasserstein_infinity(first: npt.ArrayLike, second: npt.ArrayLike) -> Array | float:
    """`W_inf = sup_t |F^-1(t) - G^-1(t)|` of two empirical laws on the line, exact for unequal sizes.

    Args:
        first: samples of one law, shape (..., n).
        second: samples of the other, shape (..., m), with the same leading dimensions.

    Returns:
        The distances, of the leading dimensions' shape (a float where there are none).

    Raises:
        ValueError: if a sample is empty or not finite.

    Example:
        >>> wasserstein_infinity([0.0, 1.0], [0.0, 1.0, 5.0])
        4.0
    """
    low, high = _sorted_pair(first, second)
    distance = _sorted_wasserstein_infinity(low, high)
    return float(distance) if distance.ndim == 0 else distance


@validated
def wasserstein(first: npt.ArrayLike, second: npt.ArrayLike, p: float = 1.0) -> Array | float:
    """`W_p = (integral of |F^-1(t) - G^-1(t)|^p over (0, 1))^(1/p)` of two empirical laws on the line, exact.

    Args:
        first: samples of one law, shape (..., n).
        second: samples of the other, shape (..., m), with the same leading dimensions.
        p: at least 1; infinity is `wasserstein_infinity`.

    Raises:
        ValueError: if p is below 1, or a sample is empty or not finite.

    Example:
        >>> wasserstein([0.0, 1.0], [0.0, 1.0, 5.0], p=1)
        1.5
    """
    if not p >= 1:
        raise ValueError(f"p is {p}, but a Wasserstein distance has p at least 1.")
    if np.isinf(p):
        return wasserstein_infinity(first, second)
    one, other = _sorted_pair(first, second)
    rows, columns, mass = _quantile_grid(one.shape[-1], other.shape[-1])
    gap = np.abs(one[..., rows] - other[..., columns])
    # The largest gap is taken out so that a high power neither overflows nor vanishes.
    scale = gap.max(axis=-1, keepdims=True)
    unit = np.divide(gap, scale, out=np.zeros_like(gap), where=scale > 0)
    distance = scale[..., 0] * ((unit**p) @ mass) ** (1.0 / p)
    return float(distance) if distance.ndim == 0 else distance


@validated
def slice_sensitivities(scenario: AttributeScenario, outputs: Mapping[Any, Array], profile: SliceProfile) -> Array:
    """`Delta_l(i, j)`: the W-infinity distance of the projected laws, for every secret pair and slice.

    Args:
        scenario: the secret and its pairs.
        outputs: the query's outputs under each value, each of shape (num_records, dimension).
        profile: the slices.

    Returns:
        Distances of shape (num_pairs, num_slices), in the order of `scenario.pairs`.

    Raises:
        ValueError: if the outputs' dimension is not that of the slices.
    """
    assert scenario.pairs is not None
    if set(outputs) != set(scenario.values):
        raise ValueError("outputs must have those of every value of the secret: take them from `scenario.outputs`.")
    for value, output in outputs.items():
        if output.shape[1] != profile.dimension:
            raise ValueError(
                f"The query returned dimension {output.shape[1]} for {value!r}, but the slices have dimension "
                f"{profile.dimension}."
            )
    distances = np.empty((len(scenario.pairs), profile.num_slices))
    records = sum(len(output) for output in outputs.values())
    # Far from zero, projections would round away by how much outputs differ.
    origin = next(iter(outputs.values()))[0]
    around = {value: output - origin for value, output in outputs.items()}
    step = max(1, _CHUNK_ELEMENTS // records)
    for start in range(0, profile.num_slices, step):
        part = profile.directions[start : start + step]
        projected = {value: np.sort(part @ output.T, axis=-1) for value, output in around.items()}
        # The distance is symmetric, so that (i, j) and (j, i) are computed once.
        done: dict[frozenset[Any], Array] = {}
        for index, (first, second) in enumerate(scenario.pairs):
            key = frozenset((first, second))
            if key not in done:
                done[key] = _sorted_wasserstein_infinity(projected[first], projected[second])
            distances[index, start : start + step] = done[key]
    return distances


def quantile_differences(first: Array, second: Array, direction: Array) -> Array:
    """Differences of the points that one coupling of two empirical laws matches.

    The coupling matches quantiles along `direction`; any coupling bounds what an unsliced adversary can see.

    Args:
        first: points of one law, shape (n, dimension).
        second: points of the other, shape (m, dimension).
        direction: shape (dimension,).

    Returns:
        Differences of matched points, shape (at most n + m - 1, dimension).
    """
    rows, columns, _ = _quantile_grid(len(first), len(second))
    one = first[np.argsort(first @ direction, kind="stable")]
    other = second[np.argsort(second @ direction, kind="stable")]
    return one[rows] - other[columns]


coupled_differences = quantile_differences  # its name in version 0.1.0


def _sorted_wasserstein_infinity(first: Array, second: Array) -> Array:
    """The distance along the last axis of sorted samples.

    While the quantile function of the smaller sample stays at one point, that of the larger runs through consecutive
    points, and the largest distance is at the first or the last of them: two comparisons for each point of the
    smaller sample are enough.
    """
    small, large = (first, second) if first.shape[-1] <= second.shape[-1] else (second, first)
    few, many = small.shape[-1], large.shape[-1]
    # Points of the larger sample that share mass with the i-th of the smaller: from i m/n to (i + 1) m/n, in
    # whole numbers.
    steps = np.arange(few, dtype=np.int64)
    begin = steps * many // few
    # ceil((i + 1) m / n) - 1, the last point before the i-th one's mass ends.
    end = -((-(steps + 1) * many) // few) - 1
    lower = np.abs(large[..., begin] - small).max(axis=-1)
    upper = np.abs(large[..., end] - small).max(axis=-1)
    distance: Array = np.maximum(lower, upper)
    return distance


def _quantile_grid(n: int, m: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Array]:
    """Indices into two sorted samples, and the mass, of each interval on which both quantile functions are constant.

    The breakpoints `i/n` and `j/m` are compared as whole numbers `i m` and `j n`, so that ties are ties.
    """
    breaks = np.union1d(np.arange(1, n + 1, dtype=np.int64) * m, np.arange(1, m + 1, dtype=np.int64) * n)
    mass = np.diff(breaks, prepend=0) / (n * m)
    # In units of 1 / (n m) point i of the first sample holds the quantiles in (i m, (i + 1) m]; a right end names it.
    return (breaks - 1) // m, (breaks - 1) // n, mass


def _sorted_pair(first: npt.ArrayLike, second: npt.ArrayLike) -> tuple[Array, Array]:
    one, other = (np.sort(np.atleast_1d(np.asarray(sample, dtype=np.float64)), axis=-1) for sample in (first, second))
    for name, sample in (("first", one), ("second", other)):
        if not sample.shape[-1] or not np.isfinite(sample).all():
            raise ValueError(
                f"{name} is empty or has a value that is not finite, so it is not a distribution of numbers."
            )
    return one, other
