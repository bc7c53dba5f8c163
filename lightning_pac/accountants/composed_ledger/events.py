"""The releases of a ledger's accounts, as events that compose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lightning_pac._validation import validated
from lightning_pac.accountants.composed_ledger.budget import LedgerBudget
from lightning_pac.accountants.composed_ledger.draws import correlation_of, taken_steps
from lightning_pac.accountants.composed_ledger.shares import Share
from lightning_pac.accountants.privacy_loss import GaussianRelease, PrivacyEvent
from lightning_pac.accountants.private_selection import SelectionPrice
from lightning_pac.accountants.srpp import SRPPAccountant
from lightning_pac.ledger import LedgerAccount, PrivacyLedger
from lightning_pac.randomness import finite_precision
from lightning_pac.scenarios import TwoWorldScenario, sampling_from_dict

__all__ = [
    "accountant_of",
    "events_of",
    "ledger_events",
    "ledger_order",
    "planned_steps",
    "releases_of",
    "worlds_of",
]

_TRAINING = ("rpp", "srpp_joint", "srpp_ave", "ms_srpp_joint", "ms_srpp_ave")


@validated
def ledger_events(ledger: PrivacyLedger) -> tuple[PrivacyEvent, ...]:
    """Everything that training runs and noised metrics of a ledger released, from what it keeps of them.

    A run's declaration and the steps that its attempts started make its events, each attempt a pass of its own; a
    noised metric is a Gaussian with `mu^2 = 2 eps / a`. Ledgers of earlier versions keep as much.

    Args:
        ledger: The ledger.

    Raises:
        ValueError: if an account averages over batches, or accounts speak of different worlds.
    """
    return tuple(event for account in worlds_of(ledger) for event in events_of(account))


@validated
def ledger_order(ledger: PrivacyLedger) -> float | None:
    """The Rényi order at which a ledger counts what is about two worlds; None where nothing has decided it.

    A run or a metric that promises something else than a Rényi divergence is charged at this order, so that it may
    share the ledger.

    Args:
        ledger: The ledger.

    Example:
        >>> import tempfile
        >>> with PrivacyLedger(tempfile.mkdtemp() + "/study.db") as ledger:
        ...     _ = ledger.account("fit", "rpp", {"coupling": {"renyi_order": 8.0}})
        ...     ledger_order(ledger)
        8.0
    """
    promised = LedgerBudget.of(ledger)
    if promised is not None:
        return promised.renyi_order
    for account in ledger.accounts():
        order = account.declaration.get("coupling", {}).get("renyi_order")
        if account.currency in _TRAINING and order is not None:
            return float(order)
    return None


def worlds_of(ledger: PrivacyLedger) -> tuple[LedgerAccount, ...]:
    """The accounts that have charged something about the two worlds.

    Raises:
        ValueError: if they speak of different worlds, or one does not say of which.
    """
    accounts = tuple(account for account in ledger.accounts() if account.currency in _TRAINING and account.num_charges)
    declared = [account.declaration.get("coupling", {}).get("scenario") for account in accounts]
    for account, scenario in zip(accounts, declared, strict=True):
        if scenario is None:
            raise ValueError(
                f"Account {account.name!r} does not declare which two worlds it speaks of, so it composes with "
                "nothing: keep it in a ledger of its own."
            )
        if scenario != declared[0]:
            raise ValueError(
                f"Accounts {accounts[0].name!r} and {account.name!r} speak of different worlds, so what they released "
                "does not compose: keep one ledger for each pair of worlds."
            )
    return accounts


def planned_steps(account: LedgerAccount) -> int | None:
    """Steps that a training run was to take, by its card; None if none says, and for all else."""
    taken = taken_steps(account)
    planned = None if account.card is None else account.card.details.get("planned_steps")
    return None if not taken or planned is None else max(taken, int(planned))


def events_of(account: LedgerAccount, steps: int | None = None) -> tuple[PrivacyEvent, ...]:
    """The releases of one account.

    Args:
        account: The account.
        steps: Steps of a training run in all, if they are more than it has taken.

    Raises:
        ValueError: if it averages over batches, or does not say what it released, or a part of that is lost.
    """
    terms = account.declaration
    order = float(terms["coupling"]["renyi_order"])
    _check_nothing_lost(account)
    if "noise_multiplier" in terms:
        taken = [attempt.num_steps for attempt in account.attempts()]
        if steps is not None:
            taken[-1] += steps - sum(taken)
        return accountant_of(terms).events(terms["noise_multiplier"], taken)
    if "epsilon_of_each" in terms:
        squares = math.fsum(_mu_squared(account.name, charge.event, charge.cost, order) for charge in account.events())
        return (GaussianRelease(squares),)
    if "selection" in terms:
        raise ValueError(
            f"Account {account.name!r} is a private selection, which is not an event, but has the curve of its price"
        )
    raise ValueError(
        f"Account {account.name!r} does not say what it released, only what that cost: its Rényi price adds, and "
        "nothing else."
    )


@validated
def accountant_of(declaration: Mapping[str, Any]) -> SRPPAccountant:
    """The terms of a training run, from what its account declares.

    Args:
        declaration: `LedgerAccount.declaration` of a run.

    Raises:
        ValueError: if the terms are none, or a sampling scheme of one's own is not registered here.
    """
    try:
        scenario = TwoWorldScenario.from_dict(declaration["scenario"])
        sampling, notion = sampling_from_dict(declaration["sampling"]), declaration["notion"]
        order = float(declaration["coupling"]["renyi_order"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"declaration is not one of a training run ({error!r}): give that of its account.") from None
    return SRPPAccountant(scenario, sampling, order, notion, correlation=correlation_of(declaration))


def releases_of(account: LedgerAccount, steps: int | None = None) -> tuple[Share, ...]:
    """The releases of one account, a private selection as one of them; see `events_of`.

    Raises:
        ValueError: if it averages over batches, does not say what it released, a part of that is lost, or it holds
            more than one selection.
    """
    values = account.declaration.get("selection")
    if values is None:
        return events_of(account, steps)
    _check_nothing_lost(account)
    if sum(charge.cost > 0 for charge in account.events()) > 1:  # that the draw is on the disk costs nothing
        raise ValueError(f"Account {account.name!r} holds more than one selection: each has an account of its own")
    return (SelectionPrice.from_dict(values),)


def _check_nothing_lost(account: LedgerAccount) -> None:
    if any("unknown" in (charge.event or {}) for charge in account.events()):
        raise ValueError(
            f"Account {account.name!r} holds an amount that was booked for what its ledger has lost, and what that "
            "released is not known: go on in a new ledger"
        )


def _mu_squared(name: str, event: Mapping[str, Any] | None, cost: float, order: float) -> float:
    # a mu^2 / 2 = eps solved for mu^2, for ledgers that keep the cost alone.
    paid = 2 * cost / order
    stated = float((event or {}).get("mu_squared", paid))
    if stated < 0.99 * (paid - 2 * finite_precision((event or {}).get("draws", 0), order) / order):
        raise ValueError(f"Account {name!r} states a mu^2 of {stated:.6g} where {paid:.6g} was charged for")
    return stated
