"""Residual privacy: what remains unknown of a secret, measured against a reference distribution."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from lightning_pac._validation import MatrixLike, validated
from lightning_pac.information import Array, binary_kl

__all__ = [
    "GaussianReference",
    "LogisticReference",
    "ProvenInformation",
    "ReferenceDistribution",
    "ResidualPrivacy",
    "UniformReference",
    "composed_conditional_entropy",
    "posterior_disadvantage",
    "reference_offset",
]


class ReferenceDistribution(Protocol):
    """The law of a guess made without any data."""

    def log_density(self, values: MatrixLike) -> Array:
        """Natural logarithm of the density at values of shape (n, d)."""


@validated
@dataclasses.dataclass(frozen=True, eq=False)
class GaussianReference:
    """The maximum-entropy law with a given mean and covariance. Its offset V is its entropy where they are the data's.

    Args:
        mean: Shape (d,).
        covariance: Shape (d, d), positive definite.

    Raises:
        ValueError: If the shapes do not fit, or the covariance is not positive definite.

    Example:
        >>> reference = GaussianReference(np.zeros(1), np.eye(1))
        >>> round(reference.entropy, 4)
        1.4189
    """

    mean: Array
    covariance: Array

    def __post_init__(self) -> None:
        mean, covariance = np.asarray(self.mean, np.float64), np.asarray(self.covariance, np.float64)
        if mean.ndim != 1 or covariance.shape != 2 * mean.shape:
            raise ValueError(
                f"mean has shape {mean.shape} and covariance {covariance.shape}, but they must be (d,) and (d, d)."
            )
        # Of an even number of negative eigenvalues a determinant says nothing.
        if not (np.allclose(covariance, covariance.T) and (np.linalg.eigvalsh(covariance) > 0).all()):
            raise ValueError("covariance must be symmetric and positive definite: leave out what follows from others.")

    @property
    def entropy(self) -> float:
        """Differential entropy in nats."""
        # (1/2) ln det(2 pi e Sigma), in logarithms since determinants in many dimensions over- or underflow.
        _, log_determinant = np.linalg.slogdet(2 * math.pi * math.e * np.asarray(self.covariance))
        return 0.5 * float(log_determinant)

    def log_density(self, values: MatrixLike) -> Array:
        """Natural logarithm of the density at values of shape (n, d)."""
        deviations = np.asarray(values, np.float64) - self.mean
        squares = np.einsum("nd,nd->n", deviations @ np.linalg.inv(self.covariance), deviations)
        # -(1/2) ln det(2 pi Sigma) is d/2 less the entropy.
        return np.asarray(-self.entropy + 0.5 * len(self.mean) - 0.5 * squares)


@validated
@dataclasses.dataclass(frozen=True)
class LogisticReference:
    """The uniform law of the unit cube pulled back through a sigmoid in each coordinate.

    Attributes:
        scale: Of the sigmoid, above 0.
    """

    scale: float = 1.0

    def log_density(self, values: MatrixLike) -> Array:
        """Natural logarithm of the density at values of shape (n, d)."""
        points = np.asarray(values, np.float64) / self.scale
        with np.errstate(divide="ignore"):
            # s(z) s(-z) / scale with the sigmoid s, and -ln s(z) = ln(1 + e^-z), which does not underflow.
            terms = -np.logaddexp(0, points) - np.logaddexp(0, -points) - math.log(self.scale)
        return np.asarray(terms.sum(axis=1))

    def unit_cube(self, values: MatrixLike) -> Array:
        """Images of values under the map, shape (n, d)."""
        return np.asarray(expit(np.asarray(values, np.float64) / self.scale))


@validated
@dataclasses.dataclass(frozen=True, eq=False)
class UniformReference:
    """The uniform law of a box, for data that cannot leave it.

    Attributes:
        low: Lower corner, shape (d,).
        high: Upper corner, shape (d,).

    Raises:
        ValueError: If a side has no length.
    """

    low: Array
    high: Array

    def __post_init__(self) -> None:
        if np.shape(self.low) != np.shape(self.high) or not (np.asarray(self.high) > np.asarray(self.low)).all():
            raise ValueError(f"low is {self.low} and high {self.high}, but a box has its upper corner above the lower.")

    @property
    def entropy(self) -> float:
        """Logarithm of the volume."""
        return float(np.log(np.asarray(self.high) - np.asarray(self.low)).sum())

    def log_density(self, values: MatrixLike) -> Array:
        """Natural logarithm of the density, minus infinity outside the box."""
        points = np.asarray(values, np.float64)
        inside = ((points >= self.low) & (points <= self.high)).all(axis=1)
        return np.where(inside, -self.entropy, -math.inf)


@validated
def reference_offset(values: npt.ArrayLike, reference: ReferenceDistribution) -> float:
    r"""The offset $V = E_D[-\ln r(X)]$, a cross-entropy, estimated from draws of the data.

    It is the reference's own entropy only for a uniform reference that contains the data, or the Gaussian with the
    data's moments; with the entropy in its place the residual privacy of wide data is overstated.

    Args:
        values: Draws of the data, shape (n, d).
        reference: The law that the offset belongs to.

    Raises:
        ValueError: If the reference gives a value no density, so that V is infinite.

    Source: *Residual-PAC*, Corollary 2 and Appendix D; the cross-entropy is ours.

    Example:
        >>> wide = 10 * np.random.default_rng(0).standard_normal((200_000, 1))
        >>> round(reference_offset(wide, LogisticReference()), 1)
        8.1
    """
    if np.ndim(values) != 2:
        raise ValueError(f"values has shape {np.shape(values)}, but must be (n, d), one draw a row.")
    log_densities = reference.log_density(values)
    if not np.isfinite(log_densities).all():
        raise ValueError(
            f"The reference gives {int((~np.isfinite(log_densities)).sum())} values no density: its support must "
            "contain the data's."
        )
    return float(-log_densities.mean())


class ProvenInformation(Protocol):
    """A proven bound, such as a `Certificate` or what `compose_releases` and `JointRelease.certify` return."""

    @property
    def mutual_information(self) -> float:
        """The bound in nats."""

    @property
    def confidence(self) -> float:
        """Probability, over the sampling that its proof used, that it holds."""


@validated
@dataclasses.dataclass(frozen=True)
class ResidualPrivacy:
    r"""Residual privacy: intrinsic privacy $-\mathrm{KL}(D \| r)$ minus what a mechanism tells.

    Attributes:
        entropy: H(X) in nats, differential for a continuous secret.
        offset: V of the reference, in the same units and coordinates.
        proof: A proven bound on the information released about X. A number alone is refused: an estimate, such as what
            a decoder finds, would make all of this an estimate, too.

    Raises:
        TypeError: If the proof is a number, or an estimate.
        ValueError: If it is about something else than the secret as a whole.

    Example:
        >>> from lightning_pac.mechanisms import Certificate
        >>> proof = Certificate(mutual_information=0.5, confidence=1.0, method="logdet")
        >>> residual = ResidualPrivacy(entropy=math.log(8), offset=math.log(8), proof=proof)
        >>> residual.intrinsic, residual.residual
        (0.0, -0.5)
    """

    entropy: float
    offset: float
    proof: Annotated[ProvenInformation, "refused below, with what to give instead"]

    def __post_init__(self) -> None:
        if not all(isinstance(getattr(self.proof, name, None), float) for name in ("mutual_information", "confidence")):
            raise TypeError(
                f"proof must be a proven bound, such as a Certificate, got {type(self.proof).__name__}: what is not "
                "proven promises nothing; for a bound proven elsewhere give Certificate(bound, 1.0, method)."
            )
        if (about := getattr(self.proof, "about", "the secret")) != "the secret":
            raise ValueError(f"proof is about {about}, and residual privacy is about the secret as a whole.")

    @property
    def mutual_information(self) -> float:
        """Proven bound on the information released."""
        return self.proof.mutual_information

    @property
    def confidence(self) -> float:
        """Probability, over the sampling of the proofs, that the bounds hold."""
        return self.proof.confidence

    @property
    def intrinsic(self) -> float:
        """`H(X) - V`, at most 0, and 0 where the data follow the reference."""
        return self.entropy - self.offset

    @property
    def conditional_entropy(self) -> float:
        """Proven lower bound on H(X | release)."""
        return self.entropy - self.mutual_information

    @property
    def residual(self) -> float:
        """Proven lower bound on the posterior disadvantage."""
        return self.conditional_entropy - self.offset

    def compose(self, *others: "ResidualPrivacy") -> "ResidualPrivacy":
        """After all of these releases, with noises independent given the secret and queries not chosen from answers.

        Where certified mechanisms speak of one finite secret, `lightning_pac.mechanisms.JointRelease` proves a bound on
        what they tell together that is no larger than this sum.

        Raises:
            ValueError: If they speak of secrets of other entropy or offset.
        """
        for other in others:
            if not (math.isclose(other.entropy, self.entropy) and math.isclose(other.offset, self.offset)):
                raise ValueError("Releases about different secrets, or against different references, do not compose.")
        # I(X; Y_1, ..., Y_k) <= sum_i I(X; Y_i), since the releases are independent given X.
        total = math.fsum(part.mutual_information for part in (self, *others))
        # A proof that is used twice fails once.
        proofs = {id(part.proof): part.proof for part in (self, *others)}
        # A union bound over the proofs.
        failure = math.fsum(1.0 - proof.confidence for proof in proofs.values())
        return dataclasses.replace(self, proof=_Sum(total, max(0.0, 1.0 - failure)))


@dataclasses.dataclass(frozen=True)
class _Sum:
    mutual_information: float
    confidence: float


@validated
def composed_conditional_entropy(conditional_entropies: Sequence[float], entropy: float) -> float:
    """Lower bound `sum_i H_i - (k-1) H(X)` on what remains after k releases, each leaving at least `H_i`.

    For noises independent given X and queries that were not chosen from answers. Bounds proven from samples hold
    together with one minus the sum of their failure probabilities.

    Args:
        conditional_entropies: `H_i`, lower bounds on H(X | Y_i) in nats, one for each release.
        entropy: H(X) in nats.

    Source: *Residual-PAC*, section 5.4.

    Example:
        >>> composed_conditional_entropy([1.5, 1.75], 2.0)
        1.25
    """
    # H(X | Y_1, ..., Y_k) >= H(X) - sum_i I(X; Y_i), and I(X; Y_i) <= H(X) - H_i.
    return float(sum(conditional_entropies) - (len(conditional_entropies) - 1) * entropy)


@validated
def posterior_disadvantage(intrinsic: float, success: float, prior: float) -> float:
    """Residual privacy against one attack: intrinsic privacy minus `kl(success, prior)`.

    Args:
        intrinsic: `-KL(D || reference)`, at most 0.
        success: Posterior probability of success of the attack.
        prior: Its probability of success without the release.

    Raises:
        ValueError: If the intrinsic privacy is positive.

    Source: *Residual-PAC*, Definition 9.

    Example:
        >>> round(posterior_disadvantage(0.0, 0.75, 0.5), 4)
        -0.1308
    """
    if not intrinsic <= 1e-9:
        raise ValueError(f"intrinsic is {intrinsic!r}, but minus a divergence is at most 0.")
    for name, probability in (("success", success), ("prior", prior)):
        if not 0 <= probability <= 1:
            raise ValueError(f"{name} is {probability}, but a probability lies in [0, 1].")
    return intrinsic - float(binary_kl(success, prior))
