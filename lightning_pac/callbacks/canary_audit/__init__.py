"""The audit of a private run by canaries and by tests of its steps."""

from lightning_pac.callbacks.canary_audit.callback import CanaryAudit

__all__ = ["CanaryAudit"]
