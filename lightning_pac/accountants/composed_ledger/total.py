"""The total of all releases of a ledger, and its derivation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lightning_pac._shown import shows_itself
from lightning_pac._validation import OpenProbability, validated
from lightning_pac.accountants import bounds, orders
from lightning_pac.accountants.composed_ledger.budget import RAISED, LedgerBudget, totals_since_promise
from lightning_pac.accountants.composed_ledger.draws import arithmetic_of, draws_of
from lightning_pac.accountants.composed_ledger.events import (
    planned_steps,
    releases_of,
    worlds_of,
)
from lightning_pac.accountants.composed_ledger.plan import LedgerPlan
from lightning_pac.accountants.composed_ledger.shares import Share, joint_curve
from lightning_pac.accountants.privacy_loss import EpsilonDelta, PrivacyCurve
from lightning_pac.accountants.private_selection import SelectionPrice
from lightning_pac.cards import Guarantee, at_most, upwards
from lightning_pac.ledger import LedgerAccount, PrivacyLedger, first_charge, lost_budgets

__all__ = ["LedgerTotal", "account_total", "ledger_total", "taken_of_shares", "total_guarantees"]


@shows_itself
@dataclass(frozen=True)
class LedgerTotal:
    """The figures that are in force for everything a ledger holds about two worlds.

    Attributes:
        basis: `run`: there is one run, whose figures are those of its planned steps. `plan`: everything stayed under a
            plan that was declared before the first charge. `cap`: a budget that was set before the first charge holds,
            and nothing below it, since later runs may have been chosen by what earlier ones showed. `none`: not even
            that.
        world_success_bound: how often a guess of the world is right at most.
        epsilon_at_delta: epsilon between the worlds at `delta`, in nats; infinite where none is known.
        delta: the failure probability that goes with it.
        renyi_epsilon: what was charged at the Rényi order, in nats; the budget where that is what holds.
        renyi_order: the order, None where nothing was charged, or costs of another kind alone.
        reason: why these figures and no lower ones, in a sentence.
    """

    basis: Literal["run", "plan", "cap", "none"]
    world_success_bound: float
    epsilon_at_delta: float
    delta: float
    renyi_epsilon: float
    renyi_order: float | None
    reason: str


@validated
def ledger_total(
    ledger: PrivacyLedger, delta: OpenProbability | None = None, prior: OpenProbability = 0.5
) -> LedgerTotal:
    """The total of a ledger's training runs and noised metrics, in all three promises.

    Args:
        ledger: The ledger, which may be open for reading only.
        delta: failure probability that epsilon goes with; left out, that of its plan or budget, or 1e-5.
        prior: probability of one of the worlds before anything is released.

    Raises:
        ValueError: if a number is out of range.
    """
    plan = LedgerPlan.of(ledger)
    if delta is None:
        promised = (getattr(of, "promise", None) for of in (plan, LedgerBudget.largest(ledger)))
        delta = next((promise.delta for promise in promised if isinstance(promise, EpsilonDelta)), 1e-5)
    try:
        accounts = worlds_of(ledger)
    except ValueError as error:
        return LedgerTotal("none", 1.0, math.inf, delta, math.inf, None, str(error))
    spent = math.fsum(account.spent for account in accounts)
    order = float(accounts[0].declaration["coupling"]["renyi_order"]) if accounts else None
    try:
        releases = [releases_of(account) for account in accounts]
        if plan is not None:
            _check_shares(plan, accounts, releases)
    except ValueError as error:
        return _capped(ledger, accounts, order, delta, prior, str(error).rstrip("."))
    left_out = _left_out(ledger, accounts)
    if plan is not None:
        reason = "everything charged stays under the plan that was declared before the first charge"
        return _exact(plan.curve, "plan", plan.arithmetic, spent, order, delta, prior, reason + "." + left_out)
    if not accounts and left_out:
        reason = f"No figure between two worlds follows from what was charged.{left_out}"
        return LedgerTotal("none", 1.0, math.inf, delta, math.inf, None, reason)
    if not accounts:
        return _exact(joint_curve([]), "run", (0.0, 0.0), spent, order, delta, prior, "nothing was charged.")
    if len(accounts) > 1:
        return _capped(ledger, accounts, order, delta, prior, "no plan was declared before its charges")
    alone = account_total(accounts[0], delta, prior)
    if _unfixed(accounts[0]):
        why = "how much it releases was not fixed beforehand, as a plan of its values does"
        capped = _capped(ledger, accounts, order, delta, prior, why)
        if capped.basis == "cap":
            return capped
    return dataclasses.replace(alone, reason=alone.reason + left_out)


@validated
def account_total(account: LedgerAccount, delta: OpenProbability = 1e-5, prior: OpenProbability = 0.5) -> LedgerTotal:
    """The figures of one training run, metric or selection by itself, whatever else its ledger holds.

    Args:
        account: The account.
        delta: failure probability that epsilon goes with.
        prior: probability of one of the worlds before anything is released.

    Raises:
        ValueError: if it averages over batches, or does not say what it released, or a part of that is lost.
    """
    planned = planned_steps(account)
    releases, (nats, tail) = releases_of(account, planned), arithmetic_of(account, steps=planned)
    reason = "there is one run, whose noise and steps were fixed before its first charge."
    if _unfixed(account):
        reason = (
            "there is one account, whose noise was fixed before its first charge, if nothing that it showed decided "
            "how much it releases."
        )
    if any(isinstance(release, SelectionPrice) for release in releases):
        nats = 0.0  # its curve has them
        reason = "there is one private selection, which was charged before the number of its runs was drawn."
    order = float(account.declaration["coupling"]["renyi_order"])
    return _exact(joint_curve(releases), "run", (nats, tail), account.spent, order, delta, prior, reason)


@validated
def total_guarantees(total: LedgerTotal, prior: OpenProbability) -> tuple[Guarantee, Guarantee]:
    """The bound on guessing and (epsilon, delta) as a card states them.

    Args:
        total: The figures.
        prior: probability of one of the worlds before anything is released.
    """
    bound, epsilon = total.world_success_bound, total.epsilon_at_delta
    blind = "a coin" if prior == 0.5 else "a blind guess"
    return (
        Guarantee(
            "world_success_bound",
            bound,
            "probability",
            f"Anyone who sees everything that this released guesses right which of the two worlds the data come "
            f"from at most {at_most(bound)} of the time ({blind}: {100 * max(prior, 1 - prior):g} %).",
        ),
        Guarantee(
            "epsilon_at_delta",
            epsilon,
            "nats",
            f"The two worlds are (epsilon, delta)-indistinguishable with epsilon at most {upwards(epsilon)} at "
            f"delta = {upwards(total.delta)}.",
        ),
    )


def _unfixed(account: LedgerAccount) -> bool:
    """Whether what an account released may have decided how much it releases."""
    extended = account.card is not None and "extended_at" in account.card.details
    return "selection" not in account.declaration and (extended or planned_steps(account) is None)


def _exact(
    curve: PrivacyCurve,
    basis: Literal["run", "plan"],
    arithmetic: tuple[float, float],
    spent: float,
    order: float | None,
    delta: float,
    prior: float,
    reason: str,
) -> LedgerTotal:
    """The figures of a curve, with the charge for noise from finite random bits."""
    nats, tail = arithmetic
    return LedgerTotal(
        basis,
        min(1.0, curve.success_bound(prior) + nats + tail),
        # Finite bits add to delta and to epsilon; the least float stands for a delta that they used up.
        curve.epsilon(max(delta - tail, math.nextafter(0.0, 1.0))) + nats,
        delta,
        spent,
        order,
        f"These figures hold since {reason}",
    )


def _check_shares(plan: LedgerPlan, accounts: Sequence[LedgerAccount], releases: Sequence[Sequence[Share]]) -> None:
    """Refuse what passes a share, or draws on none.

    Raises:
        ValueError: Says what.
    """
    for share, amount in _taken(plan, accounts, releases).items():
        if not plan.holds(share, amount):
            raise ValueError(f"more was charged than share {share!r} of its plan holds")
    if sum(map(draws_of, accounts)) > plan.num_draws:
        raise ValueError("more values of noise were drawn than its plan pays for")


@validated
def taken_of_shares(ledger: PrivacyLedger, plan: LedgerPlan, without: LedgerAccount | None = None) -> dict[str, float]:
    """The part taken of each share of a plan: steps, `mu^2`, or selections.

    Args:
        ledger: The ledger.
        plan: Its plan.
        without: An account that is left out.

    Raises:
        ValueError: if something draws on no share.
    """
    accounts = [account for account in worlds_of(ledger) if without is None or account.id != without.id]
    return _taken(plan, accounts, [releases_of(account) for account in accounts])


def _taken(
    plan: LedgerPlan, accounts: Sequence[LedgerAccount], releases: Sequence[Sequence[Share]]
) -> dict[str, float]:
    drawn: dict[str, list[Share]] = {name: [] for name in plan.by_name}
    for account, released in zip(accounts, releases, strict=True):
        for release in released:
            drawn[plan.share_for(release, account.declaration.get("share"))].append(release)
    return {share: plan.amount(share, released) for share, released in drawn.items()}


def _left_out(ledger: PrivacyLedger, accounts: tuple[LedgerAccount, ...]) -> str:
    """A sentence on the accounts that are about something else."""
    known = {account.name for account in accounts}
    others = [account.name for account in ledger.accounts() if account.num_charges and account.name not in known]
    return f" Not in them, since their costs are of another kind: {', '.join(others)}." if others else ""


def _capped(
    ledger: PrivacyLedger,
    accounts: tuple[LedgerAccount, ...],
    order: float | None,
    delta: float,
    prior: float,
    why: str,
) -> LedgerTotal:
    """The largest Rényi budget that ever held, in each currency that was charged."""
    began, promise = first_charge(ledger) or "", LedgerBudget.largest(ledger)
    changed, lost = totals_since_promise(ledger), f"{LedgerBudget.lost(ledger) or ''} ".lstrip()
    if not lost and lost_budgets(ledger):
        lost = "Budgets that may be larger were set after the backup that the ledger was restored from. "
    caps, when = [], "set before the first charge" if promise is None else promise.when(ledger)
    worst_case = all(not account.currency.startswith("ms_") for account in accounts)
    for currency in dict.fromkeys(account.currency for account in accounts):
        changes = [change for change in changed if change.currency == currency]
        before = promise is not None or (not lost_budgets(ledger) and any(change.time <= began for change in changes))
        caps.append(max((change.amount for change in changes), default=math.inf) if before else math.inf)
        if promise is None and caps[-1] > max((one.amount for one in changes if one.time <= began), default=math.inf):
            when = RAISED
    cap = math.fsum(caps)
    spent = math.fsum(account.spent for account in accounts)
    _, tail = arithmetic_of(*accounts)
    passed = spent > cap * (1 + 1e-9)  # what was lost is booked whatever the budgets say
    if order is None or not worst_case or not math.isfinite(cap) or passed:
        return LedgerTotal(
            "none",
            1.0,
            math.inf,
            delta,
            spent,
            order,
            f"{lost}Nothing bounds what these releases tell together ({why}): a later run may have been chosen by what "
            "an earlier one showed, so declare a plan or a budget before the first charge."
            f"{_left_out(ledger, accounts)}",
        )
    told = f"The budget of {upwards(cap)} at order {order:g}" if promise is None else f"The promise of {promise}"
    several = f"later runs may have been chosen by what earlier ones showed ({why})"
    return LedgerTotal(
        "cap",
        min(1.0, bounds.world_success_bound([order], [cap], prior) + tail),
        orders.epsilon_at_delta([order], [cap], max(delta - tail, math.nextafter(0.0, 1.0)))[0],
        delta,
        cap,
        order,
        f"{lost}{told} for everything together, {when}, is what to quote even if less was used: "
        f"{several if len(accounts) > 1 else why}.{_left_out(ledger, accounts)}",
    )
