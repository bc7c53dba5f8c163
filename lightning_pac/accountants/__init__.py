"""What it cost: prices, bounds, conversions and the durable ledger."""

from lightning_pac.accountants.account import Charge, LedgerAccount
from lightning_pac.accountants.card import Estimate, Guarantee, PrivacyCard
from lightning_pac.accountants.journal import Attempt, TrainingAttempt
from lightning_pac.accountants.ledger import PrivacyLedger
from lightning_pac.accountants.transcript import ResponseTranscript, adopt_ledger

__all__ = [
    "Attempt",
    "Charge",
    "Estimate",
    "Guarantee",
    "LedgerAccount",
    "PrivacyCard",
    "PrivacyLedger",
    "ResponseTranscript",
    "TrainingAttempt",
    "adopt_ledger",
]
