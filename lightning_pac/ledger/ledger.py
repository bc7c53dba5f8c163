"""The durable record of everything that was spent.

A `PrivacyLedger` is one SQLite file. It holds accounts; an account has a name, a currency and a declaration, and is
charged before anything is released:

    with PrivacyLedger("study.db", budget={"mutual_information": 0.1}) as ledger:
        account = ledger.account("clusters", "mutual_information", declaration={"rule": "logdet"})
        account.charge(0.02, event={"release": "centroids"})      # on the disk when it returns

A training run journals each optimizer step before its noise is drawn:

    account = ledger.account("fit", "rpp", declaration={"coupling": {...}, "noise_multiplier": 6.56}, budget=8.0)
    attempt = account.start_attempt(first_step=trainer.global_step)   # one for every start or restart
    attempt.start_step(cost, step=trainer.global_step)                # durable; then draw the noise
    account.attempts()                                                # their first_step and num_steps, to be priced

Two accounts of one currency add up only if they speak of the same coupling of the two worlds, at the same order: put
whatever must agree under the key `"coupling"` of the declaration, and a second account that differs there is refused.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakValueDictionary

from typing_extensions import Self

from lightning_pac._mutex import Mutex
from lightning_pac._validation import NonNegative, validated
from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.ledger.account import AccountKind, LedgerAccount, check_only_account, check_text, encode_json
from lightning_pac.ledger.files import Facts, place_of
from lightning_pac.ledger.integrity import (
    change_promise,
    check_order,
    check_totals,
    counted_unit,
    differing_keys,
    exact,
    promised_options,
)
from lightning_pac.ledger.schema import SET_BUDGET
from lightning_pac.ledger.storage import LedgerStorage

__all__ = ["BudgetChange", "PrivacyLedger"]

# Two threads that ask for one path are given one ledger.
_guard = Mutex()
_OPEN: "WeakValueDictionary[tuple[int, Path], PrivacyLedger]" = WeakValueDictionary()


@dataclass(frozen=True)
class BudgetChange:
    """A budget as it was set.

    Attributes:
        account: Whose it is; None for the total of the currency.
        currency: What it is counted in.
        amount: The most that may be spent.
        time: When it was made durable (UTC, ISO 8601).
    """

    account: str | None
    currency: str
    amount: float
    time: str


@validated
class PrivacyLedger:
    """Durable accounts of privacy spent, in currencies that do not mix.

    A charge is refused, before anything changes, if it would take the account or the currency past its budget; else it
    is on the disk when the call returns (SQLite, write-ahead log, `synchronous=FULL`). One process writes at a time: a
    second writer is an error at once, and the right to write ends with the process. Threads are serialized. A fork
    cannot write.

    Args:
        path: The file, created with its folder if there is none.
        budget: Total budget of each currency over all accounts. On an existing ledger the stored budgets hold, and a
            different one is an error (see `set_budget`).
        witness: A file elsewhere that keeps the marks of this ledger from now on, for all who open it: where what puts
            back the files of the ledger does not reach, they tell that it was put back. Marks that the file has already
            must be of this ledger, and not ahead of it. None leaves them where they are, beside the ledger at first.

    Raises:
        LedgerError: If the file is not a ledger, cannot be written, or has another writer, or is not what its witness
            knows.
        LedgerMismatchError: If the ledger was made with another budget.
        ValueError: If a budget is negative or not finite.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/study.db"
        >>> with PrivacyLedger(path, budget={"mutual_information": 0.1}) as ledger:
        ...     account = ledger.account("clusters", "mutual_information", declaration={"rule": "logdet"})
        ...     account.charge(0.0625, event={"release": "centroids"})
        0.0625
        >>> with PrivacyLedger.read_only(path) as ledger:
        ...     ledger.spent("mutual_information"), [account.name for account in ledger.accounts()]
        (0.0625, ['clusters'])
    """

    def __init__(
        self, path: str | Path, budget: Mapping[str, NonNegative] | None = None, witness: str | Path | None = None
    ) -> None:
        self._storage = LedgerStorage(path)
        try:
            self._declare_budgets(budget or {})
            if witness is not None:
                self._keep_marks_at(witness)
        except BaseException:
            self._storage.close()
            raise
        self._holders = 1
        _OPEN[os.getpid(), self.path] = self

    @classmethod
    def read_only(cls, path: str | Path) -> Self:
        """Opens a ledger for reading, also while another process writes it.

        Args:
            path: The ledger's file.

        Raises:
            LedgerError: If there is no ledger at `path`, it is behind its marks, or its file system cannot hold a
                write-ahead log and a writer is live.
        """
        ledger = cls.__new__(cls)
        ledger._storage = LedgerStorage(path, writable=False)
        try:
            ledger._storage.check()
        except BaseException:
            ledger._storage.close()
            raise
        ledger._holders = 1
        return ledger

    @classmethod
    def ensure(cls, ledger: "PrivacyLedger | str | Path", witness: str | Path | None = None) -> "PrivacyLedger":
        """The ledger itself, or the one at a path: for arguments that take either.

        Two callbacks may be given one path: what this process already has open there is shared, and closed when the
        last of those who asked for it by path has closed it.

        Args:
            ledger: An open ledger, or the path of one.
            witness: Where the marks of a ledger that is given by its path are kept from now on.
        """
        if isinstance(ledger, PrivacyLedger):
            return ledger
        path = place_of(ledger)
        with _guard:
            shared = _OPEN.get((os.getpid(), path))
            if shared is None or shared.closed:
                return cls(path, witness=witness)
            if witness is not None:
                shared._keep_marks_at(witness)
            shared._holders += 1
            return shared

    def _shown_state(self) -> dict[str, Any]:
        if self.closed or self._storage.problem is not None:
            return {"closed" if self.closed else "refused": True}
        accounts = self.accounts()
        left = {one: self.remaining(one) for one in sorted({account.currency for account in accounts})}
        return {
            "accounts": len(accounts),
            "spent": {currency: self.spent(currency) for currency in left},
            "remaining": {currency: amount for currency, amount in left.items() if amount < math.inf} or None,
        }

    @property
    def path(self) -> Path:
        """The file, resolved."""
        return self._storage.path

    @property
    def ledger_id(self) -> str:
        """A random identifier drawn when the ledger was made; a copy of the file shares it."""
        return str(self._storage.read_row("SELECT value FROM meta WHERE key = 'ledger_id'")[0])

    @property
    def storage(self) -> LedgerStorage:
        """The open file, for the classes of this subpackage that keep their own tables in it."""
        return self._storage

    def account(
        self,
        name: str,
        currency: str = "mutual_information",
        declaration: Mapping[str, Any] | None = None,
        budget: NonNegative | None = None,
        kind: AccountKind = "charges",
        table_hash: str | None = None,
    ) -> LedgerAccount:
        """The account of that name, opened if there is none.

        Args:
            name: Unique within the ledger.
            currency: What is charged, for instance `"mutual_information"` (nats) or `"rpp"`.
            declaration: JSON-like facts the costs rest on. They are compared key by key with the stored ones.
            budget: The most this account may spend; None leaves it to the currency's total, or to the stored budget.
            kind: What a new account's charges are for.
            table_hash: The table of subsets that it answers about; a ledger has one account for each, since a second
                secret or belief about it would void both.

        Raises:
            LedgerError: If the ledger was moved, copied, rolled back or changed by another hand.
            LedgerMismatchError: If another account answers about that table, the account exists with another currency,
                declaration or budget, or another account of this currency declares another `"coupling"`; the message
                names the keys.
            TypeError: If the name or currency is no text, or the declaration is not JSON.
            ValueError: If the budget is negative or not finite, or the name or currency has lone surrogates.
        """
        check_text(name, "name")
        check_text(currency, "currency")
        text = None if declaration is None else encode_json(declaration, "declaration")
        self._storage.check()
        with self._storage.mutex:  # another thread may open it meanwhile
            if table_hash is not None:
                check_only_account(self._storage, name, table_hash)
            if existing := self._storage.read("SELECT id FROM accounts WHERE name = ?", (name,)):
                account = LedgerAccount(self._storage, existing[0][0])
                if self._storage.writable:
                    check_totals(self._storage, account.id, name)
                self._compare(account, currency, text, budget)
                return account
            text = text or "{}"
            self._compare_coupling(currency, json.loads(text))
            check_order(self._storage, currency, json.loads(text))
            with self._storage.transaction() as connection:
                cursor = connection.execute(
                    "INSERT INTO accounts (name, currency, declaration, kind, table_hash) VALUES (?, ?, ?, ?, ?)",
                    (name, currency, text, kind, table_hash),
                )
                opened: Any = cursor.lastrowid
                self._storage.note_account(opened, Facts(name, currency, text))
                if budget is not None:
                    connection.execute("INSERT INTO budgets (account, amount) VALUES (?, ?)", (opened, budget))
                    self._storage.note_budgets(connection)
            return LedgerAccount(self._storage, opened)

    def accounts(self) -> tuple[LedgerAccount, ...]:
        """All accounts, in the order they were opened."""
        rows = self._storage.read("SELECT id FROM accounts ORDER BY id")
        return tuple(LedgerAccount(self._storage, row[0]) for row in rows)

    def currencies(self) -> tuple[str, ...]:
        """Currencies that have an account or a budget, sorted."""
        rows = self._storage.read(
            "SELECT currency FROM accounts UNION SELECT currency FROM budgets WHERE currency IS NOT NULL"
        )
        return tuple(sorted(row[0] for row in rows))

    def spent(self, currency: str) -> float:
        """Sum over all accounts of that currency; LedgerError if the ledger was moved, copied or rolled back."""
        self._storage.check()
        return float(self._storage.read("SELECT TOTAL(spent) FROM accounts WHERE currency = ?", (currency,))[0][0])

    def budget(self, currency: str) -> float | None:
        """Total budget of the currency, None where there is none."""
        rows = self._storage.read("SELECT amount FROM budgets WHERE currency = ? ORDER BY id DESC LIMIT 1", (currency,))
        return float(rows[0][0]) if rows else None

    def remaining(self, currency: str) -> float:
        """The remaining total budget of the currency, infinite where there is none."""
        budget = self.budget(currency)
        return float("inf") if budget is None else max(0.0, budget - self.spent(currency))

    def set_budget(self, currency: str, amount: NonNegative) -> None:
        """Changes a total budget, a decision that stays on record with its date (see `budget_changes`).

        Args:
            currency: What is limited.
            amount: The most that all accounts of the currency may spend together.

        Raises:
            ValueError: If the amount is negative or not finite.
            LedgerError: If a promise has set it, which would not be kept then.
        """
        check_text(currency, "currency")
        if (options := promised_options(self._storage, currency)) is not None:
            raise LedgerError(f"{self.path} keeps a promise: change that, by `{change_promise(self.path, options)}`.")
        with self._storage.transaction() as connection:
            connection.execute(SET_BUDGET, (currency, amount))
            self._storage.note_budgets(connection)

    @property
    def last_charge(self) -> tuple[str, str] | None:
        """Time (UTC, ISO 8601) and account of the last charge; None if there was none.

        If all files of a ledger were put back together to an earlier moment, no file can tell: a last charge that is
        older than the last release can.
        """
        if self._storage.version < 2:
            return None
        rows = self._storage.read(
            "SELECT last_charge, name FROM accounts WHERE last_charge NOT NULL ORDER BY last_charge DESC LIMIT 1"
        )
        return (str(rows[0][0]), str(rows[0][1])) if rows else None

    def budget_changes(self) -> tuple[BudgetChange, ...]:
        """Every budget that was ever set, the first and the changed ones, in order."""
        rows = self._storage.read(
            "SELECT accounts.name, COALESCE(budgets.currency, accounts.currency), amount, budgets.time "
            "FROM budgets LEFT JOIN accounts ON accounts.id = budgets.account ORDER BY budgets.id"
        )
        return tuple(BudgetChange(*row) for row in rows)

    def try_writing(self) -> None:
        """Writes a note that counts nothing, to see whether a charge could be written.

        Raises:
            LedgerError: If it cannot.
        """
        with self._storage.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO meta VALUES ('last_trial', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"
            )

    def close(self) -> None:
        """Closes the file and lets another writer in, unless others in this process share it (see `ensure`)."""
        with _guard:
            self._holders -= 1
            if self._holders <= 0:
                self._storage.close()

    @property
    def closed(self) -> bool:
        """Whether the ledger was closed."""
        return self._storage.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _keep_marks_at(self, witness: str | Path) -> None:
        self._storage.check()
        self._storage.keep_marks_at(place_of(witness, is_ledger=False))

    def _declare_budgets(self, amounts: Mapping[str, float]) -> None:
        for currency, amount in amounts.items():
            stored = self.budget(currency)
            if stored is None:
                self.set_budget(currency, amount)
            elif stored != amount:
                options = promised_options(self._storage, currency)
                change = f"with PrivacyLedger(path).set_budget({currency!r}, {exact(amount)})"
                change = change if options is None else f"by `{change_promise(self.path, options)}`"
                raise LedgerMismatchError(
                    f"{self.path} has a {currency} budget of {exact(stored)} and {exact(amount)} was given: open it "
                    f"without one, or change it {change}."
                )

    def _compare(self, account: LedgerAccount, currency: str, text: str | None, budget: float | None) -> None:
        differences = [] if account.currency == currency else [f"currency ({account.currency!r}, now {currency!r})"]
        if text is not None:
            differences += differing_keys(account.declaration, json.loads(text))
        if budget is not None and account.budget != budget:
            differences.append(f"budget ({account.budget}, now {budget})")
        if differences:
            raise LedgerMismatchError(
                f"Account {account.name!r} of {self.path} was declared with other values of {', '.join(differences)}: "
                "use the values it was made with, another account name or a new ledger; `lightning-pac account budget` "
                f"changes a budget{self._if_new()}."
            )

    def _compare_coupling(self, currency: str, declaration: Mapping[str, Any]) -> None:
        # All accounts of a currency agree, since each was compared when it was opened: one of them speaks for all.
        found = self._storage.read("SELECT id FROM accounts WHERE currency = ? ORDER BY id LIMIT 1", (currency,))
        if not found:
            return
        other = LedgerAccount(self._storage, found[0][0])
        stored, given = other.declaration.get("coupling"), declaration.get("coupling")
        differences = differing_keys(stored, given, "coupling")
        counted, now = counted_unit(stored), counted_unit(given)
        about = f"account {other.name!r} of {self.path} is about"
        if counted != now:
            why, instead = f"a {counted}, and this about a {now}, which do not add", "give this"
        else:
            why, instead = f"others ({', '.join(differences)})", "declare the same scenario and order, or use"
        if differences:
            told = f"Costs add for the same two worlds only, and {about} {why}: {instead} another ledger"
            raise LedgerMismatchError(f"{told}{self._if_new()}.")

    def _if_new(self) -> str:
        """What else helps where a refused start left accounts in a new ledger, for the end of a sentence."""
        is_new = not any(account.num_charges for account in self.accounts())
        return "; nothing is charged to this ledger yet, so it may be deleted" if is_new else ""
