"""Errors that callers may want to tell apart.

Wrong arguments are plain `ValueError` and `TypeError`, and conflicts with the Trainer are Lightning's
`MisconfigurationException`. The classes here are for what happens to a correct program: a budget that ends, a ledger
that does not belong to the run, a gradient that was not the private one.
"""

__all__ = ["BudgetExceededError", "LedgerError", "LedgerMismatchError", "PrivacyError", "PrivacyViolationError"]


class PrivacyError(RuntimeError):
    """Base of all errors that concern a privacy guarantee."""


class BudgetExceededError(PrivacyError):
    """A charge was refused because it would exceed the budget; nothing was released and nothing was charged."""


class LedgerError(PrivacyError):
    """A ledger cannot be opened, written or trusted."""


class LedgerMismatchError(LedgerError):
    """A ledger, checkpoint or journal was made under another declaration than the one it is used with."""


class PrivacyViolationError(PrivacyError):
    """Privacy was asked for and did not take place, for instance because something replaced the noised gradient."""
