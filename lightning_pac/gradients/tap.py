"""The interface of everything that is attached to a module."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

from torch import nn

__all__ = ["Tap"]


class Tap(ABC):
    """Something attached to one module."""

    @abstractmethod
    def remove(self) -> None:
        """Leave the module as it was."""

    def autograd_parameters(self) -> Iterable[nn.Parameter]:
        """Parameters whose ordinary gradient autograd still computes."""
        return ()
