"""Rules that bring a record's gradient below its bound."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn

__all__ = ["NORMLESS_RULES", "SMALLEST_NORM", "ClippingRule", "clip", "clip_factors", "normalise"]

ClippingRule = Callable[[Tensor, Tensor], Tensor]
"""From norms, shape (n, K), and bounds, shape (K,), to the factors of the gradients, shape (n, K)."""

# The products that factors enter are rounded as well.
_CLIP_SLACK = 1.0 - 2e-6
_SMALLEST_FACTOR = 2.0**-100
SMALLEST_NORM = 1e-15
_STABILITY = 0.01


def clip(norms: Tensor, bounds: Tensor) -> Tensor:
    r"""$\min(1, C / \lVert g \rVert)$: what is short enough stays as it is."""
    return (bounds / norms).clamp(max=1.0)


def normalise(norms: Tensor, bounds: Tensor) -> Tensor:
    r"""$C / (\lVert g \rVert + \gamma)$, $\gamma = 0.01$: nearly all gradients get nearly the norm C.

    Only the learning rate is left to choose, since C and the rate enter as a product. Source: Bu et al. 2023,
    "Automatic Clipping" (AUTO-S).
    """
    return bounds / (norms + _STABILITY)


NORMLESS_RULES: Mapping[str, ClippingRule] = MappingProxyType({"auto": normalise})
"""Rules in which C only scales the learning rate, by what stands for the norm in `max_grad_norm`; C is 1."""


def clip_factors(
    norms: Tensor, max_grad_norm: float | Sequence[float], rule: ClippingRule = clip
) -> tuple[Tensor, Tensor]:
    r"""Factors that bring each record below its bound in each block, and the norms with non-finite records' at zero.

    Whatever the rule says, a factor is at most $C (1 - 2 \cdot 10^{-6}) / \lVert g \rVert$. Quotient and product are
    rounded by less than that slack, so factor times norm stays strictly below C, and what `arithmetic.accumulate`
    proves from that holds for every rule. That takes numbers above float32's smallest normal one, below which a
    rounding is no small share (a norm of 3e38 and C = 1e-7 gave 1.97 C): a factor below $2^{-100}$ is zero, and what is
    noised has a C of at least `SMALLEST_NORM`, so that weighted factors of products, of lengths up to 1.8e19, are above
    it, too.

    Args:
        norms: Per-example norms, shape (n, K), float32.
        max_grad_norm: One bound for all blocks or K of them.
        rule: Factors in real arithmetic.

    Returns:
        Two tensors of shape (n, K), the second `norms` itself if the sum of all is finite. A record that is not finite
        in any block has factor zero in all.
    """
    bounds = [max_grad_norm] * norms.shape[1] if isinstance(max_grad_norm, int | float) else list(max_grad_norm)
    if len(bounds) != norms.shape[1]:
        raise ValueError(f"max_grad_norm has {len(bounds)} values for {norms.shape[1]} blocks; give one or as many.")
    if not all(bound > 0 for bound in bounds):
        raise ValueError(f"max_grad_norm must be positive, got {max_grad_norm!r}.")
    limit = torch.tensor([bound * _CLIP_SLACK for bound in bounds], dtype=norms.dtype, device=norms.device)
    # (n, K). A norm of zero makes the quotient infinite, and the rule's factor stands.
    factors = nn.functional.threshold(torch.minimum(rule(norms, limit), limit / norms), _SMALLEST_FACTOR, 0.0)
    # Norms are not negative, so one sum shows whether any is infinite or not a number.
    if math.isfinite(norms.sum()):
        return factors, norms
    finite = norms.isfinite().all(dim=1, keepdim=True)
    return torch.where(finite, factors, 0.0), torch.where(finite, norms, 0.0)
