"""Answering a batch of requests so that each is answered, repeated or refused by itself."""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from lightning_pac.cards import downwards, upwards
from lightning_pac.exceptions import BudgetExceededError, LedgerError
from lightning_pac.ledger import KEY_CURRENCY, LedgerAccount
from lightning_pac.mechanisms import PACResponder
from lightning_pac.serve.api_keys import APIKey

__all__ = ["BatchAnswers", "Refusal", "Ticket", "key_account"]

logger = logging.getLogger(__name__)

_FOLDER = re.compile(r"(?<![^\s('`])/\S*/")


@dataclass(frozen=True)
class Ticket:
    """A request that was let in.

    Attributes:
        input: What the model takes, as it came in JSON.
        request: A name under which a repetition finds the recorded answer; None for a request that cannot be repeated.
        key: The API key that pays, None where the server has no keys.
    """

    input: Any
    request: str | None = None
    key: APIKey | None = None


@dataclass(frozen=True)
class Refusal:
    """Why a request was not answered; it cost nothing.

    Attributes:
        status: Status code of HTTP.
        reason: One sentence for the client.
    """

    status: int
    reason: str


class BatchAnswers:
    """Answers batches through a responder.

    The costs of all answers of a batch, and the shares of the keys, are one transaction. A request that cannot be
    answered never takes others with it: if a batch fails as a whole, nothing was charged, and each of its requests is
    tried by itself.

    Attributes:
        failure: Since when and why the ledger cannot be written, None while it can: then the last write succeeded.

    Args:
        open_responder: Opens the responder, and opens it again after its ledger could not be written.
        collate: Makes the model's inputs from a list of JSON inputs; raises `ValueError` or `TypeError` for bad ones.

    Raises:
        LedgerError: If the ledger is in use, was copied or was rolled back.
    """

    def __init__(self, open_responder: Callable[[], PACResponder], collate: Callable[[list[Any]], Any]) -> None:
        self._open_responder = open_responder
        self._collate = collate
        self._responder: PACResponder | None = None
        self._accounts: dict[str, tuple[APIKey, LedgerAccount]] = {}
        self.failure: str | None = None
        self._open()

    def __call__(self, tickets: Sequence[Ticket]) -> list[int | Refusal]:
        """A label or a refusal for each request, in order."""
        results: dict[int, int | Refusal] = {}
        try:
            responder = self._open()
            new: dict[str | int, list[int]] = {}  # requests of one name in one batch get one answer
            for position, ticket in enumerate(tickets):
                recorded = None if ticket.request is None else responder.recorded_answer(ticket.request)
                if recorded is not None:
                    results[position] = recorded
                else:
                    new.setdefault(position if ticket.request is None else ticket.request, []).append(position)
            first = [positions[0] for positions in new.values()]
            answered = self._answer_new(responder, [tickets[position] for position in first])
            for positions, result in zip(new.values(), answered, strict=True):
                results.update(dict.fromkeys(positions, result))
        except LedgerError as error:
            self._note(error)
            self.close()
            refusal = Refusal(503, "The ledger could not be written: try again later, under the same Idempotency-Key.")
            results = {position: results.get(position, refusal) for position in range(len(tickets))}
        return [results[position] for position in range(len(tickets))]

    def try_again(self) -> None:
        """After a failure, open the ledger again if need be and write to it; if that succeeds, the failure is over."""
        if self.failure is None:
            return
        try:
            self._open().ledger.try_writing()
        except Exception as error:
            self._note(error)
        else:
            self._note(None)

    def close(self) -> None:
        """Close the responder and its ledger."""
        if self._responder is not None:
            self._responder.close()
        self._responder = None

    def _open(self) -> PACResponder:
        if self._responder is None:
            self._accounts = {}
            self._responder = self._open_responder()
        return self._responder

    def _note(self, error: Exception | None) -> None:
        if error is None:
            if self.failure is not None:
                logger.warning("The ledger can be written again.")
            self.failure = None
            return
        if self.failure is None:
            self._since = datetime.now(timezone.utc).isoformat(timespec="seconds")
            logger.error("The ledger could not be written or read.", exc_info=error)
        # Health is answered to anyone, and must not name folders.
        self.failure = f"Nothing is answered since {self._since}: {_FOLDER.sub('', str(error))}"

    def _answer_new(self, responder: PACResponder, tickets: list[Ticket]) -> list[int | Refusal]:
        refusals = [self._cannot_pay(responder, ticket) for ticket in tickets]
        asked = [ticket for ticket, refusal in zip(tickets, refusals, strict=True) if refusal is None]
        answers = iter(self._release(responder, asked))
        return [next(answers) if refusal is None else refusal for refusal in refusals]

    def _release(self, responder: PACResponder, tickets: list[Ticket]) -> list[int | Refusal]:
        if not tickets:
            return []
        try:
            inputs = self._collate([ticket.input for ticket in tickets])
            release = responder.release(
                inputs,
                requests=[ticket.request for ticket in tickets],
                payers=[self._payer(responder, ticket) for ticket in tickets],
            )
            self._note(None)
            return [int(label) for label in release.labels]
        except LedgerError:
            raise
        except Exception as error:
            # Nothing was charged. What failed may be one input, or a budget that a part of the batch still fits in.
            if type(error).__name__ == "AcceleratorError":
                raise
            if len(tickets) > 1:
                return self._answer_parts(responder, tickets)
            return [self._explain(responder, tickets[0], error)]

    def _answer_parts(self, responder: PACResponder, tickets: list[Ticket]) -> list[int | Refusal]:
        """Answer inputs of each shape by themselves, so that a bad one costs its neighbours little; else by halves."""
        parts: dict[Any, list[int]] = {}
        for position, ticket in enumerate(tickets):
            parts.setdefault(self._kind(ticket, position), []).append(position)
        if len(parts) == 1:
            middle = len(tickets) // 2
            parts = {0: list(range(middle)), 1: list(range(middle, len(tickets)))}
        results: dict[int, int | Refusal] = {}
        for positions in parts.values():
            answers = self._answer_new(responder, [tickets[position] for position in positions])
            results.update(zip(positions, answers, strict=True))
        return [results[position] for position in range(len(tickets))]

    def _kind(self, ticket: Ticket, position: int) -> Any:
        """The shape of an input, or, for one that is none, what no other input has."""
        try:
            return tuple(getattr(self._collate([ticket.input]), "shape", ()))
        except Exception:
            return position

    def _cannot_pay(self, responder: PACResponder, ticket: Ticket) -> Refusal | None:
        # By what an answer may cost at most: a refusal then says nothing about whether the models agree.
        if ticket.key is None or (payer := self._payer(responder, ticket)) is None:
            return None
        cost = responder.budget_per_response
        try:
            payer.check(cost)
        except BudgetExceededError:
            return Refusal(
                429,
                f"An answer may cost {upwards(cost, 3)} nats and API key {ticket.key.name!r} has "
                f"{downwards(payer.remaining, 3)} left: "
                "ask the keeper of the data to raise its budget.",
            )
        return None

    def _payer(self, responder: PACResponder, ticket: Ticket) -> LedgerAccount | None:
        if (key := ticket.key) is None:
            return None
        known, account = self._accounts.get(key.name, (None, None))
        if account is None or known != key:
            account = key_account(responder, key)
            self._accounts[key.name] = key, account
        return account

    def _explain(self, responder: PACResponder, ticket: Ticket, error: Exception) -> Refusal:
        if isinstance(error, BudgetExceededError):
            return self._cannot_pay(responder, ticket) or Refusal(
                429,
                f"An answer may cost {upwards(responder.budget_per_response, 3)} nats and "
                f"{downwards(responder.remaining, 3)} are left "
                "for all answers together: ask the keeper of the data to raise the budget.",
            )
        # The text may speak of the model or the pool, so it stays in the log of the server.
        logger.warning("An input could not be answered: %s: %s", type(error).__name__, error)
        return Refusal(
            422, "The model cannot take this input: check its shape, its type and that its numbers are finite."
        )


def key_account(responder: PACResponder, key: APIKey) -> LedgerAccount:
    """The account in which a key's share is counted, with the budget that the key has now."""
    account = responder.ledger.account(f"key {key.name}", KEY_CURRENCY, {"api_key": key.name}, kind="api_key")
    if key.budget is not None and account.budget != key.budget:
        account.set_budget(key.budget)
    return account
