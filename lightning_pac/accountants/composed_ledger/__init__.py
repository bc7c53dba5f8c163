"""Everything that one ledger holds about two worlds, composed into one curve and held to a plan or a promise."""

from lightning_pac.accountants.composed_ledger.allowance import Allowance, share_terms
from lightning_pac.accountants.composed_ledger.budget import LedgerBudget
from lightning_pac.accountants.composed_ledger.events import accountant_of, ledger_events, ledger_order
from lightning_pac.accountants.composed_ledger.plan import LedgerPlan
from lightning_pac.accountants.composed_ledger.planned_ledger import PlannedLedger
from lightning_pac.accountants.composed_ledger.shares import Share, joint_curve, share_unit
from lightning_pac.accountants.composed_ledger.total import (
    LedgerTotal,
    account_total,
    ledger_total,
    taken_of_shares,
    total_guarantees,
)

__all__ = [
    "Allowance",
    "LedgerBudget",
    "LedgerPlan",
    "LedgerTotal",
    "PlannedLedger",
    "Share",
    "account_total",
    "accountant_of",
    "joint_curve",
    "ledger_events",
    "ledger_order",
    "ledger_total",
    "share_terms",
    "share_unit",
    "taken_of_shares",
    "total_guarantees",
]
