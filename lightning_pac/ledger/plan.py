"""A plan or a promise for a whole ledger, declared before its first charge."""

import json
from collections.abc import Mapping
from typing import Any

from lightning_pac._validation import NonNegative, validated
from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.ledger.account import encode_json
from lightning_pac.ledger.integrity import PROMISES, decode_declaration
from lightning_pac.ledger.ledger import PrivacyLedger
from lightning_pac.ledger.schema import SET_BUDGET

__all__ = [
    "declare_budget",
    "declare_plan",
    "declared_budgets",
    "declared_plan",
    "first_charge",
    "lost_budgets",
    "note_lost_budgets",
    "promised_since",
]

_KEY = "plan"
_LOST = "lost budgets"


@validated
def declare_plan(ledger: PrivacyLedger, plan: Mapping[str, Any]) -> None:
    """Keep a plan with a ledger that holds no charge yet; the same plan may be declared again at any time.

    Args:
        ledger: The ledger, open for writing.
        plan: JSON-like.

    Raises:
        LedgerError: If something was charged already, since a plan that was made after looking bounds nothing.
        LedgerMismatchError: If another plan was declared.
    """
    text = encode_json(plan, "plan")
    known = declared_plan(ledger)
    if known is not None:
        if json.loads(text) != known:
            raise LedgerMismatchError(
                f"{ledger.path} was declared with another plan: use that one, or a new ledger for other data."
            )
        return
    with ledger.storage.transaction() as connection:
        _check_nothing_stands(ledger, "plan")
        connection.execute("INSERT INTO meta VALUES (?, ?)", (_KEY, text))


@validated
def declared_plan(ledger: PrivacyLedger) -> dict[str, Any] | None:
    """The plan that was declared, None where there is none.

    Args:
        ledger: The ledger.
    """
    return _read(ledger, _KEY)


@validated
def declare_budget(ledger: PrivacyLedger, stated: Mapping[str, Any], amounts: Mapping[str, NonNegative]) -> None:
    """Set budgets, and keep the promise that they were made from; the first is stated before the first charge.

    Args:
        ledger: The ledger, open for writing.
        stated: JSON-like.
        amounts: The most that all accounts of a currency may spend.

    Raises:
        LedgerError: If something was charged already and no promise stands, or a plan does.
    """
    known, since = declared_budgets(ledger), promised_since(ledger)
    with ledger.storage.transaction() as connection:
        if first_charge(ledger) is None:
            # What was set before the first charge and is replaced before it limited nothing.
            known, since = [], sum(change.account is None for change in ledger.budget_changes())
        if not declared_budgets(ledger):
            _check_nothing_stands(ledger, "promise")
        found = {"stated": [*known, dict(stated)], "currencies": sorted(amounts), "since": since}
        text = json.dumps(found, sort_keys=True, allow_nan=False)
        for currency, amount in amounts.items():
            connection.execute(SET_BUDGET, (currency, amount))
        ledger.storage.note_budgets(connection)
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (PROMISES, text))


@validated
def declared_budgets(ledger: PrivacyLedger) -> list[dict[str, Any]]:
    """The promises that were in force when something was charged, the one that stands last.

    Args:
        ledger: The ledger.
    """
    found = _read(ledger, PROMISES)
    return [] if found is None else list(found["stated"])


@validated
def promised_since(ledger: PrivacyLedger) -> int | None:
    """Number of totals that were set before the first of `declared_budgets`; None where there is none, or no note.

    Args:
        ledger: The ledger.
    """
    found = _read(ledger, PROMISES)
    return None if found is None else found.get("since")


@validated
def first_charge(ledger: PrivacyLedger) -> str | None:
    """Time at which the first charge or step was made durable (UTC, ISO 8601), None where there is none.

    Args:
        ledger: The ledger.
    """
    tables = ("charges", "attempts")
    rows = ledger.storage.read(f"SELECT MIN(time) FROM ({' UNION ALL '.join(f'SELECT time FROM {t}' for t in tables)})")
    return None if rows[0][0] is None else str(rows[0][0])


@validated
def lost_budgets(ledger: PrivacyLedger) -> int:
    """Number of budgets that were set and are not on record, since a backup of before was put in the ledger's place.

    Args:
        ledger: The ledger.
    """
    rows = ledger.storage.read("SELECT value FROM meta WHERE key = ?", (_LOST,))
    return int(rows[0][0]) if rows else 0


@validated
def note_lost_budgets(ledger: PrivacyLedger, number: int) -> None:
    """Keep on record that so many budgets are not.

    Args:
        ledger: The ledger, open for writing.
        number: How many more are lost.
    """
    with ledger.storage.transaction() as connection:
        known = number + lost_budgets(ledger)
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_LOST, str(known)))


def _read(ledger: PrivacyLedger, key: str) -> dict[str, Any] | None:
    rows = ledger.storage.read("SELECT value FROM meta WHERE key = ?", (key,))
    return decode_declaration(rows[0][0], ledger.path) if rows else None


def _check_nothing_stands(ledger: PrivacyLedger, what: str) -> None:
    if first_charge(ledger) is not None:
        raise LedgerError(
            f"{ledger.path} holds charges already, and a {what} bounds only what it was declared before: declare it "
            "in a new ledger, before the first run."
        )
    if declared_plan(ledger) is not None or declared_budgets(ledger):
        raise LedgerError(f"{ledger.path} has a plan or a promise already: a ledger keeps one of them.")
