"""Gaussian noise that meets a mutual information budget, for any function of a finite secret."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from lightning_pac._validation import Natural, Numbers, PrivateNumbers, validated
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.information import Array, check_budget
from lightning_pac.mechanisms.certified import Certificate, check_weights, merge_equal, scale_to_budget
from lightning_pac.mechanisms.deviation_span import Span, check_spread, resolved_variances
from lightning_pac.mechanisms.pac_noise.directions import Axes, Directions
from lightning_pac.mechanisms.variances import linear_variances, logdet_bound, logdet_variances
from lightning_pac.randomness import SecureGenerator, round_to_grid, secure_generator

__all__ = ["GaussianNoise", "NoiseRule", "calibrate_gaussian", "calibrate_to_belief"]

NoiseRule = Literal["linear", "logdet", "coordinate", "isotropic", "exact"]
"""Rules that shape Gaussian noise for a budget of mutual information; `calibrate_gaussian` describes each."""

# A matrix of this size takes 128 MiB.
LARGEST_DENSE = 4096

# Noise is standard normal in whitened coordinates, so this step is the release grid of every release.
_RELEASE_STEP = 2.0**-10


@validated
@dataclasses.dataclass(frozen=True, eq=False)
class GaussianNoise:
    """Gaussian noise in factored form: directions and a variance along each.

    Attributes:
        directions: Orthonormal directions and the mean of the outputs.
        variances: Noise variance along each direction, shape (r,); where it is 0, the mean is released.
        certificate: Proof of the information bound; None for noise whose variances were only estimated.
        rule: How the variances were chosen.
        outputs: The outputs of positive weight that the noise was made for, shape (k, d).
    """

    directions: Directions
    variances: Array
    certificate: Certificate | None
    rule: str
    outputs: Array | None = dataclasses.field(default=None, repr=False)

    @property
    def dimension(self) -> int:
        """Number d of coordinates."""
        return len(self.directions.mean)

    @property
    def power(self) -> float:
        """Expected squared length of the noise."""
        return float(self.variances.sum())

    @property
    def mutual_information(self) -> float:
        """Proven bound on what one release tells about what `certificate.about` names, in nats.

        Raises:
            PrivacyViolationError: If nothing was proven.
        """
        if self.certificate is None:
            raise PrivacyViolationError(
                f"{self.rule} noise was made from estimated variances and proves nothing: "
                "calibrate_gaussian on the outputs of a finite secret space does."
            )
        return self.certificate.mutual_information

    def covariance(self) -> Array:
        """Covariance of the noise, shape (d, d).

        Raises:
            ValueError: If d > 4096; use `directions` and `variances`, which are its factors.
        """
        if self.dimension > LARGEST_DENSE:
            raise ValueError(
                f"A dense {self.dimension} x {self.dimension} covariance is refused: use its factors, "
                "`directions` and `variances`, or `sample`."
            )
        # Rows sqrt(e_i) u_i, so that root^T root = sum_i e_i u_i u_i^T.
        root = self.directions.expand(np.diag(np.sqrt(self.variances)))
        return np.asarray(root.T @ root)

    def sample(self, size: Natural | None = None, generator: SecureGenerator | None = None) -> Array:
        """Draw noise: shape (d,), or (size, d).

        Args:
            size: Number of draws; one without this dimension if None.
            generator: Source of the noise, the process-wide secure generator if None.
        """
        source = secure_generator() if generator is None else generator
        shape: tuple[int, ...] = (len(self.variances),) if size is None else (size, len(self.variances))
        return self.directions.expand(source.normal(shape) * np.sqrt(self.variances))

    def release(self, value: PrivateNumbers, generator: SecureGenerator | None = None) -> Array:
        """Noise one output: its mean, its deviation within the noised directions, and the noise.

        What lies outside the noised directions is replaced by the mean, for there would be no noise on it. In units of
        the noise's deviation, the release is rounded to a public grid of step 2**-10.

        Args:
            value: One of the outputs that the noise was made for, shape (d,).
            generator: Source of the noise, the process-wide secure generator if None.

        Raises:
            PrivacyViolationError: If the noise is not certified.
            ValueError: If the value is not one of the outputs, for which alone the bound holds.
        """
        return self.shown(self.draw(value, generator))

    def draw(self, value: PrivateNumbers, generator: SecureGenerator | None = None) -> Array:
        """The part of an output that `release` shows, along the noised directions in units of their deviations.

        A belief is updated with these: a value far from zero is rounded, and its coordinates with it.
        """
        _ = self.mutual_information
        output = np.asarray(value, dtype=np.float64)
        # All rows are compared: stopping at the one that is released would take longer for a later secret.
        alike = [] if self.outputs is None else [np.array_equal(output, row) for row in self.outputs]
        if not any(alike):
            raise ValueError("value is not among the outputs that the noise was made for: calibrate it with them.")
        source = secure_generator() if generator is None else generator
        whitened = self.whiten(output)
        return np.asarray(round_to_grid(whitened + source.normal(len(whitened)), _RELEASE_STEP))

    def whiten(self, value: Numbers) -> Array:
        """Coordinates of a value along the noised directions, in units of their deviations."""
        noised = self.variances > 0
        return np.asarray(self.directions.coordinates(np.asarray(value))[noised] / np.sqrt(self.variances[noised]))

    def shown(self, drawn: Array) -> Array:
        """The value with these coordinates along the noised directions; along the others it is the mean."""
        noised = self.variances > 0
        coordinates = np.zeros(len(self.variances))
        coordinates[noised] = drawn * np.sqrt(self.variances[noised])
        return np.asarray(self.directions.mean + self.directions.expand(coordinates))


@validated
def calibrate_gaussian(
    outputs: npt.ArrayLike | Sequence[npt.ArrayLike],
    budget: float,
    weights: npt.ArrayLike | None = None,
    rule: NoiseRule = "logdet",
    *,
    basis: npt.ArrayLike | None = None,
    confidence: float = 0.99,
    num_draws: int = 2**17,
    generator: SecureGenerator | None = None,
) -> GaussianNoise:
    r"""Gaussian noise B with $I(S; M(S) + B) \le b$ for a secret S from a finite space.

    The outputs of all m secrets are known, so their covariance $C = \sum_j P_j (Y_j - \mu)(Y_j - \mu)^T$ is exact.

    - `"logdet"`: least power with $\tfrac12 \ln\det(I + C \Sigma^{-1}) = b$. The default.
    - `"linear"`: $\Sigma = \mathrm{tr}(C^{1/2}) C^{1/2} / (2b)$, the papers' rule; never less power.
    - `"coordinate"`: the linear rule on the variances along the coordinate axes (or a public orthonormal `basis`); no
      eigenvectors needed (Efficient-PAC).
    - `"isotropic"`: equal noise on all coordinates with log-det bound b, the baseline.
    - `"exact"`: the log-det rule's shape, scaled down as far as the mutual information itself allows: by quadrature for
      two distinct outputs, else by sampling, with the certificate's confidence.

    With m outputs the noise of the first two rules has rank at most m - 1 and is kept in factored form, through the
    m x m Gram matrix when d > m. Outputs that are all identical get no noise: they say nothing about the secret.

    Args:
        outputs: Y, one row per secret, shape (m, d).
        budget: Mutual information b in nats.
        weights: Prior of the secrets, uniform if None.
        rule: Noise rule.
        basis: Public orthonormal matrix A, shape (d, d), for `"coordinate"`.
        confidence: Of the certificate of the exact rule.
        num_draws: Draws for the certificate of the exact rule.
        generator: Source of these draws, the process-wide secure generator if None.

    Raises:
        ValueError: If the outputs are not m > 1 finite vectors of one shape, the budget is not positive, or the budget
            is not below the entropy of the output.

    Source: *PAC-Private Algorithms*, Theorem 1 and Algorithms 1 and 2; *Residual-PAC*, Proposition 2; the exact rule is
    ours.

    Example:
        >>> outputs = [[-1.0], [1.0]]
        >>> [round(calibrate_gaussian(outputs, 0.5, rule=rule).power, 3) for rule in ("linear", "logdet", "exact")]
        [1.0, 0.582, 0.5]
    """
    matrix = _check_outputs(outputs)
    check_budget(budget)
    # Secrets whose outputs are equal share one row: what counts is the law of the output.
    distinct, mass = merge_equal(matrix, check_weights(weights, len(matrix)))
    entropy = float(-(mass * np.log(mass)).sum())
    if len(distinct) > 1 and budget >= entropy:
        raise ValueError(
            f"budget is {budget:.6g} nats, but must be below the outputs' entropy of {entropy:.6g}: "
            "releasing the output exactly is within it, so no noise is needed."
        )
    if basis is not None and rule != "coordinate":
        raise ValueError(f"A basis belongs to the coordinate rule, but the rule is {rule!r}.")
    if rule != "exact" or len(distinct) == 1:
        return _calibrate(distinct, mass, budget, rule, basis)
    span = _span(distinct, mass)
    variances = logdet_variances(span.eigenvalues, budget)
    # Shape (k, r); the log-det rule is scale 1.
    whitened = span.output_coordinates / np.sqrt(variances)
    source = secure_generator() if generator is None else generator
    scale, certificate = scale_to_budget(whitened, mass, budget, confidence, num_draws, source)
    return GaussianNoise(span, variances * scale**2, certificate, rule, distinct)


def calibrate_to_belief(outputs: npt.ArrayLike, budget: float, belief: npt.ArrayLike, rule: NoiseRule) -> GaussianNoise:
    """`calibrate_gaussian` for someone who holds a belief after earlier releases, by any rule but the exact one.

    Where the belief has narrowed so far that less than the budget is left to tell, there is noise all the same, as in
    `AdaptiveComposition`: what is released exactly would be so for everybody, and not only on the path taken.

    Args:
        outputs: Y, one row per secret, shape (m, d).
        budget: Mutual information b in nats.
        belief: Posterior of the secrets, shape (m,).
        rule: Noise rule.

    Raises:
        ValueError: If the outputs are not m > 1 finite vectors of one shape, or the budget is not positive.
    """
    matrix = _check_outputs(outputs)
    check_budget(budget)
    return _calibrate(*merge_equal(matrix, check_weights(belief, len(matrix))), budget, rule)


def _calibrate(
    distinct: Array, mass: Array, budget: float, rule: NoiseRule, basis: npt.ArrayLike | None = None
) -> GaussianNoise:
    if len(distinct) == 1:
        return GaussianNoise(Axes(distinct[0].copy()), np.zeros(distinct.shape[1]), _nothing(), rule, distinct)
    if rule == "coordinate":
        return _coordinate(distinct, mass, budget, basis)
    span = _span(distinct, mass)
    if rule == "isotropic":
        return _isotropic(distinct, span, budget)
    if rule == "linear":
        return _certified(distinct, span, linear_variances(span.eigenvalues, budget), rule)
    if rule == "logdet":
        return _certified(distinct, span, logdet_variances(span.eigenvalues, budget), rule)
    raise ValueError(f"rule must be one of 'linear', 'logdet', 'coordinate', 'isotropic', 'exact', got {rule!r}.")


def _span(outputs: Array, mass: Array) -> Span:
    span = Span.of(outputs, mass)
    if span.rank == 0:
        raise ValueError("The outputs differ by less than floating point resolves around their mean: rescale them.")
    return span


def _certified(outputs: Array, span: Span, variances: Array, rule: str) -> GaussianNoise:
    bound = float(logdet_bound(span.eigenvalues, variances))
    return GaussianNoise(span, variances, Certificate(bound, 1.0, "logdet"), rule, outputs)


def _coordinate(outputs: Array, mass: Array, budget: float, basis: npt.ArrayLike | None) -> GaussianNoise:
    axes = None if basis is None else np.asarray(basis, dtype=np.float64)
    dimension = outputs.shape[1]
    if axes is not None:
        # An oblique basis would correlate the coordinates that the rule takes for independent.
        error = np.abs(axes.T @ axes - np.eye(dimension)).max() if axes.shape == (dimension, dimension) else math.inf
        if error > 1e-9:
            raise ValueError(f"basis must be an orthonormal {dimension} x {dimension} matrix, got shape {axes.shape}.")
    mean = mass @ outputs
    constant = (outputs == outputs[0]).all(axis=0)
    # A constant coordinate is released exactly; its weighted mean may differ from it in the last bit.
    mean[constant] = outputs[0, constant]
    directions = Axes(mean, axes)
    with np.errstate(over="ignore"):
        # Variance along each axis; `coordinates` are measured from the mean.
        signal = mass @ directions.coordinates(outputs) ** 2
    check_spread(signal)
    signal = resolved_variances(signal)
    variances = linear_variances(signal, budget)
    bound = float(logdet_bound(signal, variances))
    return GaussianNoise(directions, variances, Certificate(bound, 1.0, "logdet"), "coordinate", outputs)


def _isotropic(outputs: Array, span: Span, budget: float) -> GaussianNoise:
    def excess(log_variance: float) -> float:
        return float(logdet_bound(span.eigenvalues, math.exp(log_variance))) - budget

    # ln(1 + x) <= x gives a variance that is large enough; a single direction one that is too small.
    high = math.log(span.eigenvalues.sum() / (2 * budget)) + 1e-6
    low = math.log(span.eigenvalues[0] / math.expm1(2 * budget)) - 1e-6
    # More than the root's tolerance, to the side of more noise.
    root = brentq(excess, low, high, xtol=1e-13, rtol=1e-15) + 1e-12
    variance = math.exp(root)
    bound = float(logdet_bound(span.eigenvalues, variance))
    variances = np.full(outputs.shape[1], variance)
    return GaussianNoise(Axes(span.mean), variances, Certificate(bound, 1.0, "logdet"), "isotropic", outputs)


def _nothing() -> Certificate:
    return Certificate(0.0, 1.0, "logdet", 0.0)


def _check_outputs(outputs: Any) -> Array:
    try:
        matrix = np.asarray(outputs, dtype=np.float64)
    except ValueError as error:
        raise ValueError("outputs must all have the same shape: pad or summarize them inside the function.") from error
    if matrix.ndim != 2:
        raise ValueError(f"outputs must have shape (m, d), one row per secret, got {matrix.shape}.")
    if len(matrix) < 2:
        raise ValueError(f"{len(matrix)} output hides nothing: run the function on at least two possible secrets.")
    if matrix.shape[1] == 0:
        raise ValueError("Outputs have no coordinates: return at least one number.")
    if not np.isfinite(matrix).all():
        row = int(np.flatnonzero(~np.isfinite(matrix).all(axis=1))[0])
        raise ValueError(f"Output {row} is not finite: mend the function, or map failures to a finite value inside it.")
    return matrix
