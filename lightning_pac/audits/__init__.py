"""Whether the best known attack agrees with the bound."""

from lightning_pac.audits.attack_result import AttackResult, proportion_interval
from lightning_pac.audits.attribute import AttributeAttackResult, gaussian_map_attack
from lightning_pac.audits.likelihood_ratio import likelihood_ratio_attack
from lightning_pac.audits.loss_threshold import loss_threshold_attack
from lightning_pac.audits.membership import (
    MembershipAudit,
    membership_attack,
    membership_posterior,
    simulate_beliefs,
)
from lightning_pac.audits.sliced_divergence import gaussian_mixture_divergence, sliced_divergence

__all__ = [
    "AttackResult",
    "AttributeAttackResult",
    "MembershipAudit",
    "gaussian_map_attack",
    "gaussian_mixture_divergence",
    "likelihood_ratio_attack",
    "loss_threshold_attack",
    "membership_attack",
    "membership_posterior",
    "proportion_interval",
    "simulate_beliefs",
    "sliced_divergence",
]
