"""Everything in a ledger that anyone may read, as plain values; and the ledger that those make again."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_pac._validation import validated
from lightning_pac.exceptions import LedgerError
from lightning_pac.ledger.account import encode_json
from lightning_pac.ledger.integrity import check_totals, decode_declaration
from lightning_pac.ledger.ledger import PrivacyLedger
from lightning_pac.ledger.plan import declared_budgets, declared_plan, lost_budgets, promised_since

__all__ = ["public_journal", "replay_journal"]

_COLUMNS = ("name", "currency", "kind", "table_hash", "spent", "num_charges", "paid", "num_paid", "time", "last_charge")
_TABLES = {
    "budget": "budgets (account, currency, amount, time)",
    "charge": "charges (account, cost, event, time)",
    "steps": "attempts (account, cost, first_step, num_steps, time)",
    "answers": "snapshots (account, sequence, num_answers, spent, state, chain, tag)",
}
_FIELDS = {
    "budget": ("account", "currency", "amount", "time"),
    "charge": ("account", "cost", "event", "time"),
    "steps": ("account", "cost", "first_step", "num_steps", "time"),
}
_EVENTS = """
    SELECT 'budget' AS entry, account, currency, amount, NULL AS event, NULL AS first_step, NULL AS num_steps, time, id
        FROM budgets
    UNION ALL SELECT 'charge', account, NULL, cost, event, NULL, NULL, time, id FROM charges
    UNION ALL SELECT 'steps', account, NULL, cost, NULL, first_step, num_steps, time, id FROM attempts
    ORDER BY time, entry, id"""
# Several answers a second would be a million lines that all say as little: what they cost is one sum.
_ANSWERS = """
    SELECT (SELECT COUNT(*) FROM entries WHERE account = ?1),
        num_charges - num_paid - (SELECT COUNT(*) FROM charges WHERE account = ?1),
        spent - paid - (SELECT TOTAL(cost) FROM charges WHERE account = ?1),
        (SELECT hex(tag) FROM entries WHERE account = ?1 ORDER BY sequence DESC LIMIT 1)
    FROM accounts WHERE id = ?1"""


@validated
def public_journal(ledger: PrivacyLedger) -> list[dict[str, Any]]:
    """All that was declared, charged and stated, oldest first, without anything secret.

    Left out are what answers were, whose secret they are about, the names of clients of a server with their accounts,
    and where the ledger lies. The answers of an account are one entry: how many they are and what they cost, with the
    last code of their chain, by which the holder of the secret file finds out whether they are the same.

    Args:
        ledger: The ledger.

    Raises:
        LedgerError: If a total is not that of its charges, an entry does not read, or the ledger has an old format.
    """
    if ledger.storage.version < 2:
        raise LedgerError(
            f"{ledger.path} has the format of version 0.1.0, which keeps too little: bring it to the newest one with "
            f"`lightning-pac account adopt {shlex.quote(str(ledger.path))}`."
        )
    clients = {account.id for account in ledger.accounts() if account.kind == "api_key"}
    known: list[dict[str, Any]] = [{"entry": "ledger", "ledger_id": ledger.ledger_id, "clients": len(clients)}]
    if (plan := declared_plan(ledger)) is not None:
        known.append({"entry": "plan", "plan": plan})
    if stated := declared_budgets(ledger):
        since = promised_since(ledger)
        known.append({"entry": "promises", "stated": stated, **({} if since is None else {"since": since})})
    if lost := lost_budgets(ledger):
        known.append({"entry": "lost budgets", "number": lost})
    for account in ledger.accounts():
        if account.id not in clients:
            check_totals(ledger.storage, account.id, account.name)
            row = ledger.storage.read_row(f"SELECT {', '.join(_COLUMNS)} FROM accounts WHERE id = ?", (account.id,))
            facts = dict(zip(_COLUMNS, row, strict=True))
            known.append({"entry": "account", "id": account.id, **facts, "declaration": account.declaration})
    known += [entry for entry in _events(ledger) if entry["account"] not in clients]
    for account in ledger.accounts():
        if ledger.storage.has_transcript(account.id):
            names = ("num_entries", "num_answers", "cost", "end")
            row = ledger.storage.read_row(_ANSWERS, (account.id,))
            known.append({"entry": "answers", "account": account.id, **dict(zip(names, row, strict=True))})
        if (card := account.card) is not None and account.id not in clients:
            known.append({"entry": "card", "account": account.id, "card": json.loads(card.to_json())})
    return known


def _events(ledger: PrivacyLedger) -> Iterator[dict[str, Any]]:
    for entry, account, currency, amount, event, first_step, num_steps, time, _ in ledger.storage.read(_EVENTS):
        common = {"entry": entry, "account": account, "time": time}
        if entry == "budget":
            yield {**common, "currency": currency, "amount": amount}
        elif entry == "charge":
            text = None if event is None else decode_declaration(event, ledger.path)
            yield {**common, "cost": amount, "event": text}
        else:
            yield {**common, "cost": amount, "first_step": first_step, "num_steps": num_steps}


@validated
def replay_journal(entries: Sequence[Mapping[str, Any]], path: str | Path) -> PrivacyLedger:
    """A new ledger that holds what a public journal tells, for those who compute its figures again.

    It is no ledger to go on with: answers and secrets are not in it.

    Args:
        entries: What `public_journal` gave.
        path: The file, which must not exist.

    Raises:
        LedgerError: If a total is not that of its charges, or the file cannot be written.
        ValueError: If the entries are not such a journal.
    """
    ledger = PrivacyLedger(path)
    try:
        with ledger.storage.transaction() as connection:
            for entry in entries:
                connection.execute(*_row(entry))
        for account in ledger.accounts():
            check_totals(ledger.storage, account.id, account.name)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        ledger.close()
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"entries are not a public journal ({reason}): give what `public_journal` gave.") from None
    except BaseException:
        ledger.close()
        raise
    return ledger


def _row(entry: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
    """The statement that brings an entry back."""
    kind = entry["entry"]
    if kind == "ledger":
        return "UPDATE meta SET value = ? WHERE key = 'ledger_id'", (entry["ledger_id"],)
    if kind == "plan":
        return "INSERT INTO meta VALUES ('plan', ?)", (encode_json(entry["plan"], "plan"),)
    if kind == "promises":
        found = {name: entry[name] for name in ("stated", "since") if name in entry}
        return "INSERT INTO meta VALUES ('promised budgets', ?)", (encode_json(found, "stated"),)
    if kind == "lost budgets":
        return "INSERT INTO meta VALUES ('lost budgets', ?)", (str(int(entry["number"])),)
    if kind == "card":
        return "INSERT INTO meta VALUES (?, ?)", (f"card {int(entry['account'])}", json.dumps(entry["card"]))
    if kind == "account":
        values = (entry["id"], encode_json(entry["declaration"], "declaration"), *(entry[name] for name in _COLUMNS))
        return f"INSERT INTO accounts (id, declaration, {', '.join(_COLUMNS)}) VALUES ({_marks(values)})", values
    if kind == "answers":
        values = (entry["account"], entry["num_entries"], entry["num_answers"], entry["cost"], b"", b"", b"")
    else:
        values = tuple(_text(entry[name]) if name == "event" else entry[name] for name in _FIELDS[kind])
    return f"INSERT INTO {_TABLES[kind]} VALUES ({_marks(values)})", values


def _text(event: Mapping[str, Any] | None) -> str | None:
    return None if event is None else encode_json(event, "event")


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
