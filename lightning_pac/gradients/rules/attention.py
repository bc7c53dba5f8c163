"""Multi-head attention, whose module uses its projections' parameters without calling the projections."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["TappedProjection", "attention_forward", "supports_attention"]

# (input, parameter of the weight, its rows, parameter of the bias) -> output of the projection.
TappedProjection = Callable[[Tensor, str, slice, str], Tensor]


def supports_attention(layer: nn.MultiheadAttention) -> bool:
    """Whether `attention_forward` computes this layer; the others go through vmap."""
    return layer.bias_k is None and layer.bias_v is None and not layer.add_zero_attn


def attention_forward(layer: nn.MultiheadAttention, project: TappedProjection) -> Callable[..., Any]:
    """Build a forward with the signature and result of `nn.MultiheadAttention`, projecting by `project`."""

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if query.dim() != 3 or query.is_nested:
            raise ValueError("Per-example gradients of attention need batched inputs of three dimensions.")
        if not layer.batch_first:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        n, length, width = query.shape
        heads, size = layer.num_heads, layer.head_dim
        q, k, v = (
            tensor.view(n, tensor.shape[1], heads, size).transpose(1, 2)
            for tensor in _project_inputs(layer, project, query, key, value)
        )
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is a hint about attn_mask; pass the mask, too.")
        mask = _merged_mask(layer, attn_mask, key_padding_mask, q, k)
        dropout = layer.dropout if layer.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            scores = q @ k.mT * size**-0.5
            scores = scores if mask is None else scores + mask
            weights = functional.dropout(scores.softmax(-1), dropout) if dropout else scores.softmax(-1)
            mixed = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        mixed = mixed.transpose(1, 2).reshape(n, length, width)
        output = project(mixed, "out_proj.weight", slice(None), "out_proj.bias")
        return (output if layer.batch_first else output.transpose(0, 1)), weights

    return forward


def _project_inputs(
    layer: nn.MultiheadAttention, project: TappedProjection, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    width = layer.embed_dim
    rows = [slice(0, width), slice(width, 2 * width), slice(2 * width, 3 * width)]
    if not layer._qkv_same_embed_dim:
        inputs, names = (query, key, value), ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        q, k, v = (project(x, name, row, "in_proj_bias") for x, name, row in zip(inputs, names, rows, strict=True))
    elif query is key and key is value:
        q, k, v = project(query, "in_proj_weight", slice(None), "in_proj_bias").chunk(3, dim=-1)
    else:
        inputs = (query, key, value)
        q, k, v = (project(x, "in_proj_weight", row, "in_proj_bias") for x, row in zip(inputs, rows, strict=True))
    return q, k, v


def _merged_mask(
    layer: nn.MultiheadAttention, mask: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor
) -> Tensor | None:
    """One additive mask that broadcasts to (n, heads, length, source length)."""
    merged = None if mask is None else _additive(mask, q)
    if merged is not None and merged.dim() == 3:
        merged = merged.view(q.shape[0], layer.num_heads, q.shape[2], k.shape[2])
    if padding is not None:
        padded = _additive(padding, q)[:, None, None, :]
        merged = padded if merged is None else merged + padded
    return merged


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -torch.inf)
