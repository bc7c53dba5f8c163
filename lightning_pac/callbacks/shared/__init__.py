"""The common ground of several callbacks: checks of the Trainer, and one account for all ranks."""

from lightning_pac.callbacks.shared.checksum import checksum_of
from lightning_pac.callbacks.shared.fitting import fitting_argument
from lightning_pac.callbacks.shared.hidden_lengths import hide_evaluated_lengths
from lightning_pac.callbacks.shared.hidden_randomness import HiddenRandomness
from lightning_pac.callbacks.shared.logged_values import in_float32, let_log, watch_logging
from lightning_pac.callbacks.shared.other_ledgers import on_record, words_on_other_ledgers
from lightning_pac.callbacks.shared.shared_account import SharedAccount, check_path, order_in
from lightning_pac.callbacks.shared.slow_work import named_if_slow
from lightning_pac.callbacks.shared.trainer_checks import (
    acts_at_once,
    is_stopped_by_noised_metric,
    model_problems,
    monitored_names,
    noised_names,
    optimizer_problems,
    refuse_gradient_hook,
    refuse_searches,
    refuse_together,
    trainer_problems,
)
from lightning_pac.callbacks.shared.trainer_only import TrainerCallback

__all__ = [
    "HiddenRandomness",
    "SharedAccount",
    "TrainerCallback",
    "acts_at_once",
    "check_path",
    "checksum_of",
    "fitting_argument",
    "hide_evaluated_lengths",
    "in_float32",
    "is_stopped_by_noised_metric",
    "let_log",
    "model_problems",
    "monitored_names",
    "named_if_slow",
    "noised_names",
    "on_record",
    "optimizer_problems",
    "order_in",
    "refuse_gradient_hook",
    "refuse_searches",
    "refuse_together",
    "trainer_problems",
    "watch_logging",
    "words_on_other_ledgers",
]
