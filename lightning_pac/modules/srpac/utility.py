"""The cost of noise to the user: functions of draws (n, d) with values (n,)."""

import torch
from torch import Tensor, nn

from lightning_pac._validation import NonNegative, validated

__all__ = ["SquaredNorm", "SubspaceNorm", "WeightedNorm"]


class SquaredNorm(nn.Module):
    """Squared length, the papers' loss; its mean is the noise power."""

    def forward(self, noise: Tensor) -> Tensor:
        """Cost of each draw."""
        return (noise**2).sum(dim=-1)


@validated
class WeightedNorm(nn.Module):
    """Squared length with a weight for each coordinate.

    Args:
        weights: Non-negative, shape (d,).

    Raises:
        ValueError: If a weight is negative or there is not one for each coordinate.
    """

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        values = torch.as_tensor(weights, dtype=torch.float32)
        if values.ndim != 1 or not bool((values >= 0).all()):
            raise ValueError(f"weights must be one non-negative number for each coordinate, got {weights!r}.")
        self.register_buffer("weights", values)

    def forward(self, noise: Tensor) -> Tensor:
        """Cost of each draw."""
        return noise**2 @ self.get_buffer("weights").to(noise)


@validated
class SubspaceNorm(nn.Module):
    """Squared length, with noise inside a subspace that the task depends on counted more.

    Args:
        task_basis: Vectors that span the subspace, shape (d, t).
        weight: How much more.

    Raises:
        ValueError: If the weight is negative.

    Example:
        >>> SubspaceNorm(torch.tensor([[1.0], [0.0]]), weight=9.0)(torch.tensor([[1.0, 2.0]])).item()
        14.0
    """

    def __init__(self, task_basis: Tensor, weight: NonNegative) -> None:
        super().__init__()
        # An orthonormal basis Q, so that |Q^T b|^2 is the squared length inside the subspace.
        basis, _ = torch.linalg.qr(torch.as_tensor(task_basis, dtype=torch.float32))
        self.register_buffer("basis", basis)
        self.weight = weight

    def forward(self, noise: Tensor) -> Tensor:
        """Cost of each draw."""
        inside = noise @ self.get_buffer("basis").to(noise)
        return (noise**2).sum(dim=-1) + self.weight * (inside**2).sum(dim=-1)
