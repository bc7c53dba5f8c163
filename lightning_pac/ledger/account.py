"""One account of a privacy ledger: check, charge, and only then release."""

import json
import math
import reprlib
import shlex
import sqlite3
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import gmtime, strftime, time_ns
from typing import Any, Literal

from lightning_pac._validation import Natural, NonNegative, checks_itself, validated
from lightning_pac.cards import PrivacyCard
from lightning_pac.exceptions import BudgetExceededError, LedgerError, LedgerMismatchError
from lightning_pac.ledger.attempts import Attempt, TrainingAttempt
from lightning_pac.ledger.connection import damaged
from lightning_pac.ledger.integrity import change_promise, decode_declaration, kind_of_old, promised_options
from lightning_pac.ledger.storage import LedgerStorage

__all__ = ["AccountKind", "Charge", "LedgerAccount", "check_only_account"]

AccountKind = Literal["charges", "training", "responses", "privatize", "api_key"]
"""Single charges; steps of training; answers of a responder; values of `privatize`; what an API key pays."""

# A calibrated run spends its budget exactly, up to the rounding of a sum of its steps.
ROUNDING = 1e-9

_INSERT = "INSERT INTO charges (account, cost, event, time) VALUES (?, ?, ?, ?)"
_ADD = "UPDATE accounts SET spent = ?, num_charges = ?, last_charge = ? WHERE id = ?"
_ADD_PAYMENT = "UPDATE accounts SET paid = paid + ?, num_paid = num_paid + ? WHERE id = ?"
# What all accounts of the currency have spent is added up only where it is limited.
_LIMITS = """
    SELECT num_charges, spent,
        (SELECT amount FROM budgets WHERE account = ?1 ORDER BY id DESC LIMIT 1),
        (SELECT amount FROM budgets WHERE currency = ?2 ORDER BY id DESC LIMIT 1),
        CASE WHEN EXISTS (SELECT 1 FROM budgets WHERE currency = ?2)
            THEN (SELECT TOTAL(spent) FROM accounts WHERE currency = ?2) END
    FROM accounts WHERE id = ?1"""
# Of rows, by a statement and its parameters: of the storage, or within a transaction of its connection.
_Query = Callable[[str, tuple[Any, ...]], Iterable[tuple[Any, ...]]]
# Totals of fewer than 1e200 charges are finite.
_LARGEST = 1e100
# Made once, since every charge has an event.
_ENCODER = json.JSONEncoder(sort_keys=True, allow_nan=False)


@dataclass(frozen=True)
class Charge:
    """One charge on record.

    Attributes:
        cost: In the account's currency.
        event: What it was for.
        time: When it was made durable (UTC, ISO 8601).
    """

    cost: float
    event: dict[str, Any] | None
    time: str


@validated
class LedgerAccount:
    """An account; `PrivacyLedger.account` makes it.

    Nothing is cached: every property reads the ledger, so that it shows what a reader of the file would see.
    """

    def __init__(self, storage: LedgerStorage, identifier: int) -> None:
        self._storage = storage
        self._id = identifier
        columns = "kind, table_hash" if storage.version > 1 else "(SELECT 1 FROM attempts WHERE account = accounts.id)"
        self._name, self._currency, text, *others = storage.read_row(
            f"SELECT name, currency, declaration, {columns} FROM accounts WHERE id = ?", (identifier,)
        )
        self._declaration = decode_declaration(text, storage.path)
        if storage.version == 1:
            others = list(kind_of_old(self._declaration, bool(others[0])))
        self._kind, self._table = others[0], others[1]

    def _shown_state(self) -> dict[str, Any]:
        return {"currency": self.currency, "budget": self.budget, "path": self._storage.path}

    @property
    def id(self) -> int:
        """The account's number in the ledger."""
        return self._id

    @property
    def name(self) -> str:
        """Unique in the ledger."""
        return str(self._name)

    @property
    def currency(self) -> str:
        """The unit of its charges; costs of different currencies are never added."""
        return str(self._currency)

    @property
    def kind(self) -> AccountKind:
        """The purpose of its charges."""
        return self._kind  # type: ignore[no-any-return]

    @property
    def table_hash(self) -> str | None:
        """The table of subsets that it answers about, None where it answers about none."""
        return None if self._table is None else str(self._table)

    @property
    def api_key(self) -> str | None:
        """The name of the API key whose payments it counts, None where it counts others."""
        return self._declaration.get("api_key") if self.kind == "api_key" else None

    @property
    def declaration(self) -> dict[str, Any]:
        """The facts its costs rest on, as declared when it was opened."""
        return self._declaration

    @property
    def spent(self) -> float:
        """Sum of all charges and started steps; LedgerError if the ledger was moved, copied or rolled back."""
        self._storage.check()
        return float(self._storage.read_row("SELECT spent FROM accounts WHERE id = ?", (self._id,))[0])

    @property
    def num_charges(self) -> int:
        """Number of charges, started steps included."""
        return int(self._storage.read_row("SELECT num_charges FROM accounts WHERE id = ?", (self._id,))[0])

    @property
    def budget(self) -> float | None:
        """The account's own budget, None where there is none."""
        return (self.budgets or (None,))[-1]

    @property
    def budgets(self) -> tuple[float, ...]:
        """All budgets that the account has had, the one in force last; infinite, where some of the ledger are lost."""
        rows = self._storage.read("SELECT amount FROM budgets WHERE account = ? ORDER BY id", (self._id,))
        lost = rows and self._storage.read("SELECT 1 FROM meta WHERE key = 'lost budgets'")
        return (*[math.inf] * bool(lost), *(float(row[0]) for row in rows))

    def set_budget(self, amount: NonNegative) -> None:
        """Changes the account's budget, a decision that stays on record with its date.

        Args:
            amount: The most that this account may spend.

        Raises:
            ValueError: If the amount is negative or not finite.
        """
        with self._storage.transaction() as connection:
            connection.execute("INSERT INTO budgets (account, amount) VALUES (?, ?)", (self._id, amount))
            self._storage.note_budgets(connection)

    @property
    def remaining(self) -> float:
        """The remaining budget of the account and of its currency, the smaller; infinite where neither has one."""
        _, limits = self._read_limits(self._storage.read)
        return min([math.inf, *(max(0.0, budget - spent) for budget, spent, _ in limits)])

    @checks_itself
    def check(self, cost: float) -> None:
        """Raises what `charge(cost)` would raise, and changes nothing.

        Raises:
            BudgetExceededError: If the charge would exceed a budget.
            ValueError: If the cost is negative or not finite.
        """
        self._check(check_amount(cost, "cost"), self._storage.read)

    def _check(self, cost: float, query: _Query) -> tuple[int, float]:
        totals, limits = self._read_limits(query)
        for budget, spent, owner in limits:
            if spent + cost > budget * (1.0 + ROUNDING):
                raise BudgetExceededError(
                    f"A {self.currency} cost of {cost:g} would exceed the budget of {owner}: {spent:g} of {budget:g} "
                    f"is spent and {spent + cost:g} would be; stop here, or let the keeper of the data raise it by "
                    f"`{self._raise_by(owner)}`."
                )
        return totals

    def _raise_by(self, owner: str) -> str:
        if self.kind == "api_key":
            return f"lightning-pac keys budget KEYS {shlex.quote(str(self.api_key))} --budget AMOUNT"
        of_account = owner.startswith("account")
        whose = ("--account", self.name) if of_account else ("--currency", self.currency)
        path, promise = shlex.quote(str(self._storage.path)), promised_options(self._storage, self.currency)
        if promise is not None and not of_account:
            return f"{change_promise(self._storage.path, promise)}` and in your code, `PlannedLedger(...)"
        return f"lightning-pac account budget {path} AMOUNT {whose[0]}={shlex.quote(whose[1])}"

    @checks_itself
    def charge(self, cost: float, event: Mapping[str, Any] | None = None) -> float:
        """Charges, durably before it returns.

        Args:
            cost: In the account's currency, at least 0.
            event: JSON-like description of what it is for.

        Returns:
            The account's new total.

        Raises:
            BudgetExceededError: If it would exceed a budget; nothing is charged.
            LedgerError: If it cannot be written; nothing is charged.
            ValueError: If the cost is negative or not finite.
        """
        text = None if event is None else encode_json(event, "event")
        amount = check_amount(cost, "cost")
        with self._storage.transaction() as connection:
            connection.execute(_INSERT, (self._id, amount, text, time := _now()))
            return self._add(connection, self._check(amount, connection.execute), amount, 1, time)

    def charge_many(
        self, costs: Sequence[NonNegative], events: Sequence[Mapping[str, Any] | None] | None = None
    ) -> float:
        """Charges several costs in one transaction: all of them, or none.

        Args:
            costs: Costs in the account's currency.
            events: JSON-like facts about each, or None.

        Returns:
            The account's new total.

        Raises:
            BudgetExceededError: If their sum would exceed a budget.
            LedgerError: If they cannot be written.
            ValueError: If a cost is negative or not finite, or there are not as many events as costs.
        """
        events = [None] * len(costs) if events is None else events
        if len(events) != len(costs):
            raise ValueError(f"events are {len(events)} for {len(costs)} costs: give one event for each cost.")
        amounts = [check_amount(cost, "cost") for cost in costs]
        texts = [None if event is None else encode_json(event, "event") for event in events]
        cost, time = check_amount(math.fsum(amounts), "costs"), _now()
        with self._storage.transaction() as connection:
            connection.executemany(
                _INSERT, [(self._id, amount, text, time) for amount, text in zip(amounts, texts, strict=True)]
            )
            return self._add(connection, self._check(cost, connection.execute), cost, len(amounts), time)

    @checks_itself
    def add(self, connection: sqlite3.Connection, cost: float, num_charges: int, is_payment: bool = False) -> float:
        """Adds to the total inside a transaction of the caller, who stores what the cost was for.

        Args:
            connection: Of the transaction.
            cost: In the account's currency.
            num_charges: How many charges it is.
            is_payment: Whether it is for answers that another account holds, which leave no other trace here.

        Raises:
            BudgetExceededError: If it would exceed a budget; the caller's transaction is then undone.
        """
        amount = check_amount(cost, "cost")
        if is_payment:
            connection.execute(_ADD_PAYMENT, (amount, num_charges, self._id))
        return self._add(connection, self._check(amount, connection.execute), amount, num_charges, _now())

    def _add(
        self, connection: sqlite3.Connection, before: tuple[int, float], cost: float, num_charges: int, time: str
    ) -> float:
        total, spent = before[0] + num_charges, before[1] + cost
        connection.execute(_ADD, (spent, total, time, self._id))
        self._storage.note_charge(self._id, total, spent)
        return spent

    @checks_itself
    def book(self, cost: float, event: Mapping[str, Any]) -> None:
        """Charges what was spent already, whatever the budgets say."""
        text, amount = encode_json(event, "event"), check_amount(cost, "cost")
        with self._storage.transaction() as connection:
            connection.execute(_INSERT, (self._id, amount, text, time := _now()))
            self._add(connection, self._read_limits(connection.execute)[0], amount, 1, time)

    def is_in(self, storage: LedgerStorage) -> bool:
        """Whether this is an account of that open ledger."""
        return self._storage is storage

    def events(self) -> tuple[Charge, ...]:
        """All single charges in order (the steps of training runs are in `attempts`)."""
        rows = self._storage.read("SELECT cost, event, time FROM charges WHERE account = ? ORDER BY id", (self._id,))
        path = self._storage.path
        return tuple(
            Charge(cost, None if event is None else decode_declaration(event, path), time) for cost, event, time in rows
        )

    def start_attempt(self, first_step: Natural = 0) -> TrainingAttempt:
        """Opens the journal of one start or restart of a training run.

        Args:
            first_step: Global optimizer step at which it starts.
        """
        return TrainingAttempt(self, self._storage, first_step)

    def attempts(self) -> tuple[Attempt, ...]:
        """Steps started, one entry a start or restart that started any."""
        rows = self._storage.read(
            "SELECT first_step, num_steps, cost, time FROM attempts WHERE account = ? ORDER BY id", (self._id,)
        )
        return tuple(Attempt(*row) for row in rows)

    def attach_card(self, card: PrivacyCard) -> None:
        """Keeps the newest privacy card of what this account paid for; `lightning-pac account` shows it."""
        with self._storage.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"card {self._id}", card.to_json()))

    @property
    def card(self) -> PrivacyCard | None:
        """The card that was attached last, None if none was."""
        rows = self._storage.read("SELECT value FROM meta WHERE key = ?", (f"card {self._id}",))
        try:
            return PrivacyCard.from_json(rows[0][0]) if rows else None
        except ValueError as error:
            raise LedgerError(
                f"The card of account {self.name!r} in {self._storage.path} is damaged: {error}"
            ) from error

    def _read_limits(self, query: _Query) -> tuple[tuple[int, float], list[tuple[float, float, str]]]:
        """Charges and spending of the account; budget, spending and owner of each limit on it."""
        try:
            ((num_charges, spent, own_budget, total_budget, all_spent),) = query(_LIMITS, (self._id, self._currency))
        except ValueError as error:
            raise damaged(self._storage.path, "an account is not there") from error
        account, ledger = f"account {self.name!r} of {self._storage.path}", f"the ledger {self._storage.path}"
        limits = [(own_budget, spent, account), (total_budget, all_spent, ledger)]
        return (num_charges, spent), [limit for limit in limits if limit[0] is not None]


_second = (-1, "")


def _now() -> str:
    """The time as SQLite writes it, in a tenth of the time that it takes for it."""
    global _second
    seconds, rest = divmod(time_ns(), 10**9)
    known, text = _second
    if seconds != known:
        text = strftime("%Y-%m-%dT%H:%M:%S", gmtime(seconds))
        _second = seconds, text
    return f"{text}.{rest // 10**6:03d}Z"


def check_amount(amount: float, name: str) -> float:
    """The amount as a float, refused if it is no number, negative or not finite."""
    if type(amount) is float and 0.0 <= amount <= _LARGEST:  # as nearly always
        return amount
    try:
        value = math.nan if isinstance(amount, str | bytes | bool) else float(amount)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0.0):
        raise ValueError(f"{name} must be finite and at least 0, got {reprlib.repr(amount)}.")
    if value > _LARGEST:
        raise ValueError(f"{name} is {value:g}, and sums of such numbers overflow: give at most {_LARGEST:g}.")
    return value


def check_text(text: str, name: str) -> str:
    """The text, refused where SQLite would keep something else under it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be Unicode without lone surrogates, got {text!r}.") from None
    return text


def encode_json(value: Mapping[str, Any], name: str) -> str:
    """Canonical JSON, refused where it would not read back as it was written."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, got {reprlib.repr(value)}.")
    try:
        return _ENCODER.encode(dict(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{name} must be JSON (strings, finite numbers, lists, mappings): {error}.") from error


def check_only_account(storage: LedgerStorage, name: str, table_hash: str) -> None:
    """Refuse a second account about one table, and warn of a first one about another table.

    Raises:
        LedgerMismatchError: If another account answers about the table.
    """
    found = storage.read("SELECT name FROM accounts WHERE table_hash = ? AND name != ?", (table_hash, name))
    if found:
        raise LedgerMismatchError(
            f"Account {found[0][0]!r} of {storage.path} already answers about this table, and a second secret or "
            f"belief would void both: use account={found[0][0]!r} with its own secret file."
        )
    others = storage.read("SELECT name FROM accounts WHERE table_hash != ?", (table_hash,))
    if others and not storage.read("SELECT id FROM accounts WHERE name = ?", (name,)):
        warnings.warn(
            f"Account {others[0][0]!r} of {storage.path} answers about another table of subsets: where both are "
            "subsets of the same records, someone who sees the answers of both learns more than either bound says, so "
            "divide the records between them.",
            stacklevel=4,
        )
