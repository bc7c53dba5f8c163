"""Banded Toeplitz matrices, the correlation of noise over steps, and their price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import signal

from lightning_pac._validation import Count, checks_itself, validated
from lightning_pac.information import Array
from lightning_pac.scenarios import Sampling, as_stretches

__all__ = ["BandedMatrix"]


@validated
@dataclass(frozen=True)
class BandedMatrix:
    r"""A lower-triangular Toeplitz matrix C with b bands, by which noise is correlated over steps.

    A run whose step t releases `g_t + (C^-1 z)_t`, z independent Gaussian of deviation :math:`\sigma c`, tells what
    `C g + z` tells, since one follows from the other. Columns have norm at most 1, and columns b steps apart do not
    overlap: where the same record comes at least b steps apart, its shares of the run are orthogonal, so that
    independent noise of the same deviation costs as much. Source: banded matrix factorization (Choquette-Choo et al.
    2023); the price of several records is ours (`square_sum`).

    Args:
        coefficients: `c_0, ..., c_(b-1)`, the first of them positive, their squares adding up to at most 1.

    Raises:
        ValueError: if there is no coefficient, the first is not positive, or their squares add up to more than 1.

    Example:
        >>> matrix = BandedMatrix((0.8, 0.6))
        >>> matrix.inverse(3).round(2).tolist()
        [1.25, -0.94, 0.7]
    """

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.coefficients or not self.coefficients[0] > 0:
            raise ValueError(f"coefficients are {self.coefficients}, but the first must be there, and positive.")
        squares = math.fsum(coefficient**2 for coefficient in self.coefficients)
        if not squares <= 1:
            raise ValueError(
                f"coefficients have squares that add up to {squares}, but noise covers a column of norm 1 at most: "
                "divide them by the root of that."
            )

    @classmethod
    def normalized(cls, coefficients: Sequence[float]) -> BandedMatrix:
        """The matrix with these coefficients, divided by a little more than their norm.

        Args:
            coefficients: of any scale.
        """
        # The margin keeps the squares of rounded quotients from adding up to more than 1; zeros are refused later.
        norm = math.sqrt(math.fsum(value**2 for value in coefficients)) * (1 + 1e-15) or 1.0
        return cls(tuple(float(value) / norm for value in coefficients))

    @property
    def num_bands(self) -> int:
        """b; 1 is independent noise."""
        return len(self.coefficients)

    @property
    def overlap(self) -> float:
        """The largest row sum of `|C^T C|`: no more than the square of the sum of all coefficients."""
        return math.fsum(abs(coefficient) for coefficient in self.coefficients) ** 2

    def inverse(self, num_steps: Count) -> Array:
        """The first column of `C^-1`, shape (num_steps,): how one draw returns in later steps.

        Args:
            num_steps: rows.
        """
        impulse = np.zeros(num_steps)
        impulse[0] = 1.0
        # C x = e_1 solved forwards, x_t = (e_t - sum_k c_k x_(t-k)) / c_0, which is the filter 1 / c(z).
        column: Array = signal.lfilter([1.0], self.coefficients, impulse)
        return column

    @checks_itself
    def square_sum(
        self, sampling: Sampling, num_differing: int, num_records: int | None, num_steps: int | Sequence[int]
    ) -> float:
        r"""The units of a run, in place of `sum_t K_t^2`: at most what its steps tell about d records.

        With :math:`\Delta_t` the change of the sum in step t, by at most `K_t` clipping norms times `kappa`, the run
        is a Gaussian mechanism of sensitivity :math:`\lVert C \Delta \rVert_F`. Two bounds hold, and the lesser counts:

        - by records: the shares of one record are orthogonal, so it moves `C g` by at most the root of its
          participations, and d records by at most d times that. One stretch of m steps, and passes of n, let a record
          in `ceil(m / n)` times.
        - by steps: `K^T |C^T C| K` is at most the largest row sum times `sum_t K_t^2`.

        Every stretch begins C anew, with noise of its own, and a stretch that goes on with the pass of an earlier one
        keeps the order, hence the participations.

        Args:
            sampling: a scheme that keeps each record at least b steps apart.
            num_differing: records in which the two worlds differ, d.
            num_records: records in the data set.
            num_steps: optimizer steps started, or those of each stretch.

        Raises:
            ValueError: if records may come closer than that.
        """
        apart = self.check_separation(sampling, num_records)
        participations = sum(-(-steps // apart) for steps in as_stretches(num_steps))
        by_steps = self.overlap * sampling.worst_case_square_sum(num_differing, num_records, num_steps)
        return float(min(num_differing**2 * participations, by_steps))

    @checks_itself
    def check_separation(self, sampling: Sampling, num_records: int | None) -> int:
        """The number of steps between two batches that may hold the same record.

        Args:
            sampling: how batches are drawn.
            num_records: records in the data set.

        Raises:
            ValueError: if the scheme keeps no such distance, or one below the number of bands.
        """
        apart = sampling.separation(num_records)
        if apart is None:
            raise ValueError(
                f"sampling is {type(sampling).__name__}, but correlated noise needs every pass in one order, so a "
                "record never comes back within its bands: give sampling=CyclicShuffle(batch_size)."
            )
        if self.num_bands > apart:
            raise ValueError(
                f"noise has {self.num_bands} bands, but a pass has {apart} steps, so a record would come back "
                f"within them: give at most {apart} bands, or smaller batches."
            )
        return apart

    @checks_itself
    def mean_deviation(self, last: int, count: int) -> float:
        """Deviation of the mean of the noise of `count` steps, in that of a draw; `1 / sqrt(count)` if independent.

        Args:
            last: steps since the noise began, those of the mean included.
            count: steps of the mean, the last ones.
        """
        sums = _prefix_sums(self, _power_of_two(last))
        first = last - count
        shares = sums[:last][::-1].copy()  # what each draw adds to the sum up to the last step
        # The mean is that of the steps after `first`, so the sum up to there is taken off.
        shares[:first] -= sums[:first][::-1]
        return float(np.linalg.norm(shares)) / count

    def noise_left(self, num_steps: Count) -> float:
        r"""Noise that is left in the sums of the first 1, 2, ..., T steps, as a share of that of independent noise.

        .. math:: \Big( \sum_k (T - k) s_k^2 \Big/ \sum_k (T - k) \Big)^{1/2}

        :math:`s_k` being the sum of the first k + 1 entries of the first column of `C^-1`.

        Args:
            num_steps: T.
        """
        counts = np.arange(num_steps, 0, -1)
        sums = _prefix_sums(self, _power_of_two(num_steps))[:num_steps]
        # s_k enters T - k of the sums; independent noise has s_k = 1 throughout.
        return math.sqrt(float(counts @ sums**2) / float(counts.sum()))

    @checks_itself
    def precision(self, num_steps: int) -> float:
        r"""The coarseness in float64 of the noise beside independent draws, as a factor on their number.

        Of a step's noise `x_t = (z_t - sum_k c_k x_(t-k)) / c_0`, rounding moves `(C x)_t` by at most
        :math:`2^{-53} (b + 2) \sum_k |c_k| |x_{t-k}|`, in mean square :math:`2^{-53} (b + 2) \lVert c \rVert_1 v` of
        the deviation, v^2 being the largest variance of x: a share of what `finite_precision` allows a draw,
        :math:`2^{-50}` of its size, and what it charges grows as the root of the number of draws.

        Args:
            num_steps: steps of the run.
        """
        return _precision(self, _power_of_two(num_steps))


def _power_of_two(num_steps: int) -> int:
    """The least that is not below a number of steps: figures that are asked in every step are kept by it."""
    return 1 << max(0, num_steps - 1).bit_length()


@lru_cache(maxsize=16)
def _prefix_sums(matrix: BandedMatrix, num_steps: int) -> Array:
    return np.cumsum(matrix.inverse(num_steps))


@lru_cache(maxsize=64)
def _precision(matrix: BandedMatrix, num_steps: int) -> float:
    if matrix.num_bands == 1:
        return 1.0
    deviation = float(np.linalg.norm(matrix.inverse(num_steps)))
    # 1/8 is 2^-53 over 2^-50; squared, since the charge grows as the root of the number of draws.
    return (1 + (matrix.num_bands + 2) * math.sqrt(matrix.overlap) * deviation / 8) ** 2
