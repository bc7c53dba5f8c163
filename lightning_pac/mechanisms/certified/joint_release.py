"""The joint information of several certified mechanisms about one finite secret."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.linalg import block_diag

from lightning_pac._validation import validated
from lightning_pac.accountants.bounds import membership_success_bound
from lightning_pac.cards import Estimate, Guarantee, PrivacyCard, at_most, downwards
from lightning_pac.information import Array, entropy
from lightning_pac.mechanisms.certified.mixture_noise import MixtureNoise
from lightning_pac.mechanisms.certified.noise_certificate import certify_noise
from lightning_pac.mechanisms.certified.output_laws import FiniteOutputs
from lightning_pac.mechanisms.certified.released_mechanism import (
    Composed,
    ReleasedMechanism,
    compose_releases,
    released_coordinates,
)
from lightning_pac.randomness import SecureGenerator

__all__ = ["JointRelease"]

# The joint density is a sum over this many Gaussians at most.
_LARGEST_MIXTURE = 1024


@validated
@dataclasses.dataclass(frozen=True, eq=False)
class JointRelease:
    r"""One release of each of several certified mechanisms about one secret of finitely many values.

    The noises are independent, and no mechanism was chosen after a release of another was seen; `AdaptiveComposition`
    is for that. Together they tell $I(S; R_1, \dots, R_k)$, for which there are three figures of two kinds:

    - `composed` is the sum of what each mechanism tells at most: a guarantee that needs no further proof.
    - `certify` bounds the joint information itself, from the joint table of outputs: a guarantee, at most the sum, and
      less where the mechanisms tell the same.
    - A decoder of all releases together, `lightning_pac.modules.JointDecoding`, finds a lower bound: an estimate.

    Args:
        mechanisms: Certified for finite outputs, row j of each for the same value j of the secret. One that is released
            several times is listed several times.

    Raises:
        PrivacyViolationError: If one is not certified.
        TypeError: If it is not a sequence of mechanisms.
        ValueError: If they speak of different secrets, or the outputs of one are not finite in number.

    Source: *Residual-PAC*, section 5.4; the joint certificate is ours.

    Example:
        >>> from lightning_pac.mechanisms import certify_mechanism
        >>> law, unit = FiniteOutputs(np.array([[-1.0], [1.0]])), MixtureNoise.gaussian([[1.0]])
        >>> joint = JointRelease([certify_mechanism(unit, law, 0.3, secret="One bit.")] * 2)
        >>> round(joint.composed.mutual_information, 3), round(joint.certify().mutual_information, 3)
        (0.6, 0.46)
    """

    mechanisms: Sequence[ReleasedMechanism]

    def __post_init__(self) -> None:
        listed = tuple(self.mechanisms)
        if not listed:
            raise ValueError("mechanisms is empty, but a joint release needs at least one certified mechanism.")
        compose_releases(listed)
        first = listed[0].law
        for mechanism in listed:
            law = mechanism.law
            if not isinstance(law, FiniteOutputs):
                raise ValueError(
                    f"What mechanisms tell together is proven from a table of all outputs, and one is certified for "
                    f"{type(law).__name__}: add their costs with compose_releases."
                )
            assert isinstance(first, FiniteOutputs)
            assert first.weights is not None
            assert law.weights is not None
            # Row j of every table must stand for the same value; equal priors are what can be checked of it.
            if law.weights.shape != first.weights.shape or not np.allclose(
                law.weights, first.weights, rtol=0.0, atol=1e-12
            ):
                raise ValueError(
                    f"The mechanisms speak of secrets with {len(first.outputs)} and {len(law.outputs)} values or other "
                    "probabilities: make their tables from one list of secrets."
                )
        object.__setattr__(self, "mechanisms", listed)

    @property
    def secret(self) -> str:
        """One sentence: what stays secret."""
        return self.mechanisms[0].secret

    @property
    def num_secrets(self) -> int:
        """Number m of values of the secret."""
        return len(self.weights)

    @property
    def weights(self) -> Array:
        """Prior of the secret, shape (m,)."""
        law = self.mechanisms[0].law
        assert isinstance(law, FiniteOutputs)
        assert law.weights is not None
        return law.weights

    @property
    def entropy(self) -> float:
        """Entropy of the secret in nats."""
        return float(entropy(self.weights))

    @property
    def dimension(self) -> int:
        """Numbers d in all releases together, along the directions that are released."""
        return int(self.outputs.shape[1])

    @functools.cached_property
    def outputs(self) -> Array:
        """The joint table: the outputs of all mechanisms side by side, shape (m, d)."""
        return self.stack([_outputs(mechanism) for mechanism in self.mechanisms])

    @functools.cached_property
    def noise(self) -> MixtureNoise:
        """The joint noise: independent between mechanisms."""
        joint = self.mechanisms[0].noise
        for mechanism in self.mechanisms[1:]:
            joint = _independent(joint, mechanism.noise)
        return joint

    @property
    def composed(self) -> Composed:
        """The sum of what each tells at most."""
        return compose_releases(self.mechanisms)

    def stack(self, releases: Sequence[npt.ArrayLike]) -> Array:
        """Releases of each mechanism, shape (n, d_i), side by side as a joint decoder reads them, shape (n, d).

        Along the directions that a mechanism releases, they are measured from its centre.
        """
        rows = [np.atleast_2d(np.asarray(release, np.float64)) for release in releases]
        if len(rows) != len(self.mechanisms):
            raise ValueError(f"releases must be of all {len(self.mechanisms)} mechanisms, got those of {len(rows)}.")
        return np.hstack([released_coordinates(one, row) for one, row in zip(self.mechanisms, rows, strict=True)])

    def certify(
        self,
        confidence: float = 0.99,
        num_draws: int = 2**17,
        generator: SecureGenerator | None = None,
        device: str | None = None,
    ) -> Composed:
        """Prove a bound on what all releases tell together, from the joint table of outputs; the sum, if that is less.

        The smaller bound holds where both do, so their failure probabilities add.

        Args:
            confidence: Of the joint bound.
            num_draws: Draws of the joint release.
            generator: Source of the draws, the process-wide secure generator if None.
            device: A torch device for the posteriors under Gaussian noise; numpy if None.
        """
        joint = certify_noise(self.outputs, self.noise, self.weights, confidence, num_draws, generator, device)
        total = self.composed
        holds = max(0.0, joint.confidence + total.confidence - 1)
        return Composed(min(joint.mutual_information, total.mutual_information), holds)

    def card(self, proven: Composed | None = None, estimates: Sequence[Estimate] = ()) -> PrivacyCard:
        """The guarantees for all releases together.

        Args:
            proven: What `certify` returned; the sum if None.
            estimates: For instance what a joint decoder found, `DecoderLeakage.to_estimate()`.
        """
        told = self.composed if proven is None else proven
        prior = float(self.weights.max())
        success = membership_success_bound(told.mutual_information, prior)
        conditions = [law.condition for law in {id(m.law): m.law for m in self.mechanisms}.values()]
        conditions.append("The noises are independent, and no mechanism was chosen after a release was seen.")
        if told.confidence < 1:
            conditions.append(
                f"The bounds were proven from samples and hold with probability {downwards(told.confidence)}."
            )
        return PrivacyCard(
            title=f"Privacy of {len(self.mechanisms)} releases together",
            secret=self.secret,
            guarantees=(
                Guarantee(
                    "mutual_information",
                    told.mutual_information,
                    "nats",
                    "One release of each mechanism together reveal at most this much about the secret.",
                ),
                Guarantee(
                    "secret_guess_success_bound",
                    success,
                    "probability",
                    f"An attacker who sees all of them names the secret at most {at_most(success)} of the time; a "
                    f"blind guess is right {at_most(prior)} of the time.",
                ),
            ),
            conditions=tuple(dict.fromkeys(conditions)),
            estimates=tuple(estimates),
            details={
                "sum_of_single_releases": self.composed.mutual_information,
                "mutual_information_of_each": [mechanism.mutual_information for mechanism in self.mechanisms],
            },
        )


def _outputs(mechanism: ReleasedMechanism) -> Array:
    assert isinstance(mechanism.law, FiniteOutputs)
    return mechanism.law.outputs


def _independent(first: MixtureNoise, second: MixtureNoise) -> MixtureNoise:
    """The law of two independent noises side by side: a component for each pair of components."""
    if len(first.weights) * len(second.weights) > _LARGEST_MIXTURE:
        raise ValueError(
            f"Together the noises are a mixture of more than {_LARGEST_MIXTURE} Gaussians: add their costs with "
            "compose_releases, or use noise of fewer components."
        )
    # Component (i, j) has weight w_i v_j, the means side by side, and a block-diagonal loading.
    pairs = [(i, j) for i in range(len(first.weights)) for j in range(len(second.weights))]
    weights = np.array([first.weights[i] * second.weights[j] for i, j in pairs])
    return MixtureNoise(
        weights / math.fsum(weights),
        np.array([np.concatenate([first.means[i], second.means[j]]) for i, j in pairs]),
        np.array([block_diag(first.loadings[i], second.loadings[j]) for i, j in pairs]),
    )
