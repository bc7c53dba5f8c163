"""The truth that gradient engines are compared with: one ordinary backward pass for each example."""

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

Loss = Callable[[nn.Module, Sequence[Tensor]], Tensor]


def clipped_sum_by_loop(
    module: nn.Module,
    batch: Sequence[Tensor],
    loss: Loss,
    max_grad_norm: float | Sequence[float],
    blocks: Mapping[str, Sequence[str]] | None = None,
    batch_dim: int = 0,
) -> tuple[list[Tensor], Tensor]:
    """Sum of clipped gradients and norms; `loss` returns the mean over the batch it is given."""
    module = copy.deepcopy(module).double()
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    blocks = blocks if blocks is not None else {"all": names}
    bounds = [max_grad_norm] * len(blocks) if isinstance(max_grad_norm, float | int) else list(max_grad_norm)
    batch = [tensor.double() if tensor.is_floating_point() else tensor for tensor in batch]
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    norms = []
    for i in range(batch[0].shape[batch_dim]):
        example = [tensor.narrow(batch_dim, i, 1) for tensor in batch]
        module.zero_grad()
        loss(module, example).backward()
        gradients = {
            n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in zip(names, parameters, strict=True)
        }
        row = []
        for members, bound in zip(blocks.values(), bounds, strict=True):
            norm = torch.stack([gradients[name].square().sum() for name in members]).sum().sqrt()
            row.append(norm)
            factor = min(1.0, bound / float(norm)) if norm > 0 else 1.0
            for name in members:
                sums[names.index(name)] += factor * gradients[name]
        norms.append(torch.stack(row))
    return sums, torch.stack(norms)


def assert_same(sums: Sequence[Tensor], norms: Tensor, expected: tuple[list[Tensor], Tensor], rtol: float) -> None:
    """Compare by relative error in the norm of each tensor, and every norm."""
    assert torch.allclose(norms.double(), expected[1], rtol=rtol, atol=1e-7), (norms, expected[1])
    scale = max(float(torch.linalg.vector_norm(total)) for total in expected[0])
    for index, (got, want) in enumerate(zip(sums, expected[0], strict=True)):
        assert got.dtype == torch.float32
        error = float(torch.linalg.vector_norm(got.double() - want))
        size = float(torch.linalg.vector_norm(want))
        assert error <= rtol * size + 1e-7 * scale, (index, tuple(want.shape), error, size)
