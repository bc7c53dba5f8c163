"""Callbacks for the Trainer, one a file."""

from lightning_pac.callbacks.canary_audit import CanaryAudit
from lightning_pac.callbacks.metrics import PrivateMetrics
from lightning_pac.callbacks.padding import DummyPadding, PositiveDelay
from lightning_pac.callbacks.predictions import PACResponses, PrivateOutput
from lightning_pac.callbacks.srpac_decoder import SRPACDecoder
from lightning_pac.callbacks.srpp_sgd import DPSGD, SRPPSGD

__all__ = [
    "DPSGD",
    "SRPPSGD",
    "CanaryAudit",
    "DummyPadding",
    "PACResponses",
    "PositiveDelay",
    "PrivateMetrics",
    "PrivateOutput",
    "SRPACDecoder",
]
