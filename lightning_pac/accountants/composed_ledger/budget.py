"""A limit on everything charged to a ledger, stated as a promise and kept as a Rényi cap."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import optimize

from lightning_pac._roots import moved_until
from lightning_pac._validation import Order, validated
from lightning_pac.accountants import bounds
from lightning_pac.accountants.composed_ledger.draws import draws_of
from lightning_pac.accountants.composed_ledger.plan import NUM_DRAWS, check_draws
from lightning_pac.accountants.privacy_loss import EpsilonDelta, Promise, SuccessBound, one_promise, promise_of
from lightning_pac.cards import upwards
from lightning_pac.exceptions import LedgerError, LedgerMismatchError
from lightning_pac.ledger import (
    BudgetChange,
    PrivacyLedger,
    change_promise,
    declare_budget,
    declared_budgets,
    declared_plan,
    exact,
    first_charge,
    lost_budgets,
    promised_since,
)
from lightning_pac.randomness import missing_tail

__all__ = ["OTHER_NOTIONS", "RAISED", "LedgerBudget", "totals_since_promise"]

OTHER_NOTIONS = ("srpp_joint", "srpp_ave", "ms_srpp_joint", "ms_srpp_ave")
"""Currencies about two worlds in which a ledger with a promise lets nothing be spent: they would add to the cap."""

RAISED = "raised after the first charge, which holds if no other result would have raised it further"
"""When a budget was stated that holds, and for whom, as a part of a sentence."""

_COUNTED = ("rpp", *OTHER_NOTIONS)
# Logarithm of the largest epsilon that is advised.
_LARGEST = 5.0
# Budgets are kept up to the rounding of a sum.
_ROUNDING = 1 + 1e-9


@validated
@dataclass(frozen=True)
class LedgerBudget:
    r"""A promise about everything that a ledger pays for, however it is chosen by what was seen before.

    What is run later may depend on what earlier runs showed, so that neither their exact figures nor their number are
    known beforehand. What holds then is a cap on the sum of Rényi costs at one order $a$ (Rényi divergences of
    adaptively chosen releases add up to the cap at most). The promise is turned into the largest such cap that implies
    it, and the ledger stops at the cap, which costs 6 to 8 % more noise for (epsilon, delta) and 29 to 39 % for a
    bound on guessing than a `LedgerPlan` of the same runs.

    Args:
        epsilon: what may be spent, in nats, with `delta` or alone with `renyi_order`.
        delta: failure probability that goes with epsilon.
        world_success_bound: how often who sees everything may guess the right world.
        prior: probability of one of the worlds before anything is released, for the bound.
        renyi_order: order at which the ledger counts. With (epsilon, delta) or a bound it may be left out: the order
            at which the promise allows the most noised values.
        num_draws: the most values of noise that everything draws, whose finite bits count.

    Raises:
        ValueError: if not exactly one promise is stated, or a number is out of range.

    Example:
        >>> budget = LedgerBudget(epsilon=3.0, delta=1e-5)
        >>> print(f"{budget.cap:.3f} at order {budget.renyi_order}")
        1.682 at order 7.5
    """

    epsilon: float | None = None
    delta: float | None = None
    world_success_bound: float | None = None
    prior: float = 0.5
    renyi_order: Order | None = None
    num_draws: float = NUM_DRAWS

    def __post_init__(self) -> None:
        check_draws(self.num_draws)
        if self.promise is None:
            one_promise(self)
        elif self.renyi_order is None:
            object.__setattr__(self, "renyi_order", _best_order(self.promise, self.num_draws))
            if not self.cap > 0:
                figure = "epsilon" if self.world_success_bound is None else "world_success_bound"
                raise ValueError(
                    f"{figure} is {self.promise.limit}, which no cost at all keeps at any order up to 1024: promise "
                    "more."
                )
        if not self.epsilon and self.promise is None:
            raise ValueError("epsilon is 0, which no cost at all keeps: promise more.")
        if not self.cap > 0:
            raise ValueError(f"renyi_order is {self.renyi_order}, at which no cost at all keeps {self}: leave it out.")

    @property
    def promise(self) -> Promise | None:
        """The exact promise; None for epsilon at a Rényi order."""
        return promise_of(self.epsilon, self.delta, self.world_success_bound, self.prior)

    @property
    def cap(self) -> float:
        """The most that costs at the order may add up to, in nats."""
        assert self.renyi_order is not None
        return _cap_at(self.promise, self.epsilon, self.num_draws, self.renyi_order)

    def declare(self, ledger: PrivacyLedger) -> None:
        """State the budget of a ledger that holds no charge yet, or a larger one than was stated.

        A promise that was raised or lowered after looking bounds nothing below the largest that stood since the first
        charge (`largest`).

        Args:
            ledger: The ledger, open for writing.

        Raises:
            LedgerError: if something was charged already and no promise stands, or the one that was stated is not kept.
            LedgerMismatchError: if a plan was declared, or the ledger counts at another order.
            ValueError: if more is spent than it allows.
        """
        if LedgerBudget.of(ledger) == self:
            return
        if (lost := LedgerBudget.lost(ledger)) is not None and first_charge(ledger) is not None:
            raise LedgerError(
                f"{ledger.path} can promise nothing more. {lost} Begin a new ledger, with the promise before its first "
                "charge."
            )
        order = _order_of(ledger)
        if order not in (None, self.renyi_order):
            if self.promise is None:
                raise LedgerMismatchError(
                    f"{ledger.path} counts at order {order:g}, not at {self.renyi_order:g}: state epsilon at that "
                    "order, or in another promise."
                )
            if not _cap_at(self.promise, None, self.num_draws, order) > 0:
                raise ValueError(
                    f"{self} is kept by no cost at all at order {order:g}, at which {ledger.path} counts: promise more."
                )
            replace(self, renyi_order=order).declare(ledger)
            return
        paid = max((one["num_draws"] for one in declared_budgets(ledger)), default=0.0)
        if paid > self.num_draws and first_charge(ledger) is not None:
            replace(self, num_draws=paid).declare(ledger)  # what was drawn stays drawn
            return
        if (spent := ledger.spent("rpp")) > self.cap and declared_plan(ledger) is not None:
            raise LedgerError(f"{ledger.path} keeps the plan that was declared for it, and no other promise.")
        if spent > self.cap:
            raise ValueError(
                f"{self} is a cap of {self.cap:.6g} at order {self.renyi_order:g}, but {spent:.6g} is spent from "
                f"{ledger.path}, and what was released stays released: promise more."
            )
        declare_budget(ledger, asdict(self), {"rpp": self.cap} | dict.fromkeys(OTHER_NOTIONS, 0.0))

    def hold(self, ledger: PrivacyLedger) -> None:
        """`declare` where no promise stands.

        Args:
            ledger: The ledger, open for writing.

        Raises:
            LedgerError: if something was charged already and no promise stands, or the one that was stated is not kept.
            LedgerMismatchError: if another promise stands.
        """
        known = LedgerBudget.of(ledger)
        if known is None:
            self.declare(ledger)
            return
        order = known.renyi_order if self.promise is not None else self.renyi_order
        given = {**asdict(self), "renyi_order": order, "num_draws": known.num_draws}
        if asdict(known) != given:
            raise LedgerMismatchError(
                f"{ledger.path} promises {known}, and your code {self}: give PlannedLedger the former, or change it by "
                f"`{change_promise(ledger.path, self.as_options())}`."
            )

    @classmethod
    def of(cls, ledger: PrivacyLedger) -> LedgerBudget | None:
        """The promise that a ledger's budget keeps, None where there is none.

        Args:
            ledger: The ledger.
        """
        stated = declared_budgets(ledger)
        return cls(**stated[-1]) if stated and cls.lost(ledger) is None else None

    @classmethod
    def largest(cls, ledger: PrivacyLedger) -> LedgerBudget | None:
        """The promise that holds for everything charged: the largest that stood since the first charge.

        Args:
            ledger: The ledger.
        """
        if cls.of(ledger) is None:
            return None
        return max((cls(**values) for values in declared_budgets(ledger)), key=lambda budget: budget.cap)

    @classmethod
    def lost(cls, ledger: PrivacyLedger) -> str | None:
        """Why a promise that was stated does not hold, in a sentence; None where it does, or none was stated.

        Args:
            ledger: The ledger.
        """
        stated = [cls(**values) for values in declared_budgets(ledger)]
        if not stated:
            return None
        counted = stated[-1].renyi_order or math.inf
        words, cap = f"The promise of {stated[-1]} does not hold", max(one.cap for one in stated)
        for change in totals_since_promise(ledger):  # earlier versions let them be changed beside it
            if change.amount > (cap if change.currency == "rpp" else 0.0) * _ROUNDING and change.currency in _COUNTED:
                return f"{words}: its {change.currency} total was set to {change.amount:g} beside it."
        if (spent := ledger.spent("rpp")) > cap * _ROUNDING:  # what was lost is booked whatever the budgets say
            return f"{words}: {spent:.6g} is spent of its cap of {cap:.6g}."
        if lost_budgets(ledger):
            return f"{words}: others, maybe larger ones, were set after the backup that the ledger was restored from."
        accounts = [account for account in ledger.accounts() if account.currency == "rpp"]
        if (drawn := sum(map(draws_of, accounts))) > (paid := stated[-1].num_draws):
            return f"{words}: {drawn:.4g} values of noise were drawn, and it pays for {paid:.4g}."
        for account in accounts:
            order = account.declaration.get("coupling", {}).get("renyi_order")
            if account.num_charges and (order or 0.0) < counted:
                at = "no known order" if order is None else f"order {order:g}"
                return f"{words}: account {account.name!r} counts at {at}, and its cap at {counted:g}."
        return None

    def when(self, ledger: PrivacyLedger) -> str:
        """When this promise of a ledger was stated, as a part of a sentence.

        Args:
            ledger: The ledger.
        """
        stated = declared_budgets(ledger)
        if stated and LedgerBudget(**stated[0]).cap < self.cap:
            return RAISED
        return "declared before the first charge"

    def __str__(self) -> str:
        """The promise in words."""
        if self.world_success_bound is not None:
            return f"a bound of {exact(self.world_success_bound)} on guessing from prior {exact(self.prior)}"
        assert self.epsilon is not None
        with_what = f"order {self.renyi_order:g}" if self.delta is None else f"delta {exact(self.delta)}"
        return f"epsilon {exact(self.epsilon)} at {with_what}"

    def raised_to(self, cap: float) -> LedgerBudget | None:
        """The least promise of this kind, to a few digits, under which so many nats may be spent; None if none is kept.

        Args:
            cap: What may be spent at the order, in nats.
        """
        order, blind = self.renyi_order, max(self.prior, 1 - self.prior)
        assert order is not None
        try:
            if self.world_success_bound is None:
                assert self.epsilon is not None  # above the cap by what delta and order decide
                return replace(self, epsilon=float(upwards(self.epsilon + max(0.0, cap - self.cap), 4)))
            bound = bounds.world_success_bound([order], [cap], self.prior)
            return replace(self, world_success_bound=round(blind + float(upwards(bound - blind, 3)), 12))
        except ValueError:  # a guess is always right
            return None

    def enough_for(self, cost_at: Callable[[float], float]) -> LedgerBudget | None:
        """The least epsilon at this delta, to three digits, that a new ledger can promise for a cost; None if none can.

        A bound on guessing has one order whatever it is, so that `raised_to` finds the least of it.

        Args:
            cost_at: The cost at a Rényi order, in nats.
        """
        if self.epsilon is None or self.delta is None:
            return None

        def enough(logarithm: float) -> LedgerBudget | None:
            new = replace(self, epsilon=float(upwards(math.exp(logarithm), 3)), renyi_order=None)
            assert new.renyi_order is not None
            return new if cost_at(new.renyi_order) <= new.cap * (1 - 1e-9) else None

        low = high = math.log(self.epsilon)
        while enough(high) is None:
            low, high = high, high + 1.0
            if high > _LARGEST:
                return None
        while high - low > 1e-3:
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return enough(high)

    def as_options(self) -> str:
        """The promise as options of `lightning-pac account budget`."""
        usual: dict[str, Any] = {"prior": 0.5, "num_draws": NUM_DRAWS}
        if self.promise is not None:
            usual["renyi_order"] = self.renyi_order
        given = {name: value for name, value in asdict(self).items() if value not in (None, usual.get(name))}
        return " ".join(f"--{name.replace('_', '-')} {exact(value)}" for name, value in given.items())


def totals_since_promise(ledger: PrivacyLedger) -> list[BudgetChange]:
    """The totals that were set by a ledger's promise and since; all that were set in ledgers of earlier versions."""
    totals = [change for change in ledger.budget_changes() if change.account is None]
    return totals[promised_since(ledger) or 0 :]


def _order_of(ledger: PrivacyLedger) -> float | None:
    """The order that a promise of the ledger must have: that of its accounts, or of what was charged."""
    orders = [
        account.declaration.get("coupling", {}).get("renyi_order")
        for account in ledger.accounts()
        if account.currency == "rpp"
    ]
    stated = declared_budgets(ledger) if first_charge(ledger) is not None else []
    return next((float(order) for order in [*(one["renyi_order"] for one in stated), *orders] if order), None)


@lru_cache(maxsize=64)
def _best_order(promise: Promise, num_draws: float) -> float:
    """The order at which the most noised values fit in: a Gaussian of mu costs a mu^2 / 2, so that of most cap / a.

    From 2 on, since `finite_precision` pays for those; for a bound on guessing it is 2.
    """
    if isinstance(promise, SuccessBound):
        return 2.0

    def unused(log_order: float) -> float:
        order = math.exp(log_order)
        return -_cap_at(promise, None, num_draws, order) / order

    ends = (math.log(2), math.log(1024))
    found = optimize.minimize_scalar(unused, bounds=ends, method="bounded", options={"xatol": 0.02})
    return max(2.0, round(math.exp(float(found.x)), 1))


@lru_cache(maxsize=256)
def _cap_at(promise: Promise | None, epsilon: float | None, num_draws: float, order: float) -> float:
    """The largest divergence of that order that implies the promise, to nine digits; 0 where none does."""
    if promise is None:
        assert epsilon is not None
        return epsilon
    left = promise.less(0.0, missing_tail(num_draws))
    if isinstance(left, EpsilonDelta):
        # The conversion of `epsilon_at_delta` solved for the divergence, rounded down.
        cap = left.epsilon - math.log1p(-1 / order) + (math.log(left.delta) + math.log(order)) / (order - 1)
        return max(0.0, cap * (1 - 1e-12))
    assert isinstance(left, SuccessBound)
    # The minimum is a numerical one and may be too large: the bound itself decides.
    cap = _least_divergence(left, order) * (1 - 1e-9)

    def implies(cap: float) -> bool:
        return cap <= 0 or bounds.world_success_bound([order], [cap], left.prior) <= left.bound

    return max(0.0, moved_until(implies, cap, -1e-6 * cap))


def _least_divergence(promise: SuccessBound, order: float) -> float:
    """The least divergence of two coins, in both directions, by which a guess of the coin is right as often."""
    prior, bound = promise.prior, promise.bound

    def divergence(heads: float) -> float:
        # Naming the first world on heads is right with prior p + (1 - prior)(1 - r) = bound, solved for r.
        other = 1 - (bound - prior * heads) / (1 - prior)  # of the second coin
        pairs = ((heads, other), (1 - heads, 1 - other))
        # p^a r^(1-a) + (1-p)^a (1-r)^(1-a), and with p and r exchanged, in logarithms; the larger one counts.
        (p, r), (tails, other_tails) = np.log(pairs).tolist()
        there = np.logaddexp(order * p + (1 - order) * r, order * tails + (1 - order) * other_tails)
        back = np.logaddexp(order * r + (1 - order) * p, order * other_tails + (1 - order) * tails)
        return float(max(there, back)) / (order - 1)

    # Both coins show heads with a chance between 0 and 1.
    low, high = max(0.0, (bound - 1 + prior) / prior), min(1.0, bound / prior)
    margin = 1e-9 * (high - low)
    found = optimize.minimize_scalar(
        divergence, bounds=(low + margin, high - margin), method="bounded", options={"xatol": 1e-10}
    )
    return float(found.fun)
