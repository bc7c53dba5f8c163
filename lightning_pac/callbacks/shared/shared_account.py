"""The account of a run as all of its processes see it."""

from collections.abc import Callable
from pathlib import Path

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_info

from lightning_pac.ledger import (
    Attempt,
    LedgerAccount,
    LedgerArgument,
    LedgerHandle,
    PrivacyLedger,
    TrainingAttempt,
)
from lightning_pac.strategies import Ranks

__all__ = ["SharedAccount", "SharedAttempt", "check_path"]


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


class SharedAccount:
    """An account that rank zero has open: it reads and charges, and the others wait for the result or the error.

    Every method is called by all ranks.

    Args:
        ranks: The processes that share it.
        find_ledger: Names the ledger; called on rank zero only.
        open_account: Opens the account in it; called on rank zero only.
    """

    def __init__(
        self,
        ranks: Ranks,
        find_ledger: Callable[[], LedgerHandle],
        open_account: Callable[[PrivacyLedger], LedgerAccount],
    ) -> None:
        self._ranks = ranks
        self._handle: LedgerHandle | None = None
        self._account: LedgerAccount | None = None

        def name_and_path() -> tuple[str, Path, tuple[str, str] | None]:
            self._handle = find_ledger()
            ledger = self._handle.open()
            try:
                self._account = open_account(ledger)
            except BaseException:
                self._handle.close()
                raise
            return self._account.name, ledger.path, ledger.last_charge

        self.name, self.path, last = ranks.from_first(name_and_path)
        if last is not None:
            rank_zero_info(f"Ledger {self.path}: the last charge was made on {last[0]} (UTC) to account {last[1]!r}.")

    def attempts(self) -> list[Attempt]:
        """All attempts on record."""
        return self._ranks.from_first(lambda: list(self._on_first.attempts()))

    def check(self, cost: float) -> None:
        """Raise what charging the cost would raise."""
        self._ranks.from_first(lambda: self._on_first.check(cost))

    def start_attempt(self, first_step: int = 0) -> "SharedAttempt":
        """Open an attempt; nothing is on record before its first step."""
        attempt = self._on_first.start_attempt(first_step) if self._ranks.is_first else None
        return SharedAttempt(self._ranks, attempt)

    def close(self) -> None:
        """Close the ledger, on rank zero and unless it was given open; the only method that a rank may call alone."""
        if self._handle is not None:
            self._handle.close()
        self._handle = self._account = None

    @property
    def _on_first(self) -> LedgerAccount:
        assert self._account is not None
        return self._account


class SharedAttempt:
    """An attempt whose steps rank zero puts on record; see `TrainingAttempt`."""

    def __init__(self, ranks: Ranks, attempt: TrainingAttempt | None) -> None:
        self._ranks = ranks
        self._attempt = attempt
        self.num_steps = 0

    def start_step(self, cost: float, step: int) -> None:
        """Charge a step; it is on rank zero's disk when this returns on any rank."""

        def charge() -> None:
            assert self._attempt is not None
            self._attempt.start_step(cost, step)

        self._ranks.from_first(charge)
        self.num_steps += 1
