"""Callbacks for the Trainer, one a file."""

from lightning_pac.callbacks.dummy_padding import DummyPadding
from lightning_pac.callbacks.pac_responses import PACResponses
from lightning_pac.callbacks.positive_delay import PositiveDelay
from lightning_pac.callbacks.private_metrics import PrivateMetrics
from lightning_pac.callbacks.private_output import PrivateOutput
from lightning_pac.callbacks.srpac_decoder import SRPACDecoder
from lightning_pac.callbacks.srpp_sgd import SRPPSGD

__all__ = [
    "SRPPSGD",
    "DummyPadding",
    "PACResponses",
    "PositiveDelay",
    "PrivateMetrics",
    "PrivateOutput",
    "SRPACDecoder",
]
