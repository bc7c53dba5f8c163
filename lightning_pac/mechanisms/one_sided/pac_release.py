"""One-sided noise of least mutual information within a second-moment budget (Theorem 5, Alg. 3)."""

import math

from scipy.optimize import brentq, minimize_scalar

from lightning_pac._shown import shows_itself
from lightning_pac.mechanisms.one_sided.truncated_gaussian import TruncatedGaussian

__all__ = ["PACNoise", "optimal_pac_noise", "two_sided_information"]

# Draws of 53 bits and more, rounded to the release grid, are within 1e-10 of the law in total variation, and with at
# most 2^20 cells tell at most this much more.
_DRAWN = 2.0**-26

# Squares and products of sizes up to this are numbers.
_LARGEST = 2.0**100


@shows_itself
class PACNoise(TruncatedGaussian):
    """A truncated Gaussian and the mutual information it leaves about outputs of bounded variance.

    `MI <= 1/2 ln(2 pi e (var_Y + var_e)) - h(e)`, in nats for each release: over all outputs Y of that variance.
    T releases with independent noise leave at most T times as much *if what is padded was fixed beforehand*. Those who
    choose the next query by what they have seen ask for an output that still varies then: 24 releases that would cost
    1.04 nats told 1.47. For them `adaptive_information` holds.

    Args:
        location: mu of the Gaussian.
        scale: sigma of the Gaussian.
        max_value: R.
        output_variance: Largest variance of the output, over the secret and all other chance.
    """

    def __init__(self, location: float, scale: float, max_value: float, output_variance: float) -> None:
        super().__init__(location, scale, max_value)
        self.output_variance = float(output_variance)

    @property
    def mutual_information(self) -> float:
        """Bound on the mutual information between the secret and one padded output, in nats.

        It adds over outputs that were fixed beforehand: their variance given earlier releases is, in the mean, no
        larger than before.
        """
        return self._information(self.output_variance)

    def adaptive_information(self, output_range: float) -> float:
        """Bound in nats for one padded output within an interval of that width, whatever was seen before.

        Given anything, the variance of such an output is at most a quarter of the square of the width, and the entropy
        of the sum at most that of a uniform law: so this adds over outputs that are chosen one after another.

        Args:
            output_range: Width of a public interval that holds the output.

        Raises:
            ValueError: If the width is negative or not finite.

        Source: Popoviciu's inequality, and the chain rule of mutual information; ours.

        Example:
            >>> noise = optimal_pac_noise(output_variance=1.0, max_value=10, second_moment=25)
            >>> round(noise.mutual_information, 3), round(noise.adaptive_information(4.0), 3)
            (0.129, 0.353)
        """
        if not 0.0 <= output_range < math.inf:
            raise ValueError(f"output_range must be finite and not negative, got {output_range!r}.")
        # The sum Y + e lies within an interval of this width, where the uniform law has the largest entropy.
        uniform = math.log(output_range + self.max_value) - self.entropy + _DRAWN
        return min(self._information(0.25 * output_range**2), uniform)

    def _information(self, output_variance: float) -> float:
        # Of all laws with the variance var_Y + var_e the Gaussian has the largest entropy.
        gaussian = 0.5 * math.log(2 * math.pi * math.e * (output_variance + self.variance))
        return gaussian - self.entropy + _DRAWN


def optimal_pac_noise(output_variance: float, max_value: float, second_moment: float) -> PACNoise:
    """The noise on [0, R] of least mutual information whose second moment is within the budget.

    For each sigma the best mu is R/2 if the budget allows it, and else where it is spent: the second moment grows with
    mu. Sigma is then searched for, up to the widest that the budget allows. At the optimum `mu / sigma^2 =
    E[e] / (var_Y + var_e)`, so mu is never negative.

    Args:
        output_variance: Largest variance of the output, not negative.
        max_value: R, positive.
        second_moment: Budget B, positive.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> noise = optimal_pac_noise(output_variance=20.6, max_value=10, second_moment=25)
        >>> round(noise.second_moment, 6), round(noise.mutual_information, 4)
        (25.0, 0.8183)
    """
    if not (math.isfinite(output_variance) and output_variance >= 0.0):
        raise ValueError(f"output_variance must be finite and not negative, got {output_variance!r}.")
    if not (math.isfinite(max_value) and max_value > 0.0):
        raise ValueError(f"max_value must be positive and finite, got {max_value!r}: one-sided noise lies in [0, R].")
    if not (math.isfinite(second_moment) and second_moment > 0.0):
        raise ValueError(f"second_moment must be positive and finite, got {second_moment!r}.")
    given = {"output_variance": output_variance, "max_value": max_value, "second_moment": second_moment}
    for name, value in given.items():
        if value > _LARGEST or 0.0 < value < 1.0 / _LARGEST:
            raise ValueError(f"{name} must be from {1 / _LARGEST:.2g} to {_LARGEST:.2g}, got {value!r}: change units.")

    # The largest scale that the budget allows is that of mu = 0; at R it is as good as uniform.
    widest = 12.0 * max_value
    if TruncatedGaussian(0.0, widest, max_value).second_moment > second_moment:
        # At mu = 0 truncation only lowers the second moment: at most s^2, here within a quarter of the budget.
        narrowest = 0.5 * min(max_value, math.sqrt(second_moment))
        widest = float(brentq(lambda s: _log_excess(0.0, s, max_value, second_moment), narrowest, widest, rtol=1e-14))

    def at_scale(log_share: float) -> PACNoise:
        scale = widest * math.exp(log_share)
        return PACNoise(_location(scale, max_value, second_moment), scale, max_value, output_variance)

    # A coarse grid, down to e^-4.75 of the widest scale, brackets the minimum for the bounded search.
    grid = [-0.25 * k for k in range(20)]
    values = [at_scale(point).mutual_information for point in grid]
    best = values.index(min(values))
    found = minimize_scalar(
        lambda point: at_scale(point).mutual_information,
        bounds=(grid[min(len(grid) - 1, best + 1)], grid[max(0, best - 1)]),
        method="bounded",
        options={"xatol": 1e-8},
    )
    return at_scale(float(found.x) if found.fun < values[best] else grid[best])


def two_sided_information(output_variance: float, second_moment: float) -> float:
    """Mutual information under zero-mean Gaussian noise of that second moment, in nats: `1/2 ln(1 + var_Y / B)`.

    Example:
        >>> round(two_sided_information(20.6, 25.0), 4)
        0.3005
    """
    return 0.5 * math.log1p(output_variance / second_moment)


def _location(scale: float, max_value: float, second_moment: float) -> float:
    """The largest mu up to R/2 within the budget; 0 where the scale is the widest that fits."""
    if _log_excess(0.5 * max_value, scale, max_value, second_moment) <= 0.0:
        return 0.5 * max_value
    if _log_excess(0.0, scale, max_value, second_moment) >= 0.0:
        return 0.0
    # The relative tolerance alone decides: mu may be tiny beside R.
    return float(brentq(lambda mu: _log_excess(mu, scale, max_value, second_moment), 0.0, 0.5 * max_value, xtol=1e-300))


def _log_excess(location: float, scale: float, max_value: float, second_moment: float) -> float:
    return math.log(TruncatedGaussian(location, scale, max_value).second_moment / second_moment)
