"""What is watched while a model trains, and kept from what runs beside its steps."""

from lightning_pac.callbacks.srpp_sgd.guards.locked_hooks import LockedHooks
from lightning_pac.callbacks.srpp_sgd.guards.repeated_check import RepeatedCheck
from lightning_pac.callbacks.srpp_sgd.guards.unseen_state import SHARE, UnseenState
from lightning_pac.callbacks.srpp_sgd.guards.writing_callbacks import WritingCallbacks, is_repeated, runs_in

__all__ = ["SHARE", "LockedHooks", "RepeatedCheck", "UnseenState", "WritingCallbacks", "is_repeated", "runs_in"]
