"""Whether a ledger is what it was: its accounts against their marks and against their own charges."""

import json
import math
import shlex
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lightning_pac._validation import validated
from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.ledger.connection import damaged
from lightning_pac.ledger.files import AccountMarks, Facts, Mark, digest_budgets, find_move, write_home

__all__ = [
    "PROMISES",
    "AccountRow",
    "budget_state",
    "change_promise",
    "check_order",
    "check_totals",
    "compare",
    "counted_unit",
    "decode_declaration",
    "differing_keys",
    "exact",
    "kind_of_old",
    "marks_of",
    "migrate",
    "promised_options",
    "read_state",
]

PROMISES = "promised budgets"
"""Key of the promises in a ledger, and of the currencies whose totals they set."""

# Of promises of versions that did not note them.
_PROMISED = ("rpp", "srpp_joint", "srpp_ave", "ms_srpp_joint", "ms_srpp_ave")

# What differs where one record is there or not: unless it was named, it had no name in earlier versions.
_UNNAMED, _ONE_RECORD = "which of the two worlds the data come from", "whether any one record is in the data"

# Sums of the same numbers in another order.
RELATIVE, ABSOLUTE = 1e-9, 1e-300

_COLUMNS = (
    "kind TEXT NOT NULL DEFAULT 'charges'",
    "table_hash TEXT",
    "paid REAL NOT NULL DEFAULT 0.0",
    "num_paid INTEGER NOT NULL DEFAULT 0",
    "last_charge TEXT",
)
# What an account's charges, steps, entries (those after the snapshot beside it) and payments add up to.
_ITEMIZED = """
    SELECT accounts.num_charges, accounts.spent,
        (SELECT COUNT(*) FROM charges WHERE account = :id)
        + (SELECT TOTAL(num_steps) FROM attempts WHERE account = :id)
        + (SELECT TOTAL(num_answers) FROM snapshots WHERE account = :id)
        + (SELECT TOTAL(num_answers) FROM entries WHERE account = :id AND sequence > latest),
        (SELECT TOTAL(cost) FROM charges WHERE account = :id)
        + (SELECT TOTAL(cost) FROM attempts WHERE account = :id)
        + (SELECT TOTAL(spent) FROM snapshots WHERE account = :id)
        + (SELECT TOTAL(cost) FROM entries WHERE account = :id AND sequence > latest)
    FROM accounts, (SELECT COALESCE(MAX(sequence), 0) AS latest FROM snapshots WHERE account = :id)
    WHERE accounts.id = :id"""


class Reader(Protocol):
    """A ledger's file as it is read (a `LedgerStorage`)."""

    @property
    def path(self) -> Path: ...

    @property
    def version(self) -> int: ...

    def read(self, statement: str, parameters: Any = ()) -> list[tuple[Any, ...]]: ...

    def read_row(self, statement: str, parameters: Any = ()) -> tuple[Any, ...]: ...


@dataclass(frozen=True)
class AccountRow:
    """An account as the ledger has it."""

    facts: Facts
    num_charges: int
    spent: float


def read_state(
    storage: Reader,
) -> tuple[str, dict[int, AccountRow], list[tuple[Any, ...]], str | None]:
    """Identifier, accounts, budgets in the order in which they were set, and the home of a ledger.

    Raises:
        LedgerError: If they do not read as such.
    """
    try:
        meta = dict(storage.read("SELECT key, value FROM meta WHERE key IN ('ledger_id', 'home')"))
        rows = storage.read("SELECT id, name, currency, declaration, spent, num_charges FROM accounts ORDER BY id")
        accounts = {}
        for account, name, currency, declaration, spent, num_charges in rows:
            if not all(isinstance(text, str) for text in (name, currency, declaration)):
                raise TypeError("an account is no text")
            decode_declaration(declaration, storage.path)
            total = float(spent)
            if not (math.isfinite(total) and total >= 0.0 and isinstance(num_charges, int) and num_charges >= 0):
                raise ValueError("a total is no amount")
            accounts[int(account)] = AccountRow(Facts(name, currency, declaration), num_charges, total)
        budgets = storage.read("SELECT id, currency, account, amount FROM budgets ORDER BY id")
        digest_budgets(budgets)
        for *_, amount in budgets:
            if not (isinstance(amount, float | int) and math.isfinite(amount) and amount >= 0):
                raise ValueError("a budget is no amount")
        return str(meta["ledger_id"]), accounts, budgets, meta.get("home")
    except (ValueError, TypeError, KeyError) as error:
        raise damaged(storage.path, str(error)) from error


def compare(
    path: Path, marks: AccountMarks, ledger_id: str, rows: Mapping[int, AccountRow], budgets: Sequence[tuple[Any, ...]]
) -> LedgerError | None:
    """The first contradiction between a ledger and its marks, None if there is none."""
    if not marks.exists:
        return None
    if marks.ledger_id != ledger_id:
        return LedgerError(
            f"{path} was replaced: {marks.path} knows another ledger ({marks.ledger_id[:8]}, not {ledger_id[:8]}); put "
            "back the one that belongs to it, or move the marks away with the ledger that they belong to."
        )
    for account, mark in marks.accounts.items():
        row = rows.get(account)
        behind = row is None or row.num_charges < mark.num_charges or row.spent < mark.spent * (1 - RELATIVE)
        if row is None or behind:
            has = "is not there" if row is None else f"has {row.num_charges} charges ({row.spent:g} {mark.currency})"
            return LedgerError(
                f"{path} was rolled back: account {mark.name!r} {has} and {marks.path} knows of {mark.num_charges} "
                f"({mark.spent:g}); put the newest files back together, with {path.name}-wal if there was one, or book "
                f"what is missing with `lightning-pac account restore {shlex.quote(str(path))}`."
            )
        if row.facts.digest() != mark.digest:
            return _altered(path, f"name, currency or declaration of account {mark.name!r}")
        if row.num_charges == mark.num_charges and row.spent != mark.spent:
            return _altered(path, f"the total of account {mark.name!r}")
    if digest_budgets(budgets[: marks.num_budgets]) != marks.budgets:
        return _altered(path, "a budget")
    return None


def check_totals(storage: Reader, account: int, name: str) -> None:
    """Hold an account's total against everything that was ever charged to it.

    Raises:
        LedgerError: If they differ.
    """
    num_charges, spent, counted, summed = storage.read_row(_ITEMIZED, {"id": account})
    num_paid, paid = storage.read_row("SELECT num_paid, paid FROM accounts WHERE id = ?", (account,))
    same = math.isclose(spent, summed + paid, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    if num_charges != counted + num_paid or not same:
        raise _altered(
            storage.path, f"the total of account {name!r}, {spent:g} where its charges cost {summed + paid:g},"
        )


def marks_of(rows: Mapping[int, AccountRow]) -> dict[int, Mark]:
    """The marks that say what the ledger says."""
    return {
        account: Mark(row.facts.name, row.facts.currency, row.facts.digest(), row.num_charges, row.spent)
        for account, row in rows.items()
    }


def budget_state(budgets: Sequence[tuple[Any, ...]]) -> tuple[int, str]:
    """Number and fingerprint of the budgets that were set."""
    return len(budgets), digest_budgets(budgets)


def kind_of_old(declaration: Mapping[str, Any], is_training: bool) -> tuple[str, str | None]:
    """Kind of an account, and the table it answers about, as ledgers of format 1 declare them."""
    table = declaration.get("table")
    if isinstance(table, str):
        return ("privatize" if declaration.get("rule") == "privatize" else "responses"), table
    if "api_key" in declaration:
        return "api_key", None
    return ("training" if is_training else "charges"), None


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring a ledger of format 1 to format 2, in the transaction of the caller.

    Format 1 has no record of what other accounts' answers were paid from an account; what its charges do not explain
    is taken for that where an account has no charges at all.

    Raises:
        LedgerError: If a responder's ledger is not where it was, or a total is not that of its charges.
    """
    for (home,) in connection.execute("SELECT home FROM transcripts").fetchall():
        known = json.loads(home)
        known.setdefault("device", -1)
        if (problem := find_move(path, json.dumps(known))) is not None:
            raise problem
    for column in _COLUMNS:
        connection.execute(f"ALTER TABLE accounts ADD COLUMN {column}")
    connection.execute("CREATE INDEX attempts_of_account ON attempts (account)")
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('home', ?)", (write_home(path),))
    for account, name, text in connection.execute("SELECT id, name, declaration FROM accounts").fetchall():
        num_charges, spent, counted, summed = connection.execute(_ITEMIZED, {"id": account}).fetchone()
        if counted == 0:
            connection.execute("UPDATE accounts SET paid = spent, num_paid = num_charges WHERE id = ?", (account,))
        elif num_charges != counted or not math.isclose(spent, summed, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            raise _altered(path, f"the total of account {name!r}, {spent:g} where its charges cost {summed:g},")
        has_steps = connection.execute("SELECT 1 FROM attempts WHERE account = ?", (account,)).fetchone() is not None
        kind, table = kind_of_old(decode_declaration(text, path), has_steps)
        connection.execute(
            "UPDATE accounts SET kind = ?, table_hash = ?, last_charge = (SELECT MAX(time) FROM (SELECT time FROM "
            "charges WHERE account = accounts.id UNION ALL SELECT time FROM attempts WHERE account = accounts.id)) "
            "WHERE id = ?",
            (kind, table, account),
        )
    connection.execute("PRAGMA user_version = 2")


def promised_options(reader: Reader, currency: str) -> str | None:
    """How `account budget` states a larger promise, where the total of a currency comes from one; None where not."""
    promise = _promise_about(reader, currency)
    if promise is None:
        return None
    if promise.get("world_success_bound") is not None:
        return f"--world-success-bound WORLD_SUCCESS_BOUND --prior {exact(promise.get('prior', 0.5))}"
    goes_with = "renyi_order" if promise.get("delta") is None else "delta"
    return f"--epsilon EPSILON --{goes_with.replace('_', '-')} {exact(promise[goes_with])}"


@validated
def exact(value: float) -> str:
    """A number in as few digits as tell it from every other.

    Args:
        value: The number.
    """
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def check_order(reader: Reader, currency: str, declaration: Mapping[str, Any]) -> None:
    """Refuse an account that counts at a lower order than a promise about it, whose costs would pass for less.

    Raises:
        LedgerMismatchError: If it does.
    """
    # Of the other currencies a promise allows nothing.
    promise, coupling = _promise_about(reader, currency) if currency == "rpp" else None, declaration.get("coupling")
    order = coupling.get("renyi_order") if isinstance(coupling, Mapping) else None
    if promise is not None and order is not None and order < (promised := promise.get("renyi_order") or 0.0):
        raise LedgerMismatchError(
            f"{reader.path} keeps its promise at order {promised:g}, and costs at order {order:g} pass for less: count "
            "at that order, or leave it out."
        )


def _promise_about(reader: Reader, currency: str) -> dict[str, Any] | None:
    """The promise that sets the total of a currency."""
    rows = reader.read("SELECT value FROM meta WHERE key = ?", (PROMISES,))
    declared = decode_declaration(rows[0][0], reader.path) if rows else {}
    stated = declared.get("stated") if currency in declared.get("currencies", _PROMISED) else None
    return stated[-1] if stated else None


@validated
def change_promise(path: Path, options: str) -> str:
    """The command that states another promise, as a shell takes it.

    Args:
        path: The ledger.
        options: The promise, as options of `lightning-pac account budget`.
    """
    return f"lightning-pac account budget {shlex.quote(str(path))} {options}"


def decode_declaration(text: Any, path: Path) -> dict[str, Any]:
    """The declaration as it reads from the ledger, tuples having become lists.

    Raises:
        LedgerError: If it is none.
    """
    try:
        declaration = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise damaged(path, "a declaration does not read as JSON") from error
    if not isinstance(declaration, dict):
        raise damaged(path, "a declaration is not a mapping")
    return declaration


def _altered(path: Path, what: str) -> LedgerError:
    return LedgerError(
        f"{path} was changed by another hand ({what} fails its check): restore the newest files from before that."
    )


def counted_unit(coupling: Any) -> str:
    """What the two worlds of a release differ in: a record, or a person by a key.

    Args:
        coupling: What releases declare alike for their costs to add.
    """
    scenario = coupling.get("scenario") if isinstance(coupling, dict) else None
    return str((scenario if isinstance(scenario, dict) else {}).get("unit") or "record")


def differing_keys(stored: Any, given: Any, prefix: str = "") -> list[str]:
    """The keys whose values differ in two declarations, each with both.

    Args:
        stored: That of the ledger.
        given: That of now.
        prefix: The key that both are values of.
    """
    if isinstance(stored, dict) and isinstance(given, dict):
        if given.get("secret") == _ONE_RECORD and stored == {**given, "secret": _UNNAMED}:
            return []
        return [
            difference
            for key in sorted({*stored, *given})
            for difference in differing_keys(stored.get(key), given.get(key), f"{prefix}.{key}" if prefix else str(key))
        ]
    return [] if stored == given else [f"{prefix} ({json.dumps(stored)}, now {json.dumps(given)})"]
