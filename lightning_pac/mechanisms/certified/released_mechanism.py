"""A mechanism that may be released, because an upper bound on what it tells was proven."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from lightning_pac._durable_files import move_file
from lightning_pac._shown import shows_itself
from lightning_pac._validation import Confidence, Draws, Natural, PrivateNumbers, validated
from lightning_pac.accountants.bounds import membership_success_bound
from lightning_pac.cards import Guarantee, PrivacyCard, at_most, downwards
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.information import Array
from lightning_pac.ledger import LedgerAccount, PrivacyLedger
from lightning_pac.mechanisms.certified.certificate import ABOUT_THE_SECRET, Certificate
from lightning_pac.mechanisms.certified.mixture_noise import MixtureNoise
from lightning_pac.mechanisms.certified.output_laws import BoundedOutputs, FiniteOutputs, KnownMoments, OutputLaw
from lightning_pac.randomness import SecureGenerator, release_grid, round_to_grid, secure_generator

__all__ = ["Composed", "ReleasedMechanism", "certify_mechanism", "compose_releases"]

# They compare the losses of two shapes and prove nothing.
_LOSS_DRAWS = 2**14
Loss = Callable[[Array], Array]


@validated
@dataclasses.dataclass(frozen=True, eq=False)
class ReleasedMechanism:
    """Noise, the outputs it may be added to, and the proof of what one release tells. `certify_mechanism` makes it.

    Attributes:
        noise: The noise, in coordinates along `basis`.
        certificate: Proven bound on one release.
        law: Which outputs are covered.
        secret: One sentence: what stays secret.
        basis: Orthonormal directions that are released, shape (d, r); None for all coordinates.
        shape: Where the noise's shape came from: `"given"` or `"logdet"`.

    Raises:
        PrivacyViolationError: If there is no certificate.
    """

    noise: MixtureNoise
    certificate: Annotated[Certificate, "refused below, with what a release stands on"]
    law: OutputLaw
    secret: str
    basis: Array | None = None
    shape: str = "given"

    def __post_init__(self) -> None:
        if not isinstance(self.certificate, Certificate):
            raise PrivacyViolationError(
                f"A mechanism is released on the strength of a Certificate, not of a {type(self.certificate).__name__}"
                ": an estimate proves nothing; make it with certify_mechanism or StackelbergGame.certify."
            )
        if self.certificate.about != ABOUT_THE_SECRET:
            raise PrivacyViolationError(
                f"The certificate is about {self.certificate.about}, and a released mechanism speaks of the secret as "
                "a whole: certify the noise for it with certify_noise."
            )
        if self.noise.dimension != (self.law.dimension if self.basis is None else self.basis.shape[1]):
            raise ValueError(f"Noise of {self.noise.dimension} coordinates does not fit {self.law.dimension} outputs.")

    @property
    def mutual_information(self) -> float:
        """Proven bound on one release in nats."""
        return self.certificate.mutual_information

    @property
    def power(self) -> float:
        """Expected squared length of the noise."""
        return self.noise.power

    def sample(self, size: Natural, generator: SecureGenerator | None = None) -> Array:
        """Draw noise, shape (size, d).

        Args:
            size: Number of draws.
            generator: Source of the noise, the process-wide secure generator if None.
        """
        noise = self.noise.sample(size, generator)
        return noise if self.basis is None else np.asarray(noise @ self.basis.T)

    def release(self, values: PrivateNumbers, generator: SecureGenerator | None = None) -> Array:
        """Noise outputs and round the sum to a public grid. Charge for every row beforehand.

        Args:
            values: Outputs covered by the law, shape (d,) or (n, d).
            generator: Source of the noise, the process-wide secure generator if None.

        Raises:
            PrivacyViolationError: If a value is not covered by the law.
            ValueError: If a value has another shape, or is not finite and the law says nothing of such.
        """
        covered = self.check(values)
        deviation = self.noise.smallest_deviation
        source = secure_generator() if generator is None else generator
        if self.basis is None:
            noised = covered + self.noise.sample(len(covered), source)
            released = np.asarray(round_to_grid(noised, release_grid(deviation)))
        else:
            # The centre depends on the law and not on the secret; only deviations from it are noised.
            coordinates = released_coordinates(self, covered) + self.noise.sample(len(covered), source)
            rounded = round_to_grid(coordinates, release_grid(deviation))
            released = np.asarray(_centre(self.law) + rounded @ self.basis.T)
        return released[0] if np.ndim(values) == 1 else released

    def check(self, values: PrivateNumbers) -> Array:
        """The outputs that are released for these, shape (n, d), before noise; raises what `release` would raise.

        Args:
            values: Outputs, shape (d,) or (n, d).
        """
        matrix = np.atleast_2d(np.asarray(values, dtype=np.float64))
        if matrix.ndim != 2 or matrix.shape[1] != self.law.dimension:
            raise ValueError(f"values must have shape (n, {self.law.dimension}), got {np.shape(values)}.")
        return self.law.admit(matrix, self.noise.smallest_deviation)

    def open_account(self, ledger: PrivacyLedger, name: str, budget: float | None = None) -> LedgerAccount:
        """The ledger's account of this mechanism's releases, in nats of mutual information.

        Args:
            ledger: An open ledger.
            name: Of the account.
            budget: The most that it may spend in nats; None leaves it to the ledger's total.
        """
        return ledger.account(name, "mutual_information", self.declaration(), budget)

    def declaration(self) -> dict[str, Any]:
        """The public facts that charges for this mechanism rest on."""
        return {
            "secret": self.secret,
            "mutual_information_per_release": self.mutual_information,
            "confidence": self.certificate.confidence,
            "method": self.certificate.method,
            "condition": self.law.condition,
        }

    def card(self, num_releases: int = 1) -> PrivacyCard:
        """The guarantees after that many releases.

        Args:
            num_releases: How many outputs were released about one secret.

        Raises:
            ValueError: If there was none.
        """
        if num_releases < 1:
            raise ValueError(
                f"num_releases must be at least 1, got {num_releases!r}: a card speaks of what was released."
            )
        total = num_releases * self.mutual_information
        guarantees = [
            Guarantee(
                "mutual_information",
                total,
                "nats",
                f"All {num_releases} releases together reveal at most this much about the secret."
                if num_releases != 1
                else "One release tells at most this much about what is secret.",
            )
        ]
        if isinstance(self.law, FiniteOutputs):
            prior = self.law.guess_prior
            success = membership_success_bound(total, prior)
            seen = "one release" if num_releases == 1 else f"all {num_releases} releases"
            guarantees.append(
                Guarantee(
                    "secret_guess_success_bound",
                    success,
                    "probability",
                    f"An attacker who sees {seen} names the secret at most {at_most(success)} of the time; a blind "
                    f"guess is right {at_most(prior)} of the time.",
                )
            )
        conditions = [
            self.law.condition,
            "Each release draws its noise anew and was charged before it was shown. Their number was decided "
            "beforehand, or is at most one that was.",
        ]
        if self.certificate.confidence < 1:
            conditions.append(
                "The bound was proven from samples, once, and holds with probability "
                f"{downwards(self.certificate.confidence)}."
            )
        return PrivacyCard(
            title="Privacy of a certified mechanism",
            secret=self.secret,
            guarantees=tuple(guarantees),
            conditions=tuple(conditions),
            details={"method": self.certificate.method, "noise_power": self.power, "noise_shape": self.shape},
        )

    def save(self, path: str | Path) -> Path:
        """Write the mechanism to one `.npz` file; a finite law's file holds the un-noised outputs, so keep it private.

        Args:
            path: Where to; the suffix becomes `.npz`.

        Returns:
            The path, with the suffix.
        """
        if not Path(path).name:
            raise ValueError(f"path is {str(path)!r}, which names no file.")
        target = Path(path).with_suffix(".npz")
        kind, law = _law_arrays(self.law)
        facts = {
            "kind": kind,
            "secret": self.secret,
            "shape": self.shape,
            "certificate": dataclasses.asdict(self.certificate),
        }
        arrays = {"weights": self.noise.weights, "means": self.noise.means, "loadings": self.noise.loadings}
        arrays |= {f"law_{name}": part for name, part in law.items()}
        arrays |= {} if self.basis is None else {"basis": self.basis}
        partial = target.with_name(f".{target.name}.partial")
        with partial.open("wb") as file:
            partial.chmod(0o600)
            np.savez(file, facts=np.array(json.dumps(facts)), allow_pickle=False, **arrays)
        move_file(partial, target)
        return target

    @classmethod
    def load(cls, path: str | Path) -> "ReleasedMechanism":
        """Read what `save` wrote.

        Args:
            path: What `save` returned.

        Raises:
            ValueError: If the file is not a released mechanism.
        """
        try:
            with np.load(path, allow_pickle=False) as content:
                facts = json.loads(str(content["facts"]))
                law = {name[4:]: content[name] for name in content.files if name.startswith("law_")}
                noise = MixtureNoise(content["weights"], content["means"], content["loadings"])
                basis = content["basis"] if "basis" in content.files else None
            certificate = Certificate(**facts["certificate"])
            return cls(noise, certificate, _LAWS[facts["kind"]](law), facts["secret"], basis, facts["shape"])
        except (EOFError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"path is {path}, which is not a released mechanism ({error!r}): give what save() wrote."
            ) from error


@validated
def certify_mechanism(
    noise: MixtureNoise,
    law: OutputLaw,
    budget: float,
    confidence: Confidence = 0.99,
    *,
    secret: str,
    loss: Loss | None = None,
    num_draws: Draws = 2**17,
    generator: SecureGenerator | None = None,
) -> ReleasedMechanism:
    """Scale noise of a given shape until a proven upper bound meets the budget.

    How the shape was found plays no part in the proof, so a poor shape costs noise and never privacy. The log-det
    rule's shape is certified beside it with half of the failure probability, and the cheaper of the two is returned:
    the result never costs more than the log-det rule does.

    Args:
        noise: Shape of the noise; its scale is ignored.
        law: What is known of the outputs.
        budget: Mutual information in nats.
        confidence: Probability that the bound holds.
        secret: One sentence for the card: what stays secret.
        loss: Cost of noise draws (n, d), shape (n,); the squared length if None.
        num_draws: Draws of each sample that chooses or certifies.
        generator: Source of these draws, the process-wide secure generator if None.

    Raises:
        ValueError: If the budget is not positive, or reaches the entropy of the output.

    Example:
        >>> law = FiniteOutputs(np.array([[-1.0], [1.0]]))
        >>> released = certify_mechanism(MixtureNoise.gaussian([[1.0]]), law, 0.5, secret="One bit.")
        >>> round(released.power, 3), released.mutual_information <= 0.5
        (0.5, True)
    """
    law.check_budget(budget)
    if noise.dimension != law.dimension:
        raise ValueError(f"Noise of {noise.dimension} coordinates does not fit outputs of {law.dimension}.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}.")
    source = secure_generator() if generator is None else generator
    share = (1 + confidence) / 2
    reference, basis = law.reference(budget)
    projected = law if basis is None else law.along(basis)
    candidates: list[tuple[float, ReleasedMechanism]] = []
    for shape, start, covered, directions in (
        ("given", noise, law, None),
        ("logdet", reference, projected, basis),
    ):
        scaled, certificate = covered.scale(start, budget, share, num_draws, source)
        # Both certificates hold together with the confidence that was asked for, so either may be chosen.
        stated = min(confidence, certificate.confidence) if certificate.confidence < 1 else 1.0
        proof = dataclasses.replace(certificate, confidence=stated)
        released = ReleasedMechanism(scaled, proof, law, secret, directions, shape)
        cost = released.power if loss is None else float(np.mean(loss(released.sample(_LOSS_DRAWS, source))))
        candidates.append((cost, released))
    return min(candidates, key=lambda pair: pair[0])[1]


@shows_itself
@dataclasses.dataclass(frozen=True)
class Composed:
    """The joint information of several releases about one secret.

    Attributes:
        mutual_information: Nats, the sum over the releases.
        confidence: Probability that all certificates used hold at once (a union bound over mechanisms, not releases).
    """

    mutual_information: float
    confidence: float


@validated
def compose_releases(mechanisms: Sequence[ReleasedMechanism], counts: Iterable[Natural] | None = None) -> Composed:
    """Add up releases of certified mechanisms with independent noise, about one secret.

    The mechanisms must have been fixed before any answer was seen; `AdaptiveComposition` is for the rest.

    Args:
        mechanisms: Certified mechanisms.
        counts: Releases of each, one each if None.

    Raises:
        TypeError: If one is not certified.
        ValueError: If they speak of different secrets.

    Source: *Residual-PAC*, section 5.4; the confidence is ours.
    """
    secrets = {mechanism.secret for mechanism in mechanisms}
    if len(secrets) > 1:
        raise ValueError(f"The mechanisms speak of different secrets, {sorted(secrets)}: their costs do not add.")
    repeats = [1] * len(mechanisms) if counts is None else list(counts)
    if not repeats or len(repeats) != len(mechanisms):
        raise ValueError(f"counts has {len(repeats)} values and mechanisms {len(mechanisms)}: give a count for each.")
    total = sum(count * mechanism.mutual_information for mechanism, count in zip(mechanisms, repeats, strict=True))
    # Mechanisms that share a certificate share its failure, which counts once.
    proofs = {id(mechanism.certificate): mechanism.certificate for mechanism in mechanisms}
    return Composed(total, max(0.0, 1 - sum(1 - proof.confidence for proof in proofs.values())))


def released_coordinates(mechanism: ReleasedMechanism, values: Array) -> Array:
    """Values of shape (n, d) along the directions that are released, from the law's centre; themselves without any."""
    # Far from zero, products of the values themselves would round away by how much these differ.
    return values if mechanism.basis is None else np.asarray((values - _centre(mechanism.law)) @ mechanism.basis)


def _centre(law: OutputLaw) -> Array:
    if isinstance(law, FiniteOutputs):
        points, mass = law.distinct
        return np.asarray(mass @ points)
    return law.mean if isinstance(law, KnownMoments) else np.zeros(law.dimension)


def _law_arrays(law: OutputLaw) -> tuple[str, dict[str, Any]]:
    if isinstance(law, FiniteOutputs):
        return "finite", {"outputs": law.outputs, "weights": law.weights}
    if isinstance(law, KnownMoments):
        return "moments", {"mean": law.mean, "covariance": law.covariance}
    assert isinstance(law, BoundedOutputs)
    return "bounded", {"centre": law.centre, "radius": np.array(law.radius)}


_LAWS: dict[str, Callable[[dict[str, Any]], OutputLaw]] = {
    "finite": lambda parts: FiniteOutputs(parts["outputs"], parts["weights"]),
    "moments": lambda parts: KnownMoments(parts["mean"], parts["covariance"]),
    "bounded": lambda parts: BoundedOutputs(parts["centre"], float(parts["radius"])),
}
