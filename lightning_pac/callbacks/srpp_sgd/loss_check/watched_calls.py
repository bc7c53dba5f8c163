"""Calls that a copy of a model makes: with integers that mean something, and to precisions that it does not have."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from typing_extensions import override

__all__ = ["WatchedCalls"]

_BY_DEFAULT = -100  # which losses of torch ignore
_NAMES = ("eq", "ne", "not_equal", "isin", "__eq__", "__ne__")
_COMPARISONS = {getattr(owner, name) for owner in (torch, Tensor) for name in _NAMES if hasattr(owner, name)}
_CASTS = {Tensor.to, Tensor.type, Tensor.type_as, Tensor.half, Tensor.bfloat16, Tensor.float, Tensor.double}
_MOST = 16  # numbers that are searched for


class WatchedCalls(TorchFunctionMode):
    """Watches calls of torch's losses, and checks the integers that torch itself does not check.

    `ctc_loss` reads and writes wherever a target that does not exist points to. A copy is of one precision, also where
    a frozen part of the model has another: what a step casts to that comes out in the copy's, rounded.

    Args:
        dtype: That of the copy.

    Attributes:
        may_be_ignored: Whether a loss was called that ignores targets of a certain value, and checks all others.
        compared: Integers that a loss was told to ignore, or that integers were compared with: a record may hold them.

    Example:
        >>> with WatchedCalls(torch.float32):
        ...     F.ctc_loss(torch.zeros(5, 1, 3), torch.tensor([[1, 7]]), (5,), (2,))
        Traceback (most recent call last):
        ...
        IndexError: A target of ctc_loss is not a class.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self.may_be_ignored = False
        self.compared: set[int] = set()

    @override
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (F.cross_entropy, F.nll_loss):
            self.may_be_ignored = True
            # Not the default, which comes with every call.
            self.compared |= {(kwargs or {}).get("ignore_index", args[4] if len(args) > 4 else _BY_DEFAULT)}
            self.compared -= {_BY_DEFAULT}
        if func in _COMPARISONS:
            operands = [*args, *(kwargs or {}).values()]
            self.compared |= _whole_numbers(operands, _MOST if func is torch.isin else 1)
        if func in (F.ctc_loss, torch.ctc_loss):
            _check_targets(*args, **kwargs or {})
        found = func(*args, **kwargs or {})
        if func in _CASTS and isinstance(found, Tensor) and found.is_floating_point() and found.dtype != self._dtype:
            return found.to(self._dtype)
        return found


def _whole_numbers(operands: Sequence[Any], most: int) -> set[int]:
    """Those that a tensor is compared with, of whatever type: numbers, and tensors that hold few."""
    found: list[Any] = []
    for operand in operands:
        if isinstance(operand, Tensor):
            is_number = operand.numel() <= most and operand.dim() <= (most > 1) and not operand.is_complex()
            found += operand.reshape(-1).tolist() if is_number else []
        elif isinstance(operand, int | float | np.generic):
            found.append(operand)
    return {int(one) for one in found if not isinstance(one, bool | np.bool) and one == one // 1} - {_BY_DEFAULT}


def _check_targets(log_probs: Tensor, targets: Tensor, *_: Any, **__: Any) -> None:
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < log_probs.shape[-1]:
        raise IndexError("A target of ctc_loss is not a class.")
