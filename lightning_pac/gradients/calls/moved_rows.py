"""Records of entries that a function puts elsewhere: the same is done to the numbers of their records."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from lightning_pac.gradients.calls.tags import Batched, Pass, record_axis, set_tag, tag_of

__all__ = [
    "ADDS",
    "WHERE",
    "WRITES",
    "added",
    "functions_named",
    "is_index",
    "moved",
    "settle_packed",
    "source_of",
    "unpacked",
]


def functions_named(names: str) -> list[Any]:
    """All functions, methods and attributes of torch of these names, in one string."""
    found = []
    for owner in (torch, Tensor, F, torch._C._nn, torch._C._VariableFunctions, torch.linalg, torch.special):
        for name in names.split():
            function: Any = getattr(owner, name, None)
            if callable(function) or hasattr(function, "__get__"):
                found.append(function if callable(function) else function.__get__)
    return found


WRITES = set(
    functions_named("index_copy index_copy_ scatter scatter_ index_put index_put_ masked_scatter masked_scatter_ copy_")
) | {Tensor.__setitem__}
WHERE = set(functions_named("where"))
_PACK = torch._C._VariableFunctions._pack_padded_sequence
ADDS = set(functions_named("index_add index_add_ scatter_add scatter_add_ index_put index_put_"))


def source_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The value that is written, possibly a number: the last argument that is no switch."""
    return [value for value in (*args, *kwargs.values()) if not isinstance(value, bool)][-1]


def _chooses(tensor: Tensor) -> bool:
    return tensor.dtype == torch.bool or is_index(tensor)


def is_index(tensor: Tensor) -> bool:
    """Whether a tensor can be the indices of a look-up."""
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
        raise ValueError("The records of an argument are unknown.")
    rows, size = tag.rows, value.shape[axis]
    if rows is None:
        # The rows of a record lie side by side: row r is of record r // (size / n).
        rows = torch.arange(size, device=value.device) // max(1, size // max(current.count, 1))
    return rows.view(-1, *[1] * (value.dim() - axis - 1)).expand(value.shape)


def _labelled(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], current: Pass) -> list[Any]:
    """The arguments with numbers of records in place of values, the names last."""
    values = args[1:] if function in WHERE else args[:1]
    if isinstance(args[0], list | tuple):
        values = args[0]
    if function in WRITES or function in ADDS:
        values = (args[0], source_of(args, kwargs))
    found = [_labels(value, values, current) for value in args]
    if function in WRITES or function in ADDS:
        found[0] = found[0].clone()
    return [*found, {name: _labels(value, values, current) for name, value in kwargs.items()}]


def moved(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor, current: Pass, place: int
) -> Batched:
    """The tag of a result whose entries come from elsewhere in the arguments."""
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


def added(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], current: Pass) -> Batched:
    """By Cauchy and Schwarz, all that was added up in an entry is one record's if the moments of its number say so."""
    if "alpha" in kwargs:
        return Batched(current, None)
    with torch.no_grad():
        try:
            *given, named = _labelled(function, args, kwargs, current)
            values = (args[0], source_of(args, kwargs))

            def moment(power: int) -> Tensor:
                powers = [
                    torch.where(label >= 0, (label + 1) ** power, 0) if any(arg is value for value in values) else label
                    for arg, label in zip((*args, *kwargs.values()), (*given, *named.values()), strict=True)
                ]
                found: Tensor = function(*powers[: len(args)], **dict(zip(kwargs, powers[len(args) :], strict=True)))
                return found

            # sum 1, sum l and sum l^2 over what enters an entry, with labels l = record + 1; constants add nothing.
            number, total, squares = map(moment, range(3))
        except Exception:
            return Batched(current, None)
    # Whole numbers, so exact: (sum 1) (sum l^2) = (sum l)^2 only where all l are equal.
    mixed = bool((number * squares != total * total).any())
    return Batched(current, None) if mixed else _read(total // number.clamp(min=1) - 1, current)


def unpacked(args: Sequence[Any], result: Tensor, tag: Batched, current: Pass) -> Batched:
    """The tag of sequences that were packed: shape (n, T, ...) or (T, n, ...), or of their lengths."""
    data, sizes, batch_first = args[:3]
    if result.dim() < 2 or tag.outer is None:
        return Batched(current, None)
    rows = tag.rows if tag.rows is not None else torch.arange(len(data)) // max(1, len(data) // max(1, current.count))
    return Batched(current, 1 if batch_first else result.shape[0], rows[: int(sizes[0])])


def settle_packed(sequences: PackedSequence, current: Pass) -> None:
    """Tag the tensors of packed sequences that come with the batch, one of each record."""
    data, sizes, order, back = sequences
    if order is None:
        order = torch.arange(int(sizes[0]), device=data.device)
    else:
        set_tag(order, Batched(current, 1, order.clone()))
    # Step t has a row of each of the first sizes[t] sequences, in the order of their lengths.
    set_tag(data, Batched(current, 1, torch.cat([order[:size] for size in sizes.tolist()])))
    for other in (sizes, back):
        if other is not None:
            set_tag(other, current.unknown)


def _read(labels: Tensor, current: Pass) -> Batched:
    """The tag that says where the labels are."""
    if not labels.numel():
        return Batched(current, 1, labels.new_zeros(0)) if labels.shape[:1] == (0,) else Batched(current, None)
    before, count = 1, max(current.count, 1)
    # Expanded labels have stride zero in all dimensions but one, where a single line of them says it all.
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
