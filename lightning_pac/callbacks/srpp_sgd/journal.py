"""The account of one training run: the journal it is written to, and what the next step costs."""

import bisect
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from lightning_pac.accountants import Promise, RunningAccount, SRPPAccountant
from lightning_pac.callbacks.shared import SharedAccount, fitting_argument
from lightning_pac.exceptions import BudgetExceededError, LedgerMismatchError
from lightning_pac.ledger import LedgerAccount, PrivacyLedger

__all__ = ["RunJournal", "open_account"]


class RunJournal:
    """Charges every optimizer step, durably before its noise is drawn, and continues after a restart.

    The journal is the account: after a crash it may hold steps that no checkpoint knows, and they stay charged. What a
    restored ledger has booked for lost steps counts as the fewest steps of a stretch of their own that cost as much. A
    stretch of steps begins with a fresh pass over the data (see `Sampling`); each is one attempt in the ledger.

    Args:
        accountant: The terms of the account, with everything resolved.
        noise_multiplier: Noise deviation on the sum, in clipping norms.
        account: Where steps are charged.
        resumed: What `state` returned when the checkpoint was saved; None for a new run.
        planned_steps: Global step at which the run is going to end, for which exact figures are computed ahead; 0 for
            none.
        first_step: Global step at which it begins or goes on.
        promise: What must be kept beside the budgets.
        promised: Name of the figure that is spoken of first.
        draws_per_step: Noise values of a step.
        shares_ledger: Whether other runs may be charged to the same ledger.
    """

    def __init__(
        self,
        accountant: SRPPAccountant,
        noise_multiplier: float,
        account: SharedAccount,
        resumed: Mapping[str, Any] | None = None,
        planned_steps: int = 0,
        promise: Promise | None = None,
        promised: str = "world_success_bound",
        draws_per_step: int = 0,
        shares_ledger: bool = False,
        first_step: int = 0,
    ) -> None:
        attempts = account.attempts()
        self.account = account
        self.promised = promised
        self.is_spent = False
        self.shares_ledger = shares_ledger
        noise_is_given = promise is None and promised == "world_success_bound"
        continuing = set(resumed["continuing"] if resumed else ())
        stretches: list[int] = []
        for index, attempt in enumerate(attempts):
            if index in continuing and stretches:
                stretches[-1] += attempt.num_steps
            else:
                stretches.append(attempt.num_steps)

        def epsilon_with(lost: int) -> float:
            return accountant.track(noise_multiplier, [lost, *stretches], draws_per_step=draws_per_step).epsilon

        lost = _steps_of(account.lost(), epsilon_with)
        journalled = lost + sum(attempt.num_steps for attempt in attempts)
        known = resumed["num_steps"] if resumed else 0
        if journalled < known:
            raise LedgerMismatchError(
                f"The checkpoint knows {known} steps, but account {account.name!r} has only {journalled}: give the "
                "ledger that the run was journalled in, and not an older copy."
            )
        self.replayed = max(journalled - known, lost)
        self._continuing = [index for index in range(len(attempts)) if index in continuing]
        self._num_attempts = len(attempts)
        stretches[:0] = [lost] if lost else []
        planned_steps = journalled + planned_steps - first_step if planned_steps else 0
        # What was released may have made the plan longer, unless a promise of the run ends it, or shorter.
        card = account.card() if journalled else None
        earlier: Mapping[str, Any] = {} if card is None else card.details
        self.extended_at: int | None = earlier.get("extended_at")
        before = earlier.get("planned_steps", planned_steps) or 0
        if noise_is_given and (before < planned_steps or before > planned_steps == 0):  # which is without end
            self.extended_at = earlier.get("extended_at", journalled)
        planned_steps = max(planned_steps, before)
        self.running = accountant.track(noise_multiplier, stretches, planned_steps, promise, draws_per_step)
        self._planned_steps = planned_steps
        self._unsliced = self.running
        if accountant.notion != "rpp":
            unsliced = replace(accountant, notion="rpp", slices=None)
            self._unsliced = unsliced.track(noise_multiplier, stretches, planned_steps, None, draws_per_step)
        self._attempt = account.start_attempt()  # `begin_stretch` opens the one that steps go to

    @property
    def num_steps(self) -> int:
        """Steps ever started."""
        return self.running.num_steps

    @property
    def epsilon(self) -> float:
        """Cost of all steps ever started, in the notion of the account."""
        return self.running.epsilon

    @property
    def rpp_epsilon(self) -> float:
        """Their unsliced, worst-case cost."""
        return self._unsliced.epsilon

    @property
    def in_force(self) -> RunningAccount[SRPPAccountant]:
        """The account of all planned steps, or of those that a promise or a budget allowed.

        A run may be ended by what it released, on which figures of the steps taken would not hold.
        """
        return self.running if self.is_spent else self.running.of_plan()

    @property
    def rpp_epsilon_in_force(self) -> float:
        """The unsliced, worst-case cost of the same steps."""
        return (self._unsliced if self.is_spent else self._unsliced.of_plan()).epsilon

    def begin_stretch(self, first_step: int, continues_pass: bool = False) -> None:
        """The next step draws from a fresh pass, or goes on with the pass that an earlier attempt was in."""
        self._num_attempts += bool(self._attempt.num_steps)
        if continues_pass:
            self._continuing.append(self._num_attempts)
        else:
            self.running.begin_stretch()
            self._unsliced.begin_stretch()
        self._attempt = self.account.start_attempt(first_step)

    @property
    def stretch_steps(self) -> int:
        """Steps started since the last fresh pass began."""
        return (self.running.stretches or (0,))[-1]

    def can_afford_step(self) -> bool:
        """Whether the next step would keep the promise and stay within every budget and share."""
        return self.why_no_step() is None

    def why_no_step(self) -> str | None:
        """What the next step would break or exceed, in a sentence; None if nothing."""
        try:
            self.account.check(self.running.next_cost, self.running.use_after(1))
        except BudgetExceededError as error:
            return str(error)
        if self.running.next_keeps_promise():
            return None
        return f"It would break the promise {self.running.promise}: noise_multiplier in its place lets a run go on."

    def check_planned(self, beside: float) -> None:
        """Refuse a new run whose planned steps exceed what a plan or a promise of the ledger allows.

        A run that goes on has been let in, and ends where its replayed steps have used up what it was given.

        Args:
            beside: What other callbacks are to charge to the same ledger, in nats, for which the words leave room.

        Raises:
            BudgetExceededError: Names the ledger, what is spent, what is needed, and what to do.
        """
        if self._planned_steps and not self.num_steps:
            running = self.running
            cost, use = running.cost_of(self._planned_steps), running.use_after(self._planned_steps)
            fitting = partial(fitting_argument, running, self._planned_steps, promised=self.promised)
            self.account.check_planned(cost, use, fitting, running.planned_cost, beside)

    def start_step(self, step: int) -> None:
        """Charge a step; it is on the disk when this returns.

        Raises:
            BudgetExceededError: If it would break the promise or pass a budget; nothing is charged.
        """
        if not self.running.next_keeps_promise():
            raise BudgetExceededError(
                f"The next step would break the promise {self.running.promise}: end the run here, as the callback does "
                "by itself where no step is forced."
            )
        self._attempt.start_step(self.running.next_cost, step, self.running.use_after(1))
        self.running.start_step()
        if self._unsliced is not self.running:
            self._unsliced.start_step()

    def state(self) -> dict[str, Any]:
        """A pointer into the journal for a checkpoint, as plain values; the account itself is never in it."""
        last = self._num_attempts + bool(self._attempt.num_steps)
        return {
            "path": str(self.account.path),
            "account": self.account.name,
            "num_steps": self.num_steps,
            "continuing": [index for index in self._continuing if index < last],
        }


def _steps_of(cost: float, epsilon_with: Callable[[int], float]) -> int:
    """The fewest further steps that cost at least so much."""
    if not cost:
        return 0
    least, most = epsilon_with(0) + cost * (1 - 1e-9), 1
    while epsilon_with(most) < least:
        most *= 2
    return bisect.bisect_left(range(most), least, lo=most // 2, key=epsilon_with)


def open_account(
    ledger: PrivacyLedger, declaration: Mapping[str, Any], currency: str, budget: float | None, name: str | None
) -> LedgerAccount:
    """The run's account: a new one, or the named one of the run that is resumed.

    Raises:
        LedgerMismatchError: If the ledger has no account of that name, or it was declared otherwise.
    """
    if name is None:
        name = f"training-{secrets.token_hex(4)}"
    elif name not in {account.name for account in ledger.accounts()}:
        raise LedgerMismatchError(
            f"{ledger.path} has no account {name!r}, where this run was journalled before: give ledger= the file that "
            "it was written to."
        )
    return ledger.account(name, currency, declaration, budget, "training")
