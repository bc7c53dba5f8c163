"""Convolutions of one to three dimensions and their transposes."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lightning_pac.gradients.arithmetic import accumulate
from lightning_pac.gradients.calls import Call, tag_of
from lightning_pac.gradients.contributions import Contribution, Dense, Found, squares_of_grams
from lightning_pac.gradients.rules.measured_choice import build_fastest, instantiates

__all__ = ["convolution", "transposed_convolution"]

# Instantiated gradients that dwarf the activations they come from are not tried.
_LARGE_BYTES = 1 << 25
# Blocks of rows, as sums of records are taken in, must hold whole records.
_MOST_GRAM_POSITIONS = 64


@dataclass(frozen=True)
class _Geometry:
    weight_shape: torch.Size
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def kernel(self) -> torch.Size:
        return self.weight_shape[2:]

    def weight_gradient(self, inputs: Tensor, gradient: Tensor, copies: int = 1) -> Tensor:
        """Ordinary weight gradient; with `copies`, of that many independent convolutions side by side in the groups."""
        shape = (copies * self.weight_shape[0], *self.weight_shape[1:])
        result: Tensor = torch.ops.aten.convolution_backward(
            gradient,
            inputs,
            # Of the weight only the shape is used: one number, repeated with stride zero.
            inputs.new_empty(1).expand(shape),
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0] * len(self.stride),
            self.groups * copies,
            (False, True, False),
        )[1]
        return result


def convolution(call: Call) -> Found | None:
    """Contributions of `F.conv1d`, `conv2d` and `conv3d`; inputs (n, in, ...), output gradient (n, out, ...)."""
    inputs, weight, bias = call.args[0], call.argument(1, "weight"), call.argument(2, "bias")
    if not _is_batch(call, inputs, weight, bias):
        return None
    dims = weight.dim() - 2
    stride, dilation = (
        _per_dim(call.argument(place, name, 1), dims) for place, name in ((3, "stride"), (5, "dilation"))
    )
    given = call.argument(4, "padding", 0)
    inputs = inputs.detach().float()
    padding = (0,) * dims if isinstance(given, str) else _per_dim(given, dims)
    if given == "same":
        widths: list[int] = []
        for d in reversed(range(dims)):
            # Where the padding is odd, torch puts the larger half behind.
            total = dilation[d] * (weight.shape[2 + d] - 1)
            widths += [total // 2, total - total // 2]
        inputs = functional.pad(inputs, widths)
    geometry = _Geometry(weight.shape, stride, padding, dilation, call.argument(6, "groups", 1))
    return _contributions(call, geometry, inputs, call.gradient.detach().float(), weight, bias)


def transposed_convolution(call: Call) -> Found | None:
    """Contributions of the transposed convolutions: inputs and output gradient change places."""
    inputs, weight, bias = call.args[0], call.argument(1, "weight"), call.argument(2, "bias")
    if not _is_batch(call, inputs, weight, bias):
        return None
    dims = weight.dim() - 2
    places = ((3, "stride", 1), (4, "padding", 0), (5, "output_padding", 0), (7, "dilation", 1))
    stride, padding, further, dilation = (_per_dim(call.argument(*place), dims) for place in places)
    gradient = reach = call.gradient.detach().float()
    if any(further):
        # The size of the output is then not the one that the convolution's own arithmetic would go back from.
        widths: list[int] = []
        for d in reversed(range(dims)):
            # Length that a convolution without padding reads for as many outputs as there were inputs; a negative width
            # crops.
            span = (inputs.shape[2 + d] - 1) * stride[d] + (weight.shape[2 + d] - 1) * dilation[d] + 1
            widths += [padding[d], span - padding[d] - gradient.shape[2 + d]]
        padding, reach = (0,) * dims, functional.pad(reach, widths)
    geometry = _Geometry(weight.shape, stride, padding, dilation, call.argument(6, "groups", 1))
    return _contributions(call, geometry, reach, inputs.detach().float(), weight, bias)


def _is_batch(call: Call, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a rule applies; an input that is one record by itself is refused."""
    if not call.is_batched(inputs) or call.is_batched(weight) or call.is_batched(bias):
        return False
    if inputs.dim() != weight.dim():
        raise RuntimeError(
            f"{call.describe()} was given an input of shape {tuple(inputs.shape)} without a batch dimension; add one."
        )
    return call.output_axis == 0 and tag_of(inputs).rows is None


def _per_dim(value: Any, dims: int) -> tuple[int, ...]:
    # Torch also takes a sequence of one number for all dimensions.
    return (value,) * dims if isinstance(value, int) else tuple(value) * (dims if len(value) == 1 else 1)


def _contributions(
    call: Call, geometry: _Geometry, inputs: Tensor, gradient: Tensor, weight: Tensor, bias: Tensor | None
) -> Found:
    rows = call.gradient.shape[0]

    def merged(contribution: Contribution) -> Contribution:
        """The contributions of a record's rows are added before anything else."""
        if rows == call.count:
            return contribution
        dense = contribution.dense()
        return Dense(dense.view(call.count, rows // max(1, call.count), *dense.shape[1:]).sum(1))

    found = [(weight, lambda: merged(_weight(call.describe, geometry, inputs, gradient)))]
    if bias is not None:
        # The output's gradient summed over positions, (n, out).
        found.append((bias, lambda: merged(Dense(call.gradient.detach().float().flatten(2).sum(2)))))
    return found


def _weight(name: object, geometry: _Geometry, inputs: Tensor, gradient: Tensor) -> Contribution:
    n = inputs.shape[0]
    if not n:
        return Dense(inputs.new_zeros(0, *geometry.weight_shape))
    candidates: dict[str, Callable[[Tensor, Tensor], Contribution]] = {}
    width_out, width_in = geometry.weight_shape[0], math.prod(geometry.weight_shape[1:])
    positions, reach = math.prod(gradient.shape[2:]), math.prod(inputs.shape[2:])
    # The Gram matrix of all R input positions has R^2 entries a record, its gradient as many as the weight.
    few = positions <= _MOST_GRAM_POSITIONS and reach * reach <= 2 * width_in * width_out + 16 * reach
    by_gram = geometry.groups == 1 and few
    # A factor of four settles the choice, as for linear maps: what is far larger is not even tried.
    larger = by_gram and width_in * width_out > 4 * positions * (reach + width_in + width_out)
    dense_bytes = 4 * n * width_in * width_out
    # At most 32 MiB, or twice the bytes of inputs and output gradient together.
    small = not larger and dense_bytes <= max(_LARGE_BYTES, 8 * (inputs.numel() + gradient.numel()))
    if small or instantiates():
        candidates["grouped convolution"] = lambda inputs, gradient: Dense(_grouped(geometry, inputs, gradient))
    if small and geometry.groups == 1 and width_in <= 256:
        candidates["unfolding"] = lambda inputs, gradient: Dense(_unfolded(geometry, inputs, gradient))
    if by_gram:
        candidates["Gram matrices"] = functools.partial(_GramConvolution, geometry)
    if not candidates:
        candidates["grouped convolution"] = lambda inputs, gradient: Dense(_grouped(geometry, inputs, gradient))
    key = ("convolution", geometry, inputs.shape[1:], positions, inputs.device, torch.get_num_threads())
    kept_bytes = dict.fromkeys(candidates, dense_bytes) | {"Gram matrices": 4 * (inputs.numel() + gradient.numel())}
    return build_fastest(name, key, (inputs, gradient), candidates, geometry.weight_shape, kept_bytes)


def _grouped(geometry: _Geometry, inputs: Tensor, gradient: Tensor) -> Tensor:
    """All examples in one call, each with groups of its own."""
    n = inputs.shape[0]
    # (1, n in, ...) and (1, n out, ...): the weight gradient of group i is that of example i.
    stacked = geometry.weight_gradient(
        inputs.reshape(1, -1, *inputs.shape[2:]), gradient.reshape(1, -1, *gradient.shape[2:]), copies=n
    )
    return stacked.view(n, *geometry.weight_shape)


def _unfolded(geometry: _Geometry, inputs: Tensor, gradient: Tensor) -> Tensor:
    """One matrix product per example with the patches the kernel saw: for few channels and 1 x 1 kernels."""
    columns = _patches(geometry, inputs, gradient.shape[2:])
    # (n, out, positions) (n, positions, in * kernel).
    return (gradient.flatten(2) @ columns.mT).view(inputs.shape[0], *geometry.weight_shape)


def _patches(geometry: _Geometry, inputs: Tensor, sizes: torch.Size) -> Tensor:
    """The inputs under the kernel at each position, shape (n, channels times kernel, positions)."""
    dims, n = len(geometry.stride), inputs.shape[0]
    padded = _pad(geometry, inputs)
    strides = padded.stride()[2:]
    # A view (n, in, *kernel, *positions): kernel offsets move by the dilation, positions by the stride.
    patches = padded.as_strided(
        (n, padded.shape[1], *geometry.kernel, *sizes),
        (
            *padded.stride()[:2],
            *(strides[d] * geometry.dilation[d] for d in range(dims)),
            *(strides[d] * geometry.stride[d] for d in range(dims)),
        ),
    )
    return patches.reshape(n, -1, math.prod(sizes))


def _pad(geometry: _Geometry, inputs: Tensor) -> Tensor:
    widths = [pad for size in reversed(geometry.padding) for pad in (size, size)]
    return functional.pad(inputs, widths).contiguous()


class _GramConvolution(Contribution):
    """Norms from Gram matrices of positions, for small maps with many channels; the sum is one ordinary gradient.

    The Gram matrix of patches is a sum over kernel offsets of shifted windows of the Gram matrix of single positions,
    so patches are never formed; the sum separates into one per dimension.
    """

    def __init__(self, geometry: _Geometry, inputs: Tensor, gradient: Tensor) -> None:
        self._geometry, self._inputs, self._gradient = geometry, inputs, gradient

    def squares(self) -> Tensor:
        n, flat = self._inputs.shape[0], self._inputs.flatten(2)
        # Inner products of single input positions over channels, (n, *sizes, *sizes); the windows of each dimension
        # make it (n, *positions, *positions).
        gram = (flat.mT @ flat).view(n, *self._inputs.shape[2:], *self._inputs.shape[2:])
        for d, size in enumerate(self._gradient.shape[2:]):
            gram = self._sum_of_windows(gram, d, size)
        flat_gradient = self._gradient.flatten(2)
        products = flat_gradient.mT @ flat_gradient
        return squares_of_grams(gram.reshape(products.shape), products, self._width)

    def _sum_of_windows(self, gram: Tensor, d: int, size: int) -> Tensor:
        """Sum over the kernel's offsets in spatial dimension d; what lies in the padding is zero and left out."""
        geometry, axes = self._geometry, (1 + d, 1 + d + gram.dim() // 2)
        stride, extent, kernel = geometry.stride[d], gram.shape[axes[0]], geometry.kernel[d]
        total = None
        # The middle first: its window is most likely whole, and saves filling with zeros.
        for step in sorted(range(kernel), key=lambda step: abs(2 * step + 1 - kernel)):
            # Position o reads the input at o * stride + shift; first and last are those o for which that is inside.
            shift = step * geometry.dilation[d] - geometry.padding[d]
            first, last = max(0, -(shift // stride)), min(size - 1, (extent - 1 - shift) // stride)
            source = slice(first * stride + shift, last * stride + shift + 1, stride)
            if total is None and last - first + 1 == size:
                total = gram[_index(gram.dim(), axes, source)].clone()
                continue
            if total is None:
                total = gram.new_zeros([size if axis in axes else length for axis, length in enumerate(gram.shape)])
            if first <= last:
                total[_index(gram.dim(), axes, slice(first, last + 1))] += gram[_index(gram.dim(), axes, source)]
        assert total is not None
        return total

    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        n, positions = len(weights), math.prod(self._gradient.shape[2:])
        weighted = (self._gradient.flatten(2) * weights[:, None, None]).mT

        def product(rows: slice, part: Tensor) -> None:
            # Blocks hold whole records: (out, rows) times (rows, in * kernel).
            records = slice(rows.start // positions, rows.stop // positions)
            columns = _patches(self._geometry, self._inputs[records], self._gradient.shape[2:])
            torch.mm(weighted[records].flatten(0, 1).t(), columns.mT.flatten(0, 1), out=part)

        accumulate(out.view(len(out), -1), n, positions, product)

    @property
    def _width(self) -> int:
        # Entries of the two Gram matrices are sums over in * kernel and over out.
        return math.prod(self._geometry.weight_shape[1:]) + self._geometry.weight_shape[0]

    def dense(self) -> Tensor:
        return _grouped(self._geometry, self._inputs, self._gradient)

    def drop(self, excluded: Tensor) -> None:
        mask = excluded.view(-1, *[1] * (self._gradient.dim() - 1))
        self._inputs, self._gradient = self._inputs.masked_fill(mask, 0.0), self._gradient.masked_fill(mask, 0.0)


def _index(dim: int, axes: tuple[int, int], chosen: slice) -> tuple[slice, ...]:
    return tuple(chosen if axis in axes else slice(None) for axis in range(dim))
