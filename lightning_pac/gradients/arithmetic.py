"""Float32 arithmetic for clipping: products as precise as their type, norms that are never too small, sums that keep.

Everything here is proven from one fact: summed in any order, with or without fused products, k products x y in float32
err by at most k u/(1 - k u) times the sum of |x y|, u = 2^-24 (Higham, *Accuracy and Stability of Numerical
Algorithms*, section 3.1), and by k 2^-150 where products fall below the smallest floats.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "CANCELLATION",
    "ROUNDING",
    "accumulate",
    "block_layout",
    "ieee_float32",
    "squared_norm_of_sum",
    "squared_norms",
    "sum_type",
    "widest_type",
]

ROUNDING = 2.0**-7
r"""Share of C by which rounding may raise what one record does to a clipped sum: noise is calibrated for
$(1 + 2^{-7}) C$ where real arithmetic has C. Proven in `accumulate`."""

CANCELLATION = 2.0**-19
"""Share of terms' lengths, squared, by which the norm of a sum is raised: once, and once more for each 8 of width."""

_SMALLEST = torch.finfo(torch.float32).tiny
# A float32 sum of 512 squares loses at most 512 u = 2^-15 of itself, half of what `squared_norms` allows.
_NORM_BLOCK = 512
# Rows of a block, for one term a record and for several.
_BLOCK, _BLOCK_OF_SEVERAL = 96, 64
# Blocks that are added up in float32: so many, and so many additions times records.
_SPAN, _ADDED = 16, 2**12
# Records whose sum is rounded to float32, which moves it by u times its length in either world: 2^-11 C for so many.
_MOST_ROUNDED = 2**12

_cudnn: Any = torch.backends.cudnn
_mkldnn: Any = torch.backends.mkldnn
_FLOAT32_OPERATIONS = (torch.backends.cuda.matmul, _cudnn.conv, _mkldnn.matmul, _mkldnn.conv)


@contextmanager
def ieee_float32() -> Iterator[None]:
    """Full float32 products inside, whatever autocast or `torch.set_float32_matmul_precision` allow for speed.

    TensorFloat-32 and bfloat16 products have 11 and 8 bits, and a record would be clipped to as many only; in Gram
    matrices of terms that cancel, to fewer.
    """
    changed = [
        (operation, precision) for operation in _FLOAT32_OPERATIONS if (precision := operation.fp32_precision) != "ieee"
    ]
    casts = ExitStack()
    if torch._C._is_any_autocast_enabled():
        for device in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
            casts.enter_context(torch.autocast(device, enabled=False))
    try:
        for operation, _ in changed:
            operation.fp32_precision = "ieee"
        with casts:
            yield
    finally:
        for operation, precision in changed:
            operation.fp32_precision = precision


def widest_type(device: torch.device) -> torch.dtype:
    """The float64 of every device but Apple's, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def sum_type(num_records: int, device: torch.device) -> torch.dtype:
    """The type of a sum over so many records: float32 while its spacing there is far below what a record may add."""
    return torch.float32 if num_records <= _MOST_ROUNDED else widest_type(device)


def squared_norms(rows: Tensor) -> Tensor:
    """Squared norms of rows, shape (n, width) to (n,), in float64 and at most a share 2^-14 too small.

    Rows are summed in float32 over blocks of 512 and in float64 over blocks; squares below the smallest float are
    rounded up.
    """
    width = rows.shape[1]
    # Columns in whole blocks; those behind them are a shorter block of their own.
    whole = width - width % _NORM_BLOCK if width > _NORM_BLOCK else 0
    wide = widest_type(rows.device)
    rest = rows[:, whole:] if whole else rows
    total: Tensor = torch.linalg.vector_norm(rest, dim=1).to(wide).square_()
    if whole:
        # (n, blocks): each block errs by the same share of itself, so their float64 sum does, whatever the width.
        blocks = torch.linalg.vector_norm(rows[:, :whole].view(len(rows), whole // _NORM_BLOCK, _NORM_BLOCK), dim=2)
        total += blocks.to(wide).square_().sum(1)
    # A square below the smallest normal number may become zero: less than that is missing for each of `width`.
    return total.add_(width * _SMALLEST)


def squared_norm_of_sum(squares: Tensor, sizes: Tensor, width: int, terms: int, added: int | None = None) -> Tensor:
    r"""Squared norms of sums of T outer products, from their Gram matrices: never too small, and never small beside T.

    An entry of either Gram matrix errs by at most $3 k u \lVert x_t \rVert \lVert x_s \rVert$ (k its inner width; 1 k u
    for rounding, 2 k u for what falls below the smallest float, where lengths are no less than its root), so the sum of
    their products errs by at most $4 (k + k' + 8) u (\sum_t \lVert g_t \rVert \lVert a_t \rVert)^2$: that is added.
    Ours.

    Terms that nearly cancel would then leave a small norm beside terms that are large, and the rounding of those is
    what moves a sum of records. So a norm is also at least $\sum_t \lVert g_t \rVert \lVert a_t \rVert / \kappa$ with
    $\kappa = \min(3 \sqrt T, 64)$: the terms of a clipped record are no longer than $\kappa C$ in sum. Those in random
    directions have a ratio of at most $\sqrt T$ and gain nothing.

    Args:
        squares: Sum of the products of the two Gram matrices' entries, shape (n,), float64.
        sizes: Sum of the terms' lengths, shape (n,), float64; each length with the smallest float added to its squares.
        width: k + k', what the two Gram matrices were summed over.
        terms: T.
        added: Terms of which the weighted sum is made in float32, where these are fewer: they give kappa, the smaller.
    """
    # 4 (k + k' + 8) u = CANCELLATION (1 + (k + k') / 8); T^2 products of Gram entries may underflow.
    raised = squares.clamp(min=0.0) + CANCELLATION * (1 + width / 8) * sizes.square() + terms**2 * _SMALLEST
    # At least (sum |g_t| |a_t| / kappa)^2, so that terms that cancel do not pass for a short gradient.
    return torch.maximum(raised, (sizes / block_layout(terms if added is None else added)[1]).square())


def accumulate(
    out: Tensor, num_records: int, terms: int, product: Callable[[slice, Tensor], object], longest: float = 1.0
) -> None:
    r"""Sum products over records so that one record moves the result by no more than `ROUNDING` says.

    Rows come in blocks that hold whole records, or parts of one, and blocks are added up in order. A record that comes,
    goes or changes, and the one that takes its place if records are in secret random order, touch their own blocks
    only; all others are computed from the same numbers in the same way and stay the same to the bit. So rounding enters

    - in the blocks of those at most two records, in both worlds: $2 b u$ times the lengths of all terms there, b the
      rows of a block and $\kappa C$ the most of a record;
    - in the additions of later blocks in float32: $2 u$ times the partial sum for each. They are counted, and the sum
      goes over to float64 before they are many;
    - where that sum is rounded to float32: $2 u$ times its length. Over 4,096 records it is not (`sum_type`).

    Layers differ in T, and so in how many records their blocks hold. Record j of a block can put its norm where
    $\kappa b$ is the largest of all layers that still hold it: by Minkowski's inequality the first is at most
    $4 u \sum_j \max_T \kappa b \, C \le 0.0058 C$, the second $2 u \sum_j \max_T (\ldots) \le 0.0014 C$ and the third
    $2^{-11} C$. The rest of `ROUNDING` covers norms, which are at most a share $2^{-13}$ too small. Ours.

    Args:
        out: Where the sum is written, float32, or wider as `sum_type` says.
        num_records: n.
        terms: Rows of each record, T.
        product: Called as `product(rows, out)`; sets `out`, float32, to the sum over those of the n T rows.
        longest: How many times C all terms of a clipped record may be long together, added up.
    """
    total, (block, ratio) = num_records * terms, block_layout(terms)
    if not total:
        out.zero_()
        return
    if total <= block and out.dtype == torch.float32:
        product(slice(0, total), out)
        return
    # A group is as many whole records as a block takes, or one record that is longer and is cut into blocks.
    step = terms * max(1, block // terms)
    groups = [(start, min(start + step, total)) for start in range(0, total, step)]
    blocks = [slice(first, min(first + block, stop)) for start, stop in groups for first in range(start, stop, block)]
    if len(blocks) == 1 and out.dtype == torch.float32:
        product(blocks[0], out)
        return
    share = min(step, block) / terms  # records in a block
    # The longest span whose s - 1 additions, of partial sums up to (s share `longest` + kappa) C, stay within `most`:
    # they cost at most 2 u `most` C.
    most = _ADDED if longest == 1.0 else _ADDED // 4
    span = next(s for s in range(min(_SPAN, len(blocks)), 0, -1) if (s - 1) * (s * share * longest + ratio) <= most)
    narrow = out if out.dtype == torch.float32 else torch.empty_like(out, dtype=torch.float32)
    part = torch.empty_like(narrow) if span > 1 else narrow
    # Spans are added up in the widest type that the device has.
    wide = None
    if out is not narrow:
        wide = out.zero_()
    elif span < len(blocks):
        wide = torch.zeros_like(out, dtype=widest_type(out.device))
    for number, rows in enumerate(blocks):
        # The first block of a span overwrites the sum in float32, the others are added to it.
        product(rows, part if number % span else narrow)
        if number % span:
            narrow += part
        if wide is not None and (number % span == span - 1 or number == len(blocks) - 1):
            wide += narrow
    if wide is not None and wide is not out:
        out.copy_(wide)


def block_layout(terms: int) -> tuple[int, float]:
    r"""Rows of a block, and $\kappa$: how many times C the terms of a clipped record may be long in sum."""
    return (_BLOCK, 1.0) if terms <= 1 else (_BLOCK_OF_SEVERAL, min(3.0 * terms**0.5, 64.0))
