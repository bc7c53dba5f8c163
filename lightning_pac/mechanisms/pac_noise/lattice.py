"""Two-sided geometric noise for rare integer outputs, where it beats every Gaussian."""

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import logsumexp

from lightning_pac._roots import moved_until
from lightning_pac._validation import Natural, PrivateInteger, validated
from lightning_pac.information import Array, check_budget
from lightning_pac.mechanisms.certified import Certificate, check_weights
from lightning_pac.randomness import SecureGenerator, secure_generator

__all__ = ["LatticeNoise", "calibrate_lattice"]

# Uniforms have 53 bits. Under wider noise than this, the unevenness of its draws would tell a millionth of the budget.
_SMALLEST_BUDGET = 2.0**-46


@validated
@dataclasses.dataclass(frozen=True, eq=False)
class LatticeNoise:
    """Noise on the integers with probabilities `(1 - q) / (1 + q) q^|n|`.

    Attributes:
        ratio: q, between 0 and 1.
        certificate: Exact mutual information; nothing is sampled.
        outputs: The integers that the noise was made for.
    """

    ratio: float
    certificate: Certificate
    outputs: npt.NDArray[np.int64]

    @property
    def power(self) -> float:
        """Expected square of the noise, `2 q / (1 - q)^2`."""
        return 2 * self.ratio / (1 - self.ratio) ** 2

    @property
    def mutual_information(self) -> float:
        """Mutual information of one release, in nats."""
        return self.certificate.mutual_information

    def probabilities(self, noise: npt.ArrayLike) -> Array:
        """Probability of each noise value, for belief updates."""
        return np.asarray((1 - self.ratio) / (1 + self.ratio) * self.ratio ** np.abs(np.asarray(noise, np.float64)))

    def sample(self, size: Natural | None = None, generator: SecureGenerator | None = None) -> npt.NDArray[np.int64]:
        """Draw noise: one integer as an array without dimensions, or `size` of them."""
        source = secure_generator() if generator is None else generator
        shape = () if size is None else (size,)
        if self.ratio == 0:
            return np.zeros(shape, dtype=np.int64)
        # The difference of two geometric variables; each is the integer part of an exponential one.
        one, other = (np.floor(np.log(source.uniform(shape)) / math.log(self.ratio)) for _ in range(2))
        return np.asarray(one - other, dtype=np.int64)

    def release(self, value: PrivateInteger, generator: SecureGenerator | None = None) -> int:
        """Noise one of the outputs.

        Raises:
            ValueError: If the value is not one of the outputs, for which alone the bound holds.
        """
        if value not in self.outputs:
            raise ValueError("value is not among the outputs of the noise: calibrate it with them.")
        return int(value) + int(self.sample(generator=generator))


@validated
def calibrate_lattice(outputs: npt.ArrayLike, budget: float, weights: npt.ArrayLike | None = None) -> LatticeNoise:
    r"""Least two-sided geometric noise B with $I(S; M(S) + B) \le b$ for integer outputs.

    The mutual information is a finite sum: beyond the largest and the smallest output all likelihood ratios are
    constant, so each tail is one term.

    Args:
        outputs: One integer per secret, shape (m,).
        budget: Mutual information b in nats.
        weights: Prior of the secrets, uniform if None.

    Raises:
        ValueError: If the outputs are no integers, the budget is not positive, or not below the output's entropy.

    Source: ours. A rare output (probability 1/128, b = 0.03) needs a quarter of the log-det rule's power.

    Example:
        >>> round(calibrate_lattice([0, 1], 0.03, weights=[127 / 128, 1 / 128]).power, 3)
        0.032
    """
    values = np.asarray(outputs)
    if values.ndim != 1 or len(values) < 2 or values.dtype != np.int64:  # as which all integers arrive that fit
        raise ValueError(
            f"outputs must be a row of at least two integers below 2**63, got {values.dtype} {values.shape}."
        )
    check_budget(budget)
    if budget < _SMALLEST_BUDGET:
        raise ValueError(f"A budget of {budget:.6g} nats is below {_SMALLEST_BUDGET:.3g}: draws are not that even.")
    mass = check_weights(weights, len(values))
    distinct, inverse = np.unique(values[mass > 0], return_inverse=True)
    merged = np.bincount(inverse, weights=mass[mass > 0]).astype(np.float64, copy=False)
    if len(distinct) == 1:
        return LatticeNoise(0.0, Certificate(0.0, 1.0, "lattice", 0.0), distinct)
    if (span := int(distinct[-1]) - int(distinct[0])) > 10**6:  # as integers of Python, which do not overflow
        raise ValueError(f"Outputs spread over {span} steps are too many to sum over: divide them by a public unit.")
    # Distances alone count; very large integers would become floats, which may not tell them apart.
    steps = distinct - distinct[0]
    entropy = float(-(merged * np.log(merged)).sum())
    if budget >= entropy:
        raise ValueError(
            f"budget is {budget:.6g} nats, but must be below the outputs' entropy of {entropy:.6g}: "
            "releasing the output exactly is within it, so no noise is needed."
        )

    def excess(logit: float) -> float:
        # ln q with q = 1 / (1 + e^-logit), exact where q is near 1.
        return lattice_information(steps, merged, -math.log1p(math.exp(-logit))) - budget

    # Bracket the root on the logit of the ratio, on which both ends are far from 0 and 1.
    low, high = -40.0, 1.0
    while excess(high) > 0:
        high += 2.0
    root = brentq(excess, low, high, xtol=1e-12, rtol=1e-14) if excess(low) > 0 else low

    def ratio_at(logit: float) -> float:
        return 1 / (1 + math.exp(-logit))

    # The float nearest to a ratio near 1 may tell more than the ratio: it decides.
    ratio = ratio_at(
        moved_until(lambda logit: lattice_information(steps, merged, math.log(ratio_at(logit))) <= budget, root, 1e-11)
    )
    information = lattice_information(steps, merged, math.log(ratio))
    return LatticeNoise(ratio, Certificate(information, 1.0, "lattice", information), distinct)


def lattice_information(outputs: npt.NDArray[np.int64], mass: Array, log_ratio: float) -> float:
    """Exact mutual information of integers and themselves plus two-sided geometric noise."""
    first, last = int(outputs[0]), int(outputs[-1])
    ratio = math.exp(log_ratio)
    total = 0.0
    # At most 2^20 likelihoods are held at a time.
    step = max(1, 2**20 // len(outputs))
    for start in range(first, last + 1, step):
        shown = np.arange(start, min(start + step, last + 1))
        log_likelihood = np.abs(shown[:, None] - outputs) * log_ratio
        weight = np.ones(len(shown))
        # The two ends stand for their tails, in which the posterior stays what it is there.
        weight[(shown == first) | (shown == last)] = 1 / (1 - ratio)
        # Average over secrets of the divergence of the posterior, weighted by the probability of what is
        # shown.
        log_total = logsumexp(log_likelihood + np.log(mass), axis=1, keepdims=True)
        told = (mass * _excess(log_likelihood - log_total)).sum(axis=1)
        total += float((weight * np.exp(log_total[:, 0]) * told).sum())
    # The noise's normalizing factor, common to all terms.
    return (1 - ratio) / (1 + ratio) * total


def _excess(gain: Array) -> Array:
    """`g e^g - (e^g - 1)`, at least 0: in the mean over the prior it is that of `g e^g`, without terms that cancel."""
    # Taylor coefficients (n - 1) / n! from n = 2 to 5; the closed form cancels below.
    series = gain**2 * (1 / 2 + gain * (1 / 3 + gain * (1 / 8 + gain / 30)))
    return np.where(np.abs(gain) < 1e-3, series, gain * np.exp(gain) - np.expm1(gain))
