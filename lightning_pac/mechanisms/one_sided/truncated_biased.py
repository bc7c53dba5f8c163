"""The usual bounded noises, continuous Laplace and discrete Gaussian, in the manner of `torch.distributions`."""

import math

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import PrivateReal, validated
from lightning_pac.information import Array
from lightning_pac.mechanisms.one_sided.distributions import DiscreteNoise, UnresolvedDeltaError, pad_up
from lightning_pac.mechanisms.one_sided.laplace import biased_laplace_location
from lightning_pac.randomness import SecureGenerator, release_grid, secure_generator

__all__ = ["TruncatedLaplace", "discrete_truncated_gaussian"]

# Half a thousandth of it is more than what rounding may add.
_SMALLEST_EPSILON = 1e-6


class TruncatedLaplace:
    """The Laplace distribution around R/2 conditioned on [0, R], for queries with real values.

    Args:
        scale: lambda, positive.
        max_value: R, positive; the mode is R/2.
        generator: Source of the draws; None takes the process's secure generator.

    Raises:
        ValueError: If an argument is not positive.

    Example:
        >>> noise = TruncatedLaplace.for_dp(epsilon=1.0, delta=1e-4)
        >>> round(noise.mean, 4), round(noise.second_moment, 2)
        (9.5173, 92.57)
    """

    def __init__(self, scale: float, max_value: float, generator: SecureGenerator | None = None) -> None:
        if not (scale > 0.0 and max_value > 0.0 and math.isfinite(scale * max_value)):
            raise ValueError(
                f"Scale and max_value must be positive and finite, got {scale!r} and {max_value!r}: one-sided noise "
                "lies in [0, R]."
            )
        self.scale, self.max_value = float(scale), float(max_value)
        self._generator = generator

    @classmethod
    def for_dp(cls, epsilon: float, delta: float, sensitivity: float = 1.0) -> "TruncatedLaplace":
        r"""The noise that Lemma 1 makes (epsilon, delta)-DP for one release of a query of that sensitivity.

        Uniform draws are multiples of $2^{-64}$, so that each of the n cells of the release grid has its probability up
        to $2^{-63}$ and up to a part of $2^{-32}$, which rounding takes. Laws that close to an (epsilon, delta)-DP pair
        are so with $\epsilon + 2^{-31}$ and $\delta + (1 + e^\epsilon) n 2^{-63}$; the noise is made for what that
        leaves.

        Args:
            epsilon: Privacy parameter, at least 1e-6.
            delta: Failure probability in (0, 1).
            sensitivity: Largest difference of neighbouring queries.

        Raises:
            UnresolvedDeltaError: If the draws take more than half of delta.
            ValueError: If an argument is out of range.
        """
        if not epsilon >= _SMALLEST_EPSILON:
            raise ValueError(f"epsilon must be at least {_SMALLEST_EPSILON:g}, got {epsilon!r}: no draws are as even.")
        widest, scale = biased_laplace_location(epsilon, 0.5 * delta, sensitivity)
        # At least half of delta will be left, so that the range for delta / 2 has no fewer cells than the final one.
        cells = 2.0 * widest / release_grid(min(scale, 2.0 * widest)) + 2.0
        lost = (1.0 + math.exp(epsilon)) * cells * 2.0**-63
        if lost > 0.5 * delta:
            raise UnresolvedDeltaError(
                f"delta={delta:g} is too small for draws of 64 bits: with epsilon={epsilon:g} it must be at least "
                f"{2 * lost:.2g}."
            )
        location, scale = biased_laplace_location(epsilon - 2.0**-31, delta - lost, sensitivity)
        return cls(scale, 2.0 * location)

    @property
    def mean(self) -> float:
        """Expected value, R/2 by symmetry."""
        return 0.5 * self.max_value

    @property
    def variance(self) -> float:
        """Variance: that of an exponential cut off at R/2, folded."""
        half = 0.5 * self.max_value / self.scale
        return self.scale**2 * (2.0 - (half**2 + 2.0 * half) / math.expm1(half))

    @property
    def second_moment(self) -> float:
        """Expected square."""
        return self.variance + self.mean**2

    def log_prob(self, value: npt.ArrayLike) -> Array:
        """Natural logarithm of the density; minus infinity off [0, R]."""
        values = np.asarray(value, dtype=np.float64)
        # Integral of e^{-|x - R/2| / lambda} over [0, R]: 2 lambda (1 - e^{-R / (2 lambda)}).
        mass = -2.0 * self.scale * math.expm1(-0.5 * self.max_value / self.scale)
        logs = -np.abs(values - self.mean) / self.scale - math.log(mass)
        return np.where((values >= 0) & (values <= self.max_value), logs, -np.inf)

    def sample(self, size: int | tuple[int, ...] = ()) -> Array:
        """Draw values of that shape by inversion, with 65 secure bits each; show none of them, but `pad`."""
        generator = self._generator or secure_generator()
        # The farthest draws come from the smallest uniforms, which are fine enough for a delta as small as theirs.
        least = math.exp(-0.5 * self.max_value / self.scale)
        distance = -self.scale * np.log(least + (1.0 - least) * generator.uniform(size))
        side = 1 - 2 * generator.integers(2, size)
        return np.clip(self.mean + side * distance, 0.0, self.max_value)

    @validated
    def pad(self, value: PrivateReal) -> float:
        """The value plus one draw, rounded up to a public grid: what an observer may see in its place."""
        return pad_up(float(value), float(self.sample()), release_grid(min(self.scale, self.max_value)))


def discrete_truncated_gaussian(location: float, scale: float, max_value: int) -> DiscreteNoise:
    """Noise on {0..R} with `p_i` proportional to `exp(-(i - mu)^2 / (2 sigma^2))`.

    Args:
        location: mu.
        scale: sigma, positive.
        max_value: R, at least 0.

    Raises:
        ValueError: If scale or max_value is out of range.

    Example:
        >>> discrete_truncated_gaussian(location=5.0, scale=2.0, max_value=10).mean
        5.0
    """
    if not (scale > 0.0 and max_value >= 0):
        raise ValueError(f"scale must be positive and max_value at least 0, got {scale!r} and {max_value!r}.")
    logs = -0.5 * ((np.arange(max_value + 1) - location) / scale) ** 2
    # Without the largest exponent all weights underflow where mu is far from the range.
    weights = np.exp(logs - logs.max())
    return DiscreteNoise(weights / weights.sum())
