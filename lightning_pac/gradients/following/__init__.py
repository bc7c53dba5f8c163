"""A forward pass as the engine follows it: from where it begins to the calls in which parameters meet the batch."""

from lightning_pac.gradients.following.entering import Entrance
from lightning_pac.gradients.following.meeting import Receiver
from lightning_pac.gradients.following.mode import Following
from lightning_pac.gradients.following.outsiders import Outsiders
from lightning_pac.gradients.following.pulling_back import ToParameters

__all__ = ["Entrance", "Following", "Outsiders", "Receiver", "ToParameters"]
