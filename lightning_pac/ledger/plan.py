"""What a ledger was meant to hold, declared before its first charge."""

import json
from collections.abc import Mapping
from typing import Any

from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.ledger.integrity import decode_declaration
from lightning_pac.ledger.ledger import PrivacyLedger

__all__ = ["declare_plan", "declared_plan", "first_charge"]

_KEY = "plan"


def declare_plan(ledger: PrivacyLedger, plan: Mapping[str, Any]) -> None:
    """Keep a plan with a ledger that holds no charge yet; the same plan may be declared again at any time.

    Args:
        ledger: The ledger, open for writing.
        plan: JSON-like.

    Raises:
        LedgerError: If something was charged already, since a plan that was made after looking bounds nothing.
        LedgerMismatchError: If another plan was declared.
    """
    text = json.dumps(dict(plan), sort_keys=True, allow_nan=False)
    known = declared_plan(ledger)
    if known is not None:
        if json.loads(text) != known:
            raise LedgerMismatchError(
                f"{ledger.path} was declared with another plan: use that one, or a new ledger for other data."
            )
        return
    with ledger.storage.transaction() as connection:
        if first_charge(ledger) is not None:
            raise LedgerError(
                f"{ledger.path} holds charges already, and a plan bounds only what it was declared before: declare it "
                "in a new ledger, before the first run."
            )
        connection.execute("INSERT INTO meta VALUES (?, ?)", (_KEY, text))


def declared_plan(ledger: PrivacyLedger) -> dict[str, Any] | None:
    """The plan that was declared, None where there is none.

    Args:
        ledger: The ledger.
    """
    rows = ledger.storage.read("SELECT value FROM meta WHERE key = ?", (_KEY,))
    return decode_declaration(rows[0][0], ledger.path) if rows else None


def first_charge(ledger: PrivacyLedger) -> str | None:
    """When the first charge or step was made durable (UTC, ISO 8601), None where there is none.

    Args:
        ledger: The ledger.
    """
    tables = ("charges", "attempts")
    rows = ledger.storage.read(f"SELECT MIN(time) FROM ({' UNION ALL '.join(f'SELECT time FROM {t}' for t in tables)})")
    return None if rows[0][0] is None else str(rows[0][0])
