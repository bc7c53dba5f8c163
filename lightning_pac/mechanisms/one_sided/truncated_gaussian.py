"""The truncated Gaussian on [0, R], with the differences of its distribution function in log space."""

import math

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, logsumexp, ndtri_exp

from lightning_pac._validation import PrivateReal, validated
from lightning_pac.information import Array
from lightning_pac.mechanisms.one_sided.distributions import pad_up
from lightning_pac.randomness import SecureGenerator, release_grid, secure_generator

__all__ = ["TruncatedGaussian"]


class TruncatedGaussian:
    """`N(mu, sigma^2)` conditioned on [0, R], in the manner of `torch.distributions`.

    Args:
        location: mu, the mode where it lies in [0, R].
        scale: sigma, positive and finite; far above max_value it is as good as uniform.
        max_value: R, positive.
        generator: Source of the draws; None takes the process's secure generator.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> noise = TruncatedGaussian(location=2.0, scale=1.0, max_value=4.0)
        >>> round(noise.mean, 6), round(noise.second_moment, 4), round(noise.entropy, 4)
        (2.0, 4.7737, 1.2592)
    """

    def __init__(
        self, location: float, scale: float, max_value: float, generator: SecureGenerator | None = None
    ) -> None:
        if not (math.isfinite(max_value) and max_value > 0.0):
            raise ValueError(
                f"max_value must be positive and finite, got {max_value!r}: one-sided noise lies in [0, R]."
            )
        if not 0.0 < scale < math.inf or not math.isfinite(location):
            raise ValueError(f"scale must be positive, and it and location finite, got {scale!r} and {location!r}.")
        self.location, self.scale, self.max_value = float(location), float(scale), float(max_value)
        self._generator = generator
        self._low, self._high = -self.location / self.scale, (self.max_value - self.location) / self.scale
        # By symmetry the interval is put on the left, where log_ndtr is exact in relative terms.
        self._mirrored = self._low + self._high > 0.0
        low, high = (-self._high, -self._low) if self._mirrored else (self._low, self._high)
        self._left, self._right = low, high
        # A narrow interval makes a difference of distribution functions cancel: it is a uniform one by then.
        self._flat = high - low < 1e-4
        self._log_mass = (
            # Width times the normal density at the middle, in logarithms.
            math.log(high - low) - 0.5 * math.log(2 * math.pi) - 0.5 * (0.5 * (low + high)) ** 2
            if self._flat
            else _log_difference(float(log_ndtr(high)), float(log_ndtr(low)))
        )

    @property
    def mean(self) -> float:
        """Expected value."""
        return self._moment(1)

    @property
    def second_moment(self) -> float:
        """Expected square."""
        return self._moment(2)

    @property
    def variance(self) -> float:
        """Variance, by quadrature about the mean: no cancellation."""
        points, weights = self._quadrature()
        return float(weights @ (points - float(weights @ points)) ** 2)

    @property
    def entropy(self) -> float:
        """Differential entropy in nats."""
        points, weights = self._quadrature()
        return -float(weights @ self.log_prob(points))

    def log_prob(self, value: npt.ArrayLike) -> Array:
        """Natural logarithm of the density; minus infinity off [0, R]."""
        values = np.asarray(value, dtype=np.float64)
        z = (values - self.location) / self.scale
        logs = -0.5 * z**2 - 0.5 * math.log(2 * math.pi) - math.log(self.scale) - self._log_mass
        return np.where((values >= 0) & (values <= self.max_value), logs, -np.inf)

    def sample(self, size: int | tuple[int, ...] = ()) -> Array:
        """Draw values of that shape by inversion, with 64 secure bits each; show none of them, but `pad`."""
        uniform = (self._generator or secure_generator()).uniform(size)
        if self._flat:
            fraction = uniform
        else:
            # Phi(z) = Phi(left) + u (Phi(right) - Phi(left)), in logarithms.
            logs = np.logaddexp(log_ndtr(self._left), np.log(uniform) + self._log_mass)
            z = np.clip(ndtri_exp(logs), self._left, self._right)
            fraction = (z - self._left) / (self._right - self._left)
        values: Array = np.asarray((1.0 - fraction if self._mirrored else fraction) * self.max_value)
        return values

    @validated
    def pad(self, value: PrivateReal) -> float:
        """The value plus one draw, rounded up to a public grid: what an observer may see in its place."""
        return pad_up(float(value), float(self.sample()), release_grid(min(self.scale, self.max_value)))

    def _moment(self, power: int) -> float:
        points, weights = self._quadrature()
        return float(weights @ points**power)

    def _quadrature(self) -> tuple[Array, Array]:
        """Gauss-Legendre points where the density is not negligible, and their weights times the density."""
        peak = min(max(self.location, 0.0), self.max_value)
        # Outside, the density is below e^-60 of its peak; past an end it falls off like an exponential.
        steep = abs(self.location - peak) / self.scale**2
        reach = min(11.0 * self.scale, 60.0 / steep if steep > 0.0 else math.inf)
        low, high = max(0.0, peak - reach), min(self.max_value, peak + reach)
        points = 0.5 * (high - low) * (_NODES + 1.0) + low
        # Normalized by their own sum, so that the mass of [0, R] is not needed.
        logs = -0.5 * ((points - self.location) / self.scale) ** 2 + np.log(_WEIGHTS)
        return points, np.exp(logs - logsumexp(logs))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(location={self.location:.6g}, scale={self.scale:.6g}, "
            f"max_value={self.max_value:.6g})"
        )


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)


def _log_difference(larger: float, smaller: float) -> float:
    # ln(e^larger - e^smaller).
    return larger + math.log1p(-math.exp(smaller - larger))
