"""Adaptive composition of private answers against adversaries who choose each query after the last answer."""

import math
import operator
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from lightning_pac._mutex import Mutex
from lightning_pac._validation import validated
from lightning_pac.exceptions import BudgetExceededError
from lightning_pac.information import Array, check_budget, check_total_budget
from lightning_pac.mechanisms.responses.answer import BatchRelease, Release
from lightning_pac.mechanisms.responses.belief import Belief
from lightning_pac.mechanisms.responses.vote_table import VoteTable
from lightning_pac.mechanisms.variances import CompositionRule
from lightning_pac.randomness import SecureGenerator, secure_generator

__all__ = ["AdaptiveComposition"]

# Queries whose noise is drawn and whose votes are renumbered at a time.
_ROWS_PER_CHUNK = 4096


@validated
class AdaptiveComposition:
    r"""Answers adaptively chosen queries about one secret, with total mutual information at most the sum of budgets.

    After every release the posterior of the secret given all releases (the *belief*) is updated, and the noise of the
    next release is calibrated to it: what an adversary already suspects is protected, where a fixed noise would not.
    For every adaptive adversary

    $$I(S; R_1, \dots, R_T) \le \min\Big(\sum_t b_t,\; H(P)\Big).$$

    A query is given by the outputs that the m secrets would produce: m integer labels (votes, released as noised
    one-hot vectors over the classes that occur) or an m x d array (scores). Where all outputs of positive prior are
    identical, the output is released exactly and costs nothing, since it does not depend on the secret.

    Threads may share it: their answers are given one after the other, since each depends on those before. A copy, or
    the one in a fork of the process, goes on by itself, and nobody adds up what both tell: a `PACResponder` refuses.

    To keep a ledger, call `state_dict` before a release and commit the release before showing it; if the commit
    fails, `load_state_dict` takes the release back.

    Args:
        prior: Probabilities of the m secrets, sum 1. A secret of probability 0 has no say in anything.
        secret: Index of the true secret, an `int` or a `SecretIndex`; None replays and audits but cannot release.
        rule: `"logdet"`, or `"linear"` as in the paper.
        total_budget: Mutual information in nats that must not be passed; None for no limit. From the prior's entropy
            on it limits nothing, since no number of answers tells more than the secret.
        generator: Source of the noise, the process-wide secure generator if None.

    Raises:
        ValueError: If the prior is no distribution, the secret is outside it, or a budget is not positive.

    Source: *PAC-Private Responses with Adversarial Composition*, Algorithm 1 and Theorem 3.3.

    Example:
        >>> composition = AdaptiveComposition(np.full(4, 0.25), secret=1)
        >>> composition.release([7, 7, 7, 7], budget=0.01).label, composition.spent
        (7, 0.0)
        >>> composition.release([0, 1, 1, 1], budget=0.01).label in (0, 1), composition.spent
        (True, 0.01)
    """

    def __init__(
        self,
        prior: npt.ArrayLike,
        secret: SupportsIndex | None,
        rule: CompositionRule = "logdet",
        total_budget: float | None = None,
        generator: SecureGenerator | None = None,
    ) -> None:
        if total_budget is not None:
            check_total_budget(total_budget, "total_budget")
        self.rule: CompositionRule = rule
        self.total_budget = total_budget
        self._belief = Belief(prior)
        self._secret = None if secret is None else self._belief.position(operator.index(secret))
        self._generator = secure_generator() if generator is None else generator
        self._spent = 0.0
        self._num_releases = 0
        self._mutex = Mutex()

    @property
    def num_secrets(self) -> int:
        """Number m of secrets."""
        return self._belief.num_secrets

    @property
    def belief(self) -> Array:
        """Posterior of the secret given all releases, shape (m,)."""
        return self._belief.probabilities

    @property
    def log_belief(self) -> Array:
        """Logarithm of the belief, shape (m,); minus infinity where the prior is 0."""
        return self._belief.log_probabilities

    @property
    def spent(self) -> float:
        """Sum of the budgets of all releases so far, in nats."""
        return self._spent

    @property
    def mutual_information(self) -> float:
        """Bound on what all releases together tell: the smaller of `spent` and the prior's entropy, in nats."""
        return min(self._spent, self._belief.prior_entropy)

    @property
    def num_releases(self) -> int:
        """Number of answers so far, free ones included."""
        return self._num_releases

    def release(self, outputs: npt.ArrayLike, budget: float) -> Release:
        """Answer one query.

        Args:
            outputs: m labels, or an m x d array of scores, row j for secret j.
            budget: Mutual information b of this answer in nats. It must not depend on the secret except through past
                answers.

        Raises:
            ValueError: If the outputs do not fit or contain NaN, or the budget is not positive and finite.
            BudgetExceededError: If the answer would exceed the total budget; nothing was released.
        """
        values = np.asarray(outputs)
        if values.ndim == 2:
            with self._mutex:
                return self._release_scores(self._check_scores(values), float(_check_budgets(budget)))
        if values.ndim != 1:
            raise ValueError(f"outputs must be m labels or an m x d array, got shape {values.shape}.")
        return self.release_batch(values[None], budget)[0]

    def release_batch(self, outputs: npt.ArrayLike, budget: npt.ArrayLike) -> BatchRelease:
        """Answer n queries, exactly as n calls of `release` would, each with the belief that the last one left.

        The cost of a batch is known before it is answered, so it is answered as a whole or refused as a whole.

        Args:
            outputs: n x m labels, or an n x m x d array of scores.
            budget: Mutual information of each answer in nats, a number or n numbers.

        Raises:
            ValueError: If the outputs do not fit or contain NaN, or a budget is not positive and finite.
            BudgetExceededError: If the batch would exceed the total budget; nothing was released.
        """
        values = np.asarray(outputs)
        if values.ndim not in (2, 3) or len(values) == 0:
            raise ValueError(f"outputs must have shape (n, m) or (n, m, d) with n > 0, got {values.shape}.")
        budgets = _check_budgets(budget, (len(values),))
        with self._mutex:
            if values.ndim == 3:
                return self._release_score_batch([self._check_scores(row) for row in values], budgets)
            votes = self._check_votes(values)
            # A query costs its budget unless all votes agree, so that the total is known before an answer is given.
            if self._limited:
                self._check_total(budgets[(votes != votes[:, :1]).any(axis=1)])
            chunks = [slice(start, start + _ROWS_PER_CHUNK) for start in range(0, len(votes), _ROWS_PER_CHUNK)]
            tables = [self._release_votes(VoteTable.of(votes[chunk]), budgets[chunk]) for chunk in chunks]
        return _concatenate(tables, self.rule)

    def replay(self, outputs: npt.ArrayLike, values: npt.ArrayLike, budget: npt.ArrayLike) -> None:
        """Update belief and spending from recorded answers; no noise is drawn and no secret is needed.

        The belief is the same, to the last bit, as the one of the composition that released the values (on the same
        platform and numpy).

        Args:
            outputs: n x m labels, or n x m x d scores.
            values: The released vectors, n x K (`BatchRelease.values`).
            budget: The budgets that were asked for, a number or n numbers.

        Raises:
            ValueError: If outputs, values and budgets do not fit each other.
        """
        rows = np.asarray(outputs)
        released = np.asarray(values, dtype=np.float64)
        if rows.ndim not in (2, 3) or released.ndim != 2 or len(rows) != len(released):
            raise ValueError(f"outputs {rows.shape} and values {released.shape} must hold the same number of answers.")
        budgets = _check_budgets(budget, (len(rows),))
        with self._mutex:
            self._replay(rows, released, budgets)

    def state_dict(self) -> dict[str, Any]:
        """Log-belief, spending and number of answers; the secret is not part of it."""
        with self._mutex:
            return {
                "log_belief": self._belief.log_probabilities,
                "spent": self._spent,
                "num_releases": self._num_releases,
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            ValueError: If the state belongs to another number of secrets or another prior's support.
        """
        with self._mutex:
            self._belief.restore(np.asarray(state["log_belief"], dtype=np.float64))
            self._spent = float(state["spent"])
            self._num_releases = int(state["num_releases"])

    def _replay(self, rows: npt.NDArray[Any], released: Array, budgets: Array) -> None:
        if rows.ndim == 3:
            for row, value, cost in zip(rows, released, budgets.tolist(), strict=True):
                scores = self._check_scores(row)
                if not _identical(scores):
                    self._belief.score_channel(scores, cost, self.rule).update(value)
                    self._spent += cost
                self._num_releases += 1
            return
        table = VoteTable.of(self._check_votes(rows))
        for row in range(len(table)):
            if (classes := int(table.num_classes[row])) > 1:
                cost = float(budgets[row])
                channel = self._belief.vote_channel(table.inverse[row], classes, cost, self.rule)
                channel.update(released[row, :classes].tolist())
                self._spent += cost
            self._num_releases += 1

    def _release_votes(self, table: VoteTable, budgets: Array) -> "_VoteAnswers":
        secret = self._require_secret()
        answers = _VoteAnswers(table, budgets)
        # k - 1 normals for a query of k classes, all of them in one draw.
        noise: list[float] = self._generator.normal(int((table.num_classes - 1).sum())).tolist()
        rows = np.flatnonzero(table.num_classes > 1)
        of_each = zip(
            table.inverse[rows],
            table.inverse[rows, secret].tolist(),
            table.num_classes[rows].tolist(),
            budgets[rows].tolist(),
            strict=True,
        )
        values: list[float] = []
        masses: list[float] = []
        used = 0
        for inverse, vote, classes, budget in of_each:
            channel = self._belief.vote_channel(inverse, classes, budget, self.rule)
            value = channel.release(vote, noise[used : used + classes - 1])
            channel.update(value)
            used += classes - 1
            values += value
            masses += channel.masses
            self._spent += budget
        self._num_releases += len(table)
        answers.fill(rows, values, masses)
        return answers

    def _release_scores(self, outputs: Array, budget: float) -> Release:
        secret = self._require_secret()
        dimension = outputs.shape[1]
        coordinates = np.arange(dimension)
        if _identical(outputs):
            self._num_releases += 1
            return Release(int(np.argmax(outputs[0])), outputs[0].copy(), coordinates, None, 0.0, self.rule)
        self._check_total(np.array([budget]))
        channel = self._belief.score_channel(outputs, budget, self.rule)
        noise = self._generator.normal(channel.rank)
        value = channel.release(secret, noise)
        channel.update(value)
        self._spent += budget
        self._num_releases += 1
        return Release(int(np.argmax(value)), value, coordinates, None, budget, self.rule, channel)

    def _release_score_batch(self, outputs: list[Array], budgets: Array) -> BatchRelease:
        self._check_total(budgets[[not _identical(row) for row in outputs]])
        answers = [self._release_scores(row, budget) for row, budget in zip(outputs, budgets.tolist(), strict=True)]
        return BatchRelease(
            labels=np.array([answer.label for answer in answers]),
            values=np.stack([answer.value for answer in answers]),
            classes=np.stack([answer.classes for answer in answers]),
            masses=None,
            costs=np.array([answer.cost for answer in answers]),
            rule=self.rule,
        )

    @property
    def _limited(self) -> bool:
        return self.total_budget is not None and self.total_budget < self._belief.prior_entropy

    def _check_total(self, costs: Array) -> None:
        if not self._limited or self.total_budget is None:
            return
        total = self._spent
        for cost in costs.tolist():
            total += cost
        # The relative slack is for the rounding of the sum: 100 answers of 0.01 are within a total of 1.
        if total > self.total_budget * (1 + 1e-12):
            raise BudgetExceededError(
                f"{total - self._spent:.6g} nats more would exceed the total budget of {self.total_budget:.6g} nats, "
                f"of which {self._spent:.6g} are spent: ask less, lower the budget of an answer, or raise the total."
            )

    def _check_votes(self, outputs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if not np.issubdtype(outputs.dtype, np.integer):
            raise ValueError(f"outputs are votes of {outputs.dtype}, not integers: give scores as an m x d array.")
        if outputs.shape[1] != self.num_secrets:
            raise ValueError(f"{self.num_secrets} secrets need {self.num_secrets} votes, got {outputs.shape[1]}.")
        if outputs.size and outputs.min() < 0:
            raise ValueError(f"labels must not be negative, got {outputs.min()}.")
        if outputs.dtype == np.uint64 and outputs.size and outputs.max() > np.iinfo(np.int64).max:
            raise ValueError(f"labels must be below 2**63, got {outputs.max()}: number the classes from 0.")
        return self._belief.restrict(outputs)

    def _check_scores(self, outputs: npt.NDArray[Any]) -> Array:
        scores = np.asarray(outputs, dtype=np.float64)
        if scores.ndim != 2 or len(scores) != self.num_secrets or scores.shape[1] == 0:
            raise ValueError(f"{self.num_secrets} secrets need {self.num_secrets} rows of scores, got {scores.shape}.")
        if not np.isfinite(scores).all():
            row = int(np.flatnonzero(~np.isfinite(scores).all(axis=1))[0])
            raise ValueError(f"The output of secret {row} is not finite: mend the model before it answers.")
        return self._belief.restrict(scores.T).T

    def _require_secret(self) -> int:
        if self._secret is None:
            raise ValueError("This composition was made without a secret: give one to release, or use replay.")
        return self._secret


class _VoteAnswers:
    """Arrays that a chunk of votes is answered into."""

    def __init__(self, table: VoteTable, budgets: Array) -> None:
        self.classes = table.classes
        self.costs = np.where(table.num_classes > 1, budgets, 0.0)
        present = table.classes >= 0
        self.values = np.where(present, 1.0, np.nan)
        self.masses = np.where(present, 1.0, 0.0)

    def fill(self, rows: npt.NDArray[np.intp], values: list[float], masses: list[float]) -> None:
        """Put in the answers and class masses of the given rows, one after the other."""
        # Row-major, the order in which the values were collected.
        row, position = np.nonzero(self.classes[rows] >= 0)
        self.values[rows[row], position] = values
        self.masses[rows[row], position] = masses

    def labels(self) -> npt.NDArray[np.int64]:
        # NaN stands for classes that do not occur.
        best = np.nanargmax(self.values, axis=1)
        return np.take_along_axis(self.classes, best[:, None], axis=1)[:, 0]


def _concatenate(chunks: list[_VoteAnswers], rule: CompositionRule) -> BatchRelease:
    width = max(chunk.classes.shape[1] for chunk in chunks)

    def joined(name: str, fill: float) -> npt.NDArray[Any]:
        arrays = [getattr(chunk, name) for chunk in chunks]
        if len(arrays) == 1:
            return np.asarray(arrays[0])
        return np.concatenate(
            [np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=fill) for array in arrays]
        )

    return BatchRelease(
        labels=np.concatenate([chunk.labels() for chunk in chunks]),
        values=joined("values", math.nan),
        classes=joined("classes", -1),
        masses=joined("masses", 0.0),
        costs=np.concatenate([chunk.costs for chunk in chunks]),
        rule=rule,
    )


def _check_budgets(budget: npt.ArrayLike, shape: tuple[int, ...] = ()) -> Array:
    budgets = np.asarray(budget, dtype=np.float64)
    check_budget(budgets)
    if budgets.shape not in ((), shape):
        raise ValueError(f"budget must be one number or have shape {shape}, got {budgets.shape}.")
    return np.broadcast_to(budgets, shape)


def _identical(outputs: Array) -> bool:
    return bool((outputs == outputs[0]).all())
