"""The account of a run as all of its processes see it."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_info

from lightning_pac.accountants import Allowance, PrivacyEvent, ledger_order
from lightning_pac.cards import PrivacyCard
from lightning_pac.ledger import (
    Attempt,
    LedgerAccount,
    LedgerArgument,
    LedgerHandle,
    PrivacyLedger,
    TrainingAttempt,
)
from lightning_pac.strategies import Ranks

__all__ = ["SharedAccount", "SharedAttempt", "check_path", "order_in"]

Use = tuple[float, float]
"""Units of an account and values of noise, those on record included."""


def check_path(ledger: LedgerArgument | None, ranks: Ranks) -> None:
    """Refuse an open ledger for several processes, which has one writer.

    Raises:
        MisconfigurationException: If each process would hold it.
    """
    if ledger is None or ranks.size == 1:
        return
    handle = LedgerHandle(ledger)
    if isinstance(handle.given, PrivacyLedger):
        raise MisconfigurationException(
            f"ledger is open already, but {ranks.size} processes cannot each hold {handle.path}: give its path as "
            "ledger=, which rank zero then opens."
        )


def order_in(argument: LedgerArgument) -> float | None:
    """The Rényi order at which a ledger counts; None where nothing has decided it, or it is still to be made."""
    handle = LedgerHandle(argument)
    if isinstance(handle.given, PrivacyLedger):
        return ledger_order(handle.given) or handle.renyi_order
    if not handle.path.expanduser().is_file():
        return handle.renyi_order
    with PrivacyLedger.read_only(handle.path.expanduser()) as ledger:
        return ledger_order(ledger) or handle.renyi_order


class SharedAccount:
    """An account that rank zero has open: it reads and charges, and the others wait for the result or the error.

    Every method is called by all ranks, unless it says otherwise.

    Args:
        ranks: The processes that share it.
        find_ledger: Names the ledger; called on rank zero only.
        open_account: Opens the account in it; called on rank zero only.
        unit: What one unit of the account releases, by which a plan or a promise of the ledger is kept; none where it
            is about no two worlds.
    """

    def __init__(
        self,
        ranks: Ranks,
        find_ledger: Callable[[], LedgerHandle],
        open_account: Callable[[PrivacyLedger], LedgerAccount],
        unit: Sequence[PrivacyEvent] = (),
    ) -> None:
        self._ranks = ranks
        self._handle: LedgerHandle | None = None
        self._account: LedgerAccount | None = None
        self._allowance: Allowance | None = None

        def name_and_path() -> tuple[str, Path, tuple[str, str] | None]:
            self._handle = find_ledger()
            ledger = self._handle.open()
            try:
                self._account = open_account(ledger)
                self._allowance = Allowance(ledger, self._account, unit) if unit else None
            except BaseException:
                self._handle.close()
                raise
            return self._account.name, ledger.path, ledger.last_charge

        self.name, self.path, last = ranks.from_first(name_and_path)
        if last is not None:
            rank_zero_info(
                f"The last entry in ledger {self.path} is {last[1]!r} of {last[0]} (UTC). If you ran anything on it "
                "later, this file is an older copy: put the newer one back."
            )

    def attempts(self) -> list[Attempt]:
        """All attempts on record."""
        return self._ranks.from_first(lambda: list(self._on_first.attempts()))

    def lost(self) -> float:
        """The amount booked for steps that are no longer on record, in a ledger that was restored."""
        return self._ranks.from_first(lambda: math.fsum(charge.cost for charge in self._on_first.events()))

    def card(self) -> PrivacyCard | None:
        """The card that was attached last, None if none was."""
        return self._ranks.from_first(lambda: self._on_first.card)

    def check(self, cost: float, use: Use | None = None) -> None:
        """Raise what charging the cost would raise, or coming to so much in all."""

        def check() -> None:
            self._on_first.check(cost)
            self._check_use(use)

        self._ranks.from_first(check)

    def check_planned(
        self,
        cost: float,
        use: Use,
        fitting: Callable[[float], str],
        cost_at: Callable[[float], float],
        beside: float,
    ) -> None:
        """Raise unless a plan or a promise of the ledger allows all that is planned; see `Allowance`."""

        def check() -> None:
            self._check_use(use)
            if self._allowance is not None:
                self._allowance.check_planned(cost, fitting, cost_at, beside)

        self._ranks.from_first(check)

    def start_attempt(self, first_step: int = 0) -> "SharedAttempt":
        """Open an attempt; nothing is on record before its first step."""
        attempt = self._on_first.start_attempt(first_step) if self._ranks.is_first else None
        return SharedAttempt(self._ranks, attempt, self._check_use)

    def attach_card(self, card: PrivacyCard) -> None:
        """Keep the newest card of what was paid for with the account; rank zero may call it alone."""
        if self._account is not None:
            self._account.attach_card(card)

    def close(self) -> None:
        """Close the ledger, on rank zero and unless it was given open; a rank may call it alone."""
        if self._handle is not None:
            self._handle.close()
        self._handle = self._account = self._allowance = None

    def _check_use(self, use: Use | None) -> None:
        if self._allowance is not None and use is not None:
            self._allowance.check(*use)

    @property
    def _on_first(self) -> LedgerAccount:
        assert self._account is not None
        return self._account


class SharedAttempt:
    """An attempt whose steps rank zero puts on record; see `TrainingAttempt`."""

    def __init__(self, ranks: Ranks, attempt: TrainingAttempt | None, check_use: Callable[[Use | None], None]) -> None:
        self._ranks = ranks
        self._attempt = attempt
        self._check_use = check_use
        self.num_steps = 0

    def start_step(self, cost: float, step: int, use: Use | None = None) -> None:
        """Charge a step; it is on rank zero's disk when this returns on any rank."""

        def charge() -> None:
            self._check_use(use)
            assert self._attempt is not None
            self._attempt.start_step(cost, step)

        self._ranks.from_first(charge)
        self.num_steps += 1
