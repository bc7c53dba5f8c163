"""The evidence as plain values, a function of the journal alone."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_pac.accountants import LedgerBudget, LedgerPlan, ledger_total, share_unit, taken_of_shares
from lightning_pac.cards import upwards
from lightning_pac.cards.card import UNCOVERED
from lightning_pac.evidence.chain import decode_chain, digest
from lightning_pac.evidence.claims import Claim, claim_of
from lightning_pac.evidence.wording import COLLECTION, NOT_COVERED, RECORD, SIDE_CHANNELS, STATEMENTS, TRUST
from lightning_pac.ledger import PrivacyLedger, describe_currency, replay_journal

__all__ = ["FORMAT", "SCHEMA_ID", "describe_evidence"]

FORMAT = 1
SCHEMA_ID = f"https://lightning-pac.readthedocs.io/en/latest/schemas/evidence-{FORMAT}.schema.json"

_RELEASES = {
    "training": "the noised gradients of steps {first} to {last}",
    "metric": "a noised metric",
    "table": "ranges and vocabularies from noised counts",
    "selection": "the best of a secret number of runs",
    "mechanism": "noised outputs",
    "padding": "a padded observation",
    "static": "a noised table",
}


def describe_evidence(journal: bytes) -> tuple[dict[str, Any], list[Claim]]:
    """The document that follows from a journal, and the claims in it.

    Args:
        journal: What `encode_chain` wrote.

    Raises:
        LedgerError: If a total is not that of its charges.
        ValueError: If a line is none, or the terms of an account are none.
    """
    entries = decode_chain(journal)
    if not entries or entries[0].get("entry") != "evidence":
        raise ValueError("line 1 is not the head of a journal")
    with (
        tempfile.TemporaryDirectory() as folder,
        replay_journal(entries[1:], Path(folder) / "journal.db") as ledger,
    ):
        return _describe(ledger, entries, digest(journal.splitlines(keepends=True)[-1]))


def _describe(
    ledger: PrivacyLedger, entries: Sequence[Mapping[str, Any]], end: str
) -> tuple[dict[str, Any], list[Claim]]:
    head, journal = entries[0], entries[1:]
    delta, prior = float(head["delta"]), float(head["prior"])
    # A run that was refused has an account, of which nothing was released.
    claims = [claim_of(account, delta, prior) for account in ledger.accounts() if account.num_charges]
    last, total = ledger.last_charge, {**dataclasses.asdict(ledger_total(ledger, delta, prior)), "prior": prior}
    document = {
        "$schema": SCHEMA_ID,
        "format": FORMAT,
        "details": {
            "title": f"Evidence of privacy for {head['ledger']}",
            "ledger": head["ledger"],
            "ledger_id": ledger.ledger_id,
            "journal": {"entries": len(entries), "end": end},
            "written": head["written"],
            "last_charge": None if last is None else last[0],
            "lightning_pac": head["lightning_pac"],
            "package_sha256": head["package_sha256"],
            "versions": head["versions"],
            "released_files": head["released"],
        },
        "statements": {
            name: head["statements"].get(name)
            for name in (*STATEMENTS, RECORD)
            if name != RECORD or RECORD in head["statements"]
        },
        "privacy_parameters": {
            "promise": _promise(ledger, total),
            "total": total,
            "shares": _shares(ledger),
            "currencies": [_currency(ledger, currency) for currency in ledger.currencies()],
            "budgets": [dataclasses.asdict(change) for change in ledger.budget_changes()],
        },
        "unit_of_privacy": _units(ledger, claims),
        "trust_model": list(TRUST),
        "mechanisms": [claim.to_dict() for claim in claims],
        "releases": _releases(ledger, journal, {claim.account: claim for claim in claims}),
        "side_channels": list(SIDE_CHANNELS),
        "data_collection": list(COLLECTION),
        "audits": [
            {"account": claim.account, **estimate}
            for claim in claims
            for estimate in claim.to_dict()["card"]["estimates"]
        ],
        "not_covered": [*_alarms(claims), *_found(claims), *NOT_COVERED, *_left_out(journal)],
    }
    return _plain(document), claims


def _promise(ledger: PrivacyLedger, total: Mapping[str, Any]) -> dict[str, Any]:
    plan, budget = LedgerPlan.of(ledger), LedgerBudget.largest(ledger)
    if plan is not None:
        number = len(plan.by_name)
        shares = "A plan of one share" if number == 1 else f"A plan of {number} shares"
        promised = "" if plan.promise is None else f" that keep{'s' * (number == 1)} {plan.promise}"
        passed = "" if total["basis"] == "plan" else " It is not kept: the total says why."
        return {
            "kind": "plan",
            "words": f"{shares}{promised}, declared before the first charge.{passed}",
            "terms": plan.to_dict(),
        }
    if budget is not None:
        return {
            "kind": "promise",
            "words": f"Everything together keeps {budget}, {budget.when(ledger)}: a cap of "
            f"{upwards(budget.cap)} nats at order {budget.renyi_order:g}.",
            "terms": dataclasses.asdict(budget),
        }
    lost = LedgerBudget.lost(ledger)
    if lost is not None:
        return {"kind": "none", "words": lost, "terms": {}}
    return {"kind": "none", "words": "Nothing was promised for the ledger as a whole.", "terms": {}}


def _shares(ledger: PrivacyLedger) -> list[dict[str, Any]]:
    plan = LedgerPlan.of(ledger)
    if plan is None:
        return []
    try:
        taken: Mapping[str, float | None] = taken_of_shares(ledger, plan)
    except ValueError:  # a release that draws on no share, which the total says
        taken = dict.fromkeys(plan.by_name)
    return [
        {"name": name, "of": share_unit(share), "size": plan.size(name), "taken": taken[name]}
        for name, share in plan.by_name.items()
    ]


def _currency(ledger: PrivacyLedger, currency: str) -> dict[str, Any]:
    return {
        "currency": currency,
        "spent": ledger.spent(currency),
        "budget": ledger.budget(currency),
        "rule": describe_currency(currency),
    }


def _units(ledger: PrivacyLedger, claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """The units of privacy, each with the accounts that speak of it."""
    units: dict[str, list[str]] = {}
    for claim in claims:
        units.setdefault(claim.card.secret, []).append(claim.account)
    return [{"secret": secret, "accounts": accounts} for secret, accounts in units.items()]


def _releases(
    ledger: PrivacyLedger, journal: Sequence[Mapping[str, Any]], claims: Mapping[str, Claim]
) -> list[dict[str, Any]]:
    """Everything that was charged, oldest first; answers, whose times are not kept, at the end."""
    accounts = {account.id: account for account in ledger.accounts()}
    found = []
    for entry in journal:
        if entry["entry"] not in ("charge", "steps", "answers"):
            continue
        account = accounts[entry["account"]]
        kind, event = claims[account.name].kind, entry.get("event") or {}
        if entry["entry"] == "steps":
            first, count = entry["first_step"], entry["num_steps"]
            what = _RELEASES["training"].format(first=first, last=first + count - 1)
        elif entry["entry"] == "answers":
            what, count = "answers" if kind == "answers" else "values", entry["num_answers"]
        else:
            what, count = _RELEASES.get(kind, "a charge"), 1
        found.append(
            {
                "time": entry.get("time"),
                "account": account.name,
                "released": f"unknown: {event['unknown']}" if "unknown" in event else what,
                "count": count,
                "cost": entry["cost"],
                "currency": account.currency,
                "event": dict(event),
            }
        )
    return found


def _alarms(claims: Sequence[Claim]) -> list[str]:
    return [
        f"What is promised of account {claim.account!r}, about which an audit raised an alarm: {estimate.meaning}"
        for claim in claims
        for estimate in claim.card.estimates
        if estimate.name == "audit_alarms" and estimate.value > 0
    ]


def _found(claims: Sequence[Claim]) -> list[str]:
    """What the runs found that no promise covers."""
    return [
        f"In account {claim.account!r}: {condition.removeprefix(UNCOVERED)}"
        for claim in claims
        for condition in claim.card.conditions
        if condition.startswith(UNCOVERED)
    ]


def _left_out(journal: Sequence[Mapping[str, Any]]) -> list[str]:
    clients = journal[0]["clients"] if journal else 0
    if not clients:
        return []
    return [f"What each of {clients} clients of a server asked and paid: their accounts are shares of a total above."]


def _plain(value: Any) -> Any:
    """JSON has no infinity, and no tuples."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
