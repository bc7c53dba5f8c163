"""Audits of one run, by canaries and by tests of what the run did."""

from lightning_pac.audits.canaries.canary_game import CanaryGame, guess_coins
from lightning_pac.audits.canaries.one_run import (
    claim_p_value,
    epsilon_lower_bound,
    gaussian_lower_bound,
    pure_p_value,
)
from lightning_pac.audits.canaries.training_audit import UNSEEN, TrainingAudit
from lightning_pac.audits.canaries.white_box import (
    AuditTest,
    alarms,
    count_test,
    deviation_test,
    exact_test,
    law_test,
)

__all__ = [
    "UNSEEN",
    "AuditTest",
    "CanaryGame",
    "TrainingAudit",
    "alarms",
    "claim_p_value",
    "count_test",
    "deviation_test",
    "epsilon_lower_bound",
    "exact_test",
    "gaussian_lower_bound",
    "guess_coins",
    "law_test",
    "pure_p_value",
]
