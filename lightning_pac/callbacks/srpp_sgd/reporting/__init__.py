"""Messages, card, figures and logged metrics of a private run."""

from lightning_pac.callbacks.srpp_sgd.reporting.announcements import (
    announce_end,
    announce_interruption,
    announce_start,
    announce_stop,
    warn_of_early_end,
    warn_of_raw_validation,
    warn_of_raw_values,
)
from lightning_pac.callbacks.srpp_sgd.reporting.card import make_card, save_card
from lightning_pac.callbacks.srpp_sgd.reporting.earlier_runs import warn_of_earlier_run
from lightning_pac.callbacks.srpp_sgd.reporting.figures import shown_state
from lightning_pac.callbacks.srpp_sgd.reporting.logged_metrics import is_ours, log_clipped_fraction, log_metrics
from lightning_pac.callbacks.srpp_sgd.reporting.own_statistics import tell_of_own_statistics
from lightning_pac.callbacks.srpp_sgd.reporting.people_in_data import warn_of_few_persons, warn_of_shared_contents

__all__ = [
    "announce_end",
    "announce_interruption",
    "announce_start",
    "announce_stop",
    "is_ours",
    "log_clipped_fraction",
    "log_metrics",
    "make_card",
    "save_card",
    "shown_state",
    "tell_of_own_statistics",
    "warn_of_earlier_run",
    "warn_of_early_end",
    "warn_of_few_persons",
    "warn_of_raw_validation",
    "warn_of_raw_values",
    "warn_of_shared_contents",
]
