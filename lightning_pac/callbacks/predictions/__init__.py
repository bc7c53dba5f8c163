"""Private predictions in place of a module's own."""

from lightning_pac.callbacks.predictions.pac_responses import PACResponses
from lightning_pac.callbacks.predictions.private_output import PrivateOutput

__all__ = [
    "PACResponses",
    "PrivateOutput",
]
