"""Tables looked up by index."""

import torch
from torch import Tensor, nn

from lightning_pac.gradients.contributions import Contribution, Contributions, Rows

__all__ = ["embedding_bag_layer", "embedding_layer"]


def embedding_layer(name: str, layer: nn.Embedding, indices: Tensor, gradient: Tensor) -> Contributions:
    """Contributions of `nn.Embedding`; indices (n, ...), output gradient (n, ..., width)."""
    per_example = indices[0].numel() if indices.shape[0] else 0
    examples = torch.arange(indices.shape[0], device=indices.device).repeat_interleave(per_example)
    gradient = gradient.detach().reshape(-1, layer.embedding_dim)
    return {"weight": lambda: _rows(layer, indices.shape[0], examples, indices.reshape(-1), gradient)}


def embedding_bag_layer(
    name: str,
    layer: nn.EmbeddingBag,
    gradient: Tensor,
    indices: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Contributions:
    """Contributions of `nn.EmbeddingBag`, one bag an example; output gradient (n, width)."""
    gradient = gradient.detach().float()
    n = gradient.shape[0]
    if indices.dim() == 2:
        bags = torch.arange(n, device=indices.device).repeat_interleave(indices.shape[1])
    else:
        assert offsets is not None
        ends = torch.cat([offsets[1:], offsets.new_tensor([indices.numel()])])[:n]
        bags = torch.arange(n, device=indices.device).repeat_interleave(ends - offsets[:n])
    rows = indices.reshape(-1)[: bags.numel()]
    counted = torch.ones_like(rows, dtype=torch.bool) if layer.padding_idx is None else rows != layer.padding_idx
    spread = gradient[bags]
    if layer.mode == "mean":
        sizes = torch.zeros(n, device=rows.device).index_add_(0, bags, counted.float()).clamp_(min=1.0)
        spread = spread / sizes[bags, None]
    elif layer.mode == "max":
        spread = spread * _is_maximum(layer, bags, rows, counted, n)
    if per_sample_weights is not None:
        spread = spread * per_sample_weights.detach().reshape(-1, 1)
    return {"weight": lambda: _rows(layer, n, bags, rows, spread)}


def _rows(
    layer: nn.Embedding | nn.EmbeddingBag, n: int, examples: Tensor, rows: Tensor, gradient: Tensor
) -> Contribution:
    rows = rows.long()
    if layer.padding_idx is not None:
        gradient = gradient.masked_fill((rows == layer.padding_idx)[:, None], 0.0)
    return Rows(n, layer.num_embeddings, examples, rows, gradient)


def _is_maximum(layer: nn.EmbeddingBag, bags: Tensor, rows: Tensor, counted: Tensor, n: int) -> Tensor:
    """One for the first entry of each bag that reached the bag's maximum, for each coordinate; else zero."""
    values = layer.weight.detach()[rows].masked_fill(~counted[:, None], -torch.inf)
    place = bags[:, None].expand_as(values)
    top = values.new_full((n, values.shape[1]), -torch.inf).scatter_reduce_(0, place, values, "amax")
    order = torch.arange(rows.numel(), device=rows.device)[:, None].expand_as(values)
    reached = torch.where(values == top[bags], order, rows.numel())
    first = torch.full((n, values.shape[1]), rows.numel(), device=rows.device)
    first.scatter_reduce_(0, place, reached, "amin")
    return (order == first[bags]).float()
