"""The training journal: every optimizer step is on record before its noise is drawn."""

import sqlite3
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lightning_pac._validation import Natural, checks_itself, validated
from lightning_pac.exceptions import LedgerError
from lightning_pac.ledger.storage import LedgerStorage

__all__ = ["Attempt", "TrainingAttempt"]


@dataclass(frozen=True)
class Attempt:
    """The steps that one start or restart of a training run has started.

    Attributes:
        first_step: Global optimizer step it started at.
        num_steps: Optimizer steps started, finished or not.
        cost: Sum of their costs.
        time: When its first step was started (UTC, ISO 8601).
    """

    first_step: int
    num_steps: int
    cost: float
    time: str

    @property
    def next_step(self) -> int:
        """The first global step that it did not start."""
        return self.first_step + self.num_steps


class Payer(Protocol):
    """The part of an account that an attempt draws on (a `LedgerAccount`)."""

    @property
    def id(self) -> int: ...

    @property
    def name(self) -> str: ...

    def add(self, connection: sqlite3.Connection, cost: float, num_charges: int) -> float: ...


@validated
class TrainingAttempt:
    """One start or restart of a training run; `LedgerAccount.start_attempt` makes it.

    A step that was started counts, whether or not it came to an end: after a crash the account is what this journal
    says, never what a checkpoint says. A step adds to one row, so that a million steps take no more room than one.

    Args:
        account: The account that pays.
        storage: The ledger's file.
        first_step: Global optimizer step at which it starts.
    """

    def __init__(self, account: Payer, storage: LedgerStorage, first_step: Natural) -> None:
        self._account = account
        self._storage = storage
        self._first_step = first_step
        self._num_steps = 0
        self._row: int | None = None

    def _shown_state(self) -> dict[str, Any]:
        return {"account": self._account.name, "first_step": self._first_step}

    @property
    def first_step(self) -> int:
        """Global optimizer step it started at."""
        return self._first_step

    @property
    def num_steps(self) -> int:
        """Steps it has started."""
        return self._num_steps

    @checks_itself
    def start_step(self, cost: float, step: int) -> float:
        """Journals and charges an optimizer step, durably before it returns. Draw its noise afterwards.

        Args:
            cost: What this step adds to the account.
            step: Its global number, which must follow the step before it.

        Returns:
            The account's new total.

        Raises:
            BudgetExceededError: If the step would exceed a budget; it is not journalled.
            LedgerError: If the step is not the next one, or cannot be written; it is not journalled.
            ValueError: If the cost is negative or not finite.
        """
        expected = self._first_step + self._num_steps
        if step != expected:
            if not isinstance(step, int | np.integer) or isinstance(step, bool):
                raise TypeError(f"step is {step!r}, but must be an integer.")
            raise LedgerError(
                f"Step {step} was started where the journal of account {self._account.name!r} expects step {expected}: "
                "open a new attempt with start_attempt(first_step) after a restart."
            )
        with self._storage.transaction() as connection:
            total = self._account.add(connection, cost, 1)
            if self._row is None:
                row = connection.execute(
                    "INSERT INTO attempts (account, first_step, num_steps, cost) VALUES (?, ?, 1, ?)",
                    (self._account.id, self._first_step, cost),
                ).lastrowid
            else:
                row = self._row
                connection.execute(
                    "UPDATE attempts SET num_steps = num_steps + 1, cost = cost + ? WHERE id = ?", (cost, row)
                )
        self._row = row
        self._num_steps += 1
        return total
