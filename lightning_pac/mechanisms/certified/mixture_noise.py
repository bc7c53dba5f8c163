"""Noise of full rank whose density is known: a Gaussian, or a mixture of Gaussians."""

import dataclasses
import math

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dtrcon
from scipy.special import logsumexp

from lightning_pac._validation import Finite, Matrix, MatrixLike, Natural, validated
from lightning_pac.information import Array
from lightning_pac.randomness import SecureGenerator, secure_generator

__all__ = ["MixtureNoise"]

# A loading of this size takes 128 MiB.
LARGEST_DIMENSION = 4096


@validated
@dataclasses.dataclass(frozen=True, eq=False)
class MixtureNoise:
    r"""Noise B with density $\sum_k w_k \mathcal{N}(\mu_k, L_k L_k^T)$; one component is ordinary Gaussian noise.

    Attributes:
        weights: w, positive with sum 1, shape (K,); what they miss of it, 1e-6 at most, is shared out.
        means: Component means, shape (K, d).
        loadings: Lower triangular L_k with a positive diagonal, shape (K, d, d).

    Raises:
        ValueError: If the shapes do not match, a value is not finite, a component has no full rank, or d > 4096.

    Example:
        >>> MixtureNoise.gaussian(np.diag([4.0, 1.0])).power
        5.0
    """

    weights: Array
    means: Array
    loadings: Array

    def __post_init__(self) -> None:
        size, dimension = self.means.shape if self.means.ndim == 2 else (0, 0)
        if dimension == 0 or dimension > LARGEST_DIMENSION:
            raise ValueError(
                f"means has shape {self.means.shape}, but must be (K, d), d at most {LARGEST_DIMENSION}: release fewer."
            )
        if self.weights.shape != (size,) or self.loadings.shape != (size, dimension, dimension):
            raise ValueError(
                f"weights {self.weights.shape}, means {self.means.shape} and loadings {self.loadings.shape} do not "
                "describe one mixture: they must be (K,), (K, d) and (K, d, d)."
            )
        if not all(np.isfinite(part).all() for part in (self.weights, self.means, self.loadings)):
            raise ValueError("weights, means and loadings must be finite: the training of the noise diverged.")
        if not (self.weights > 0).all() or not math.isclose(float(self.weights.sum()), 1.0, abs_tol=1e-6):
            raise ValueError(f"weights must be positive with sum 1, got {self.weights!r}.")
        # A density that integrates to less than 1 would look as if it hid more.
        object.__setattr__(self, "weights", self.weights / self.weights.sum())
        if not (np.diagonal(self.loadings, axis1=1, axis2=2) > 0).all():
            raise ValueError("loadings must have positive diagonals: every noise component must have full rank.")

    @classmethod
    def gaussian(cls, covariance: MatrixLike) -> "MixtureNoise":
        """Gaussian noise with this covariance, shape (d, d).

        Raises:
            ValueError: If it is not square, symmetric and positive definite.
        """
        matrix = np.asarray(covariance, dtype=np.float64)
        try:
            # The factorization reads one triangle alone.
            if matrix.shape[0] != matrix.shape[1] or np.abs(matrix - matrix.T).max() > 1e-9 * np.abs(matrix).max():
                raise np.linalg.LinAlgError
            loading = np.asarray(np.linalg.cholesky(matrix), np.float64)
        except np.linalg.LinAlgError:
            raise ValueError(
                f"covariance, of shape {matrix.shape}, must be square, symmetric and positive definite: every "
                "direction needs noise, so leave out coordinates that follow from others."
            ) from None
        return cls(np.ones(1), np.zeros((1, len(loading))), loading[None])

    @property
    def dimension(self) -> int:
        """Number d of coordinates."""
        return int(self.means.shape[1])

    @property
    def is_gaussian(self) -> bool:
        """Whether there is one component, so that what is proven of Gaussian noise alone holds."""
        return len(self.weights) == 1

    @property
    def power(self) -> float:
        """Expected squared length."""
        # E|B|^2 = sum_k w_k (|L_k|_F^2 + |mu_k|^2).
        return float(self.weights @ ((self.loadings**2).sum(axis=(1, 2)) + (self.means**2).sum(axis=1)))

    @property
    def smallest_deviation(self) -> float:
        """Smallest standard deviation of any component in any direction."""
        # The singular values of L_k are the deviations along the component's principal axes.
        return float(min(np.linalg.svd(loading, compute_uv=False)[-1] for loading in self.loadings))

    @property
    def whitening_error(self) -> float:
        """Largest part of its length by which rounding moves a whitened vector."""
        worst = 1.0
        for loading in self.loadings:
            # Scaling rows does not change how forward substitution rounds, so the condition is taken without it.
            reciprocal, _ = dtrcon(loading / np.diagonal(loading)[:, None], norm="I", uplo="L", diag="U")
            # The relative error of a triangular solve is at most about d eps times the condition number.
            worst = max(worst, 1 / reciprocal if reciprocal > 0 else math.inf)
        return float(self.dimension * np.finfo(np.float64).eps * worst)

    @property
    def envelope(self) -> tuple["MixtureNoise", float]:
        """The Gaussian of the same second moment, and how many units of a component go into one of its own at most."""
        if self.is_gaussian:
            return self, 1.0
        envelope = MixtureNoise.gaussian(self.second_moment())
        # |L_k^-1 L|_2: the longest that a unit of the envelope can be in units of component k.
        ratios = [np.linalg.norm(self.whiten(envelope.loadings[0].T, k), 2) for k in range(len(self.weights))]
        return envelope, float(max(ratios))

    def second_moment(self) -> Array:
        """Expectation of B B^T, shape (d, d); the covariance, where the noise has mean 0."""
        # sum_k w_k (L_k L_k^T + mu_k mu_k^T).
        components = self.loadings @ self.loadings.transpose(0, 2, 1)
        components = components + self.means[:, :, None] * self.means[:, None, :]
        return np.asarray(np.tensordot(self.weights, components, axes=1))

    def scaled(self, factor: Finite) -> "MixtureNoise":
        """The noise times a positive factor."""
        if not bool((np.diagonal(self.loadings * factor, axis1=1, axis2=2) > 0).all()):
            raise ValueError(f"factor is {factor}, but must be positive, and not so small that nothing is left.")
        return MixtureNoise(self.weights, self.means * factor, self.loadings * factor)

    def sample(self, size: Natural, generator: SecureGenerator | None = None) -> Array:
        """Draw noise, shape (size, d)."""
        source = secure_generator() if generator is None else generator
        normals = source.normal((size, self.dimension))
        if self.is_gaussian:
            return np.asarray(self.means[0] + normals @ self.loadings[0].T)
        # Choose the component of every draw first, then colour the normals by it.
        cumulative = np.cumsum(self.weights)
        chosen = np.searchsorted(cumulative, source.uniform(size) * cumulative[-1])
        noise = np.empty_like(normals)
        for component, (mean, loading) in enumerate(zip(self.means, self.loadings, strict=True)):
            drawn = chosen == component
            noise[drawn] = mean + normals[drawn] @ loading.T
        return noise

    def whiten(self, values: Matrix, component: Natural = 0) -> Array:
        """Values in units of one component: $L_k^{-1} v$, shape (n, d)."""
        return np.asarray(solve_triangular(self.loadings[component], values.T, lower=True).T)

    def log_normalizer(self, component: Natural = 0) -> float:
        """Logarithm of a component's density at its mean."""
        # -ln det L_k - d/2 ln(2 pi), by the logarithms of the diagonal: the determinant itself underflows.
        diagonal = np.diagonal(self.loadings[component])
        return float(-np.log(diagonal).sum() - 0.5 * self.dimension * math.log(2 * math.pi))

    def log_density(self, values: MatrixLike) -> Array:
        """Logarithm of the density at values of shape (n, d)."""
        points = np.asarray(values, dtype=np.float64)
        terms = [
            math.log(weight) + self.log_normalizer(k) - 0.5 * (self.whiten(points - self.means[k], k) ** 2).sum(axis=1)
            for k, weight in enumerate(self.weights)
        ]
        # Far from all components every term underflows, and its logarithm does not.
        return np.asarray(logsumexp(terms, axis=0))
