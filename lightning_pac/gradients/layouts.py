"""Where the records of a function's result are, from where those of its arguments are."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_pac.gradients.tags import Batched, Pass, record_axis, tag_of

__all__ = ["CONSTANTS", "functions_named", "layout_of_result"]


def functions_named(*names: str) -> list[Any]:
    """All functions and methods of torch of these names."""
    found = []
    for owner in (torch, Tensor, F, torch._C._nn, torch._C._VariableFunctions, torch.linalg, torch.special):
        for name in names:
            function = vars(owner).get(name) if isinstance(owner, type) else getattr(owner, name, None)
            function = getattr(owner, name, None) if function is None else getattr(owner, name)
            if function is not None:
                found.append(function)
    return found


# Shapes change, the order of entries does not.
_FLAT = set(
    functions_named(
        "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "view_as", "reshape_as",
        "ravel", "squeeze_", "unsqueeze_",
    )
)  # fmt: skip
# Results are constants: they take nothing but a shape from the batch.
CONSTANTS = set(
    functions_named(
        "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like", "new_zeros",
        "new_ones", "new_full", "new_empty", "new_tensor",
    )
)  # fmt: skip
# Functions that move rows: the same is done to their numbers. The number is the position of the dimension they act on.
_ALONG: dict[Any, int | None] = {
    **dict.fromkeys(functions_named(
        "index_select", "gather", "take_along_dim", "select", "narrow", "unbind", "split", "chunk", "cat", "concat",
        "concatenate", "stack", "flip", "roll", "repeat_interleave", "tensor_split", "split_with_sizes",
    ), None),
}  # fmt: skip
_AXES = set(functions_named("transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "adjoint"))
_AXES |= {getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH")}
_MATRIX_AXES = {getattr(Tensor, name).__get__ for name in ("mT", "mH")}
_COPIES = set(functions_named("expand", "expand_as", "broadcast_to", "repeat", "tile"))
_PICKS = {Tensor.__getitem__, *functions_named("masked_select", "take")}
_REDUCTIONS = set(
    functions_named(
        "sum", "mean", "amax", "amin", "max", "min", "std", "var", "logsumexp", "norm", "prod", "any", "all", "argmax",
        "argmin", "median", "nansum", "nanmean", "vector_norm", "aminmax",
    )
)  # fmt: skip
_PACK = torch._C._VariableFunctions._pack_padded_sequence
_PAD_PACKED = torch._C._VariableFunctions._pad_packed_sequence
_EINSUM = set(functions_named("einsum"))
_LOOKUPS = set(functions_named("index_select"))
_MOVES = _AXES | _COPIES | _PICKS | set(_ALONG) | {_PACK}


def layout_of_result(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: Tensor,
    reference: Tensor,
    current: Pass,
    place: int = 0,
) -> Batched:
    """The tag of a result.

    Args:
        function: What was called.
        args: With these arguments.
        kwargs: And these.
        result: One of its results.
        reference: The argument with records that has most dimensions.
        current: The pass.
        place: Number of the result among several.
    """
    tag: Batched = tag_of(reference)
    if function in _FLAT:
        return tag
    if function in _MOVES:
        return _moved(function, args, kwargs, result, reference, tag, current, place)
    if function is _PAD_PACKED:
        return _unpacked(args, result, tag, current)
    first = tag is current.first
    if function in _REDUCTIONS:
        return _reduced(args, kwargs, result, reference, tag, current)
    if function in _EINSUM:
        return tag if first and _keeps_first_letter(args, reference) else Batched(current, None)
    axis = 0 if first else record_axis(reference.shape, tag, current.count)
    if axis is None or result.dim() <= axis or result.shape[: axis + 1] != reference.shape[: axis + 1]:
        return Batched(current, None)
    return tag


def _moved(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: Tensor,
    reference: Tensor,
    tag: Batched,
    current: Pass,
    place: int,
) -> Batched:
    if tag is current.first and _leaves_first(function, args, kwargs, result, reference):
        return tag
    if tag.outer is None or (function is Tensor.__getitem__ and reference is args[1] and _is_index(reference)):
        return tag
    if function in _LOOKUPS and reference is args[2]:  # something without records, by their indices
        return Batched(current, math.prod(result.shape[: args[1] % result.dim()]), tag.rows)
    axis = record_axis(reference.shape, tag, current.count)
    moved = _new_axis(function, args, kwargs, axis, reference.dim()) if axis is not None else None
    if moved is not None:
        before = math.prod(result.shape[:moved])
        return current.first if before == 1 and tag.rows is None else Batched(current, before, tag.rows)
    labels = _label(reference, tag, current.count)
    if labels is None:
        return Batched(current, None)

    def labelled(value: Any) -> Any:
        if isinstance(value, list | tuple) and any(isinstance(part, Tensor) for part in value):
            return type(value)([labelled(part) for part in value])
        if not isinstance(value, Tensor):
            return value
        of = tag_of(value)
        if type(of) is not Batched:
            return value if not value.is_floating_point() else value.new_full(value.shape, -1, dtype=torch.long)
        if value is reference:
            return labels
        if (value.dtype == torch.bool or _is_index(value)) and value is not args[0]:
            return value
        return _label(value, of, current.count)

    with torch.no_grad():
        try:
            found = function(*[labelled(arg) for arg in args], **{k: labelled(v) for k, v in kwargs.items()})
        except Exception:
            return Batched(current, None)
    candidate = found[place] if isinstance(found, list | tuple) else found
    if function is _PACK and place:
        return Batched(current, None)
    return _read(candidate, current) if candidate.shape == result.shape else Batched(current, None)


def _is_index(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.long, torch.int)


def _unpacked(args: Sequence[Any], result: Tensor, tag: Batched, current: Pass) -> Batched:
    """The tag of sequences that were packed: shape (n, T, ...) or (T, n, ...), or of their lengths."""
    data, sizes, batch_first = args[:3]
    if result.dim() < 2 or tag.outer is None:
        return Batched(current, None)
    rows = tag.rows if tag.rows is not None else torch.arange(len(data)) // max(1, len(data) // max(1, current.count))
    return Batched(current, 1 if batch_first else result.shape[0], rows[: int(sizes[0])])


def _new_axis(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], axis: int, dims: int) -> int | None:
    """Where a transposition or permutation puts a dimension."""
    name = getattr(function, "__name__", "")
    if name in ("transpose", "swapaxes", "swapdims"):
        first, second = (d % dims for d in [*args[1:], *kwargs.values()])
        return int({first: second, second: first}.get(axis, axis))
    if name == "permute":
        order = args[1:] or tuple(kwargs.values())
        order = order[0] if isinstance(order[0], list | tuple) else order
        return [d % dims for d in order].index(axis)
    return None


def _label(tensor: Tensor, tag: Batched, count: int) -> Tensor | None:
    """The record of every entry."""
    axis = record_axis(tensor.shape, tag, count)
    if axis is None:
        return None
    rows = tag.rows
    if rows is None:
        rows = torch.arange(tensor.shape[axis], device=tensor.device) // max(1, tensor.shape[axis] // max(count, 1))
    return rows.view(-1, *[1] * (tensor.dim() - axis - 1)).expand(tensor.shape)


def _read(labels: Tensor, current: Pass) -> Batched:
    """The tag that says where the labels are."""
    before, count = 1, current.count
    for axis, size in enumerate(labels.shape):
        moving = [d for d, step in enumerate(labels.stride()) if step and labels.shape[d] > 1]
        if len(moving) == 1 and axis != moving[0] and count > 1:
            before *= size
            continue
        along = labels.movedim(axis, 0)
        along = along[(slice(None), *[slice(0, 1)] * (along.dim() - 1))] if len(moving) == 1 else along
        along = along.reshape(size, -1)
        rows = along[:, 0] if along.shape[1] else along.new_zeros(size)
        if size and bool((along == rows[:, None]).all()):
            ordered = torch.arange(size, device=labels.device) // max(1, size // max(count, 1))
            if size % max(count, 1) == 0 and torch.equal(rows, ordered):
                return current.first if before == 1 else Batched(current, before)
            if bool((rows >= 0).all()) and (axis == 0 or bool((rows != rows[0]).any())):
                return Batched(current, before, rows)
            if bool((rows != rows[0]).any()):
                return Batched(current, None)
        before *= size
    return Batched(current, None)


def _leaves_first(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor, reference: Tensor
) -> bool:
    """Whether dimension 0 surely stays where it is, as it is."""
    dims = reference.dim()
    if function is Tensor.__getitem__:
        index = args[1]
        if isinstance(index, tuple) and index:
            head = index[0]
            return (head is Ellipsis and len(index) <= dims) or (isinstance(head, slice) and head == slice(None))
        return index is Ellipsis
    if function in _ALONG:
        place = {"dim": kwargs.get("dim", kwargs.get("dims"))}["dim"]
        name = getattr(function, "__name__", "")
        if place is None:
            defaults = {"unbind": 1, "cat": 1, "concat": 1, "concatenate": 1, "stack": 1, "split": 2, "chunk": 2}
            positions = {
                "index_select": 1, "gather": 1, "take_along_dim": 2, "select": 1, "narrow": 1, "flip": 1, "roll": 2,
                "repeat_interleave": 2, "tensor_split": 2, "split_with_sizes": 2, **defaults,
            }  # fmt: skip
            position = positions[name]
            place = args[position] if len(args) > position else 0
        where = place if isinstance(place, list | tuple) else [place]
        if name == "stack":
            return all(isinstance(d, int) and d % (dims + 1) != 0 for d in where)
        return all(isinstance(d, int) and d % dims != 0 for d in where)
    if function in _COPIES:
        return result.dim() == dims and result.shape[0] == reference.shape[0] != 1
    if function in _AXES:
        name = getattr(function, "__name__", "")
        if name in ("transpose", "swapaxes", "swapdims"):
            given = [*args[1:], *kwargs.values()]
            return all(bool(d % dims) for d in given)
        if name == "permute":
            order = args[1:] or tuple(kwargs.values())
            order = order[0] if order and isinstance(order[0], list | tuple) else order
            return bool(order[0] % dims == 0)
        if function in _MATRIX_AXES:
            return dims > 2
    return False


def _reduced(
    args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor, reference: Tensor, tag: Batched, current: Pass
) -> Batched:
    axis = record_axis(reference.shape, tag, current.count)
    dims = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
    if axis is None or dims is None or isinstance(dims, Tensor) or not result.dim():
        same = isinstance(dims, Tensor) and result.shape == reference.shape
        return tag if same else Batched(current, None)
    where = {d % reference.dim() for d in (dims if isinstance(dims, list | tuple) else [dims])}
    if axis in where or not where:
        return Batched(current, None)
    if tag is current.first:
        return tag
    before = 1
    for place, size in enumerate(reference.shape[:axis]):
        before *= 1 if place in where else size
    return current.first if before == 1 and tag.rows is None else Batched(current, before, tag.rows)


def _keeps_first_letter(args: Sequence[Any], reference: Tensor) -> bool:
    if not isinstance(args[0], str) or "->" not in args[0]:
        return False
    inputs, output = args[0].replace(" ", "").split("->")
    operands = args[1] if isinstance(args[1], list | tuple) else args[1:]
    for letters, operand in zip(inputs.split(","), operands, strict=True):
        if type(tag_of(operand)) is Batched and letters[:1] != output[:1]:
            return False
    return bool(output)
