"""Audits: the best known attacks, to be compared with the bounds."""

from lightning_pac import _moved
from lightning_pac.audits.attack_result import AttackResult, proportion_interval
from lightning_pac.audits.attribute import AttributeAttackResult, gaussian_map_attack
from lightning_pac.audits.canaries import (
    UNSEEN,
    AuditTest,
    CanaryGame,
    TrainingAudit,
    alarms,
    claim_p_value,
    count_test,
    deviation_test,
    epsilon_lower_bound,
    exact_test,
    gaussian_lower_bound,
    guess_coins,
    law_test,
    pure_p_value,
)
from lightning_pac.audits.decoder_estimate import DecoderLeakage, decoder_leakage
from lightning_pac.audits.empirical_likelihood import (
    cluster_confidence,
    empirical_likelihood_attack,
    margin_confidence,
)
from lightning_pac.audits.likelihood_ratio import likelihood_ratio_attack
from lightning_pac.audits.loss_threshold import loss_threshold_attack
from lightning_pac.audits.mean_comparison import MeanComparison, compare_private_means
from lightning_pac.audits.membership import (
    MembershipAudit,
    membership_attack,
    membership_posterior,
    simulate_beliefs,
)
from lightning_pac.audits.recovery import RecoveryAudit, informed_membership_prior, recovery_attack
from lightning_pac.audits.sliced_estimate import gaussian_mixture_divergence, sliced_divergence

__all__ = [
    "UNSEEN",
    "AttackResult",
    "AttributeAttackResult",
    "AuditTest",
    "CanaryGame",
    "DecoderLeakage",
    "MeanComparison",
    "MembershipAudit",
    "RecoveryAudit",
    "TrainingAudit",
    "alarms",
    "claim_p_value",
    "cluster_confidence",
    "compare_private_means",
    "count_test",
    "decoder_leakage",
    "deviation_test",
    "empirical_likelihood_attack",
    "epsilon_lower_bound",
    "exact_test",
    "gaussian_lower_bound",
    "gaussian_map_attack",
    "gaussian_mixture_divergence",
    "guess_coins",
    "informed_membership_prior",
    "law_test",
    "likelihood_ratio_attack",
    "loss_threshold_attack",
    "margin_confidence",
    "membership_attack",
    "membership_posterior",
    "proportion_interval",
    "pure_p_value",
    "recovery_attack",
    "simulate_beliefs",
    "sliced_divergence",
]

_moved.keep_function("audits", "decoder_leakage")
_moved.keep_function("audits", "sliced_divergence")
