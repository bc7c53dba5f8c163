"""Whether the best known attack agrees with the bound."""

from lightning_pac.audits.attack_result import AttackResult, proportion_interval
from lightning_pac.audits.likelihood_ratio import likelihood_ratio_attack
from lightning_pac.audits.loss_threshold import loss_threshold_attack

__all__ = ["AttackResult", "likelihood_ratio_attack", "loss_threshold_attack", "proportion_interval"]
