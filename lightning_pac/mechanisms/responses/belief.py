"""The posterior of the secret given all releases, and the noisy channels calibrated to it."""

import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lightning_pac.information import Array
from lightning_pac.mechanisms.deviation_span import Span, check_resolution, check_spread
from lightning_pac.mechanisms.responses.votes import (
    SMALLEST_MASS,
    four_class_channel,
    noise_variances,
    signal_to_noise_of,
    single_vote_channel,
    three_class_channel,
    two_class_separation,
)
from lightning_pac.mechanisms.variances import CompositionRule
from lightning_pac.randomness import round_to_grid

__all__ = ["Belief"]

Scalar = TypeVar("Scalar", bound=np.generic)

# Noise is standard normal in whitened coordinates, so this step is the release grid of every release.
RELEASE_STEP = 2.0**-10

# Above this, evidence lacks nothing of a class whose mass, as a sum of exponentials, has vanished (below 1e-290).
_UNDERFLOW = 1e-260


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
            raise ValueError(
                f"prior must be non-negative with sum 1 to nine digits, got a sum of {probabilities.sum():.9g}: "
                "divide it by its sum in float64."
            )
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
                f"secret is not one of the {self.num_secrets} secrets of positive prior: use its own pool."
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
    ) -> "TwoClassChannel | ThreeClassChannel | FourClassChannel | VoteChannel":
        """Channel for votes, `inverse[j]` being the class (0 to classes - 1) that secret j votes for."""
        masses: list[float] = np.bincount(inverse, self.current, classes).tolist()
        if classes == 2:
            return TwoClassChannel(self, inverse, masses, budget, rule)
        if classes == 3:
            return ThreeClassChannel(self, inverse, masses, budget, rule)
        if classes == 4:
            return FourClassChannel(self, inverse, masses, budget, rule)
        return VoteChannel(self, inverse, masses, budget, rule)

    def score_channel(self, outputs: Array, budget: float, rule: CompositionRule) -> "ScoreChannel":
        """Channel for vectors, one row per secret of positive prior."""
        return ScoreChannel(self, outputs, budget, rule)

    def multiply(self, log_likelihood: Array) -> None:
        """Bayes' rule with one log-likelihood per secret of positive prior."""
        self._set_log(self._log + log_likelihood)

    def multiply_classes(self, inverse: npt.NDArray[np.intp], masses: list[float], log_likelihood: list[float]) -> None:
        """Bayes' rule with one log-likelihood per class; the normalization needs the class masses only."""
        largest = max(log_likelihood)
        # Of large log-likelihoods only the differences are free of a rounding that would not cancel in the sum.
        relative = [ll - largest for ll in log_likelihood]
        evidence = 0.0
        for mass, ll in zip(masses, relative, strict=True):
            evidence += mass * math.exp(ll)
        if evidence < _UNDERFLOW:
            self.multiply(np.array(log_likelihood)[inverse])
            return
        log_evidence = math.log(evidence)
        self._log += np.array([ll - log_evidence for ll in relative])[inverse]
        np.exp(self._log, out=self.current)

    def _set_log(self, log_weights: Array) -> None:
        # Subtracting the largest keeps the sum of exponentials from over- and underflowing.
        largest = log_weights.max()
        weights = np.exp(log_weights - largest)
        total = weights.sum()
        self._log = log_weights - (largest + math.log(total))
        self.current = weights / total


class TwoClassChannel:
    """Release of one vote between two classes: one direction, one scalar of noise."""

    def __init__(
        self, belief: Belief, inverse: npt.NDArray[np.intp], masses: list[float], budget: float, rule: CompositionRule
    ) -> None:
        self._belief, self._inverse, self.masses = belief, inverse, masses
        self._half = two_class_separation(masses[0], masses[1], signal_to_noise_of(budget, rule))

    def release(self, vote: int, noise: list[float]) -> list[float]:
        """The noised one-hot vector of a vote."""
        signal = self._half if vote == 0 else -self._half
        # Coordinates h and -h are the one-hot vectors (1, 0) and (0, 1).
        shift = _on_release_grid(signal + noise[0]) / (2 * self._half)
        return [0.5 + shift, 0.5 - shift]

    def update(self, value: list[float]) -> None:
        """Condition the belief on a released vector."""
        # ln N(value; one-hot vector) of either class, without the part that both share.
        evidence = (value[0] - value[1]) * self._half * self._half
        self._belief.multiply_classes(self._inverse, self.masses, [evidence, -evidence])


class ThreeClassChannel:
    """Release of one vote among three classes, in two directions; so few numbers are faster without arrays."""

    def __init__(
        self, belief: Belief, inverse: npt.NDArray[np.intp], masses: list[float], budget: float, rule: CompositionRule
    ) -> None:
        self._belief, self._inverse, self.masses = belief, inverse, masses
        self._whitened, self._variances = three_class_channel(masses, budget, rule)

    def release(self, vote: int, noise: list[float]) -> list[float]:
        """The noised one-hot vector of a vote."""
        (one, other), (first, second) = self._variances, self._whitened[vote]
        one *= _on_release_grid(first + noise[0])
        other *= _on_release_grid(second + noise[1])
        # 1/k + W e x = 1/k + U sqrt(e) x; the constant 1/k is what all one-hot vectors have in common.
        return [1 / 3 + a * one + b * other for a, b in self._whitened]

    def update(self, value: list[float]) -> None:
        """Condition the belief on a released vector."""
        (x, y, z), ((a, b), (c, d), (e, f)) = value, self._whitened
        # Coordinates of the release in units of the deviations, then `w.x - |w|^2/2` for each class.
        one, other = a * x + c * y + e * z, b * x + d * y + f * z
        evidence = [first * (one - first / 2) + second * (other - second / 2) for first, second in self._whitened]
        self._belief.multiply_classes(self._inverse, self.masses, evidence)


class FourClassChannel:
    """Release of one vote among four classes, in three directions, without arrays."""

    def __init__(
        self, belief: Belief, inverse: npt.NDArray[np.intp], masses: list[float], budget: float, rule: CompositionRule
    ) -> None:
        self._belief, self._inverse, self.masses = belief, inverse, masses
        self._whitened, self._variances = four_class_channel(masses, budget, rule)

    def release(self, vote: int, noise: list[float]) -> list[float]:
        """The noised one-hot vector of a vote."""
        (one, two, three), (first, second, third) = self._variances, self._whitened[vote]
        one *= _on_release_grid(first + noise[0])
        two *= _on_release_grid(second + noise[1])
        three *= _on_release_grid(third + noise[2])
        return [0.25 + a * one + b * two + c * three for a, b, c in self._whitened]

    def update(self, value: list[float]) -> None:
        """Condition the belief on a released vector."""
        one = two = three = 0.0
        for (a, b, c), part in zip(self._whitened, value, strict=True):
            one += a * part
            two += b * part
            three += c * part
        evidence = [a * (one - a / 2) + b * (two - b / 2) + c * (three - c / 2) for a, b, c in self._whitened]
        self._belief.multiply_classes(self._inverse, self.masses, evidence)


class VoteChannel:
    """Release of one vote among k classes, in k - 1 directions."""

    def __init__(
        self, belief: Belief, inverse: npt.NDArray[np.intp], masses: list[float], budget: float, rule: CompositionRule
    ) -> None:
        self._belief, self._inverse, self.masses = belief, inverse, masses
        self._whitened, self._variances = single_vote_channel(masses, budget, rule)

    def release(self, vote: int, noise: list[float]) -> list[float]:
        """The noised one-hot vector of a vote."""
        coordinates = round_to_grid(self._whitened[vote] + np.array(noise), RELEASE_STEP)
        # 1/k + U sqrt(e) x, as for three classes.
        value: list[float] = (1 / len(self.masses) + (self._whitened * self._variances) @ coordinates).tolist()
        return value

    def update(self, value: list[float]) -> None:
        """Condition the belief on a released vector."""
        # x = W^T R, and w.x - |w|^2/2 for each class.
        coordinates = np.array(value) @ self._whitened
        evidence = self._whitened @ coordinates - 0.5 * np.einsum("kr,kr->k", self._whitened, self._whitened)
        self._belief.multiply_classes(self._inverse, self.masses, evidence.tolist())


class ScoreChannel:
    """Release of one vector, in the directions in which the vectors of the secrets differ."""

    def __init__(self, belief: Belief, outputs: Array, budget: float, rule: CompositionRule) -> None:
        self._belief = belief
        # Unnormalized, since raising a mass enlarges the covariance and only adds noise.
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
        # w_j.x - |w_j|^2/2 for each secret, its Gaussian log-density without the common part.
        self._belief.multiply(self._whitened @ coordinates - 0.5 * (self._whitened**2).sum(axis=1))


def _on_release_grid(value: float) -> float:
    return RELEASE_STEP * round(value / RELEASE_STEP)
