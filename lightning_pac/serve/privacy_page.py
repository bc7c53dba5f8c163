"""`GET /privacy`: what was spent, read beside the worker that writes."""

import math
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException

from lightning_pac.exceptions import LedgerError
from lightning_pac.ledger import LedgerAccount, PrivacyLedger
from lightning_pac.mechanisms.responses import responder_card
from lightning_pac.serve.admission import authenticate
from lightning_pac.serve.api_keys import APIKey
from lightning_pac.serve.messages import Guarantee, KeyPrivacy, Privacy, describe_refusals

__all__ = ["add_privacy_page"]


def add_privacy_page(app: FastAPI, ledger: Path) -> None:
    """Let the application answer `GET /privacy` from a read-only connection.

    Args:
        app: The application of the server.
        ledger: The responder's ledger.
    """

    def privacy(key: Annotated[APIKey | None, Depends(authenticate)]) -> Privacy:
        try:
            with PrivacyLedger.read_only(ledger) as opened:
                return _privacy(opened, key)
        except LedgerError as error:
            raise HTTPException(503, "The ledger cannot be read: try again later.") from error

    page = app.get(
        "/privacy",
        summary="What was spent, what is left, and what is guaranteed",
        responses=describe_refusals(401, 429, 503),
    )
    page(privacy)


def _privacy(ledger: PrivacyLedger, key: APIKey | None) -> Privacy:
    accounts = {account.name: account for account in ledger.accounts()}
    account = next(account for account in accounts.values() if account.kind == "responses")
    card = responder_card(account)
    guarantees = [Guarantee(name=g.name, value=g.value, unit=g.unit, meaning=g.meaning) for g in card.guarantees]
    return Privacy(
        answers=account.num_charges,
        spent=account.spent,
        budget=_budget(ledger, account),
        remaining=_finite(account.remaining),
        membership_success_bound=card.guarantees[0].value,
        guarantees=guarantees,
        conditions=list(card.conditions),
        key=None if key is None else _key_privacy(accounts.get(f"key {key.name}"), key),
    )


def _key_privacy(account: LedgerAccount | None, key: APIKey) -> KeyPrivacy:
    if account is None:
        return KeyPrivacy(name=key.name, answers=0, spent=0.0, budget=key.budget, remaining=key.budget)
    return KeyPrivacy(
        name=key.name,
        answers=account.num_charges,
        spent=account.spent,
        budget=account.budget,
        remaining=_finite(account.remaining),
    )


def _budget(ledger: PrivacyLedger, account: LedgerAccount) -> float | None:
    budgets = [budget for budget in (account.budget, ledger.budget(account.currency)) if budget is not None]
    return min(budgets, default=None)


def _finite(amount: float) -> float | None:
    return amount if math.isfinite(amount) else None
