"""Numbers that code reads off tensors made of records, and what it does if they are extreme."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["LEVELS", "Readings", "Replaced", "set_numbers_kept"]

LEVELS = (1e-9, 100.0, 1e30, -1e30, math.nan)
"""Numbers that are read in place of others; thresholds between them are crossed."""

_COMPARISONS = [getattr(torch.ops.aten, name) for name in ("lt", "le", "gt", "ge")]
_CONSTANTS = {getattr(torch.ops.aten, name) for name in (
    "new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like", "full_like", "empty_like",
    "rand_like", "randn_like", "randint_like",
)}  # fmt: skip
_WEIGHTED = (torch.ops.aten.nll_loss_forward, torch.ops.aten.nll_loss2d_forward)
_LARGE_INTEGER = 10**4  # it may be a length, for which memory is taken
_DEPTH = 4  # of lists and dictionaries in attributes


@dataclass(frozen=True)
class Replaced:
    """What is made of a level where only what decides a gradient counts; numbers are those of `Readings.shapes`.

    Attributes:
        numbers: Whether single numbers are.
        arrays: Which arrays and lists.
        orderings: Which truth values.
        bent: Which arguments of functions that are not affine.
        rows: Halves of which the rows of all other arrays are, if these have one or several for each record.
    """

    numbers: bool = False
    arrays: frozenset[int] = frozenset()
    orderings: frozenset[int] = frozenset()
    bent: frozenset[int] = frozenset()
    rows: tuple[int, ...] = ()


class Readings(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the numbers that code reads off what it is given, and off all that is computed from that.

    A threshold on the loss is a decision that two made-up losses may both pass. With a level, each number that is
    read (`item`, `float`, `bool`, `tolist`, `numpy`) is made of the level instead: the k-th is k times as large, so
    that a difference of two has its sign, too. False is read at a level below one.

    Args:
        level: The number; None leaves all as they are.
        replaced: What is made of it; if left out, all that is read. If given, only floating-point numbers and
            comparisons of a single one count: integers may be lengths, and other truth values say whether something is
            masked at all.
        num_records: How many the batch has.

    Attributes:
        count: Numbers read so far.
        shapes: Of the arrays, orderings and bent arguments so far.
        weighted: Means so far in which classes have different weights.

    Example:
        >>> with Readings(1e30) as readings:
        ...     batch = torch.ones(3)
        ...     readings.mark(batch)
        ...     (float(batch.mean()), float(torch.ones(3).mean()), bool(batch.sum() > 9))
        (1e+30, 1.0, True)
    """

    def __init__(self, level: float | None = None, replaced: Replaced | None = None, num_records: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.level, self.count, self.replaced, self.weighted = level, 0, replaced, 0
        self.shapes: dict[str, list[tuple[int, ...]]] = {"arrays": [], "orderings": [], "bent": []}
        self._num_records, self._comparisons = num_records, set[int]()
        self._orderings: dict[int, Any] = {}
        # The storages are held on to, so that none that is new can have the address of one that is gone.
        self._marked: dict[int, Any] = {}
        self._functions = _Functions(self)

    def __enter__(self) -> "Readings":
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)  # type: ignore[no-untyped-call]
        self._functions.__exit__(*args)  # type: ignore[no-untyped-call]

    def mark(self, values: Any) -> None:
        """Take the tensors in these for made of records."""
        for leaf in pytree.tree_leaves(values):
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                self._marked[self._key(leaf)] = leaf.untyped_storage()

    def is_marked(self, tensor: Tensor) -> bool:
        """Whether it is made of records."""
        return tensor.layout is torch.strided and self._key(tensor) in self._marked

    def _key(self, tensor: Tensor) -> int:
        return int(tensor.untyped_storage()._cdata)

    def read(self, value: bool | int | float) -> Any:
        """The value that is read in place of a number."""
        self.count += 1
        if self.level is None or not (self.replaced is None or self.replaced.numbers):
            return value
        return _as_kind("b" if isinstance(value, bool) else "i" if isinstance(value, int) else "f", self._next_level)

    def read_array(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The array that is read in place of another one."""
        number = self._note("arrays", value.shape)
        self.count += self.replaced is None
        if self.level is None:
            return value
        kind = _as_kind(value.dtype.kind, self._next_level)
        if self.replaced is None or number in self.replaced.arrays:
            return np.full_like(value, kind)
        rows, found = len(value) if value.ndim else 0, value.copy()
        if rows and rows % self._num_records == 0:
            for half in self.replaced.rows:
                found[half * rows // 2 : (half + 1) * rows // 2] = kind
        return found

    def bend(self, argument: Tensor) -> Tensor:
        """An argument in place of one of a function that is not affine; its own gradient is that of the other."""
        number = self._note("bent", argument.shape)
        if self.level is None or self.replaced is None or number not in self.replaced.bent:
            return argument
        steps = torch.arange(argument.numel(), dtype=argument.dtype, device=argument.device).view(argument.shape)
        return argument - argument.detach() + (number + 1 + steps) * self.level

    @property
    def _next_level(self) -> float:
        assert self.level is not None
        return (self.count + len(self.shapes["arrays"]) * (self.replaced is not None)) * self.level

    def _note(self, kind: str, shape: Sequence[int]) -> int:
        self.shapes[kind].append(tuple(shape))
        return len(self.shapes[kind]) - 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        written = _written_to(func, args) if found is None else []
        # Versions of what `_foreach_lerp_` and its like write to stay as they are while a mode is on.
        torch.autograd.graph.increment_version(written)
        self.weighted += func.overloadpacket in _WEIGHTED and _weighs(*args)
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(map(self.is_marked, given)) and func.overloadpacket not in _CONSTANTS:
            if func is torch.ops.aten._local_scalar_dense.default:
                counts = isinstance(found, float) or self._key(given[0]) in self._comparisons
                return self.read(found) if counts or self.replaced is None else found
            if isinstance(found, Tensor) and found.dtype == torch.bool and found.layout is torch.strided:
                found = self._ordered(func, given, found)
            self.mark((found, written))
        return found

    def _ordered(self, func: Any, given: list[Tensor], found: Tensor) -> Tensor:
        """What is decided by the order of numbers made of records; true or false, if that is asked for."""
        orders = func.overloadpacket in _COMPARISONS and given[0].is_floating_point()
        if not orders and not any(self._key(tensor) in self._orderings for tensor in given):
            return found
        number = self._note("orderings", found.shape)
        if self.replaced is not None and number in self.replaced.orderings and self.level is not None:
            found = torch.full_like(found, _as_kind("b", self.level))
        self._orderings[self._key(found)] = found.untyped_storage()
        if orders and found.numel() == 1:
            self._comparisons.add(self._key(found))
        return found


def _written_to(func: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """The arguments that a function writes to."""
    written = [one.alias_info is not None and one.alias_info.is_write for one in func._schema.arguments]
    leaves = pytree.tree_leaves([value for value, writes in zip(args, written, strict=False) if writes])
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _weighs(outputs: Tensor, targets: Tensor, weight: Tensor | None, reduction: int, ignored: int) -> bool:
    """Whether a mean that is trained on has a divisor that depends on the classes, also on such as no target has."""
    return weight is not None and reduction == 1 and outputs.requires_grad and len(set(weight.tolist())) > 1


class _Functions(TorchFunctionMode):
    """Arrays and lists of a tensor's numbers, which no operation of torch makes, and functions that are not affine."""

    def __init__(self, readings: Readings) -> None:
        super().__init__()
        self._readings = readings

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if func in (Tensor.numpy, Tensor.__array__, Tensor.tolist):
            found = func(*args, **(kwargs or {}))
            if not self._readings.is_marked(args[0]):
                return found
            read = self._readings.read_array(np.asarray(found))
            return read.tolist() if func is Tensor.tolist else read
        writes = name.endswith("_") and not name.endswith("__")  # in place, to the tensor itself
        if self._readings.replaced is not None and name not in _AFFINE and not writes:
            args = tuple(self._bent(value) for value in args)
        return func(*args, **(kwargs or {}))

    def _bent(self, value: Any) -> Any:
        is_real = isinstance(value, Tensor) and value.is_floating_point() and self._readings.is_marked(value)
        return self._readings.bend(value) if is_real and (value.requires_grad or value.numel() == 1) else value


# Also functions of which only the shape or the type counts.
_AFFINE = {
    "add", "sub", "rsub", "neg", "stack", "cat", "sum", "mean", "detach", "clone", "to", "float", "double",
    "item", "backward", "register_hook", "retain_grad", "reshape", "view", "squeeze", "unsqueeze", "flatten",
    "expand", "dim", "size", "numel", "is_floating_point", "__get__", "__len__", "__add__", "__radd__", "__sub__",
    "__rsub__", "__neg__", "__iadd__", "__isub__", "__float__", "__bool__", "__int__", "__format__", "__repr__",
}  # fmt: skip


def set_numbers_kept(holders: list[Any], first: list[Any], second: list[Any], level: float) -> None:
    """Set numbers in attributes that two copies of the holders disagree on.

    Args:
        holders: Models, callbacks and schedules.
        first: Copies of them, after numbers of one level were read.
        second: Copies of them, after numbers of another level were read.
        level: What they are set to; a list with one such number is set whole.
    """
    for holder, one, other in zip(holders, first, second, strict=True):
        _set_differing(vars(holder), vars(one), vars(other), level, _DEPTH)


def _set_differing(own: Any, one: Any, other: Any, level: float, depth: int) -> None:
    for key, value in _entries(own):
        if not (_has(one, key) and _has(other, key)) or not depth:
            continue
        found, beside = one[key], other[key]
        if _is_number(value) and _is_number(found) and _is_number(beside):
            if not _equal(found, beside):
                own[key] = _of_level(value, level)
        elif _is_list(value) and _is_list(found) and _is_list(beside):
            pairs = list(zip(found, beside, strict=False))
            if len(found) != len(beside) or any(_is_number(a) and _is_number(b) and not _equal(a, b) for a, b in pairs):
                for place, entry in enumerate(value):
                    value[place] = _of_level(entry, level) if _is_number(entry) else entry
            else:
                _set_differing(value, found, beside, level, depth - 1)
        elif isinstance(value, dict) and isinstance(found, dict) and isinstance(beside, dict):
            _set_differing(value, found, beside, level, depth - 1)


def _entries(holder: Any) -> Iterator[tuple[Any, Any]]:
    yield from list(holder.items()) if isinstance(holder, dict) else list(enumerate(holder))


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _is_list(value: Any) -> bool:
    return hasattr(value, "append") and hasattr(value, "__setitem__") and hasattr(value, "__len__")


def _is_number(value: Any) -> bool:
    numeric = isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biuf"
    return numeric or isinstance(value, bool | int | float | Tensor)


def _equal(one: Any, other: Any) -> bool:
    first, second = (torch.as_tensor(value).detach().cpu().double() for value in (one, other))
    return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)


def _of_level(value: Any, level: float) -> Any:
    if isinstance(value, Tensor):
        kind = "b" if value.dtype == torch.bool else "f" if value.is_floating_point() else "i"
        return torch.full_like(value, _as_kind(kind, level))
    if isinstance(value, np.ndarray):
        return np.full_like(value, _as_kind(value.dtype.kind, level))
    return type(value)(_as_kind("b" if isinstance(value, bool) else "i" if isinstance(value, int) else "f", level))


def _as_kind(kind: str, level: float) -> bool | int | float:
    if kind == "b":
        return not abs(level) < 1
    if kind in "iu":
        # Integers may be indices or lengths: zero, a large one, or the last.
        return 0 if not abs(level) >= 1 else _LARGE_INTEGER if level > 0 else -1
    return level
