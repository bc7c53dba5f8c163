"""The Bayes-optimal membership attack on private responses, and how it compares with the bound."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import Confidence, Count, MatrixLike, Natural, Numbers, validated
from lightning_pac.accountants.bounds import membership_success_bound
from lightning_pac.audits.attack_result import AttackResult, hoeffding_interval
from lightning_pac.information import Array
from lightning_pac.mechanisms.responses import VoteTable, vote_channel
from lightning_pac.mechanisms.variances import CompositionRule
from lightning_pac.randomness import SecureGenerator, secure_generator
from lightning_pac.scenarios.secret_space import SecretSpace

__all__ = ["MembershipAudit", "membership_attack", "membership_posterior", "simulate_beliefs"]


@validated
def membership_posterior(beliefs: Numbers, memberships: MatrixLike) -> Array:
    r"""Posterior probability of each record's membership, $\sum_j P(j) \, 1[u \in S_j]$.

    Args:
        beliefs: Posterior of the secret, shape (..., m).
        memberships: Table of shape (N, m), `SecretSpace.membership_table()`.

    Returns:
        Probabilities, shape (..., N).
    """
    table = np.asarray(memberships, np.float64)
    if np.shape(beliefs)[-1:] != table.shape[1:]:
        raise ValueError(f"beliefs has shape {np.shape(beliefs)} and memberships {table.shape}: one column a subset.")
    return np.asarray(np.asarray(beliefs, np.float64) @ table.T)


@validated
def membership_attack(
    beliefs: Numbers, secrets: Numbers, space: SecretSpace, confidence: Confidence = 0.95
) -> AttackResult:
    """Success of the best possible membership attack, which decides by the posterior of each record.

    The attacker of trial i has the belief `beliefs[i]` (for instance `AdaptiveComposition.belief`, which is the
    posterior that any observer of the releases holds) and guesses every record of the pool a member iff that is more
    likely than not.

    The success against one real secret is a function of that secret, and with the public table it all but names it:
    publish figures of games only.

    Args:
        beliefs: Posterior of the secret in each trial, shape (trials, m).
        secrets: Index of the true secret in each trial, shape (trials,).
        space: The secret space.
        confidence: Level of the interval. It treats trials, not records, as independent (Hoeffding).

    Raises:
        ValueError: If beliefs, secrets and space do not fit each other.

    Source: *PAC-Private Responses*, Proposition 6.1.

    Example:
        >>> from lightning_pac.scenarios import BalancedSubsets
        >>> membership_attack(np.eye(4), np.arange(4), BalancedSubsets(100, 4)).success
        1.0
    """
    posteriors = np.atleast_2d(np.asarray(beliefs, dtype=np.float64))
    truth = np.atleast_1d(np.asarray(secrets))
    if len(posteriors) != len(truth) or posteriors.shape[1] != space.num_secrets or len(truth) == 0:
        raise ValueError(
            f"beliefs has shape {posteriors.shape}, but must be ({len(truth)}, {space.num_secrets}): trials by secrets."
        )
    table = space.membership_table()
    # Shape (trials, N).
    correct = (membership_posterior(posteriors, table) > 0.5) == table.T[truth]
    success = float(correct.mean())
    return AttackResult(
        name="bayes_optimal_membership",
        success=success,
        # Over trials: the records of one trial stand and fall together.
        interval=hoeffding_interval(success, len(truth), confidence),
        confidence=confidence,
        num_trials=len(truth),
        method="posterior of the secret given all responses; each record is a member iff its posterior exceeds 1/2",
    )


@validated
@dataclasses.dataclass(frozen=True, eq=False)
class MembershipAudit:
    """The posterior of independent trials of one sequence of queries, at a few moments.

    Attributes:
        num_responses: Responses after which the posteriors were taken, shape (c,).
        beliefs: Posteriors, shape (c, trials, m).
        secrets: True secrets, shape (trials,).
        mutual_information: Sum of the budgets at these moments, capped at the prior's entropy, shape (c,).
    """

    num_responses: npt.NDArray[np.int64]
    beliefs: Array
    secrets: npt.NDArray[np.int64]
    mutual_information: Array

    @property
    def measured_information(self) -> Array:
        """Mean drop of the posterior's entropy from a uniform prior in nats, shape (c,)."""
        # p ln p tends to 0 with p; floating point makes it NaN.
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(self.beliefs > 0, self.beliefs * np.log(self.beliefs), 0.0)
        # H(prior) - E H(posterior) = ln m + E sum_j p_j ln p_j.
        return np.asarray(math.log(self.beliefs.shape[-1]) + terms.sum(axis=-1).mean(axis=-1))

    def success(self, space: SecretSpace) -> Array:
        """Success of the optimal attack at each moment, shape (c,).

        Args:
            space: The secret space that was played on.
        """
        return np.array([membership_attack(beliefs, self.secrets, space).success for beliefs in self.beliefs])

    def bound(self, space: SecretSpace) -> Array:
        """Bound on the success of every attack at each moment, shape (c,).

        Args:
            space: The secret space that was played on.
        """
        prior = space.individual_prior
        return np.array([membership_success_bound(float(nats), prior) for nats in self.mutual_information])

    def plot(self, space: SecretSpace, path: str | Path) -> None:
        """Draw measured success and bound against the number of responses into a file."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(self.num_responses, 100 * self.bound(space), label="bound")
        axes.plot(self.num_responses, 100 * self.success(space), marker=".", label="optimal attack")
        axes.set(xscale="log", xlabel="responses", ylabel="membership attack success (%)")
        axes.legend()
        figure.savefig(path)


@validated
def simulate_beliefs(
    votes: MatrixLike,
    budget: float,
    num_trials: Count,
    checkpoints: Sequence[Natural] | int | None = None,
    rule: CompositionRule = "logdet",
    generator: SecureGenerator | None = None,
) -> MembershipAudit:
    """Play adaptive composition many times at once, with a uniform prior and a secret drawn anew in every trial.

    The same queries are asked in all trials, so that each costs a few array operations over trials and secrets.

    Args:
        votes: The label that each secret gives to each query, shape (n, m).
        budget: Mutual information of each response in nats.
        num_trials: Number of independent trials.
        checkpoints: Numbers of responses after which to record the posteriors; only the last one if None.
        rule: Noise rule.
        generator: Source of noise and secrets, the process-wide secure generator if None.

    Raises:
        ValueError: If there is no trial, or the checkpoints do not ascend within the number of queries.

    Source: *PAC-Private Responses*, section 6.3 (Table 4).

    Example:
        >>> audit = simulate_beliefs([[0, 1, 1, 1]] * 5, budget=0.01, num_trials=10)
        >>> audit.beliefs.shape, audit.mutual_information.round(4).tolist()
        ((1, 10, 4), [0.05])
    """
    table = VoteTable.of(np.asarray(votes))
    num_secrets = table.inverse.shape[1]
    moments = np.atleast_1d(np.asarray(len(table) if checkpoints is None else checkpoints, dtype=np.int64))
    if not moments.size or not (np.diff(moments) > 0).all() or not 0 <= moments[0] <= moments[-1] <= len(table):
        raise ValueError(f"checkpoints is {moments.tolist()}, but must ascend within 0 ... {len(table)}.")
    source = secure_generator() if generator is None else generator
    secrets = source.integers(num_secrets, num_trials)
    # Log space: after many responses most posteriors underflow.
    log_beliefs = np.full((num_trials, num_secrets), -math.log(num_secrets))
    recorded = {0: np.exp(log_beliefs)}
    spent = np.zeros(len(table) + 1)
    for query in range(int(moments[-1])):
        spent[query + 1] = spent[query]
        # A query that all secrets answer alike tells nothing, and the engine does not charge for it either.
        if (classes := int(table.num_classes[query])) > 1:
            log_beliefs = _step(log_beliefs, table.inverse[query], classes, secrets, budget, rule, source)
            spent[query + 1] += budget
        if query + 1 in moments:
            recorded[query + 1] = np.exp(log_beliefs)
    return MembershipAudit(
        num_responses=moments,
        beliefs=np.stack([recorded[moment] for moment in moments.tolist()]),
        secrets=secrets,
        mutual_information=np.minimum(spent[moments], math.log(num_secrets)),
    )


def _step(
    log_beliefs: Array,
    inverse: npt.NDArray[np.intp],
    num_classes: int,
    secrets: npt.NDArray[np.int64],
    budget: float,
    rule: CompositionRule,
    source: Any,
) -> Array:
    # The belief's mass on each class decides the noise, as it does in the engine.
    masses = np.exp(log_beliefs) @ np.eye(num_classes)[inverse]
    # Whitened outputs of each class, shape (trials, k, r); the true secret's is the signal, shape (trials, r).
    whitened, _ = vote_channel(masses, np.full(len(masses), budget), rule)
    signal = np.take_along_axis(whitened, inverse[secrets][:, None, None], axis=1)[:, 0]
    coordinates = signal + source.normal(signal.shape)
    # Bayes' rule in log space: the log likelihood of the release under each class, up to a constant.
    evidence = np.einsum("nkr,nr->nk", whitened, coordinates) - 0.5 * (whitened**2).sum(axis=2)
    updated = log_beliefs + evidence[:, inverse]
    # With the maximum taken out the sum lies between 1 and m, so that its logarithm is finite.
    updated -= updated.max(axis=1, keepdims=True)
    updated -= np.log(np.exp(updated).sum(axis=1, keepdims=True))
    return np.asarray(updated)
