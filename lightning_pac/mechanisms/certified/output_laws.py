"""Knowledge about the law of an output: it decides what can be proven and which values may be released."""

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from scipy.spatial import KDTree

from lightning_pac._validation import validated
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.information import Array, check_budget, entropy
from lightning_pac.mechanisms.certified.certificate import Certificate, check_weights, merge_equal
from lightning_pac.mechanisms.certified.mixture_noise import MixtureNoise
from lightning_pac.mechanisms.certified.noise_certificate import (
    bounded_output_information,
    logdet_information,
    scale_noise,
    scale_to_bound,
)
from lightning_pac.mechanisms.certified.non_gaussianity import certified_correction, density_critic, transport_critic
from lightning_pac.mechanisms.deviation_span import Span
from lightning_pac.mechanisms.variances import logdet_variances
from lightning_pac.randomness import SecureGenerator

__all__ = ["BoundedOutputs", "FiniteOutputs", "KnownMoments", "OutputLaw"]

# Values that arithmetic in another order gave are this close, in units of the noise's smallest deviation.
_MATCH = 2.0**-12
# F, the critic's largest value: the margin of E_N e^f grows as sinh F, so that a larger one needs more draws.
_CRITIC_BOUND = 4.0
_CRITICS = (density_critic, transport_critic)
_ATTEMPTS = 3


class OutputLaw(ABC):
    """Knowledge about the law of an output before noise."""

    dimension: int

    @abstractmethod
    def check_budget(self, budget: float) -> None:
        """Raise a `ValueError` if the budget asks for no noise at all."""

    @abstractmethod
    def scale(
        self, noise: MixtureNoise, budget: float, confidence: float, num_draws: int, generator: SecureGenerator
    ) -> tuple[MixtureNoise, Certificate]:
        """The noise times a factor for which a bound within the budget is proven, and the proof."""

    @abstractmethod
    def reference(self, budget: float) -> tuple[MixtureNoise, Array | None]:
        """The shape of the log-det rule, in coordinates along an orthonormal basis (d x r), or None for all of them."""

    @abstractmethod
    def along(self, basis: Array) -> "OutputLaw":
        """The law of the coordinates along an orthonormal basis, shape (d, r)."""

    @abstractmethod
    def admit(self, values: Array, deviation: float) -> Array:
        """The values of shape (n, d) that are released for these, all of them covered by the law.

        Raises:
            PrivacyViolationError: If a value is not covered.
        """

    @property
    @abstractmethod
    def condition(self) -> str:
        """One sentence for the privacy card."""


@validated
@dataclasses.dataclass(frozen=True, eq=False)
class FiniteOutputs(OutputLaw):
    """The output takes one of finitely many values with known probabilities, one for each possible secret.

    Args:
        outputs: One row per secret, shape (m, d).
        weights: Prior of the secrets, shape (m,); uniform if None.

    Raises:
        ValueError: If there are fewer than two rows, no coordinates, or a value is not finite.
    """

    # Un-noised outputs stay out of logs.
    outputs: Array = dataclasses.field(repr=False)
    weights: Array | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        table = np.asarray(self.outputs, dtype=np.float64)
        if table.ndim != 2 or table.shape[1] == 0:
            raise ValueError(f"outputs must have shape (m, d), one row per secret, got {table.shape}.")
        if len(table) < 2:
            raise ValueError(f"{len(table)} output hides nothing: give those of at least two possible secrets.")
        if not np.isfinite(table).all():
            row = int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
            raise ValueError(f"Output {row} is not finite: map failures to a finite value inside the mechanism.")
        object.__setattr__(self, "outputs", table)
        object.__setattr__(self, "weights", check_weights(self.weights, len(table)))

    @property
    def dimension(self) -> int:  # type: ignore[override]
        """Number of coordinates."""
        return int(self.outputs.shape[1])

    @functools.cached_property
    def distinct(self) -> tuple[Array, Array]:
        """Distinct rows and their probabilities."""
        assert self.weights is not None
        return merge_equal(self.outputs, self.weights)

    @property
    def entropy(self) -> float:
        """Entropy of the output in nats."""
        return float(entropy(self.distinct[1]))

    @property
    def guess_prior(self) -> float:
        """Probability of the likeliest secret."""
        assert self.weights is not None
        return float(self.weights.max())

    def check_budget(self, budget: float) -> None:
        """Raise a `ValueError` if the budget reaches the entropy."""
        check_budget(budget)
        if budget >= self.entropy:
            raise ValueError(
                f"budget is {budget:.6g} nats, but must be below the outputs' entropy of {self.entropy:.6g}: "
                "releasing the output exactly is within it, so no noise is needed."
            )

    def scale(
        self, noise: MixtureNoise, budget: float, confidence: float, num_draws: int, generator: SecureGenerator
    ) -> tuple[MixtureNoise, Certificate]:
        """Scale by the exact finite-secret certificate."""
        points, mass = self.distinct
        return scale_noise(points, mass, noise, budget, confidence, num_draws, generator)

    def reference(self, budget: float) -> tuple[MixtureNoise, Array | None]:
        """The log-det rule's noise within the span of the deviations."""
        points, mass = self.distinct
        span = Span.of(points, mass)
        variances = logdet_variances(span.eigenvalues, budget)
        return MixtureNoise.gaussian(np.diag(variances)), span.expand(np.eye(span.rank)).T

    def along(self, basis: Array) -> "FiniteOutputs":
        """The rows' coordinates, from the mean: far from zero, products would round away by how much rows differ."""
        points, mass = self.distinct
        return FiniteOutputs((self.outputs - mass @ points) @ basis, self.weights)

    def admit(self, values: Array, deviation: float) -> Array:
        """The row that each value is, up to arithmetic in another order."""
        _check_finite(values)
        tree, points = self._tree
        tolerance = _MATCH * deviation
        # The second nearest shows whether the nearest is in doubt; where there is none its distance is infinite.
        nearest = tree.query(values, k=2)
        distances, rows = np.asarray(nearest[0]), np.asarray(nearest[1])
        covered = distances[:, 0] <= tolerance
        if not covered.all():
            raise PrivacyViolationError(
                "values has one that is not among the outputs that the noise was certified for: certify it for the "
                "records that are predicted, or for bounded outputs."
            )
        # A second output this near may be the one that was meant; a distance of exactly 0 leaves no doubt.
        ambiguous = (distances[:, 1] <= 2 * tolerance) & (distances[:, 0] > 0)
        if ambiguous.any():
            raise PrivacyViolationError(
                "values has one that lies between two outputs that the noise was certified for: round the "
                "mechanism's outputs so that different ones are further apart."
            )
        return np.asarray(points[rows[:, 0]])

    @property
    def condition(self) -> str:
        """The assumptions of the certificate."""
        return (
            f"The secret is one of {len(self.outputs)} known possibilities with the declared probabilities, and its "
            "output was computed for each of them; outputs of anything else are refused."
        )

    @functools.cached_property
    def _tree(self) -> tuple[KDTree, Array]:
        points = self.distinct[0]
        return KDTree(points), points


@validated
@dataclasses.dataclass(frozen=True, eq=False)
class KnownMoments(OutputLaw):
    """The output's mean and covariance are known exactly; a sample covariance of an unknown law is not that.

    A covariance that the true one stays below, with the same mean, is as good. With a `sampler` the log-det bound is
    lowered by a certified correction for non-Gaussian outputs, whose critic is fitted to other draws than certify it.

    Args:
        mean: Shape (d,).
        covariance: Shape (d, d).
        sampler: Draws n independent outputs of exactly this law, shape (n, d).
    """

    mean: Array
    covariance: Array
    sampler: Callable[[int], Array] | None = None

    def __post_init__(self) -> None:
        mean, covariance = np.asarray(self.mean, np.float64), np.asarray(self.covariance, np.float64)
        if mean.ndim != 1 or len(mean) == 0 or covariance.shape != (len(mean), len(mean)):
            raise ValueError(
                f"mean has shape {mean.shape} and covariance {covariance.shape}, but they must be (d,) and (d, d)."
            )
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all() and np.allclose(covariance, covariance.T)):
            raise ValueError("mean and covariance must be finite, and covariance symmetric.")
        variances = np.linalg.eigvalsh(covariance)
        # The smallest eigenvalues of a singular covariance may round to below 0.
        if variances[0] < -1e-9 * abs(variances[-1]):
            raise ValueError(
                f"covariance has a direction of variance {variances[0]:.6g}, so it is not a covariance: check it."
            )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", covariance)

    @property
    def dimension(self) -> int:  # type: ignore[override]
        """Number of coordinates."""
        return len(self.mean)

    def check_budget(self, budget: float) -> None:
        """Raise a `ValueError` if the budget is not positive."""
        check_budget(budget)

    def scale(
        self, noise: MixtureNoise, budget: float, confidence: float, num_draws: int, generator: SecureGenerator
    ) -> tuple[MixtureNoise, Certificate]:
        """Scale by log-det, less the correction where there are draws of the law and the noise is Gaussian."""
        # Certain to meet the budget: what follows only tries to make the noise smaller.
        start = scale_to_bound(noise, budget, lambda scaled: logdet_information(self.covariance, scaled))
        if self.sampler is not None and noise.is_gaussian:
            factor = 1.0
            # A pilot on other draws: shrink as long as 95 % of the correction keep the bound within the budget.
            for step in np.geomspace(0.99, 0.5, 12):
                correction = self._correction(start.scaled(step), (1 + confidence) / 2, num_draws, generator)
                if logdet_information(self.covariance, start.scaled(step)) - 0.95 * correction > budget:
                    break
                factor = float(step)
            for attempt in range(_ATTEMPTS):
                candidate = start.scaled(factor)
                if factor >= 1:
                    break
                # Attempt t fails with probability f / 2^(t + 1) at most, all together with less than f.
                share = 1 - (1 - confidence) / 2 ** (attempt + 1)
                bound = logdet_information(self.covariance, candidate)
                bound -= self._correction(candidate, share, num_draws, generator)
                if bound <= budget:
                    return candidate, Certificate(max(bound, 0.0), confidence, "logdet-dv")
                factor *= 1.03
        return start, Certificate(logdet_information(self.covariance, start), 1.0, "logdet")

    def reference(self, budget: float) -> tuple[MixtureNoise, Array | None]:
        """The log-det rule's noise within the span of the covariance."""
        eigenvalues, vectors = np.linalg.eigh(self.covariance)
        # A relative variance below 1e-12 is rounding: along such a direction the mean is released.
        kept = eigenvalues > 1e-12 * eigenvalues[-1]
        return MixtureNoise.gaussian(np.diag(logdet_variances(eigenvalues[kept], budget))), vectors[:, kept]

    def along(self, basis: Array) -> "KnownMoments":
        """The moments of the coordinates, from the mean."""
        sampler = self.sampler
        projected = None if sampler is None else (lambda size: np.asarray((sampler(size) - self.mean) @ basis))
        return KnownMoments(np.zeros(basis.shape[1]), basis.T @ self.covariance @ basis, projected)

    def admit(self, values: Array, deviation: float) -> Array:
        """Every value: that it follows the law is the user's declaration."""
        _check_finite(values)
        return values

    @property
    def condition(self) -> str:
        """The assumptions of the certificate."""
        return (
            "The mean and the covariance of the output, over the secret's law, are those declared; they were not "
            "estimated from a sample. Every record is drawn from that law."
        )

    def _correction(self, noise: MixtureNoise, confidence: float, num_draws: int, generator: SecureGenerator) -> float:
        assert self.sampler is not None
        # Moments of the release W + B, W and B independent; B may have a mean.
        shift = noise.weights @ noise.means
        mean, covariance = self.mean + shift, self.covariance + noise.second_moment() - np.outer(shift, shift)
        training = self.sampler(num_draws) + noise.sample(num_draws, generator)
        # One half fits the critics, the other chooses between them, and fresh draws certify the choice.
        half = len(training) // 2
        fitted = [make(training[:half], mean, covariance, _CRITIC_BOUND) for make in _CRITICS]
        critic = max(
            fitted,
            key=lambda candidate: certified_correction(
                candidate, training[half:], mean, covariance, _CRITIC_BOUND, confidence, generator
            ),
        )
        fresh = self.sampler(num_draws) + noise.sample(num_draws, generator)
        return certified_correction(critic, fresh, mean, covariance, _CRITIC_BOUND, confidence, generator)


@validated
@dataclasses.dataclass(frozen=True, eq=False)
class BoundedOutputs(OutputLaw):
    """Nothing is known of the output's law: outputs are cut to a public ball, and the bound holds for every law on it.

    Args:
        centre: Public, shape (d,).
        radius: Public; an output further from the centre is moved onto the sphere.

    Example:
        >>> BoundedOutputs(np.zeros(2), 1.0).admit(np.array([[3.0, 4.0]]), 1.0)
        array([[0.6, 0.8]])
    """

    centre: Array
    radius: float

    def __post_init__(self) -> None:
        centre = np.asarray(self.centre, np.float64)
        if centre.ndim != 1 or len(centre) == 0 or not np.isfinite(centre).all():
            raise ValueError(f"centre must be a finite point of shape (d,), got shape {centre.shape}.")
        if not 0 < self.radius < math.inf:
            raise ValueError(f"radius must be positive and finite, got {self.radius!r}.")
        object.__setattr__(self, "centre", centre)
        if not self._within > 0.5 * self.radius:
            raise ValueError(
                f"radius is {self.radius:g}, too little for floating-point numbers as far from zero as centre: "
                "subtract a public constant from the outputs."
            )

    @property
    def dimension(self) -> int:  # type: ignore[override]
        """Number of coordinates."""
        return len(self.centre)

    def check_budget(self, budget: float) -> None:
        """Raise a `ValueError` if the budget is not positive."""
        check_budget(budget)

    def scale(
        self, noise: MixtureNoise, budget: float, confidence: float, num_draws: int, generator: SecureGenerator
    ) -> tuple[MixtureNoise, Certificate]:
        """Scale by the capacity of the noise."""
        scaled = scale_to_bound(noise, budget, lambda other: bounded_output_information(self.radius, other))
        return scaled, Certificate(bounded_output_information(self.radius, scaled), 1.0, "capacity")

    def reference(self, budget: float) -> tuple[MixtureNoise, Array | None]:
        """Isotropic noise, the best there is for a ball."""
        return MixtureNoise.gaussian(np.eye(self.dimension)), None

    def along(self, basis: Array) -> "BoundedOutputs":
        """The ball of the coordinates."""
        return BoundedOutputs(self.centre @ basis, self.radius)

    def admit(self, values: Array, deviation: float) -> Array:
        """The values, cut to the ball; its centre for what is not finite, since a refusal would tell of a record."""
        with np.errstate(all="ignore"):
            deviations = values - self.centre
            lengths = np.linalg.norm(deviations, axis=1, keepdims=True)
            # The floor spares an output at the centre 0 / 0.
            cut = deviations * np.minimum(1.0, self._within / np.maximum(lengths, 1e-300))
        return np.asarray(self.centre + np.where(np.isfinite(lengths), cut, 0.0))

    @property
    def condition(self) -> str:
        """The assumptions of the certificate."""
        return (
            f"Outputs are cut to a public ball of radius {self.radius:g} before noise; nothing else is assumed of them "
            "or of the records."
        )

    @property
    def _within(self) -> float:
        """The radius less what rounding may add: to a length, and to its sum with the centre."""
        furthest = float(np.abs(self.centre).max()) + self.radius
        return self.radius - 2 * math.sqrt(len(self.centre)) * math.ulp(furthest)


def _check_finite(values: Array) -> None:
    if not np.isfinite(values).all():
        raise ValueError("values are not finite: fix the mechanism before its outputs are noised.")
