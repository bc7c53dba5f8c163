"""Tables looked up by index."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_pac.gradients.calls import Batched, Call, Pass, set_tag, tag_of
from lightning_pac.gradients.contributions import Contribution, Found, Rows

__all__ = ["count_bags", "embedding", "embedding_bag", "embedding_of_table", "picked"]


def embedding(call: Call) -> Found | None:
    """Contributions of `F.embedding(indices, weight, padding_idx)`; output (n, ..., width)."""
    indices, weight, padding = call.args[0], call.argument(1, "weight"), call.argument(2, "padding_idx")
    if not call.is_batched(indices):
        return None
    if call.argument(3, "max_norm") is not None or call.argument(5, "scale_grad_by_freq", False):
        raise RuntimeError(f"{call.describe()} changes with the other records; leave max_norm and frequencies out.")
    if padding is not None and padding < 0:
        padding += weight.shape[0]
    return [(weight, lambda: _looked_up(call, weight, indices, padding))]


def embedding_of_table(call: Call) -> Found | None:
    """Contributions of `torch.embedding(weight, indices, padding_idx)`."""
    weight, indices = call.args[:2]
    if not call.is_batched(indices):
        return None
    return [(weight, lambda: _looked_up(call, weight, indices, call.argument(2, "padding_idx")))]


def picked(call: Call) -> Found | None:
    """Contributions of `weight[indices]` for a tensor of indices."""
    weight, indices = call.args
    if not call.is_batched(indices) or indices.dtype not in (torch.long, torch.int) or not call.is_free(weight):
        return None
    if weight.dim() != 2:
        return None
    return [(weight, lambda: _looked_up(call, weight, indices, None))]


def _looked_up(call: Call, weight: Tensor, indices: Tensor, padding: int | None) -> Contribution:
    by_record = call.by_record(indices) % len(weight)  # negative ones count from the end
    per_record = by_record[0].numel() if by_record.shape[0] else 0
    # The record of each look-up. Rows that fill a record up look up row 0, with gradient zero.
    records = torch.arange(call.count, device=indices.device).repeat_interleave(per_record)
    gradient = call.gradient_by_record().reshape(-1, weight.shape[1])
    return _rows(weight, padding, call.count, records, by_record.reshape(-1), gradient)


def count_bags(current: Pass, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """The records of a batch of bags that offsets begin are the bags."""
    offsets = args[2] if len(args) > 2 else kwargs.get("offsets")
    if offsets is not None and type(tag_of(offsets)) is Batched:
        set_tag(offsets, current.first)
        current.count = len(offsets) - bool(args[9] if len(args) > 9 else kwargs.get("include_last_offset", False))


def embedding_bag(call: Call) -> Found | None:
    """Contributions of `F.embedding_bag`, one bag a record; output gradient (n, width)."""
    indices, weight, offsets = call.args[0], call.argument(1, "weight"), call.argument(2, "offsets")
    mode, weights = call.argument(6, "mode", "mean"), call.argument(8, "per_sample_weights")
    padding = call.argument(10, "padding_idx")
    order = call.output[0].rows
    if not call.is_batched(indices) or call.is_free(weights) or (order is not None and bool((order < 0).any())):
        return None
    gradient = call.gradient.detach().float()
    n = gradient.shape[0]
    if indices.dim() == 2:
        bags = torch.arange(n, device=indices.device).repeat_interleave(indices.shape[1])
    else:
        # Bag i is indices[offsets[i] : offsets[i + 1]], the last one up to the end unless that is stated, too.
        ends = torch.cat([offsets[1:], offsets.new_tensor([indices.numel()])])[:n]
        bags = torch.arange(n, device=indices.device).repeat_interleave(ends - offsets[:n])
    rows = indices.reshape(-1)[: bags.numel()]
    counted = torch.ones_like(rows, dtype=torch.bool) if padding is None else rows != padding
    spread = gradient[bags]
    if mode == "mean":
        # Entries that are padding do not count in the mean; an empty bag has no row to divide for.
        sizes = (
            torch.zeros(n, dtype=torch.float32, device=rows.device).index_add_(0, bags, counted.float()).clamp_(min=1.0)
        )
        spread = spread / sizes[bags, None]
    elif mode == "max":
        spread = spread * _is_maximum(weight, bags, rows, counted, n)
    if weights is not None:
        spread = spread * weights.detach().reshape(-1, 1)
    # From bags to records, which may have several bags side by side.
    bags = bags // max(1, n // max(1, call.count)) if order is None else order[bags]
    return [(weight, lambda: _rows(weight, padding, call.count, bags, rows, spread))]


def _rows(weight: Tensor, padding: int | None, n: int, records: Tensor, rows: Tensor, gradient: Tensor) -> Contribution:
    rows = rows.long()
    if padding is not None:
        gradient = gradient.masked_fill((rows == padding)[:, None], 0.0)
    return Rows(n, weight.shape[0], records, rows, gradient)


def _is_maximum(weight: Tensor, bags: Tensor, rows: Tensor, counted: Tensor, n: int) -> Tensor:
    """One for the first entry of each bag that reached the bag's maximum, for each coordinate; else zero."""
    values = weight.detach()[rows].masked_fill(~counted[:, None], -torch.inf)
    place = bags[:, None].expand_as(values)
    top = values.new_full((n, values.shape[1]), -torch.inf).scatter_reduce_(0, place, values, "amax")
    # Torch gives the whole gradient of a maximum to one entry; of equal ones it is the first.
    order = torch.arange(rows.numel(), device=rows.device)[:, None].expand_as(values)
    reached = torch.where(values == top[bags], order, rows.numel())
    first = torch.full((n, values.shape[1]), rows.numel(), device=rows.device)
    first.scatter_reduce_(0, place, reached, "amin")
    return (order == first[bags]).float()
