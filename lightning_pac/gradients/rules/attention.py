"""Multi-head attention, one function of torch, in the functions that it is made of."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lightning_pac.gradients.calls import free_of, settle

__all__ = ["multi_head_attention", "scaled_dot_product"]


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The same as `F.multi_head_attention_forward`: inputs (length, n, width), outputs (length, n, width)."""
    if query.dim() != 3 or query.is_nested:
        raise ValueError("Per-example gradients of attention need batched inputs of three dimensions.")
    if static_k is not None or static_v is not None:
        raise ValueError(
            "Per-example gradients of attention need keys and values that are projected; leave static_k out."
        )
    if is_causal and attn_mask is None:
        raise ValueError("is_causal is a hint about attn_mask; pass the mask as well.")
    same = query is key and key is value
    for tensor in (query, key, value):
        settle(tensor, 1)
    query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
    n, length, width = query.shape
    if use_separate_proj_weight:
        weights: Sequence[Any] = (q_proj_weight, k_proj_weight, v_proj_weight)
        biases = in_proj_bias.chunk(3) if in_proj_bias is not None else (None, None, None)
        projected = [functional.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]
    elif same:
        assert in_proj_weight is not None
        projected = list(functional.linear(query, in_proj_weight, in_proj_bias).chunk(3, dim=-1))
    else:
        assert in_proj_weight is not None
        parts = in_proj_weight.chunk(3)
        biases = in_proj_bias.chunk(3) if in_proj_bias is not None else (None, None, None)
        projected = [functional.linear(x, w, b) for x, w, b in zip((query, key, value), parts, biases, strict=True)]
    q, k, v = projected
    mask = _additive(attn_mask, q)
    padding = _additive(key_padding_mask, q)
    further = 0
    if bias_k is not None and bias_v is not None:
        k = torch.cat([k, bias_k.expand(n, 1, width)], dim=1)
        v = torch.cat([v, bias_v.expand(n, 1, width)], dim=1)
        further += 1
    size = width // num_heads
    q, k, v = (x.view(n, x.shape[1], num_heads, size).transpose(1, 2) for x in (q, k, v))
    if add_zero_attn:
        # A key of zeros, with the score 0 and the value 0.
        nothing = k.new_zeros(n, num_heads, 1, size)
        k, v = torch.cat([k, nothing], dim=2), torch.cat([v, nothing], dim=2)
        further += 1
    if further:
        mask = None if mask is None else functional.pad(mask, (0, further))
        padding = None if padding is None else functional.pad(padding, (0, further))
    if mask is not None and mask.dim() == 3:
        mask = mask.view(n, num_heads, length, -1)
    if padding is not None:
        padding = padding[:, None, None, :]
        mask = padding if mask is None else mask + padding
    dropout = dropout_p if training else 0.0
    if need_weights:
        # softmax(q k^T / sqrt(d) + mask) v for each head: scores (n, heads, queries, keys).
        scores = q @ k.mT * size**-0.5
        scores = scores if mask is None else scores + mask
        attention = functional.dropout(scores.softmax(-1), dropout) if dropout else scores.softmax(-1)
        mixed = attention @ v
        attention = attention.mean(1) if average_attn_weights else attention
    else:
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        attention = None
    mixed = mixed.transpose(1, 2).reshape(n, length, width)
    return functional.linear(mixed, out_proj_weight, out_proj_bias).transpose(0, 1), attention


def scaled_dot_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The same as `F.scaled_dot_product_attention`, where its mask or its tokens are computed from parameters alone."""
    if all(free_of(tensor) is None for tensor in (query, key, value, attn_mask)):
        return NotImplemented
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    # Here a boolean mask says which keys are seen, there which are not.
    mask = _additive(None if attn_mask is None else ~attn_mask if attn_mask.dtype == torch.bool else attn_mask, query)
    if is_causal:
        # Aligned at the upper left, as torch has it; it takes no other mask beside.
        mask = torch.full(scores.shape[-2:], -torch.inf, dtype=scores.dtype, device=scores.device).triu(1)
    scores = scores if mask is None else scores + mask
    attention = scores.softmax(-1)
    return (functional.dropout(attention, dropout_p) if dropout_p else attention) @ value


def _additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return None if mask is None else mask.to(like.dtype)
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, -torch.inf)
