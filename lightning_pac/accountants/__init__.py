"""What it cost: prices, bounds, conversions and the durable ledger."""

from lightning_pac.accountants.account import Charge, LedgerAccount
from lightning_pac.accountants.amplified import amplified_step_cost
from lightning_pac.accountants.blocks import SliceCoefficients, effective_noise_multiplier
from lightning_pac.accountants.bounds import (
    dp_epsilon_for_success,
    dp_success_bound,
    independent_bits_prior,
    membership_prior,
    membership_success_bound,
    responses_until,
    subset_recovery_prior,
    world_success_bound,
)
from lightning_pac.accountants.card import Estimate, Guarantee, PrivacyCard
from lightning_pac.accountants.composition import ComposedRuns, SRPPRun, compose
from lightning_pac.accountants.currencies import describe_currency
from lightning_pac.accountants.group_dp import GroupDPAccountant
from lightning_pac.accountants.hybrid_rdp import HybridRDP, hybrid_rdp, hybrid_rdp_epsilon
from lightning_pac.accountants.journal import Attempt, TrainingAttempt
from lightning_pac.accountants.ledger import BudgetChange, PrivacyLedger
from lightning_pac.accountants.orders import DEFAULT_ORDERS, epsilon_at_delta
from lightning_pac.accountants.residual import (
    GaussianReference,
    LogisticReference,
    ReferenceDistribution,
    ResidualPrivacy,
    UniformReference,
    composed_conditional_entropy,
    posterior_disadvantage,
    reference_offset,
)
from lightning_pac.accountants.running import RunningAccount
from lightning_pac.accountants.shift_composition import ShiftComposition, shift_hockey_stick
from lightning_pac.accountants.srpp import Notion, SRPPAccountant
from lightning_pac.accountants.transcript import ResponseTranscript, adopt_ledger

__all__ = [
    "DEFAULT_ORDERS",
    "Attempt",
    "BudgetChange",
    "Charge",
    "ComposedRuns",
    "Estimate",
    "GaussianReference",
    "GroupDPAccountant",
    "Guarantee",
    "HybridRDP",
    "LedgerAccount",
    "LogisticReference",
    "Notion",
    "PrivacyCard",
    "PrivacyLedger",
    "ReferenceDistribution",
    "ResidualPrivacy",
    "ResponseTranscript",
    "RunningAccount",
    "SRPPAccountant",
    "SRPPRun",
    "ShiftComposition",
    "SliceCoefficients",
    "TrainingAttempt",
    "UniformReference",
    "adopt_ledger",
    "amplified_step_cost",
    "compose",
    "composed_conditional_entropy",
    "describe_currency",
    "dp_epsilon_for_success",
    "dp_success_bound",
    "effective_noise_multiplier",
    "epsilon_at_delta",
    "hybrid_rdp",
    "hybrid_rdp_epsilon",
    "independent_bits_prior",
    "membership_prior",
    "membership_success_bound",
    "posterior_disadvantage",
    "reference_offset",
    "responses_until",
    "shift_hockey_stick",
    "subset_recovery_prior",
    "world_success_bound",
]
