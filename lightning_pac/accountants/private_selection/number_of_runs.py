"""The secret number of runs of which the best is shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import optimize

from lightning_pac._validation import Count, Finite, OpenProbability, validated
from lightning_pac.information import Array
from lightning_pac.randomness import SecureGenerator, secure_generator

__all__ = ["NumberOfRuns"]

_LEAST_GAMMA = 1e-4
_LARGEST_ETA = 20.0
# ln of the masses, relative to that of one run, that are left out.
_NEGLIGIBLE = math.log(1e-50)


@validated
@dataclass(frozen=True)
class NumberOfRuns:
    r"""A truncated negative binomial number, at least one.

    .. math:: P[K = k] = \frac{(1-\gamma)^k}{\gamma^{-\eta} - 1} \prod_{l<k} \frac{l + \eta}{l + 1}

    and $(1-\gamma)^k / (k \ln(1/\gamma))$ for $\eta = 0$, the logarithmic number; $\eta = 1$ is the geometric one.
    The smaller eta, the less the selection costs, and the more likely it is that there are very few runs. Source:
    Papernot and Steinke (2022), definition 1.

    Args:
        gamma: how soon runs end, from 1e-4 up to 1.
        eta: shape, above -1 and at most 20.

    Raises:
        ValueError: if a number is out of range.

    Example:
        >>> runs = NumberOfRuns.expecting(20, eta=0.0)
        >>> print(f"{runs.mean:.3f} {runs.gamma:.4f} {runs.probability(1):.3f}")
        20.000 0.0110 0.219
    """

    gamma: OpenProbability
    eta: Finite = 0.0

    def __post_init__(self) -> None:
        if not -1 < self.eta <= _LARGEST_ETA:
            raise ValueError(f"eta is {self.eta}, but must be above -1 and at most {_LARGEST_ETA:g}.")
        if self.gamma < _LEAST_GAMMA:
            raise ValueError(f"gamma is {self.gamma}, but must be at least {_LEAST_GAMMA:g}: expect fewer runs.")

    @classmethod
    def expecting(cls, mean: float, eta: Finite = 0.0) -> NumberOfRuns:
        """The number of a shape that has this mean.

        Args:
            mean: expected number of runs, above 1.
            eta: shape, above -1; 0 is the logarithmic number, 1 the geometric one.

        Raises:
            ValueError: if no number has that mean, or it is too large.
        """
        if not 1 < mean < math.inf:
            raise ValueError(f"mean is {mean}, but an expected number of runs is finite and above 1.")
        cls(0.5, eta)
        most = _mean(_LEAST_GAMMA, eta)
        if mean > most:
            raise ValueError(f"mean is {mean:g}, but for eta {eta:g} at most {most:.4g} runs may be expected.")
        low, high = math.log(_LEAST_GAMMA), math.log1p(-1e-9)

        def excess(log_gamma: float) -> float:
            return math.log(_mean(math.exp(log_gamma), eta) / mean)

        if excess(high) > 0:
            raise ValueError(f"mean is {mean}, but an expected number of runs must not be that close to 1.")
        return cls(min(1 - 1e-9, max(_LEAST_GAMMA, math.exp(optimize.brentq(excess, low, high, xtol=1e-14)))), eta)

    @property
    def mean(self) -> float:
        r"""`eta (1 - gamma) / (gamma (1 - gamma^eta))`, and `(1/gamma - 1) / ln(1/gamma)` for eta 0."""
        return _mean(self.gamma, self.eta)

    @property
    def most(self) -> int:
        """A number that is passed with a probability below 1e-45."""
        return len(_survival(self.gamma, self.eta))

    def probability(self, number: Count) -> float:
        """The probability of exactly so many runs.

        Args:
            number: of runs.
        """
        survival = _survival(self.gamma, self.eta)
        if not 1 <= number <= len(survival):
            return 0.0
        return float(survival[number - 1] - (survival[number] if number < len(survival) else 0.0))

    def draw(self, generator: SecureGenerator | None = None) -> int:
        """A number from the secure generator, which nobody may learn.

        Uniform numbers of 128 bits are as fine near zero as floats are, so that every number up to `most` has its
        probability to ten digits.

        Args:
            generator: for tests; left out, the one of the process, which has no seed.
        """
        uniform = int.from_bytes((generator or secure_generator()).bytes(16), "little") * 2.0**-128
        survival = _survival(self.gamma, self.eta)
        # K is the number of k with P[K >= k] > U.
        return max(1, int(np.searchsorted(-survival, -uniform, side="left")))


def _mean(gamma: float, eta: float) -> float:
    log = -math.log(gamma)
    # `eta / (1 - gamma^eta)` tends to 1 / log.
    ratio = 1 / log if abs(eta) * log < 1e-12 else -eta / math.expm1(-eta * log)
    return ratio * (1 - gamma) / gamma


@lru_cache(maxsize=32)
def _survival(gamma: float, eta: float) -> Array:
    """`P[K >= k]` for k = 1, 2, ... as far as it is not negligible, by sums of positive terms from the far end."""
    length = 64
    while True:
        number = np.arange(1, length, dtype=np.float64)
        # ln P[K = k + 1] / P[K = k] = ln (1 - gamma)(k + eta) / (k + 1).
        steps = np.log1p(-gamma) + np.log((number + eta) / (number + 1))
        logarithms = np.concatenate([[0.0], np.cumsum(steps)])
        # Past the mode the tail is about geometric: its sum is the next term over gamma.
        if logarithms[-1] < _NEGLIGIBLE + math.log(gamma) and steps[-1] < 0:
            break
        length *= 2
    kept = int(np.flatnonzero(logarithms > _NEGLIGIBLE + math.log(gamma))[-1]) + 1
    masses = np.exp(logarithms[:kept] - logarithms[:kept].max())
    survival = np.cumsum(masses[::-1])[::-1]
    survival = survival / survival[0]
    survival.setflags(write=False)
    return np.asarray(survival)
