"""The result of `privatize`: public facts only."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_pac._shown import shows_itself
from lightning_pac.cards import Guarantee, PrivacyCard, at_most, downwards
from lightning_pac.mechanisms.drowned import signal_to_noise
from lightning_pac.mechanisms.responses import attacker_conditions, success_bound
from lightning_pac.scenarios import SecretSpace

__all__ = ["PrivatizedOutput"]

_CONDITIONS = (
    "The guarantee is about which subset was used. It does not hide the pool itself: what all subsets have in common "
    "shows, and so does the shape of the noise, which follows from all of them.",
    "The box is a deterministic function of the records of a subset. References, settings and the budget were chosen "
    "without looking at the secret subset, except through earlier private values.",
    "All subsets were run, so neither the time nor the errors of the runs depend on the secret.",
    "Outputs without noise, in memory or in a cache, stay with the keeper of the data.",
)


@shows_itself
@dataclasses.dataclass(frozen=True, eq=False)
class PrivatizedOutput:
    """A private release of a black box. Nothing in it tells more than its value does.

    Attributes:
        value: The released output, in the shape the box (or its canonical form) gave.
        standard_deviations: Standard deviation of the noise on each number of the value.
        mutual_information: What this release cost, in nats.
        total_mutual_information: What all releases about the secret cost, in nats.
        power: Expected squared length of the noise.
        rule: Noise rule.
        confidence: Of the certificate; below 1 for the exact rule only.
        space: The public table of subsets.
        num_releases: Releases about the secret so far.
        kept: Whether a ledger remembers the release.
        details: Public parameters of this release.
    """

    value: npt.NDArray[np.float64]
    standard_deviations: npt.NDArray[np.float64]
    mutual_information: float
    total_mutual_information: float
    power: float
    rule: str
    confidence: float
    space: SecretSpace = dataclasses.field(repr=False)
    num_releases: int = 1
    kept: bool = True
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def signal_to_noise(self) -> float:
        """Estimated length of the answer in lengths of its noise; below 1 the noise drowns it.

        Computed from the value and the law of its noise, so it tells nothing more than they do.
        """
        return signal_to_noise(self.value, self.power)

    @property
    def membership_success_bound(self) -> float:
        """Largest probability with which anyone who saw all releases can tell whether a given record was used."""
        return success_bound(self.total_mutual_information, self.space.individual_prior)

    def card(self) -> PrivacyCard:
        """The guarantees for all releases about this secret."""
        space, total = self.space, self.total_mutual_information
        prior, guess = space.individual_prior, space.index_guess_prior
        whole = success_bound(total, guess)
        conditions = [
            *_CONDITIONS,
            *attacker_conditions(space.num_secrets, prior),
            _secret_condition(self.kept, self.num_releases),
        ]
        if self.confidence < 1:
            conditions.append(
                f"The bound was certified by sampling and holds with confidence {downwards(self.confidence)}."
            )
        return PrivacyCard(
            title="Privacy of a released computation"
            if self.num_releases == 1
            else f"Privacy of {self.num_releases} released computations",
            secret="Whether a given record was used, from everyone who sees what was released. The computation was run "
            f"on one of {space.num_secrets} public subsets of {space.num_records:,} records.",
            guarantees=(
                Guarantee(
                    "membership_success_bound",
                    self.membership_success_bound,
                    "probability",
                    "An attacker who saw everything released tells correctly whether a given record was used at most "
                    f"{at_most(self.membership_success_bound)} of the time; a guess without it is right at most "
                    f"{at_most(prior)} of the time.",
                ),
                Guarantee(
                    "index_success_bound",
                    whole,
                    "probability",
                    f"They name the whole subset correctly at most {at_most(whole)} of the time; a "
                    f"blind guess is right {at_most(guess)} of the time.",
                ),
                Guarantee(
                    "mutual_information",
                    total,
                    "nats",
                    "This is how much everything released together can tell about the subset.",
                ),
            ),
            conditions=tuple(conditions),
            details={
                **self.details,
                "mutual_information_of_this_release": self.mutual_information,
                "noise_power": self.power,
                "prior": prior,
                "table": space.table_hash,
            },
        )


def _secret_condition(kept: bool, releases: int) -> str:
    if not kept:
        return (
            "No ledger remembers this release: the keeper of the data must see to it that nothing else is released "
            "about these records."
        )
    if releases == 1:
        return "The index of the subset was drawn once, from secure randomness, and is never drawn again."
    return (
        "All releases are about one index, drawn once, and each got noise for what the earlier ones had told; the "
        "ledger keeps them all."
    )
