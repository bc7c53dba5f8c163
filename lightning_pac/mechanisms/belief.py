"""The posterior of the secret given all releases, and the noisy channels calibrated to it."""

import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lightning_pac.mechanisms.span import Span, check_resolution, check_spread
from lightning_pac.mechanisms.variances import Array, CompositionRule
from lightning_pac.mechanisms.votes import (
    SMALLEST_MASS,
    noise_variances,
    signal_to_noise_of,
    single_vote_channel,
    two_class_separation,
)
from lightning_pac.randomness import round_to_grid

__all__ = ["Belief"]

Scalar = TypeVar("Scalar", bound=np.generic)

# Noise is standard normal in whitened coordinates, so this step is the release grid of every release.
RELEASE_STEP = 2.0**-10

# A class of smaller mass may have a logarithm that its mass, as a sum of exponentials, no longer shows.
_UNDERFLOW = 1e-280


class Belief:
    """Log-probabilities of the secrets of positive prior, updated by Bayes' rule.

    A true posterior rarely calls the true secret unlikely: whatever the queries, the probability that the belief in it
    ever falls to x is at most `x / P(secret)` (the likelihood ratio of all transcripts to those of the secret is a
    supermartingale). So a class of vanishing mass holds the secret only if the state was tampered with; it still gets
    the noise of a small mass, and the update stays finite.
    """

    def __init__(self, prior: npt.ArrayLike) -> None:
        probabilities = np.array(prior, dtype=np.float64)
        if probabilities.ndim != 1 or len(probabilities) == 0:
            raise ValueError(f"prior must be one row of probabilities, got shape {probabilities.shape}.")
        if not (probabilities >= 0).all() or not math.isclose(probabilities.sum(), 1, abs_tol=1e-9):
            raise ValueError(f"prior must be non-negative with sum 1, got a sum of {probabilities.sum()!r}.")
        self.num_secrets = len(probabilities)
        self._support = np.flatnonzero(probabilities > 0)
        self._set_log(np.log(probabilities[self._support]))
        self.prior_entropy = float(-(self.current * self._log).sum())

    @property
    def probabilities(self) -> Array:
        """Probability of each secret, shape (m,)."""
        full = np.zeros(self.num_secrets)
        full[self._support] = self.current
        return full

    @property
    def log_probabilities(self) -> Array:
        """Log-probability of each secret, shape (m,)."""
        full = np.full(self.num_secrets, -math.inf)
        full[self._support] = self._log
        return full

    def position(self, secret: int) -> int:
        """Position of a secret among those of positive prior."""
        place = int(np.searchsorted(self._support, secret))
        if place == len(self._support) or self._support[place] != secret:
            raise ValueError(
                f"The secret is not one of the {self.num_secrets} secrets of positive prior: use its own pool."
            )
        return place

    def restrict(self, outputs: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """Columns of the secrets of positive prior."""
        return outputs if len(self._support) == self.num_secrets else outputs[..., self._support]

    def restore(self, log_probabilities: Array) -> None:
        """Replace the belief by a recorded one."""
        if log_probabilities.shape != (self.num_secrets,):
            raise ValueError(f"A belief over {log_probabilities.shape} does not fit {self.num_secrets} secrets.")
        if not np.array_equal(np.flatnonzero(np.isfinite(log_probabilities)), self._support):
            raise ValueError("The belief excludes other secrets than the prior does: it belongs to another pool.")
        self._log = log_probabilities[self._support].copy()
        self.current = np.exp(self._log)

    def vote_channel(
        self, inverse: npt.NDArray[np.intp], classes: int, budget: float, rule: CompositionRule
    ) -> "TwoClassChannel | VoteChannel":
        """Channel for votes, `inverse[j]` being the class (0 to classes - 1) that secret j votes for."""
        masses = np.bincount(inverse, weights=self.current, minlength=classes).astype(np.float64, copy=False)
        if classes == 2:
            return TwoClassChannel(self, inverse, masses, budget, rule)
        return VoteChannel(self, inverse, masses, budget, rule)

    def score_channel(self, outputs: Array, budget: float, rule: CompositionRule) -> "ScoreChannel":
        """Channel for vectors, one row per secret of positive prior."""
        return ScoreChannel(self, outputs, budget, rule)

    def multiply(self, log_likelihood: Array) -> None:
        """Bayes' rule with one log-likelihood per secret of positive prior."""
        self._set_log(self._log + log_likelihood)

    def multiply_classes(self, inverse: npt.NDArray[np.intp], masses: list[float], log_likelihood: list[float]) -> None:
        """Bayes' rule with one log-likelihood per class; the normalization needs the class masses only."""
        if min(masses) < _UNDERFLOW:
            self.multiply(np.array(log_likelihood)[inverse])
            return
        largest = max(log_likelihood)
        evidence = sum(mass * math.exp(ll - largest) for mass, ll in zip(masses, log_likelihood, strict=True))
        if evidence < _UNDERFLOW:
            self.multiply(np.array(log_likelihood)[inverse])
            return
        shift = largest + math.log(evidence)
        self._log = self._log + np.array([ll - shift for ll in log_likelihood])[inverse]
        self.current = np.exp(self._log)

    def _set_log(self, log_weights: Array) -> None:
        largest = log_weights.max()
        weights = np.exp(log_weights - largest)
        total = weights.sum()
        self._log = log_weights - (largest + math.log(total))
        self.current = weights / total


class TwoClassChannel:
    """Release of one vote between two classes: one direction, one scalar of noise."""

    def __init__(
        self, belief: Belief, inverse: npt.NDArray[np.intp], masses: Array, budget: float, rule: CompositionRule
    ) -> None:
        self._belief = belief
        self._inverse = inverse
        self.masses: list[float] = masses.tolist()
        self._half = two_class_separation(self.masses[0], self.masses[1], signal_to_noise_of(budget, rule))

    def release(self, vote: int, noise: Array) -> list[float]:
        """The noised one-hot vector of a vote."""
        signal = self._half if vote == 0 else -self._half
        shift = round_to_grid(signal + float(noise[0]), RELEASE_STEP) / (2 * self._half)
        return [0.5 + shift, 0.5 - shift]

    def update(self, value: list[float] | Array) -> None:
        """Condition the belief on a released vector."""
        evidence = float((value[0] - value[1]) * self._half) * self._half
        self._belief.multiply_classes(self._inverse, self.masses, [evidence, -evidence])


class VoteChannel:
    """Release of one vote among k classes, in k - 1 directions."""

    def __init__(
        self, belief: Belief, inverse: npt.NDArray[np.intp], masses: Array, budget: float, rule: CompositionRule
    ) -> None:
        self._belief = belief
        self._inverse = inverse
        self.masses: list[float] = masses.tolist()
        self._whitened, self._variances = single_vote_channel(self.masses, budget, rule)

    def release(self, vote: int, noise: Array) -> Array:
        """The noised one-hot vector of a vote."""
        coordinates = round_to_grid(self._whitened[vote] + noise, RELEASE_STEP)
        return np.asarray(1 / len(self.masses) + (self._whitened * self._variances) @ coordinates)

    def update(self, value: list[float] | Array) -> None:
        """Condition the belief on a released vector."""
        coordinates = np.asarray(value) @ self._whitened
        evidence = self._whitened @ coordinates - 0.5 * np.einsum("kr,kr->k", self._whitened, self._whitened)
        self._belief.multiply_classes(self._inverse, self.masses, evidence.tolist())


class ScoreChannel:
    """Release of one vector, in the directions in which the vectors of the secrets differ."""

    def __init__(self, belief: Belief, outputs: Array, budget: float, rule: CompositionRule) -> None:
        self._belief = belief
        self._span = Span.of(outputs, np.maximum(belief.current, SMALLEST_MASS), stored=True)
        variances = noise_variances(self._span.eigenvalues, budget, rule)
        check_spread(variances)
        self._deviations = np.sqrt(variances)
        check_resolution(self._span.mean, self._deviations)
        self._whitened = self._span.output_coordinates / self._deviations

    @property
    def rank(self) -> int:
        """Number of directions that get noise."""
        return self._span.rank

    def loading(self) -> Array:
        """Square root of the covariance of the release, shape (d, r)."""
        return self._span.expand(np.diag(self._deviations)).T

    def release(self, secret: int, noise: Array) -> Array:
        """The noised vector of a secret; what lies outside the kept directions is replaced by the mean."""
        coordinates = round_to_grid(self._whitened[secret] + noise, RELEASE_STEP)
        return self._span.mean + self._span.expand(coordinates * self._deviations)

    def update(self, value: Array) -> None:
        """Condition the belief on a released vector."""
        coordinates = self._span.coordinates(value) / self._deviations
        self._belief.multiply(self._whitened @ coordinates - 0.5 * (self._whitened**2).sum(axis=1))
