"""Families of noise whose shape a leader can train."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_pac._validation import Count, Positive, validated
from lightning_pac.mechanisms import MixtureNoise

__all__ = [
    "DiagonalGaussian",
    "FixedNoise",
    "FullGaussian",
    "GaussianMixture",
    "IsotropicGaussian",
    "LowRankGaussian",
    "Perturbation",
    "TaskSubspaceGaussian",
]


@validated
class Perturbation(nn.Module, ABC):
    r"""Noise $\sum_k w_k \mathcal{N}(\mu_k, L_k L_k^T)$ with parameters; a subclass says what `components` are.

    Training draws it from torch's generator, since nothing drawn in training is released.

    Args:
        dimension: Number d of coordinates of the output.

    Raises:
        ValueError: If the dimension is not positive.
    """

    def __init__(self, dimension: Count) -> None:
        super().__init__()
        self.dimension = dimension
        self.log_scale = nn.Parameter(torch.zeros(()))

    @abstractmethod
    def shape(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weights (K,), means (K, d) and lower triangular loadings (K, d, d), before the common scale."""

    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weights (K,), means (K, d) and loadings (K, d, d)."""
        log_weights, means, loadings = self.shape()
        scale = self.log_scale.exp()
        return log_weights, means * scale, loadings * scale

    def rsample(self, size: Count) -> tuple[Tensor, Tensor]:
        """Reparametrized draws, shape (size, d), and factors for whatever is averaged over them, shape (size,).

        The factors are 1. They carry the gradient of a mixture's weights, which the draws cannot: which component was
        drawn is no smooth function of them.
        """
        log_weights, means, loadings = self.components()
        chosen = torch.multinomial(log_weights.detach().exp(), size, replacement=True)
        normals = torch.randn(size, self.dimension, device=means.device, dtype=means.dtype)
        # mu_k + L_k z with k drawn for each row, shape (size, d).
        noise = means[chosen] + torch.einsum("kde,ke->kd", loadings[chosen], normals)
        drawn = log_weights[chosen]
        # One in value, with the gradient of ln w_k: the score-function estimator.
        return noise, torch.exp(drawn - drawn.detach())

    def log_prob(self, noise: Tensor) -> Tensor:
        """Log-density of noise, shape (..., d) to (...)."""
        log_weights, means, loadings = self.components()
        terms = []
        for log_weight, mean, loading in zip(log_weights, means, loadings, strict=True):
            rows = (noise - mean).reshape(-1, self.dimension)
            # ln w - ln det L - d / 2 ln(2 pi) - |L^-1 (b - mu)|^2 / 2, with no inverse formed.
            whitened = torch.linalg.solve_triangular(loading, rows.T, upper=False).T
            squares = (whitened**2).sum(dim=1).reshape(noise.shape[:-1])
            log_determinant = loading.diagonal().log().sum()
            constant = log_weight - log_determinant - self.dimension / 2 * math.log(2 * math.pi)
            terms.append(constant - squares / 2)
        # Far out every density underflows, so components are added in log space.
        return torch.logsumexp(torch.stack(terms), dim=0)

    def power(self) -> Tensor:
        """Expected squared length."""
        log_weights, means, loadings = self.components()
        # E |B|^2 = sum_k w_k (tr L_k L_k^T + |mu_k|^2).
        return (log_weights.exp() * ((loadings**2).sum(dim=(1, 2)) + (means**2).sum(dim=1))).sum()

    def noise(self) -> MixtureNoise:
        """The noise as it is now, in float64, for certification."""
        with torch.no_grad():
            log_weights, means, loadings = (part.double().cpu().numpy() for part in self.components())
        weights = np.exp(log_weights)
        # Float32 weights sum to one up to 1e-7 only.
        return MixtureNoise(weights / weights.sum(), means, np.tril(loadings))

    @torch.no_grad()
    def scale_(self, factor: Positive) -> None:
        """Multiply the noise by a positive factor."""
        self.log_scale.add_(math.log(factor))

    def _single(self, loading: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return loading.new_zeros(1), loading.new_zeros(1, self.dimension), loading[None]


@validated
class FixedNoise(Perturbation):
    """Noise as it was certified, with nothing to train: for a decoder to play against.

    Args:
        noise: The noise.

    Example:
        >>> round(FixedNoise(MixtureNoise.gaussian([[2.0]])).power().item(), 4)
        2.0
    """

    def __init__(self, noise: MixtureNoise) -> None:
        super().__init__(noise.dimension)
        self.log_scale.requires_grad_(False)
        self.register_buffer("log_weights", torch.from_numpy(np.log(noise.weights)).float())
        self.register_buffer("means", torch.from_numpy(noise.means).float())
        self.register_buffer("loadings", torch.from_numpy(noise.loadings).float())

    @override
    def shape(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.get_buffer("log_weights"), self.get_buffer("means"), self.get_buffer("loadings")


@validated
class IsotropicGaussian(Perturbation):
    """Equal, independent noise on all coordinates.

    Example:
        >>> IsotropicGaussian(3).power().item()
        3.0
    """

    @override
    def shape(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._single(torch.eye(self.dimension).to(self.log_scale))


@validated
class DiagonalGaussian(Perturbation):
    """Independent noise with a deviation for each coordinate.

    Args:
        dimension: Coordinates of a release, d.
    """

    def __init__(self, dimension: Count) -> None:
        super().__init__(dimension)
        self.log_deviations = nn.Parameter(torch.zeros(dimension))

    @override
    def shape(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._single(torch.diag(self.log_deviations.exp()))


@validated
class FullGaussian(Perturbation):
    """Gaussian noise with any covariance, through its Cholesky factor.

    Args:
        dimension: Coordinates of a release, d.
    """

    def __init__(self, dimension: Count) -> None:
        super().__init__(dimension)
        self.log_diagonal = nn.Parameter(torch.zeros(dimension))
        self.lower = nn.Parameter(torch.zeros(dimension, dimension))

    @override
    def shape(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._single(torch.tril(self.lower, -1) + torch.diag(self.log_diagonal.exp()))


@validated
class LowRankGaussian(Perturbation):
    """Gaussian noise with covariance `F F^T` plus a diagonal, F of shape (d, rank).

    Args:
        dimension: Coordinates of a release, d.
        rank: Columns of F.

    Raises:
        ValueError: If the rank is not from 1 to the dimension.
    """

    def __init__(self, dimension: Count, rank: Count) -> None:
        super().__init__(dimension)
        if rank > dimension:
            raise ValueError(f"rank is {rank}, but must be at most {dimension}, the dimension.")
        self.factor = nn.Parameter(torch.randn(dimension, rank) / math.sqrt(dimension))
        self.log_deviations = nn.Parameter(torch.zeros(dimension))

    @override
    def shape(self) -> tuple[Tensor, Tensor, Tensor]:
        # The diagonal keeps the covariance of full rank, so that the density exists.
        covariance = self.factor @ self.factor.T + torch.diag((2 * self.log_deviations).exp())
        return self._single(torch.linalg.cholesky(covariance))


@validated
class GaussianMixture(Perturbation):
    """A mixture of Gaussians with mean 0, each component with its own mean and covariance.

    Only bounds that hold for any noise certify it. The log-det formula with its covariance is not one of them.

    Args:
        dimension: Coordinates of a release, d.
        num_components: Number of Gaussians.

    Raises:
        ValueError: If there is no component.
    """

    def __init__(self, dimension: Count, num_components: Count) -> None:
        super().__init__(dimension)
        self.logits = nn.Parameter(torch.zeros(num_components))
        self.means = nn.Parameter(torch.randn(num_components, dimension) / 2)
        self.log_diagonal = nn.Parameter(torch.zeros(num_components, dimension))
        self.lower = nn.Parameter(torch.zeros(num_components, dimension, dimension))

    @override
    def shape(self) -> tuple[Tensor, Tensor, Tensor]:
        log_weights = torch.log_softmax(self.logits, dim=0)
        # Centred, so that the noise has mean 0 whatever the optimizer does.
        means = self.means - log_weights.exp() @ self.means
        return log_weights, means, torch.tril(self.lower, -1) + torch.diag_embed(self.log_diagonal.exp())


@validated
class TaskSubspaceGaussian(Perturbation):
    """Gaussian noise with its own deviations inside and outside a subspace that the task depends on.

    Whatever is left without noise is told exactly, so the noise inside may become small but not zero.

    Args:
        dimension: Number d of coordinates.
        task_basis: Vectors that span the subspace, shape (d, t), t < d.

    Raises:
        ValueError: If the basis does not span a proper subspace.
    """

    def __init__(self, dimension: Count, task_basis: Tensor | Sequence[Sequence[float]]) -> None:
        super().__init__(dimension)
        try:
            basis = torch.as_tensor(task_basis, dtype=torch.float32)
        except (TypeError, ValueError) as error:
            raise type(error)(f"task_basis must be rows of numbers, equally long: {error}.") from error
        if basis.ndim != 2 or len(basis) != dimension or not 1 <= basis.shape[1] < dimension:
            raise ValueError(f"task_basis must have shape (d, t) with d = {dimension} > t, got {tuple(basis.shape)}.")
        # The left singular vectors span the subspace first and its complement after.
        left, sizes, _ = torch.linalg.svd(basis, full_matrices=True)
        # Smaller singular values are not told from rounding in float32.
        if not sizes[-1] > 1e-6 * sizes[0]:
            raise ValueError("task_basis must hold linearly independent vectors.")
        self.register_buffer("directions", left)
        self.log_deviations = nn.Parameter(torch.zeros(dimension))

    @override
    def shape(self) -> tuple[Tensor, Tensor, Tensor]:
        directions = self.get_buffer("directions")
        # sum_j s_j^2 u_j u_j^T over the directions u_j inside and outside of the subspace.
        covariance = (directions * (2 * self.log_deviations).exp()) @ directions.T
        return self._single(torch.linalg.cholesky(covariance))
