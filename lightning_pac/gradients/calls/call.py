"""A call as a rule sees it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lightning_pac.gradients.calls.tags import Batched, Free, Pass, by_record, record_axis, tag_of

__all__ = ["Autocast", "Call", "name_of", "unflattened", "without_autocast"]


class Autocast:
    """The automatic casts that are in force when this is made."""

    def __init__(self) -> None:
        self.devices: list[tuple[str, torch.dtype]] = []
        if torch._C._is_any_autocast_enabled():
            on = (device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device))
            self.devices = [(device, torch.get_autocast_dtype(device)) for device in on]

    def again(self) -> ExitStack:
        """A context with the same casts."""
        stack = ExitStack()
        for device, dtype in self.devices:
            stack.enter_context(torch.autocast(device, dtype=dtype))
        return stack


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Norms are computed in float32."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


class Call:
    """One call of a function, as its rule sees it during the backward pass.

    Attributes:
        function: The function.
        args: Its arguments; tensors are detached.
        kwargs: Its arguments by name.
        count: Records of the batch, n.
        shape: Shape of its (first) output.
    """

    def __init__(
        self,
        function: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        current: Pass,
        gradients: Sequence[Tensor | None],
        outputs: Sequence[tuple[Batched, torch.Size] | None],
        name: Callable[[], str],
        autocast: Autocast,
    ) -> None:
        self.autocast = autocast
        self.function, self.args, self.kwargs = function, args, kwargs
        self.current, self.gradients, self.outputs = current, gradients, outputs
        self.count = current.count
        self.describe = name
        self.writes = False

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        return self.args[place] if place < len(self.args) else self.kwargs.get(name, default)

    @property
    def output(self) -> tuple[Batched, torch.Size]:
        """Tag and shape of the output."""
        output = self.outputs[0]
        assert output is not None
        return output

    @property
    def gradient(self) -> Tensor:
        """The gradient of the output, as it is."""
        gradient = self.gradients[0]
        assert gradient is not None
        return gradient

    @property
    def output_axis(self) -> int:
        """The dimension of the output that counts records."""
        tag, shape = self.output
        axis = record_axis(shape, tag, self.count) if tag.outer is not None else None
        if axis is None:
            raise self.refusal()
        return axis

    def gradient_by_record(self) -> Tensor:
        """The gradient of the output with records in dimension 0."""
        return self._by_record(self.gradient, self.output[0])

    def by_record(self, tensor: Tensor) -> Tensor:
        """A batched argument with records in dimension 0."""
        tag = tag_of(tensor)
        if type(tag) is not Batched:
            raise self.refusal()
        return self._by_record(tensor, tag)

    def is_batched(self, tensor: Any) -> bool:
        """Whether an argument holds records."""
        return isinstance(tensor, Tensor) and type(tag_of(tensor)) is Batched

    def is_free(self, tensor: Any) -> bool:
        """Whether per-record gradients of an argument are asked for."""
        return isinstance(tensor, Tensor) and type(tag_of(tensor)) is Free

    def refusal(self) -> RuntimeError:
        """The records cannot be told apart in this call."""
        if not self.gradient.dim():
            return RuntimeError(
                f"{self.describe()} comes after the mean over the batch, where no record has a share of its own, or "
                "is given numbers that have left torch, as for NumPy: use the parameter on the losses of records, "
                "before their mean, move penalties on weights to the optimizer's weight_decay, and what NumPy makes of "
                "inputs to the collate function."
            )
        return RuntimeError(
            f"The rows that {self.describe()} was given cannot be told apart into the {self.count} rows of the batch, "
            "each of which counts as a record: let the collate function give every record one row, with its nodes or "
            "frames in a dimension of their own, and let no function reduce over the batch before it."
        )

    def _by_record(self, tensor: Tensor, tag: Batched) -> Tensor:
        found = by_record(tensor, tag, self.count) if tag.outer is not None else None
        if found is None:
            raise self.refusal()
        return found


def unflattened(leaves: Sequence[Any], structure: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Arguments by position and by name, from a flat list of them."""
    if type(structure) is tuple:
        count, *names = structure
        return leaves[:count], dict(zip(names, leaves[count:], strict=True))
    return pytree.tree_unflatten(leaves, structure)  # type: ignore[no-any-return]


def name_of(function: Any) -> str:
    """The name of a function, for messages."""
    return str(getattr(function, "__name__", None) or type(function).__name__)
