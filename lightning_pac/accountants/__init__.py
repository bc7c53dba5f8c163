"""Prices of releases, bounds on an attacker's success, and the conversions between them."""

from typing import TYPE_CHECKING

from lightning_pac import _moved
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
from lightning_pac.accountants.noised_counts import (
    HybridRDP,
    ShiftComposition,
    hybrid_rdp,
    hybrid_rdp_epsilon,
    shift_hockey_stick,
)
from lightning_pac.accountants.orders import DEFAULT_ORDERS, epsilon_at_delta
from lightning_pac.accountants.privacy_loss import (
    EpsilonDelta,
    GaussianCurve,
    GaussianRelease,
    PoissonSteps,
    PrivacyCurve,
    PrivacyEvent,
    Promise,
    StepFigures,
    SuccessBound,
    event_from_dict,
    least_noise,
    most_steps,
    opposite_mixtures_divergence,
    privacy_curve,
    promise_of,
)
from lightning_pac.accountants.residual import (
    GaussianReference,
    LogisticReference,
    ProvenInformation,
    ReferenceDistribution,
    ResidualPrivacy,
    UniformReference,
    composed_conditional_entropy,
    posterior_disadvantage,
    reference_offset,
)
from lightning_pac.accountants.srpp import (
    ComposedRuns,
    GroupDPAccountant,
    Notion,
    RunningAccount,
    SliceCoefficients,
    SRPPAccountant,
    SRPPRun,
    amplified_step_cost,
    compose,
    effective_noise_multiplier,
)

__all__ = [
    "DEFAULT_ORDERS",
    "ComposedRuns",
    "EpsilonDelta",
    "GaussianCurve",
    "GaussianReference",
    "GaussianRelease",
    "GroupDPAccountant",
    "HybridRDP",
    "LogisticReference",
    "Notion",
    "PoissonSteps",
    "PrivacyCurve",
    "PrivacyEvent",
    "Promise",
    "ProvenInformation",
    "ReferenceDistribution",
    "ResidualPrivacy",
    "RunningAccount",
    "SRPPAccountant",
    "SRPPRun",
    "ShiftComposition",
    "SliceCoefficients",
    "StepFigures",
    "SuccessBound",
    "UniformReference",
    "amplified_step_cost",
    "compose",
    "composed_conditional_entropy",
    "dp_epsilon_for_success",
    "dp_success_bound",
    "effective_noise_multiplier",
    "epsilon_at_delta",
    "event_from_dict",
    "hybrid_rdp",
    "hybrid_rdp_epsilon",
    "independent_bits_prior",
    "least_noise",
    "membership_prior",
    "membership_success_bound",
    "most_steps",
    "opposite_mixtures_divergence",
    "posterior_disadvantage",
    "privacy_curve",
    "promise_of",
    "reference_offset",
    "responses_until",
    "shift_hockey_stick",
    "subset_recovery_prior",
    "world_success_bound",
]

if not TYPE_CHECKING:
    __getattr__ = _moved.names_of("accountants")
_moved.keep_function("accountants", "hybrid_rdp")
