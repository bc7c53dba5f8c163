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
from lightning_pac.audits.given_numbers import whole_numbers
from lightning_pac.information import Array
from lightning_pac.mechanisms.responses import VoteTable, vote_channel
from lightning_pac.mechanisms.variances import CompositionRule
from lightning_pac.randomness import SecureGenerator, secure_generator
from lightning_pac.scenarios.secret_space import SecretSpace

__all__ = ["MembershipAudit", "membership_attack", "membership_posterior", "simulate_beliefs"]

# Queries whose votes are renumbered at a time.
_QUERIES_AT_A_TIME = 4096


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
    truth = whole_numbers("secrets", truth, space.num_secrets, 1, "trial: the number of the subset that was drawn")
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
        ValueError: If there is no trial, a vote is no label, or the checkpoints do not ascend within the queries.

    Source: *PAC-Private Responses*, section 6.3 (Table 4).

    Example:
        >>> audit = simulate_beliefs([[0, 1, 1, 1]] * 5, budget=0.01, num_trials=10)
        >>> audit.beliefs.shape, audit.mutual_information.round(4).tolist()
        ((1, 10, 4), [0.05])
    """
    queries = whole_numbers("votes", votes, 2**63, 2, "query and secret: the label that it gets")
    num_queries, num_secrets = queries.shape
    moments = np.atleast_1d(np.asarray(num_queries if checkpoints is None else checkpoints, dtype=np.int64))
    if not moments.size or not (np.diff(moments) > 0).all() or not 0 <= moments[0] <= moments[-1] <= num_queries:
        raise ValueError(f"checkpoints is {moments.tolist()}, but must ascend within 0 ... {num_queries}.")
    source = secure_generator() if generator is None else generator
    secrets = source.integers(num_secrets, num_trials)
    beliefs = np.full((num_trials, num_secrets), 1 / num_secrets)
    asked, spent = 0, 0.0
    kept_beliefs, kept_spending = [], []
    for moment in moments.tolist():
        while asked < moment:
            table = VoteTable.of(queries[asked : min(asked + _QUERIES_AT_A_TIME, moment)])
            # A query that all secrets answer alike tells nothing, and the engine does not charge for it either.
            for query in np.flatnonzero(table.num_classes > 1).tolist():
                votes_of = np.eye(int(table.num_classes[query]))[table.inverse[query]]
                _answer_in_all_trials(beliefs, votes_of, secrets, budget, rule, source)
                spent += budget
            asked += len(table)
        kept_beliefs.append(beliefs.copy())
        kept_spending.append(spent)
    return MembershipAudit(
        num_responses=moments,
        beliefs=np.stack(kept_beliefs),
        secrets=secrets,
        mutual_information=np.minimum(kept_spending, math.log(num_secrets)),
    )


def _answer_in_all_trials(
    beliefs: Array, votes: Array, secrets: npt.NDArray[np.int64], budget: float, rule: CompositionRule, source: Any
) -> None:
    """Answer one query, given as one-hot votes (m, k), and update the beliefs (trials, m) in place."""
    # The belief's mass on each class decides the noise, as it does in the engine.
    masses = beliefs @ votes
    # Whitened outputs of each class, shape (trials, k, r); the true secret's is the signal, shape (trials, r).
    whitened, _ = vote_channel(masses, np.full(len(masses), budget), rule)
    signal = whitened[np.arange(len(secrets)), votes.argmax(axis=1)[secrets]]
    coordinates = signal + source.normal(signal.shape)
    # The log likelihood of the release under each class, up to a constant.
    evidence = np.einsum("nkr,nr->nk", whitened, coordinates) - 0.5 * np.einsum("nkr,nkr->nk", whitened, whitened)
    # Bayes' rule with one factor a class. Classes that a belief has lost to underflow have no say in the largest.
    evidence -= np.where(masses > 0, evidence, -np.inf).max(axis=1, keepdims=True)
    factors = np.exp(np.minimum(evidence, 0.0))
    beliefs *= (factors / (masses * factors).sum(axis=1, keepdims=True)) @ votes.T
