"""The account of private metrics, and whether a run leaves enough for it."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch as pl

from lightning_pac.accountants import Allowance
from lightning_pac.callbacks.metrics.noised_metric import LARGEST_VALUE
from lightning_pac.callbacks.srpp_sgd import SRPPSGD
from lightning_pac.exceptions import BudgetExceededError
from lightning_pac.ledger import LedgerAccount, LedgerHandle, PrivacyLedger

__all__ = ["check_affordable", "open_account"]


def open_account(
    ledger: PrivacyLedger, name: str, declaration: Mapping[str, Any], budget: float | None
) -> LedgerAccount:
    """The account of values of these terms; values of others, such as another epsilon, have accounts of their own.

    Args:
        ledger: The ledger.
        name: Of the account; further ones are numbered.
        declaration: The terms.
        budget: Of the account.

    Raises:
        LedgerMismatchError: If the ledger is about other worlds, or the account has another budget.
    """
    known = {account.name: account.declaration for account in ledger.accounts()}
    terms = json.loads(json.dumps({**declaration, "coupling": None}))  # which the ledger compares
    names = itertools.chain([name], (f"{name} ({number})" for number in itertools.count(2)))
    own = next(one for one in names if one not in known or {**known[one], "coupling": None} == terms)
    return ledger.account(own, "rpp", declaration, budget)


def check_affordable(
    trainer: pl.Trainer,
    handle: LedgerHandle,
    account: LedgerAccount | None,
    allowance: Allowance | None,
    names: Sequence[str],
    cost: float,
) -> None:
    """Refuse a new run that leaves too little for one evaluation of its metrics: it would end without a figure.

    Args:
        trainer: That begins to train.
        handle: The ledger of the metrics, open.
        account: Theirs.
        allowance: Of that account.
        names: Of the metrics.
        cost: Of a value, in nats.

    Raises:
        BudgetExceededError: If so much is not left, beside what the run plans to spend from the same ledger.
    """
    assert account is not None
    assert allowance is not None
    runs = [callback for callback in trainer.callbacks if isinstance(callback, SRPPSGD)]  # type: ignore[attr-defined]
    planned = 0.0
    for run in runs:
        if run.account is None or run.account.num_steps:  # one that goes on was let in
            return
        shared = run.arguments.ledger
        if shared is not None and LedgerHandle(shared).path.resolve() == handle.path.resolve():
            planned += run.account.of_plan().epsilon if run.account.accountant.notion == "rpp" else 0.0
    if not runs:
        return
    number = sum(not name.startswith("test") for name in names)  # those of a test are evaluated apart
    total = account.num_charges + number
    allowance.check(total, total * LARGEST_VALUE)
    left = min(handle.ledger.remaining("rpp") - planned, account.remaining)
    if number * cost > left * (1 + 1e-9):
        raise BudgetExceededError(
            f"One evaluation of the metrics costs {number * cost:.6g} nats, but {handle.path} has {max(0.0, left):.6g} "
            "left for it beside this run: give PrivateMetrics a smaller epsilon, plan fewer steps or more noise, or "
            "leave PrivateMetrics out."
        )
