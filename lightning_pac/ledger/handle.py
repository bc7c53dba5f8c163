"""A ledger as users give it: open already, or a path to be opened when it is needed."""

from pathlib import Path
from types import TracebackType

from lightning_pac.exceptions import LedgerError
from lightning_pac.ledger.ledger import PrivacyLedger

__all__ = ["LedgerArgument", "LedgerHandle"]

LedgerArgument = PrivacyLedger | str | Path
"""What every `ledger=` takes."""


class LedgerHandle:
    """Opens, shares and closes the ledger of an argument.

    A ledger that was given open stays open, since it is another's to close. One that was given by its path is opened
    here, shared with all others of this process who gave that path, and closed by the last of them.

    Attributes:
        given: What it was made from.

    Args:
        given: An open ledger, or the path of one.

    Example:
        >>> import tempfile
        >>> handle = LedgerHandle(tempfile.mkdtemp() + "/study.db")
        >>> with handle as ledger:
        ...     ledger.account("clusters").charge(0.25)
        0.25
        >>> handle.is_open
        False
    """

    def __init__(self, given: LedgerArgument) -> None:
        self.given = given
        self._opened: PrivacyLedger | None = None

    @property
    def is_open(self) -> bool:
        """Whether `open` was called, and `close` not yet."""
        return self._opened is not None

    @property
    def ledger(self) -> PrivacyLedger:
        """The ledger, once it is open.

        Raises:
            LedgerError: If it is not.
        """
        if self._opened is None:
            raise LedgerError(f"The ledger {self.given} is not open: open its handle first.")
        return self._opened

    def open(self) -> PrivacyLedger:
        """The ledger, opened if it is not yet.

        Raises:
            LedgerError: If it cannot be opened for writing.
        """
        if self._opened is None:
            self._opened = PrivacyLedger.ensure(self.given)
        return self._opened

    def close(self) -> None:
        """Closes the ledger if this handle has opened it. Closing twice is harmless."""
        opened, self._opened = self._opened, None
        if opened is not None and opened is not self.given:
            opened.close()

    def __enter__(self) -> PrivacyLedger:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
