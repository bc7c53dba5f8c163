"""What is attached to modules, and what it reports to."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

from torch import Tensor, nn

from lightning_pac.gradients.contributions import Contribution

__all__ = ["DeferredCall", "Receiver", "Tap"]


class Tap(ABC):
    """Something attached to one module."""

    @abstractmethod
    def remove(self) -> None:
        """Leave the module as it was."""

    def autograd_parameters(self) -> Iterable[nn.Parameter]:
        """Parameters whose ordinary gradient autograd still computes."""
        return ()


class DeferredCall(ABC):
    """One call of a module whose per-example gradients are computed when the clipped sum is asked for.

    Attributes:
        layer: Name of the module.
        count: Examples in the call.
    """

    layer: str
    count: int

    @property
    @abstractmethod
    def tolerance(self) -> float:
        """Relative difference that rounding may leave between the sum over examples and the ordinary gradient."""

    @abstractmethod
    def per_example_gradients(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Gradients of each parameter, shape (n, *parameter), in float32."""


class Receiver(ABC):
    """An engine as its taps see it."""

    @property
    @abstractmethod
    def watching(self) -> bool:
        """Whether calls made now will be differentiated and are the model's own."""

    @abstractmethod
    def check_backward(self, layer: str, outer_pass: int, gradient: Tensor) -> None:
        """Refuse a backward pass whose gradients cannot be told from those of another."""

    @abstractmethod
    def check_count(self, layer: str, count: int) -> None:
        """All layers must see the same number of examples."""

    @abstractmethod
    def receive(self, parameter: Tensor, contribution: Contribution, rows: slice = slice(None)) -> None:
        """Add a call's contribution to a parameter, or to some of its rows; frozen parameters are ignored."""

    @abstractmethod
    def defer(self, call: DeferredCall) -> None:
        """Differentiate this call example by example when the clipped sum is asked for."""
