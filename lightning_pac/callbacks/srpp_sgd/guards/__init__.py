"""What is watched while a model trains, and kept from what runs beside its steps."""

from lightning_pac.callbacks.srpp_sgd.guards.locked_hooks import LockedHooks
from lightning_pac.callbacks.srpp_sgd.guards.repeated_check import SHARE, RepeatedCheck
from lightning_pac.callbacks.srpp_sgd.guards.writing_callbacks import WritingCallbacks, evaluates, is_repeated

__all__ = ["SHARE", "LockedHooks", "RepeatedCheck", "WritingCallbacks", "evaluates", "is_repeated"]
