"""The part of a ledger's plan or promise that is left to one account, asked for before every charge."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property

from lightning_pac._validation import checks_itself, validated
from lightning_pac.accountants.composed_ledger.budget import LedgerBudget
from lightning_pac.accountants.composed_ledger.draws import draws_of
from lightning_pac.accountants.composed_ledger.events import worlds_of
from lightning_pac.accountants.composed_ledger.plan import NUM_DRAWS, LedgerPlan
from lightning_pac.accountants.composed_ledger.shares import Share, share_unit
from lightning_pac.accountants.composed_ledger.total import taken_of_shares
from lightning_pac.exceptions import BudgetExceededError, LedgerMismatchError
from lightning_pac.ledger import LedgerAccount, PrivacyLedger, change_promise, first_charge

__all__ = ["Allowance", "share_terms"]


@validated
def share_terms(ledger: PrivacyLedger, unit: Sequence[Share], share: str | None = None) -> dict[str, str]:
    """The share an account declares that it draws on; nothing where the ledger has no plan.

    Args:
        ledger: The ledger.
        unit: What one unit of the account releases; nothing for an average over batches, which has no share.
        share: The share that its user names, None where there is but one for it.

    Raises:
        LedgerMismatchError: If no share, or more than one, could pay for it.
    """
    plan = LedgerPlan.of(ledger)
    if plan is not None and not unit:
        raise LedgerMismatchError(f"{ledger.path} has a plan, which averages over batches draw on no share of.")
    if plan is None:
        if share is not None:
            raise LedgerMismatchError(
                f"{ledger.path} has no plan, so there is no share {share!r}: give the whole path of the ledger that "
                "has one (a relative one begins in the working folder), or declare it."
            )
        return {}
    try:
        return {"share": plan.share_for(unit[0], share)}
    except ValueError as error:
        raise LedgerMismatchError(f"The plan of {ledger.path} does not pay for this: {error}") from None


@validated
class Allowance:
    """The allowance of one account, beside everything else that its ledger holds.

    The ledger is asked again whenever another account has charged something, so that several may draw on one share.
    What an account has charged is what its journal says: after a kill nothing is forgotten.

    Args:
        ledger: The ledger.
        account: The account, whose declaration names its share.
        unit: What one unit of it releases, an amount that adds.
    """

    def __init__(self, ledger: PrivacyLedger, account: LedgerAccount, unit: Sequence[Share]) -> None:
        self._ledger = ledger
        self._account = account
        self._event = unit
        self._seen: list[tuple[int, int]] | None = None
        self._taken = self._drawn = 0.0
        self._warned = False

    @cached_property
    def _plan(self) -> LedgerPlan | None:
        # Read at the first check: until something is charged, a plan may still be declared.
        return LedgerPlan.of(self._ledger)

    @cached_property
    def _budget(self) -> LedgerBudget | None:
        return LedgerBudget.of(self._ledger)

    @cached_property
    def _share(self) -> str:
        share: str | None = self._account.declaration.get("share")
        return share or share_terms(self._ledger, self._event)["share"]

    @checks_itself
    def check(self, units: float, draws: float) -> None:
        """Raise unless the account may come to so many units and values of noise in all.

        Args:
            units: Units of it, those on record included.
            draws: Values of noise from finite random bits, likewise.

        Raises:
            BudgetExceededError: If that would exceed its share, or what finite bits are paid for.
        """
        if self._plan is None and self._budget is None:
            self._warn_of_others()
            return
        self._look()
        limit = self._plan.num_draws if self._plan is not None else getattr(self._budget, "num_draws", NUM_DRAWS)
        name, path = self._account.name, self._ledger.path
        if self._drawn + draws > limit:
            raise BudgetExceededError(
                f"The ledger {path} pays for the finite bits of {limit:.4g} values of noise, others drew "
                f"{self._drawn:.4g} and account {name!r} needs {draws:.4g}: declare more as num_draws, in a new ledger."
            )
        need = 0.0 if self._plan is None else units * self._plan.amount(self._share, self._event)
        if self._plan is not None and not self._plan.holds(self._share, self._taken + need):
            unit = share_unit(self._plan.by_name[self._share]).replace("mu^2", "of mu^2")
            raise BudgetExceededError(
                f"Share {self._share!r} of the ledger {path} has {self._plan.size(self._share):.6g} {unit}: other "
                f"accounts took {self._taken:.6g} and this one, {name!r}, needs {need:.6g} in all. "
                "Take less, or another share; a plan is not raised after looking, and a larger one for other data is "
                "declared by `lightning-pac plan ... --ledger NEW_LEDGER`."
            )

    def check_planned(
        self,
        cost: float,
        fitting: Callable[[float], str] = lambda left: "",
        cost_at: Callable[[float], float] | None = None,
        beside: float = 0.0,
    ) -> None:
        """Raise unless so much more may be charged, where a promise stands.

        Args:
            cost: Of everything that is planned and not yet charged, in nats.
            fitting: Says with which argument the same plan costs no more than so many nats; empty where it cannot.
            cost_at: The cost at another Rényi order.
            beside: What others are to charge besides, in nats, for which the words of a refusal leave room.

        Raises:
            BudgetExceededError: If that would exceed the promise.
        """
        # The margin is for rounding, since noise may be calibrated to use the promise up.
        if self._budget is None or cost <= self._account.remaining * (1 + 1e-9):
            return
        path, budget = self._ledger.path, self._budget
        fits = fitting(self._account.remaining - beside) or "a smaller epsilon or bound"
        spent = self._ledger.spent("rpp")
        larger = self.larger_promise(cost + beside, cost_at) or "since no promise allows that"
        resumed = (
            " A run that was interrupted goes on by ckpt_path, and needs the rest of its steps alone." if spent else ""
        )
        raise BudgetExceededError(
            f"The ledger {path} promises {budget}, and less is left of it than is planned (of {budget.cap:.6g} nats "
            f"at order {budget.renyi_order:g}, {spent:.6g} is spent, and {cost:.6g} more is planned): plan fewer "
            f"steps or more noise ({fits}), {larger}.{resumed}"
        )

    def larger_promise(self, cost: float, cost_at: Callable[[float], float] | None = None) -> str:
        """A part of a sentence that says how to promise enough for so many nats more; empty where nothing is enough."""
        spent, path = self._ledger.spent("rpp"), self._ledger.path
        if self._budget is not None and cost_at is not None and first_charge(self._ledger) is None:
            # The order of this ledger suits its own promise, and one that is much larger may need 30 times as much.
            fresh = self._budget.enough_for(cost_at)
            if fresh is not None:
                return (
                    "or begin a new ledger, since nothing is charged to this one, with PlannedLedger("
                    f"{'new-' + path.name!r}, epsilon={fresh.epsilon:g}, delta={fresh.delta:g})"
                )
        larger = None if self._budget is None else self._budget.raised_to((spent + cost) * (1 + 1e-9))
        if larger is None:
            return ""
        command = change_promise(path, larger.as_options())
        return f"or let the keeper of the data promise {larger}, by `{command}` and in your code"

    def _warn_of_others(self) -> None:
        """At the first check of a new account beside others without a budget: no figure will hold for all of them."""
        if self._warned:
            return
        self._warned = True
        ledger, account = self._ledger, self._account
        others = [
            other for other in ledger.accounts()
            if other.num_charges and "coupling" in other.declaration and other.name != account.name
        ]  # fmt: skip
        if others and not account.num_charges and ledger.budget(account.currency) is None:
            warnings.warn(
                f"The ledger {ledger.path} holds {len(others)} other release{'s' * (len(others) > 1)} about these "
                "data, and nothing bounds what they and this one tell together, since no promise was stated before "
                "the first. For one figure over several runs and metrics, begin a new ledger with "
                f"lightning_pac.accountants.PlannedLedger({'new-' + ledger.path.name!r}, epsilon=..., delta=...), "
                "given as ledger= to each of them.",
                stacklevel=2,
            )

    def _look(self) -> None:
        others = "SELECT id, num_charges FROM accounts WHERE id != ?"
        seen = [
            (int(number), int(charges)) for number, charges in self._ledger.storage.read(others, (self._account.id,))
        ]
        if seen == self._seen:
            return
        accounts = [account for account in worlds_of(self._ledger) if account.id != self._account.id]
        self._drawn = float(sum(map(draws_of, accounts)))
        if self._plan is not None:
            self._taken = taken_of_shares(self._ledger, self._plan, self._account)[self._share]
        self._seen = seen
