"""The durable account of what was spent: one SQLite file, its writers, attempts, transcripts and marks."""

from lightning_pac.ledger.account import AccountKind, Charge, LedgerAccount, check_amount
from lightning_pac.ledger.array_codec import pack_arrays, smallest_integers, unpack_arrays
from lightning_pac.ledger.attempts import Attempt, TrainingAttempt
from lightning_pac.ledger.currencies import KEY_CURRENCY, describe_currency
from lightning_pac.ledger.handle import LedgerArgument, LedgerHandle
from lightning_pac.ledger.integrity import change_promise, exact
from lightning_pac.ledger.journal import public_journal, replay_journal
from lightning_pac.ledger.ledger import BudgetChange, PrivacyLedger
from lightning_pac.ledger.plan import (
    declare_budget,
    declare_plan,
    declared_budgets,
    declared_plan,
    first_charge,
    lost_budgets,
    promised_since,
)
from lightning_pac.ledger.recovery import adopt_ledger, backup_ledger, copies_of_ledgers, restore_ledger
from lightning_pac.ledger.transcript import (
    Payment,
    ResponseTranscript,
    answers_for,
    read_entries,
    read_state,
)

__all__ = [
    "KEY_CURRENCY",
    "AccountKind",
    "Attempt",
    "BudgetChange",
    "Charge",
    "LedgerAccount",
    "LedgerArgument",
    "LedgerHandle",
    "Payment",
    "PrivacyLedger",
    "ResponseTranscript",
    "TrainingAttempt",
    "adopt_ledger",
    "answers_for",
    "backup_ledger",
    "change_promise",
    "check_amount",
    "copies_of_ledgers",
    "declare_budget",
    "declare_plan",
    "declared_budgets",
    "declared_plan",
    "describe_currency",
    "exact",
    "first_charge",
    "lost_budgets",
    "pack_arrays",
    "promised_since",
    "public_journal",
    "read_entries",
    "read_state",
    "replay_journal",
    "restore_ledger",
    "smallest_integers",
    "unpack_arrays",
]
