"""A ledger as users give it: open already, or a path to be opened when it is needed."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from lightning_pac._durable_files import real_path
from lightning_pac._validation import validated
from lightning_pac.exceptions import LedgerError
from lightning_pac.ledger.ledger import PrivacyLedger

__all__ = ["LedgerArgument", "LedgerHandle"]


@validated
class LedgerHandle:
    """Opens, shares and closes the ledger of an argument.

    A ledger that was given open stays open, since it is another's to close. One that was given by its path is opened
    here, shared with all others of this process who gave that path, and closed by the last of them.

    Attributes:
        given: What it was made from.
        witness: Where its marks are kept, None where nothing was said.
        share: The share of the ledger's plan that its user draws on, None for the only one that fits.
        renyi_order: The order at which the ledger will count once it is declared, None where that is open.

    Args:
        given: An open ledger, the path of one, or a handle, whose ledger and witness this one takes.
        witness: A file elsewhere that keeps the marks of the ledger at this path (see `PrivacyLedger`).
        share: Name of a share of the plan that the ledger was declared with (see `LedgerPlan`).

    Raises:
        ValueError: If a witness is given for a ledger that is open already.

    Example:
        >>> import tempfile
        >>> handle = LedgerHandle(tempfile.mkdtemp() + "/study.db")
        >>> with handle as ledger:
        ...     ledger.account("clusters").charge(0.25)
        0.25
        >>> handle.is_open
        False
    """

    given: PrivacyLedger | str | Path
    witness: str | Path | None
    share: str | None
    renyi_order: float | None = None

    def __init__(self, given: "LedgerArgument", witness: str | Path | None = None, share: str | None = None) -> None:
        self._prepare: Callable[[PrivacyLedger], None] | None = None
        if isinstance(given, LedgerHandle):
            witness = witness or given.witness
            share = share or given.share
            self._prepare, self.renyi_order = given._prepare, given.renyi_order
            given = given.given
        if witness is not None and isinstance(given, PrivacyLedger):
            raise ValueError(
                f"witness is for the path of a ledger, and {given.path} is open already: give it to PrivacyLedger."
            )
        self.given = given
        self.witness = witness
        self.share = share
        self._opened: PrivacyLedger | None = None

    def __repr__(self) -> str:
        # Ranks compare it, so nothing in it may differ between processes.
        said = {"witness": self.witness, "share": self.share}
        further = "".join(f", {name}={str(value)!r}" for name, value in said.items() if value is not None)
        return f"{type(self).__name__}({str(self.path)!r}{further})"

    @property
    def is_open(self) -> bool:
        """Whether `open` was called, and `close` not yet."""
        return self._opened is not None

    @property
    def path(self) -> Path:
        """The path of the ledger, which need not exist yet."""
        return self.given.path if isinstance(self.given, PrivacyLedger) else Path(self.given)

    @property
    def ledger(self) -> PrivacyLedger:
        """The ledger, once it is open.

        Raises:
            LedgerError: If it is not.
        """
        if self._opened is None:
            raise LedgerError(f"The ledger {self.given} is not open: open its handle first.")
        return self._opened

    def declare_as(self, other: "LedgerArgument") -> None:
        """Take the declaration of another handle of the same path, where this one names only the path.

        Whichever of the two is opened first then declares the ledger.
        """
        other = LedgerHandle(other)
        is_plain = self._prepare is None and not isinstance(self.given, PrivacyLedger)
        if is_plain and other._prepare is not None and real_path(self.path) == real_path(other.path):
            self._prepare, self.renyi_order = other._prepare, other.renyi_order

    def open(self) -> PrivacyLedger:
        """The ledger, opened if it is not yet.

        Raises:
            LedgerError: If it cannot be opened for writing.
        """
        if self._opened is None:
            self._opened = PrivacyLedger.ensure(self.given, self.witness)
            if self._prepare is not None:
                try:
                    self._prepare(self._opened)
                except BaseException:
                    self.close()
                    raise
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


LedgerArgument = PrivacyLedger | LedgerHandle | str | Path
"""The type of every `ledger=` argument."""
