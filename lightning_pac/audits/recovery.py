"""Attacks on several memberships at once, and on one by someone who knows others, over the true finite table."""

import dataclasses
import math

import numpy as np

from lightning_pac._validation import Confidence, Count, Numbers, Seed, validated
from lightning_pac.accountants.bounds import membership_success_bound, subset_recovery_prior
from lightning_pac.audits.attack_result import proportion_interval
from lightning_pac.audits.given_numbers import whole_numbers
from lightning_pac.scenarios.secret_space import SecretSpace

__all__ = ["RecoveryAudit", "informed_membership_prior", "recovery_attack"]

# 2^16 guesses against m subsets are compared at once.
_MAX_RECORDS = 16


@validated
@dataclasses.dataclass(frozen=True)
class RecoveryAudit:
    """Success of the best attack that must get at least k of n memberships right.

    Attributes:
        success: Share of the trials in which it did.
        interval: Lower and upper confidence limits.
        prior: Success of the best blind guess, over the true table.
        num_records: n.
        num_correct: k.
    """

    success: float
    interval: tuple[float, float]
    prior: float
    num_records: int
    num_correct: int

    def bound(self, mutual_information: float) -> float:
        """Bound on the success of every attack after so many nats.

        Args:
            mutual_information: What was released, in nats.
        """
        return 1.0 if self.prior >= 1 else membership_success_bound(mutual_information, self.prior)

    def refutes(self, mutual_information: float) -> bool:
        """Whether the attack contradicts the claim that no more than this was released.

        Args:
            mutual_information: What is claimed to have been released, in nats.
        """
        return self.interval[0] > self.bound(mutual_information)


@validated
def recovery_attack(
    beliefs: Numbers,
    secrets: Numbers,
    space: SecretSpace,
    records: Numbers,
    num_correct: int,
    confidence: Confidence = 0.95,
) -> RecoveryAudit:
    """Play the game "at least k of these n memberships" with the best guess for each belief.

    The prior is that of the table itself, `max_g sum_j P_j 1[subset j agrees with g in at least k records]`. The
    binomial formula for independent bits is far smaller: on m subsets a guess of the index gets all n.

    Args:
        beliefs: Posterior of the secret in each trial, shape (trials, m).
        secrets: True secret of each trial, shape (trials,).
        space: The secret space.
        records: The n records in question, at most 16: all 2^n guesses are tried.
        num_correct: k.
        confidence: Level of the interval (Clopper and Pearson).

    Raises:
        ValueError: If there are too many records, k is not from 1 to their number, or beliefs,
            secrets and space do not fit each other.

    Source: *PAC-Private Algorithms*, Appendix C, with the prior of the finite table (ours).

    Example:
        >>> from lightning_pac.scenarios import BalancedSubsets
        >>> beliefs, secrets = np.full((80, 8), 1 / 8), np.arange(80) % 8
        >>> blind = recovery_attack(beliefs, secrets, BalancedSubsets(50, 8), range(10), num_correct=10)
        >>> blind.success == blind.prior
        True
    """
    posteriors = np.atleast_2d(np.asarray(beliefs, dtype=np.float64))
    truth = np.atleast_1d(np.asarray(secrets))
    table = space.membership_table(np.asarray(records))
    count = len(table)
    if not 1 <= count <= _MAX_RECORDS or not 0 <= num_correct <= count:
        raise ValueError(
            f"num_correct is {num_correct} of {count} records: choose k of at most {_MAX_RECORDS} to try all."
        )
    if posteriors.shape != (len(truth), space.num_secrets):
        raise ValueError(
            f"beliefs has shape {posteriors.shape}, but there are {len(truth)} trials, {space.num_secrets} secrets."
        )
    truth = whole_numbers("secrets", truth, space.num_secrets, 1, "trial: the number of the subset that was drawn")
    # Guess g is the binary expansion of g, one bit per record.
    guesses = (np.arange(2**count)[:, None] >> np.arange(count)) & 1  # (2^n, n)
    # Members that were guessed inside, plus the others that were guessed outside.
    agreements = guesses @ table.astype(np.int64) + (1 - guesses) @ (~table).astype(np.int64)  # (2^n, m)
    wins = agreements >= num_correct
    # Of all guesses the one with the largest posterior probability of winning.
    chosen = np.array([int(np.argmax(wins @ belief)) for belief in posteriors])
    won = int(wins[chosen, truth].sum())
    return RecoveryAudit(
        success=won / len(truth),
        interval=proportion_interval(won, len(truth), confidence),
        prior=subset_recovery_prior(table, num_correct, space.prior),
        num_records=count,
        num_correct=num_correct,
    )


@validated
def informed_membership_prior(
    space: SecretSpace, num_known: int, num_trials: Count = 1000, rng: np.random.Generator | Seed | None = None
) -> float:
    """Success of guessing one record's membership by someone who knows those of some others, before any release.

    A public table ties records to one another: each known membership halves the subsets that are possible, so about
    `log2(m)` of them leave one. The bounds on success speak of attackers who know nobody's membership; this says what
    the others have already, and how much a larger table would help.

    Args:
        space: The secret space.
        num_known: Records whose membership is known, drawn at random.
        num_trials: Draws of the secret and of the records.
        rng: Generator or seed of the simulation.

    Raises:
        ValueError: If no record is left to guess.

    Source: ours.

    Example:
        >>> from lightning_pac.scenarios import BalancedSubsets
        >>> space = BalancedSubsets(num_records=1000, num_subsets=128)
        >>> [round(informed_membership_prior(space, known, rng=0), 2) for known in (0, 7, 14)]
        [0.5, 0.84, 1.0]
    """
    if not 0 <= num_known < space.num_records:
        raise ValueError(f"num_known is {num_known}, but must leave one of the {space.num_records} records.")
    generator = np.random.default_rng(rng)
    success = 0.0
    for _ in range(num_trials):
        secret = generator.choice(space.num_secrets, p=space.prior)
        records = generator.choice(space.num_records, num_known + 1, replace=False)
        table = space.membership_table(records)
        # Mass of the subsets that agree with the true one on the known records; the last row is the record to guess.
        possible = (table[:-1] == table[:-1, [secret]]).all(axis=0) * space.prior
        inside = float(possible @ table[-1] / math.fsum(possible))
        success += max(inside, 1 - inside)
    return success / num_trials
