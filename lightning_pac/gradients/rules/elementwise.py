"""Sums, products and concatenations with a free tensor, broadcast."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_pac.gradients.calls import Batched, Call, Pass, by_record, free_of, record_axis, set_tag, tag_of
from lightning_pac.gradients.contributions import Contribution, Dense, Found, OwnRows

__all__ = ["addition", "concatenation", "masked_write", "product", "reduced_to", "subtraction"]


def addition(call: Call) -> Found | None:
    """Contributions of x + p."""
    if call.kwargs or len(call.args) != 2:
        return None
    return [(value, _reducing(call, 1.0, value)) for value in call.args if call.is_free(value)]


def subtraction(call: Call) -> Found | None:
    """Contributions of x - p and p - x."""
    if call.kwargs or len(call.args) != 2:
        return None
    signs = zip(call.args, (1.0, -1.0), strict=True)
    return [(value, _reducing(call, sign, value)) for value, sign in signs if call.is_free(value)]


def product(call: Call) -> Found | None:
    """Contributions of x p."""
    if call.kwargs or len(call.args) != 2:
        return None
    first, second = call.args
    pairs = [(p, x) for p, x in ((first, second), (second, first)) if call.is_free(p)]
    return [(p, _reducing(call, x.float() if isinstance(x, Tensor) else x, p)) for p, x in pairs]


def concatenation(call: Call) -> Found | None:
    """Contributions of free parts in a concatenation along another dimension than that of the records."""
    parts, dim = call.args[0], call.argument(1, "dim", 0)
    axis = call.output_axis
    shape = call.output[1]
    if not isinstance(dim, int) or dim % len(shape) == axis:
        return None
    found: list[tuple[Tensor, Callable[[], Contribution | OwnRows]]] = []
    # A part's gradient is its slice of the output's.
    start, dim = 0, dim % len(shape)
    for part in parts:
        stop = start + part.shape[dim] if part.dim() == len(shape) else start
        if call.is_free(part):
            piece = call.gradient.narrow(dim, start, stop - start)
            found.append((part, _own_rows(call, piece, part)))
        start = stop
    return found


def masked_write(target: Tensor, index: Any, value: Any) -> Any:
    """The same as `target[index] = value` for a mask of its first dimensions and a value of the last ones."""
    tag = tag_of(target)
    if free_of(value) is None or type(tag) is not Batched or not isinstance(index, Tensor):
        return NotImplemented
    rest = target.dim() - index.dim()
    axis = record_axis(target.shape, tag, tag.owner.count) if tag.outer is not None else None
    if index.dtype != torch.bool or value.dim() > rest or axis is None or axis >= index.dim():
        return NotImplemented
    # x where m is false, plus m p, in which the parameter meets the batch in a product, which has a rule. The values
    # written over are not multiplied by 0: they may be missing, as nan.
    mask = index.view(*index.shape, *[1] * rest)
    places = mask.to(target.dtype)
    for own in (mask, places):
        set_tag(own, tag)  # its rows are those of the target, whatever it was made of
    target.masked_fill_(mask, 0).add_(places * value)
    return None


def _own_rows(call: Call, gradient: Tensor, part: Tensor) -> Callable[[], Contribution | OwnRows]:
    return lambda: reduced_to(gradient.float(), call, part)


def _reducing(call: Call, factor: float | Tensor, free: Tensor) -> Callable[[], Contribution | OwnRows]:
    def build() -> Contribution | OwnRows:
        # The output's gradient times d(x p)/dp = x, or times the sign of p in a sum.
        return reduced_to(
            call.gradient.float() * factor if isinstance(factor, Tensor) or factor != 1 else call.gradient.float(),
            call,
            free,
        )

    return build


def reduced_to(values: Tensor, call: Call, free: Tensor) -> Contribution | OwnRows:
    """Sum values of the output's shape over what a free tensor was broadcast along, by record."""
    axis, tag = call.output_axis, call.output[0]
    return sum_by_record(
        values.expand(call.output[1]) if values.dim() < len(call.output[1]) else values,
        free.shape,
        axis,
        call.count,
        tag.rows,
    )


def sum_by_record(
    values: Tensor, shape: Sequence[int], axis: int, count: int, rows: Tensor | None = None
) -> Contribution | OwnRows:
    """Sum values over what a tensor of another shape was broadcast along, apart for each record.

    Args:
        values: Their dimension `axis` counts records, or k times as many rows.
        shape: The other shape; where it has rows of its own along `axis`, these are not summed.
        axis: That dimension.
        count: Number of records n.
        rows: The record of each row, if they are in another order.
    """
    dims = values.dim()
    padded = [1] * (dims - len(shape)) + list(shape)
    # Shapes are aligned from the right, as broadcasting does it.
    own = padded[axis] == values.shape[axis] and padded[axis] != 1
    rest = padded[:axis] + padded[axis + 1 :]
    if rows is not None:
        if own:
            raise RuntimeError("A tensor of parameters alone has rows for packed sequences; pack it with the batch.")
        blocks = by_record(values.movedim(axis, 0), Batched(Pass(count), 1, rows), count)
        assert blocks is not None
    else:
        blocks = values.movedim(axis, 0)
        blocks = blocks.reshape(count, blocks.shape[0] // max(count, 1), *blocks.shape[1:])
    # Blocks are (n, k, *rest), k rows a record; where the tensor has size 1, its entry was used along all of `rest`.
    broadcast = [2 + d for d, size in enumerate(rest) if size == 1 and blocks.shape[2 + d] != 1]
    if own:
        blocks = blocks.sum(broadcast, keepdim=True) if broadcast else blocks
        place = axis - (dims - len(shape))
        kept = [size for d, size in enumerate(shape) if d != place]
        return OwnRows(blocks.reshape(*blocks.shape[:2], *kept), place)
    over = [*([1] if blocks.shape[1] != 1 else []), *broadcast]
    if over:
        blocks = blocks.sum(over)
    return Dense(blocks.reshape(count, *shape) if math.prod(shape) or not count else values.new_zeros(count, *shape))
