"""Efficient-PAC on a stream of outputs: variances along public directions, until they stop changing."""

import math

import numpy as np
import numpy.typing as npt

from lightning_pac._mutex import Mutex
from lightning_pac._validation import Count, Positive, validated
from lightning_pac.information import Array, check_budget
from lightning_pac.mechanisms.pac_noise.directions import Axes
from lightning_pac.mechanisms.pac_noise.gaussian import GaussianNoise
from lightning_pac.mechanisms.variances import linear_variances

__all__ = ["StreamingCoordinateNoise"]


@validated
class StreamingCoordinateNoise:
    """Variances along public directions from outputs that arrive one by one, with the paper's convergence rule.

    Memory is O(d) and time O(d) an output (O(d^2) with a basis), whatever their number; threads may share it. The
    variances are estimates of those of an unknown law, so the noise carries no certificate and cannot be released; for
    a finite secret space `calibrate_gaussian(..., rule="coordinate")` has the exact variances.

    Args:
        tolerance: Largest change of any variance between two checks that counts as converged.
        check_every: Outputs between two checks (the paper's experiments: 10; its Algorithm 1: 1).
        basis: Public orthonormal matrix, shape (d, d); the coordinate axes if None.

    Raises:
        ValueError: If the tolerance or the interval is not positive.

    Source: *PAC-Private Algorithms*, Algorithm 1 and section 7.

    Example:
        >>> stream = StreamingCoordinateNoise(check_every=2)
        >>> [stream.update([value, 1.0]) for value in (0.0, 1.0, 0.0, 1.0)]
        [False, False, False, True]
        >>> stream.noise(budget=0.5).variances
        array([0.25, 0.  ])
    """

    def __init__(self, tolerance: Positive = 1e-6, check_every: Count = 10, basis: npt.ArrayLike | None = None) -> None:
        self.tolerance = tolerance
        self.check_every = check_every
        self.count = 0
        self.converged = False
        self._basis = None if basis is None else np.asarray(basis, dtype=np.float64)
        self._mean: Array | None = None
        self._squares: Array | None = None
        self._checked: Array | None = None
        self._mutex = Mutex()

    @property
    def variances(self) -> Array:
        """Empirical variance along each direction so far, shape (d,)."""
        if self._squares is None:
            raise ValueError("No output has been seen: call update first.")
        return np.asarray(self._squares / self.count)

    def update(self, output: npt.ArrayLike) -> bool:
        """Take one output into account; whether the variances have converged.

        Args:
            output: One output, shape (d,).

        Raises:
            ValueError: If the output is not a finite vector of the shape of the earlier ones.
        """
        value = np.asarray(output, dtype=np.float64)
        if value.ndim != 1 or value.size == 0 or not np.isfinite(value).all():
            raise ValueError(f"output must be a finite vector, got shape {value.shape}.")
        with self._mutex:
            return self._add(value if self._basis is None else value @ self._basis)

    def _add(self, coordinates: Array) -> bool:
        if self._mean is None or self._squares is None:
            self._mean, self._squares = np.zeros_like(coordinates), np.zeros_like(coordinates)
        if coordinates.shape != self._mean.shape:
            raise ValueError(f"Outputs must all have the same shape, got {coordinates.shape} after {self._mean.shape}.")
        # Welford's recurrence: no cancellation between large squares.
        self.count += 1
        deviation = coordinates - self._mean
        self._mean = self._mean + deviation / self.count
        self._squares = self._squares + deviation * (coordinates - self._mean)
        if self.count % self.check_every == 0:
            current = self.variances
            # The first check has nothing to compare with and never counts as converged.
            change = math.inf if self._checked is None else float(np.abs(current - self._checked).max())
            self.converged = change < self.tolerance
            self._checked = current
        return self.converged

    def noise(self, budget: float) -> GaussianNoise:
        """Noise of the linear rule for the variances so far; an estimate, without certificate.

        Args:
            budget: Mutual information in nats.

        Raises:
            ValueError: If the budget is not positive, or no output has been seen.
        """
        check_budget(budget)
        with self._mutex:
            variances = linear_variances(self.variances, budget)
        assert self._mean is not None
        # The mean is kept in coordinates of the basis, and `Axes` has it in the original ones.
        mean = self._mean if self._basis is None else self._basis @ self._mean
        return GaussianNoise(Axes(mean, self._basis), variances, None, "streaming coordinate")
