"""The place of the records in a function's result, from their places in its arguments."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_pac.gradients.calls.moved_rows import (
    ADDS,
    WHERE,
    WRITES,
    added,
    functions_named,
    is_index,
    moved,
    source_of,
    unpacked,
)
from lightning_pac.gradients.calls.tags import Batched, Pass, record_axis, tag_of

__all__ = ["CONSTANTS", "layout_of_result"]


# Shapes change, the order of entries does not.
_FLAT = set(
    functions_named(
        "view reshape flatten unflatten squeeze unsqueeze contiguous view_as reshape_as ravel squeeze_ unsqueeze_"
    )
)
CONSTANTS = set(
    functions_named(
        "zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros new_ones new_full "
        "new_empty new_tensor"
    )
)
"""They take nothing but a shape from the batch."""

# Functions that put entries elsewhere: the same is done to the numbers of their records. By the position of the
# dimension that they act along, where the others surely stay as they are.
_ALONG = {
    function: position
    for position, names in {
        1: "index_select gather select narrow unbind cat concat concatenate stack flip index_copy index_copy_ scatter "
        "scatter_ unfold",
        2: "take_along_dim split chunk roll repeat_interleave tensor_split split_with_sizes",
    }.items()
    for function in functions_named(names)
}
_STACK = set(functions_named("stack"))
_AXES = set(functions_named("transpose swapaxes swapdims permute movedim moveaxis t adjoint T mT H mH"))
_FLIPPED = set(functions_named("T H"))
_COPIES = set(functions_named("expand expand_as broadcast_to repeat tile"))
_MOVES = (
    _AXES
    | _COPIES
    | set(_ALONG)
    | {Tensor.__getitem__, Tensor.__setitem__, torch._C._VariableFunctions._pack_padded_sequence}
    | set(
        functions_named(
            "masked_select take flipud fliplr rot90 diagonal hstack vstack dstack column_stack index_put index_put_ "
            "masked_scatter masked_scatter_ copy_"
        )
    )
)
_LOOKUPS = set(functions_named("index_select"))
_PAD_PACKED = torch._C._VariableFunctions._pad_packed_sequence
# Functions whose results along one dimension are made of each other.
_ACROSS = {
    function: position
    for position, names in {
        1: "cumsum cumprod cummax cummin logcumsumexp softmax log_softmax softmin sort argsort mode scatter_reduce "
        "scatter_reduce_ index_reduce index_reduce_ glu",
        2: "topk kthvalue diff normalize renorm cross",
    }.items()
    for function in functions_named(names)
}
_SORTS = {function: place for place, name in ((0, "argsort"), (1, "sort")) for function in functions_named(name)}
"""By the place of the indices among their results."""
_REDUCTIONS = set(
    functions_named(
        "sum mean amax amin max min std var logsumexp norm prod any all argmax argmin median nansum nanmean "
        "vector_norm aminmax"
    )
)
_MATMUL = set(functions_named("matmul mm bmm __matmul__ mv dot"))
_RMATMUL = set(functions_named("__rmatmul__"))
_ADDED_MATMUL = set(functions_named("addmm baddbmm addmv"))
_LINEAR = set(functions_named("linear"))
_EINSUM = set(functions_named("einsum"))
_PRODUCTS = _MATMUL | _RMATMUL | _ADDED_MATMUL | _LINEAR | _EINSUM


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
        result: One of its results, or what was written to.
        reference: The argument with records that has most dimensions.
        current: The pass.
        place: Number of the result among several.
    """
    tag: Batched = tag_of(reference)
    if function in _FLAT:
        return tag
    found = _layout(function, args, kwargs, result, reference, tag, current, place)
    # All of what a single record makes is its own.
    alone = found.outer is None and current.count == 1 and tag.outer is not None and result.dim()
    return current.first if alone else found


def _layout(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: Tensor,
    reference: Tensor,
    tag: Batched,
    current: Pass,
    place: int,
) -> Batched:
    unknown = current.unknown
    if function in _MOVES:
        if function in ADDS and kwargs.get("accumulate", args[3] if len(args) > 3 else False) is True:
            return added(function, args, kwargs, current)
        if function is Tensor.__getitem__ and reference is not args[0]:
            if isinstance(args[1], tuple) and reference.dim() == 1 and is_index(reference):  # as weight[:, labels]
                others = [index for index in args[1] if index is not reference]
                if len(others) == len(args[1]) - 1 and all(type(i) is slice and i == slice(None) for i in others):
                    place = next(place for place, index in enumerate(args[1]) if index is reference)
                    return Batched(current, math.prod(result.shape[:place]), tag.rows)
            return tag if reference is args[1] and is_index(reference) else unknown
        if tag is current.first and _leaves_first(function, args, kwargs, result, reference):
            return tag
        if function in _LOOKUPS and reference is args[2]:  # something without records, by their indices
            return Batched(current, math.prod(result.shape[: args[1] % result.dim()]), tag.rows)
        if function in WRITES and type(tag_of(source_of(args, kwargs))) is not Batched:
            return tag_of(args[0]) if type(tag_of(args[0])) is Batched else unknown
        return moved(function, args, kwargs, result, current, place)
    if function in ADDS:
        return added(function, args, kwargs, current)
    if function in _PRODUCTS:
        if tag is current.first and not current.mixed and function in _LINEAR and reference is args[0]:
            return tag if reference.dim() > 1 else unknown
        if [*kwargs][:2] in (["batch1", "batch2"], ["mat1", "mat2"]):
            args = (*args, *[*kwargs.values()][:2])
        return _multiplied(function, args, result, current) if len(args) > 1 else unknown
    if function is _PAD_PACKED:
        return unpacked(args, result, tag, current)
    axis = 0 if tag is current.first else record_axis(reference.shape, tag, current.count)
    if axis is None:
        return unknown
    if function in _REDUCTIONS:
        return _reduced(args, kwargs, result, reference, tag, axis, current)
    if function in _SORTS and place == _SORTS[function] and reference.dim() == 1 == result.dim():
        # The order of whole numbers, as of lengths: every index is that of the record whose number it is.
        if not reference.is_floating_point() and len(result) == current.count:
            return Batched(current, 1, result.clone() if tag.rows is None else tag.rows[result])
        return unknown
    if function in _ACROSS:
        position = _ACROSS[function]
        dim = kwargs.get("dim", args[position] if len(args) > position else 1 if function is F.normalize else -1)
        if not isinstance(dim, int) or dim % reference.dim() == axis:
            return unknown
    if result.dim() <= axis or result.shape[: axis + 1] != reference.shape[: axis + 1]:
        return unknown
    for other, of in _batched(args, kwargs) if current.mixed else ():
        if of is not tag and not _agree(other, of, axis, reference, tag, current.count):
            return moved(function, args, kwargs, result, current, place) if function in WHERE else unknown
    return tag


def _batched(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Tensor, Batched]]:
    for value in (*args, *kwargs.values()) if kwargs else args:
        for tensor in value if type(value) is list or type(value) is tuple else (value,):
            tag = tag_of(tensor) if isinstance(tensor, Tensor) else None
            if type(tag) is Batched:
                yield tensor, tag


def _agree(other: Tensor, of: Batched, axis: int, reference: Tensor, tag: Batched, count: int) -> bool:
    """Whether another argument has its records where the reference has them, from the left or from the right."""
    own = record_axis(other.shape, of, count)
    if own is None or count == 1:
        return True  # of no known place, as a mean over the batch is: asked for by perturbation
    if own != axis and other.dim() - own != reference.dim() - axis:
        return False
    return of.rows is tag.rows or (of.rows is not None and tag.rows is not None and torch.equal(of.rows, tag.rows))


def _leaves_first(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor, reference: Tensor
) -> bool:
    """Whether dimension 0 surely stays where it is, as it is."""
    dims = reference.dim()
    if function is Tensor.__getitem__:
        head = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
        return (head is Ellipsis and (head is args[1] or len(args[1]) <= dims)) or (
            args[1] is not head and isinstance(head, slice) and head == slice(None)
        )
    if function in _COPIES:
        return result.dim() == dims and result.shape[0] == reference.shape[0] != 1
    if function in _AXES:
        given = [*args[1:], *kwargs.values()]
        name = getattr(function, "__name__", "")
        if name in ("transpose", "swapaxes", "swapdims"):
            return all(bool(d % dims) for d in given)
        if name == "permute":
            order = given[0] if given and isinstance(given[0], list | tuple) else given
            return bool(order[0] % dims == 0)
        return name == "__get__" and dims > 2 and result.shape[0] == reference.shape[0] and function not in _FLIPPED
    if function not in _ALONG or function in WRITES:
        return False
    position = _ALONG[function]
    place = kwargs.get("dim", kwargs.get("dims", args[position] if len(args) > position else 0))
    where = place if isinstance(place, list | tuple) else [place]
    return all(isinstance(d, int) and d % (dims + (function in _STACK)) for d in where)


def _reduced(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: Tensor,
    reference: Tensor,
    tag: Batched,
    axis: int,
    current: Pass,
) -> Batched:
    dims = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
    if dims is None or isinstance(dims, Tensor) or not result.dim():
        return tag if isinstance(dims, Tensor) and result.shape == reference.shape else Batched(current, None)
    where = {d % reference.dim() for d in (dims if isinstance(dims, list | tuple) else [dims])}
    if axis in where or not where:
        return Batched(current, None)
    # Dimensions before that of the records that are summed over no longer count.
    before = math.prod(size for place, size in enumerate(reference.shape[:axis]) if place not in where)
    return tag if before == tag.outer else Batched(current, before, tag.rows)


def _multiplied(function: Any, args: Sequence[Any], result: Tensor, current: Pass) -> Batched:
    """In a sum of products the records stay apart if their letter is not summed over, and is one for all factors."""
    letters = _letters(function, args)
    if letters is None:
        return Batched(current, None)
    factors, output = letters
    found: set[Any] = set()
    rows: Tensor | None = None
    for tensor, names in factors:
        tag = tag_of(tensor)
        if type(tag) is Batched:
            axis = record_axis(tensor.shape, tag, current.count)
            found.add(None if axis is None else names[axis])
            rows = tag.rows if tag.rows is not None else rows
            if tag is not current.first and len(found) == 1 and tag.rows is not rows:
                return Batched(current, None)
    letter = found.pop()
    if found or letter not in output:
        return Batched(current, None)
    before = math.prod(result.shape[: output.index(letter)])
    return current.first if before == 1 and rows is None else Batched(current, before, rows)


def _letters(function: Any, args: Sequence[Any]) -> tuple[list[tuple[Tensor, list[Any]]], list[Any]] | None:
    """Names of the dimensions of the factors and of the result."""
    if function in _EINSUM:
        operands = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else args[1:]
        if not isinstance(args[0], str) or "->" not in args[0] or "." in args[0]:
            return None
        inputs, output = args[0].replace(" ", "").split("->")
        return list(zip(operands, map(list, inputs.split(",")), strict=True)), list(output)
    if function in _ADDED_MATMUL:
        args = args[1:]
    left, right = args[:2] if function not in _RMATMUL else (args[1], args[0])
    # Batch dimensions have their numbers from the right, -1 being the last, since broadcasting aligns them there.
    first: list[Any] = [*range(2 - left.dim(), 0), "out"][-(left.dim() - 1) :] if left.dim() > 1 else []
    if function in _LINEAR:
        return [(left, [*first, "sum"]), (right, ["across", "sum"][-right.dim() :])], [*first, "across"][
            : left.dim() - 2 + right.dim()
        ]
    second: list[Any] = list(range(2 - right.dim(), 0)) if right.dim() > 1 else []
    across = ["across"] if right.dim() > 1 else []
    batch = max(first[:-1], second, key=len)
    return [(left, [*first, "sum"]), (right, [*second, "sum", *across])], [*batch, *first[-1:], *across]
