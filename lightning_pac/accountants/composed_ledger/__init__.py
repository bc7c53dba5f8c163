"""Everything that one ledger holds about two worlds, composed into one curve."""

from lightning_pac.accountants.composed_ledger.events import ledger_events, ledger_order
from lightning_pac.accountants.composed_ledger.plan import LedgerPlan
from lightning_pac.accountants.composed_ledger.total import LedgerTotal, ledger_total

__all__ = ["LedgerPlan", "LedgerTotal", "ledger_events", "ledger_order", "ledger_total"]
