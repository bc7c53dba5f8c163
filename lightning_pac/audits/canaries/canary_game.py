"""The game of the coins: guesses about canaries from their scores, and what they show about a claim."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import Confidence, Count, OpenProbability, TrueOrFalse, validated
from lightning_pac.accountants import GaussianCurve, PrivacyCurve
from lightning_pac.audits.canaries.one_run import claim_p_value, epsilon_lower_bound, gaussian_lower_bound
from lightning_pac.audits.canaries.white_box import AuditTest
from lightning_pac.cards import Estimate, downwards, upwards

__all__ = ["CanaryGame", "guess_coins"]


@validated
@dataclass(frozen=True)
class CanaryGame:
    """The outcome of guessing the coins of canaries: an estimate, which can refute a claim and never prove one.

    Attributes:
        attacker: what is seen: `white-box` every release, `black-box` the trained model.
        num_canaries: coins.
        num_guesses: guesses, fixed before the coins were opened.
        num_right: those that were right.
        p_value: how often that many are right at most, if the claim holds.
        epsilon: lower confidence limit at delta, for a release with the trade-off of a Gaussian (in f-DP form).
        epsilon_of_counts: lower confidence limit at delta that holds for any release.
        claimed_epsilon: what is claimed of one canary, at delta.
        delta: the failure probability that goes with them.
        confidence: of each limit.
    """

    attacker: str
    num_canaries: int
    num_guesses: int
    num_right: int
    p_value: float
    epsilon: float
    epsilon_of_counts: float
    claimed_epsilon: float
    delta: float
    confidence: float

    def to_test(self) -> AuditTest:
        """The game as a test of the claim."""
        seen = (
            f"{self.num_right:,} of {self.num_guesses:,} guesses right: epsilon at least {downwards(self.epsilon, 3)}, "
            f"if it is that of a Gaussian, where {upwards(self.claimed_epsilon, 3)} is claimed"
        )
        return AuditTest(f"canary game, {self.attacker}", self.p_value, seen)

    def to_estimate(self) -> Estimate:
        """The limit as an entry of a privacy card."""
        name = self.attacker.replace("-", "_")
        return Estimate(
            name=f"{name}_canary_epsilon_at_delta",
            value=self.epsilon,
            unit="nats",
            meaning=f"One training with {self.num_canaries:,} canaries shows an epsilon of at least "
            f"{downwards(self.epsilon, 3)} at delta {downwards(self.delta)} if its trade-off is that of a Gaussian, "
            f"and of at least {downwards(self.epsilon_of_counts, 3)} whatever it is, where "
            f"{upwards(self.claimed_epsilon, 3)} is claimed of a record; what it does not show may be lost all "
            "the same.",
            method=f"the one-run audit in f-DP form ({self.attacker}) at {self.confidence:.0%} confidence, by "
            f"{self.num_right:,} right guesses of {self.num_guesses:,}",
        )


@validated
def guess_coins(
    attacker: str,
    scores: npt.ArrayLike,
    coins: TrueOrFalse,
    curve: PrivacyCurve,
    num_guesses: Count | None = None,
    delta: OpenProbability = 1e-5,
    confidence: Confidence = 0.95,
) -> CanaryGame:
    """Guess heads for the largest scores and tails for the smallest, as many of each, and compare with the claim.

    Scores must come from what is released and from what does not depend on the coins.

    Args:
        attacker: what is seen.
        scores: one for each canary, larger where heads are likelier, shape (m,).
        coins: True for heads, shape (m,).
        curve: what is claimed of one canary.
        num_guesses: at most m; a fifth of them, and no fewer than 20, if left out.
        delta: failure probability of the limits on epsilon.
        confidence: of the limits.

    Raises:
        ValueError: if there are more guesses than canaries, or not as many coins.
    """
    values, heads = np.asarray(scores, dtype=np.float64), np.asarray(coins, dtype=bool)
    if values.shape != heads.shape or values.ndim != 1:
        raise ValueError(f"scores has shape {values.shape} and coins {heads.shape}: give one of each for a canary.")
    canaries = len(values)
    guesses = num_guesses or min(canaries, max(20, canaries // 5))
    if guesses > canaries:
        raise ValueError(f"num_guesses is {guesses}, but there are {canaries} canaries: guess fewer.")
    order = np.argsort(values, kind="stable")
    lowest, highest = order[: guesses // 2], order[canaries - (guesses - guesses // 2) :]
    right = int(np.sum(~heads[lowest]) + np.sum(heads[highest]))
    mu = gaussian_lower_bound(canaries, guesses, right, confidence)
    return CanaryGame(
        attacker,
        canaries,
        guesses,
        right,
        p_value=claim_p_value(canaries, guesses, right, curve),
        epsilon=GaussianCurve(mu).epsilon(delta) if mu else 0.0,
        epsilon_of_counts=epsilon_lower_bound(canaries, guesses, right, delta, confidence),
        claimed_epsilon=curve.epsilon(delta),
        delta=delta,
        confidence=confidence,
    )
