"""Private answers: any function with one output per secret, adaptive composition, and the durable ledger."""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from lightning_pac._mutex import Mutex
from lightning_pac._validation import validated
from lightning_pac.cards import PrivacyCard
from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.information import check_budget, check_total_budget, entropy
from lightning_pac.ledger import (
    LedgerAccount,
    LedgerArgument,
    LedgerHandle,
    Payment,
    PrivacyLedger,
    ResponseTranscript,
    pack_arrays,
    unpack_arrays,
)
from lightning_pac.mechanisms.responses.adaptive_composition import AdaptiveComposition
from lightning_pac.mechanisms.responses.answer import BatchRelease
from lightning_pac.mechanisms.responses.card import open_answers, responder_card, success_bound
from lightning_pac.mechanisms.responses.model_outputs import as_batch, query
from lightning_pac.mechanisms.responses.recorded_answers import RecordedAnswers
from lightning_pac.mechanisms.responses.replay import replay_releases
from lightning_pac.mechanisms.variances import CompositionRule
from lightning_pac.scenarios import SecretIndex, SecretSpace

__all__ = ["PACResponder"]

# A replay takes some microseconds an answer, so that opening a ledger replays for milliseconds.
_ANSWERS_BETWEEN_SNAPSHOTS = 1000


@validated
class PACResponder:
    r"""Answers queries about data of which half is secret, each answer for a stated amount of mutual information.

    The model is any function that gives one output for each of the m secrets: labels, or score vectors. Only the output
    of the secret is answered, with the noise of `AdaptiveComposition`; so after T answers, to any adaptive adversary,

    $$I(S; R_1, \dots, R_T) \le \min\Big(\sum_t b_t,\; H(P)\Big).$$

    Durable before visible: the cost and what the belief was updated with are in the ledger before an answer is
    returned. If they cannot be written, nothing is answered and nothing has changed. Opening the ledger again continues
    from the same belief. Calls from several threads are answered one after the other.

    Args:
        model: Called with the inputs. It returns integer labels, shape (m,) or (n, m), or scores, shape (m, d) or
            (n, m, d), as arrays or tensors; row j of m is what the model of subset j says. A `SubsetEnsemble` is asked
            for its votes. A torch module is run in evaluation mode and without gradients.
        secret: From `pool.draw_secret(path)` the first time and `pool.load_secret(path)` afterwards. Its file also
            keeps the high-water mark of the ledger, and is open to one responder at a time.
        budget_per_response: Mutual information in nats of an answer on which the models disagree.
        ledger: The ledger, or its path.
        budget: Total mutual information in nats that this responder may ever spend; None for the ledger's own budget.
        rule: `"logdet"`, or `"linear"` as in the paper.
        account: Name of the responder's account in the ledger.

    Raises:
        LedgerError: If the ledger is a copy, was rolled back, is in use, or cannot be written.
        LedgerMismatchError: If the model, the secret and the ledger do not belong to the same table.
        ValueError: If a budget is not positive and finite, or members of the ensemble are missing.

    Source: *PAC-Private Responses with Adversarial Composition*, Algorithm 1; the ledger is ours.

    Example:
        >>> import tempfile
        >>> from lightning_pac.scenarios import BalancedSubsets
        >>> folder = tempfile.mkdtemp()
        >>> pool = BalancedSubsets(num_records=100, num_subsets=4)
        >>> votes = {"easy": [1, 1, 1, 1], "hard": [0, 1, 1, 1]}
        >>> secret = pool.draw_secret(folder + "/secret.key")
        >>> with PACResponder(votes.get, secret, 2**-8, ledger=folder + "/responses.db") as responder:
        ...     responder("easy"), responder.spent
        ...     responder("hard") in (0, 1), responder.spent
        (1, 0.0)
        (True, 0.00390625)
    """

    def __init__(
        self,
        model: Callable[..., Any],
        secret: SecretIndex,
        budget_per_response: float,
        ledger: LedgerArgument,
        budget: float | None = None,
        rule: CompositionRule = "logdet",
        account: str = "responses",
    ) -> None:
        self._space = secret.space
        check_budget(budget_per_response, "budget_per_response")
        if budget is not None:
            check_total_budget(budget)
        self.budget_per_response = float(budget_per_response)
        self._check_model(model)
        self._model = model
        self._composition = AdaptiveComposition(self._space.prior, secret, rule)
        self._prior_entropy = float(entropy(self._space.prior))
        self._last_snapshot = 0  # in answers
        self._mutex = Mutex()
        self._handle = LedgerHandle(ledger)
        self._ledger = self._handle.open()
        try:
            self._account = open_answers(self._ledger, account, self._space, rule, "responses", budget)
            self._transcript = ResponseTranscript(
                self._ledger, self._account, secret.key, secret.path, operator.index(secret)
            )
        except BaseException:
            self._handle.close()
            raise
        try:
            self._replay()
        except BaseException:
            self.close()
            raise

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A PACResponder cannot be copied or pickled, as one process holds its secret and its ledger: give others a "
            "SavedResponder, or the paths, and make it where it is to answer."
        )

    def _shown_state(self) -> dict[str, Any]:
        return {"account": self._account.name, "path": self._ledger.path}

    def __call__(self, inputs: Any, budget: npt.ArrayLike | None = None) -> Any:
        """Private labels, the only thing that users may see.

        Args:
            inputs: What the model takes.
            budget: Mutual information of each answer in nats, a number or n numbers; `budget_per_response` if None. It
                must not depend on the secret except through past answers.

        Returns:
            An `int` for a single query, else integers of shape (n,).

        Raises:
            BudgetExceededError: If the answers would exceed a budget; nothing was answered.
            LedgerError: If they could not be recorded; nothing was answered.
            ValueError: If the model's outputs do not fit, are not finite, or are none.
        """
        release, single = self._answer(lambda: query(self._model, inputs), budget, (), (), 0)
        return int(release.labels[0]) if single else release.labels

    def release(
        self,
        inputs: Any,
        budget: npt.ArrayLike | None = None,
        requests: Sequence[str | None] = (),
        payers: Sequence[LedgerAccount | None] = (),
        num_dummies: int = 0,
    ) -> BatchRelease:
        """Private answers with everything an auditor may see: vectors, covariances and the belief's class masses.

        Args:
            inputs: What the model takes.
            budget: As for a call.
            requests: A name for each answer, under which `recorded_answer` finds it again.
            payers: An account of the same ledger for each answer, which pays its cost too, in a currency of its own:
                for shares of the budget, such as those of API keys.
            num_dummies: How many of the last queries are asked only to be counted where the size of a batch is seen:
                the model answers them, and what it says is dropped, costs nothing and is not on record.

        Raises:
            BudgetExceededError: If the answers would exceed a budget; nothing was answered.
            LedgerError: If they could not be recorded; nothing was answered.
            ValueError: If the outputs do not fit, are not finite, or are none, a request was answered before, an
                account cannot pay, or all queries are dummies.
        """
        return self._answer(lambda: query(self._model, inputs), budget, requests, payers, num_dummies)[0]

    def release_outputs(self, outputs: Any, budget: npt.ArrayLike | None = None) -> BatchRelease:
        """Private answers from outputs of the model that were computed elsewhere, on another device for example.

        Args:
            outputs: What the model returned for n queries: (n, m) labels or (n, m, d) scores.
            budget: As for a call.

        Raises:
            BudgetExceededError: If the answers would exceed a budget; nothing was answered.
            LedgerError: If they could not be recorded; nothing was answered.
            ValueError: If the outputs do not fit, are not finite, or are none.
        """
        return self._answer(lambda: outputs, budget, (), (), 0)[0]

    def recorded_answer(self, request: str) -> int | None:
        """The label that was given to a named request, None if there was none. It costs nothing to repeat it."""
        with self._mutex:
            found = self._transcript.find(request)
        if found is None:
            return None
        entry, position = found
        return int(RecordedAnswers.decode(entry.payload).labels[position])

    def recorded_answers(self) -> Iterator[RecordedAnswers]:
        """All answers on record, for an auditor, each entry checked against the ledger's chain."""
        return (RecordedAnswers.decode(entry.payload) for entry in self._transcript.entries())

    def place_of(self, request: str) -> tuple[int, int] | None:
        """The place of a named request's answer: the entry's number from 0 and the position in it, or None."""
        with self._mutex:
            found = self._transcript.find(request)
        return None if found is None else (found[0].sequence - 1, found[1])

    def recorded_releases(self) -> Iterator[BatchRelease]:
        """All answers on record with the class masses of their time, one batch an entry, for filters and auditors.

        Raises:
            ValueError: If the answers are scores.
        """
        return replay_releases(self.recorded_answers(), self._space.prior, self._composition.rule)

    @property
    def model(self) -> Callable[..., Any]:
        """The function that gives one output for each secret."""
        return self._model

    @property
    def space(self) -> SecretSpace:
        """The public table that the secret was drawn from."""
        return self._space

    @property
    def belief(self) -> npt.NDArray[np.float64]:
        """Posterior of the secret given all answers, shape (m,): for auditors."""
        return self._composition.belief

    @property
    def spent(self) -> float:
        """Mutual information of all answers so far, in nats."""
        return self._account.spent

    @property
    def remaining(self) -> float:
        """The remaining budget, in nats."""
        return self._account.remaining

    @property
    def num_responses(self) -> int:
        """Number of answers so far, free ones included."""
        return self._account.num_charges

    @property
    def membership_success_bound(self) -> float:
        """Largest probability with which anyone who saw all answers can tell whether a given record was used."""
        return success_bound(self.spent, self._space.individual_prior)

    @property
    def ledger(self) -> PrivacyLedger:
        """The ledger that answers are recorded in."""
        return self._ledger

    def card(self) -> PrivacyCard:
        """The guarantees for all answers so far."""
        return responder_card(self._account)

    def close(self) -> None:
        """Lets another responder use the secret, and closes the ledger if this responder opened it."""
        with self._mutex:
            self._transcript.close()
            self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _answer(
        self,
        ask: Callable[[], Any],
        budget: npt.ArrayLike | None,
        requests: Sequence[str | None],
        payers: Sequence[LedgerAccount | None],
        num_dummies: int,
    ) -> tuple[BatchRelease, bool]:
        budgets = self.budget_per_response if budget is None else budget
        if np.size(budgets) == 0:
            raise ValueError("budget is empty, but must be a number, or one for each answer.")
        with self._mutex:
            self._account.check(self._cost(float(np.min(budgets))))
            outputs, single = as_batch(ask())
            if not 0 <= num_dummies < len(outputs):
                raise ValueError(
                    f"num_dummies must be at least 0 and less than the {len(outputs)} queries, got {num_dummies}."
                )
            outputs = outputs[: len(outputs) - num_dummies]
            if len(requests) not in (0, len(outputs)):
                raise ValueError(
                    f"{len(outputs)} answers and {len(requests)} requests: name each answer, or give None for it."
                )
            if len(payers) not in (0, len(outputs)):
                raise ValueError(f"{len(outputs)} answers and {len(payers)} payers: name one for each, or give None.")
            before, entries = self._composition.state_dict(), self._transcript.sequence
            known = self._composition.mutual_information
            try:
                release = self._composition.release_batch(outputs, budgets)
                payload = RecordedAnswers.of(outputs, release, budgets).encode()
                # Less than the answers' costs in sum once the total reaches the prior's entropy.
                cost = self._composition.mutual_information - known
                payments = _payments(release, payers)
                self._transcript.append(payload, len(release), cost, self._snapshot(), requests, payments)
            except BaseException:
                if self._transcript.sequence == entries:
                    self._composition.load_state_dict(before)
                raise
        return release, single

    def _cost(self, budget: float) -> float:
        # All answers together never tell more than the secret.
        check_budget(budget)
        return min(budget, max(0.0, self._prior_entropy - self._composition.spent))

    def _snapshot(self) -> bytes | None:
        composition = self._composition
        if composition.num_releases - self._last_snapshot < max(_ANSWERS_BETWEEN_SNAPSHOTS, composition.num_secrets):
            return None
        self._last_snapshot = composition.num_releases
        return pack_arrays([composition.log_belief, np.array([composition.spent, composition.num_releases])])

    def _replay(self) -> None:
        after = 0
        if (snapshot := self._transcript.snapshot) is not None:
            log_belief, (spent, num_releases) = unpack_arrays(snapshot.state)
            self._composition.load_state_dict(
                {"log_belief": log_belief, "spent": spent, "num_releases": int(num_releases)}
            )
            after = snapshot.sequence
        self._last_snapshot = self._composition.num_releases
        for entry in self._transcript.entries(after):
            answers = RecordedAnswers.decode(entry.payload)
            self._composition.replay(answers.outputs, answers.values, answers.budgets)
        if not math.isclose(self._composition.mutual_information, self.spent, rel_tol=1e-9, abs_tol=1e-300):
            raise LedgerError(
                f"The answers in {self._ledger.path} cost {self._composition.mutual_information:g} nats and its "
                f"account says {self.spent:g}: restore the newest ledger."
            )

    def _check_model(self, model: Any) -> None:
        pool = getattr(model, "pool", None)
        if pool is not None and pool.table_hash != self._space.table_hash:
            raise LedgerMismatchError(
                f"The model was trained on the table {pool.table_hash[:12]} and the secret is of "
                f"{self._space.table_hash[:12]}: draw the secret from the model's own pool."
            )
        members = getattr(model, "members", None)
        if members is None:
            return
        if len(members) != self._space.num_secrets:
            raise ValueError(
                f"The ensemble holds {len(members)} of {self._space.num_secrets} members: gather the checkpoints of "
                "all shards."
            )
        if list(members) != list(range(len(members))):
            raise ValueError(
                "The ensemble's members are not in the order of the table, so the secret would name another subset: "
                "make it without members=, or gather its checkpoint."
            )


def _payments(release: BatchRelease, payers: Sequence[LedgerAccount | None]) -> list[Payment]:
    costs: dict[int, list[float]] = {}
    accounts = {payer.id: payer for payer in payers if payer is not None}
    for payer, cost in zip(payers, release.costs.tolist(), strict=False):
        if payer is not None:
            costs.setdefault(payer.id, []).append(cost)
    return [Payment(accounts[key], math.fsum(shares), len(shares)) for key, shares in costs.items()]
