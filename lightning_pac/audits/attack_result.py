"""The success of an attack, with confidence limits that hold for any number of trials."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats

from lightning_pac._validation import Confidence, validated
from lightning_pac.cards import Estimate

__all__ = ["AttackResult", "hoeffding_interval", "proportion_interval"]


@validated
@dataclass(frozen=True)
class AttackResult:
    """The measured success of an attack: an estimate, which can refute a guarantee and never prove one.

    Attributes:
        name: Technical name, for instance `"loss_threshold"`.
        success: Share of right guesses at prior 1/2.
        interval: Lower and upper confidence limits of the success probability.
        confidence: Their confidence level.
        num_trials: Guesses that were counted.
        method: What the attacker saw and did, in words.
    """

    name: str
    success: float
    interval: tuple[float, float]
    confidence: float
    num_trials: int
    method: str

    def refutes(self, bound: float) -> bool:
        """Whether the attack contradicts the claim that no attack succeeds with a probability above `bound`.

        Args:
            bound: Claimed bound on the success of every attack.
        """
        return self.interval[0] > bound

    def to_estimate(self) -> Estimate:
        """The figure as an entry of a privacy card."""
        return Estimate(
            name=f"{self.name}_attack_success",
            value=self.success,
            unit="probability",
            meaning=f"The attacker guessed right {100 * self.success:.1f} % of the time; a coin gets 50 %.",
            method=self.method,
            interval=self.interval,
            confidence=self.confidence,
        )


def hoeffding_interval(share: float, trials: int, confidence: float) -> tuple[float, float]:
    """Hoeffding's two-sided interval for the mean of independent numbers in [0, 1] (1963, Theorem 1).

    Args:
        share: Their mean in the trials.
        trials: How many were drawn.
        confidence: Probability that the interval covers, in (0, 1).

    Example:
        >>> lower, upper = hoeffding_interval(0.9, trials=100, confidence=0.95)
        >>> round(lower, 4), upper
        (0.7642, 1.0)
    """
    # 2 exp(-2 n t^2) = 1 - confidence, solved for the margin t.
    margin = math.sqrt(math.log(2 / (1 - confidence)) / (2 * trials))
    return max(0.0, share - margin), min(1.0, share + margin)


@validated
def proportion_interval(successes: int, trials: int, confidence: Confidence = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of Clopper and Pearson (1934) for a probability.

    Args:
        successes: How often it happened.
        trials: How often it was tried.
        confidence: Probability that the interval covers, in (0, 1).

    Returns:
        Lower and upper limit.

    Raises:
        ValueError: The counts or the confidence are out of range.

    Example:
        >>> lower, upper = proportion_interval(0, 100)
        >>> round(lower, 4), round(upper, 4)
        (0.0, 0.0362)
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"successes is {successes} and trials {trials}, which is not possible: count a trial.")
    tail = (1 - confidence) / 2
    # Beta quantiles invert the two binomial tails; without successes, or without failures, one limit is 0 or 1.
    lower = stats.beta.ppf(tail, successes, trials - successes + 1) if successes else 0.0
    upper = stats.beta.ppf(1 - tail, successes + 1, trials - successes) if successes < trials else 1.0
    return float(lower), float(upper)
