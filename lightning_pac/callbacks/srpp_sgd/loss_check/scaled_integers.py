"""Unusual numbers for records that hold integers only, such as tokens and the pixels of images."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

__all__ = ["ScaledIntegers"]


class ScaledIntegers(TorchFunctionMode):
    """Multiplies what the integers of each record are turned into, be it by a table or by a cast.

    Args:
        factors: One for each record of the batch, in its order.

    Attributes:
        batch: What holds the integers; others, such as as many positions as there are records, stay what they are.

    Example:
        >>> scaled, integers = ScaledIntegers([1.0, 100.0]), torch.tensor([[1], [2]])
        >>> scaled.batch = integers
        >>> with scaled:
        ...     numbers = integers.float()
        >>> numbers.tolist()
        [[1.0], [200.0]]
    """

    batch: Any = None

    def __init__(self, factors: Sequence[float]) -> None:
        super().__init__()
        self._factors = torch.tensor(factors)

    @override
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **kwargs or {})
        if not self._counts_records(result) or not result.is_floating_point():
            return result
        given = [arg for arg in args if self._counts_records(arg)]
        numbers = [arg for arg in given if arg.is_floating_point() and not arg.is_leaf]
        integers = [arg for arg in given if not arg.is_floating_point() and arg.dtype != torch.bool]
        storages = {part.untyped_storage().data_ptr() for part in tree_leaves(self.batch) if isinstance(part, Tensor)}
        if numbers or not any(arg.untyped_storage().data_ptr() in storages for arg in integers):
            return result
        return result * self._factors.to(result.dtype).view(-1, *[1] * (result.dim() - 1))

    def _counts_records(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == len(self._factors)
