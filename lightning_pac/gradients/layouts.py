"""Where the records of a function's result are, from where those of its arguments are."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_pac.gradients.tags import Batched, Pass, record_axis, tag_of

__all__ = ["CONSTANTS", "functions_named", "layout_of_result"]


def functions_named(names: str) -> list[Any]:
    """All functions, methods and attributes of torch of these names, in one string."""
    found = []
    for owner in (torch, Tensor, F, torch._C._nn, torch._C._VariableFunctions, torch.linalg, torch.special):
        for name in names.split():
            function: Any = getattr(owner, name, None)
            if callable(function) or hasattr(function, "__get__"):
                found.append(function if callable(function) else function.__get__)
    return found


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
_WRITES = set(
    functions_named("index_copy index_copy_ scatter scatter_ index_put index_put_ masked_scatter masked_scatter_ copy_")
) | {Tensor.__setitem__}
_LOOKUPS = set(functions_named("index_select"))
_WHERE = set(functions_named("where"))
_PACK = torch._C._VariableFunctions._pack_padded_sequence
_PAD_PACKED = torch._C._VariableFunctions._pad_packed_sequence
_ADDS = set(functions_named("index_add index_add_ scatter_add scatter_add_ index_put index_put_"))
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
        if function in _ADDS and kwargs.get("accumulate", args[3] if len(args) > 3 else False) is True:
            return _added(function, args, kwargs, current)
        if tag is current.first and _leaves_first(function, args, kwargs, result, reference):
            return tag
        if function is Tensor.__getitem__ and reference is not args[0]:
            return tag if reference is args[1] and _is_index(reference) else unknown
        if function in _LOOKUPS and reference is args[2]:  # something without records, by their indices
            return Batched(current, math.prod(result.shape[: args[1] % result.dim()]), tag.rows)
        if function in _WRITES and type(tag_of(_source(args, kwargs))) is not Batched:
            return tag_of(args[0]) if type(tag_of(args[0])) is Batched else unknown
        return _moved(function, args, kwargs, result, current, place)
    if function in _ADDS:
        return _added(function, args, kwargs, current)
    if function in _PRODUCTS:
        if tag is current.first and not current.mixed and function in _LINEAR and reference is args[0]:
            return tag if reference.dim() > 1 else unknown
        return _multiplied(function, args, result, current)
    if function is _PAD_PACKED:
        return _unpacked(args, result, tag, current)
    axis = 0 if tag is current.first else record_axis(reference.shape, tag, current.count)
    if axis is None:
        return unknown
    if function in _REDUCTIONS:
        return _reduced(args, kwargs, result, reference, tag, axis, current)
    if function in _ACROSS:
        position = _ACROSS[function]
        dim = kwargs.get("dim", args[position] if len(args) > position else 1 if function is F.normalize else -1)
        if not isinstance(dim, int) or dim % reference.dim() == axis:
            return unknown
    if result.dim() <= axis or result.shape[: axis + 1] != reference.shape[: axis + 1]:
        return unknown
    for other, of in _batched(args, kwargs) if current.mixed else ():
        if of is not tag and not _agree(other, of, axis, reference, tag, current.count):
            return _moved(function, args, kwargs, result, current, place) if function in _WHERE else unknown
    return tag


def _batched(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Tensor, Batched]]:
    for value in (*args, *kwargs.values()) if kwargs else args:
        for tensor in value if type(value) is list or type(value) is tuple else (value,):
            tag = tag_of(tensor) if isinstance(tensor, Tensor) else None
            if type(tag) is Batched:
                yield tensor, tag


def _source(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What is written, a number possibly: the last argument that is no switch."""
    return [value for value in (*args, *kwargs.values()) if not isinstance(value, bool)][-1]


def _agree(other: Tensor, of: Batched, axis: int, reference: Tensor, tag: Batched, count: int) -> bool:
    """Whether another argument has its records where the reference has them, from the left or from the right."""
    own = record_axis(other.shape, of, count)
    if own is None or count == 1:
        return True  # of no known place, as a mean over the batch is: asked for by perturbation
    if own != axis and other.dim() - own != reference.dim() - axis:
        return False
    return of.rows is tag.rows or (of.rows is not None and tag.rows is not None and torch.equal(of.rows, tag.rows))


def _chooses(tensor: Tensor) -> bool:
    return tensor.dtype == torch.bool or _is_index(tensor)


def _is_index(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.long, torch.int)


def _labels(value: Any, values: Sequence[Any], current: Pass) -> Any:
    """Numbers of records in place of values, -1 for what has none; other indices and masks stay as they are."""
    if isinstance(value, list | tuple):
        return type(value)([_labels(part, values, current) for part in value])
    if not isinstance(value, Tensor) or (_chooses(value) and not any(value is one for one in values)):
        return value
    tag = tag_of(value)
    if type(tag) is not Batched:
        return value.new_full(value.shape, -1, dtype=torch.long)
    axis = record_axis(value.shape, tag, current.count)
    if axis is None:
        raise ValueError("The records of an argument are nowhere known.")
    rows, size = tag.rows, value.shape[axis]
    if rows is None:
        rows = torch.arange(size, device=value.device) // max(1, size // max(current.count, 1))
    return rows.view(-1, *[1] * (value.dim() - axis - 1)).expand(value.shape)


def _labelled(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], current: Pass) -> list[Any]:
    """The arguments with numbers of records in place of values, the names last."""
    values = args[1:] if function in _WHERE else args[:1]
    if isinstance(args[0], list | tuple):
        values = args[0]
    if function in _WRITES or function in _ADDS:
        values = (args[0], _source(args, kwargs))
    found = [_labels(value, values, current) for value in args]
    if function in _WRITES or function in _ADDS:
        found[0] = found[0].clone()
    return [*found, {name: _labels(value, values, current) for name, value in kwargs.items()}]


def _moved(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor, current: Pass, place: int
) -> Batched:
    unknown = Batched(current, None)
    with torch.no_grad():
        try:
            *given, named = _labelled(function, args, kwargs, current)
            found = function(*given, **named)
            found = given[0] if found is None else found
        except Exception:
            return unknown
    candidate = found[place] if isinstance(found, list | tuple) else found
    if (function is _PACK and place) or candidate.shape != result.shape:
        return unknown
    return _read(candidate, current)


def _added(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], current: Pass) -> Batched:
    """By Cauchy and Schwarz, all that was added up in an entry is one record's if the moments of its number say so."""
    if "alpha" in kwargs:
        return Batched(current, None)
    with torch.no_grad():
        try:
            *given, named = _labelled(function, args, kwargs, current)
            values = (args[0], _source(args, kwargs))

            def moment(power: int) -> Tensor:
                powers = [
                    torch.where(label >= 0, (label + 1) ** power, 0) if any(arg is value for value in values) else label
                    for arg, label in zip((*args, *kwargs.values()), (*given, *named.values()), strict=True)
                ]
                found: Tensor = function(*powers[: len(args)], **dict(zip(kwargs, powers[len(args) :], strict=True)))
                return found

            number, total, squares = map(moment, range(3))
        except Exception:
            return Batched(current, None)
    mixed = bool((number * squares != total * total).any())
    return Batched(current, None) if mixed else _read(total // number.clamp(min=1) - 1, current)


def _unpacked(args: Sequence[Any], result: Tensor, tag: Batched, current: Pass) -> Batched:
    """The tag of sequences that were packed: shape (n, T, ...) or (T, n, ...), or of their lengths."""
    data, sizes, batch_first = args[:3]
    if result.dim() < 2 or tag.outer is None:
        return Batched(current, None)
    rows = tag.rows if tag.rows is not None else torch.arange(len(data)) // max(1, len(data) // max(1, current.count))
    return Batched(current, 1 if batch_first else result.shape[0], rows[: int(sizes[0])])


def _read(labels: Tensor, current: Pass) -> Batched:
    """The tag that says where the labels are."""
    if not labels.numel():
        return Batched(current, 1, labels.new_zeros(0)) if labels.shape[:1] == (0,) else Batched(current, None)
    before, count = 1, max(current.count, 1)
    moving = [axis for axis, step in enumerate(labels.stride()) if step]
    for axis, size in enumerate(labels.shape):
        if len(moving) == 1 and axis != moving[0] and count > 1:
            before *= size
            continue
        along = labels.movedim(axis, 0)
        along = along[(slice(None), *[slice(0, 1)] * (along.dim() - 1))] if len(moving) == 1 else along
        along = along.flatten(1) if along.dim() > 1 else along[:, None]
        rows = along.amax(1)
        # A constant may stand in any record's row; a row of constants alone has the number -1.
        if bool(((along == rows[:, None]) | (along < 0)).all()):
            if size % count == 0 and torch.equal(rows, torch.arange(size, device=rows.device) // (size // count)):
                return current.first if before == 1 else Batched(current, before)
            if axis == 0 or bool((rows != rows[0]).any()):
                return Batched(current, before, rows)
        before *= size
    return Batched(current, None)


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
    if function not in _ALONG or function in _WRITES:
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
    first: list[Any] = [*range(2 - left.dim(), 0), "out"][-(left.dim() - 1) :] if left.dim() > 1 else []
    if function in _LINEAR:
        return [(left, [*first, "sum"]), (right, ["across", "sum"][-right.dim() :])], [*first, "across"][
            : left.dim() - 2 + right.dim()
        ]
    second: list[Any] = list(range(2 - right.dim(), 0)) if right.dim() > 1 else []
    across = ["across"] if right.dim() > 1 else []
    batch = max(first[:-1], second, key=len)
    return [(left, [*first, "sum"]), (right, [*second, "sum", *across])], [*batch, *first[-1:], *across]
