"""Confidence Auto-PAC, for reproduction only."""

import math

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import Positive, validated
from lightning_pac.information import check_budget
from lightning_pac.mechanisms.pac_noise.directions import Axes
from lightning_pac.mechanisms.pac_noise.gaussian import GaussianNoise

__all__ = ["confidence_auto_pac"]


@validated
def confidence_auto_pac(
    outputs: npt.ArrayLike, budget: float, confidence_budget: float, radius: Positive, security: Positive
) -> GaussianNoise:
    r"""Noise of $(1 - \gamma)$-confidence Auto-PAC from sampled outputs of an unknown law.

    With the sample covariance $U \mathrm{diag}(\lambda) U^T$, the share $v = \beta - \beta'$ and security parameter c,
    the noise variances are $\sqrt{\lambda_j'} \sum_i \sqrt{\lambda_i'} / (2v)$, $\lambda_j' = \lambda_j + 10cv/\beta'$,
    if the eigenvalues above c are separated from all others by more than $r\sqrt{dc} + 2c$, and $(\sum_j \lambda_j +
    dc)/(2v)$ in all directions otherwise.

    The link between sample size and confidence rests on a constant that the paper does not state, so the noise carries
    no certificate. The printed gap test includes the distance of an eigenvalue to itself and can never succeed; here it
    runs over different eigenvalues.

    Args:
        outputs: Sampled outputs, shape (m, d).
        budget: Total budget beta in nats.
        confidence_budget: The part beta' of it that pays for the estimation.
        radius: Public bound r on the length of an output.
        security: Security parameter c.

    Raises:
        ValueError: If an output is longer than the radius, or 0 < beta' < beta fails.

    Source: *Residual-PAC*, Algorithm 1.

    Example:
        >>> confidence_auto_pac([[0.0], [1.0]], 0.5, 0.1, radius=1.0, security=1e-3).power > 0.25 / 0.8
        True
    """
    matrix = np.asarray(outputs, dtype=np.float64)
    if matrix.ndim != 2 or len(matrix) < 2 or not np.isfinite(matrix).all():
        raise ValueError(f"outputs must be a finite array of shape (m, d) with m > 1, got shape {matrix.shape}.")
    if not 0 < confidence_budget < budget < math.inf:
        raise ValueError(
            f"confidence_budget is {confidence_budget} and budget {budget}, but the first must be positive and less."
        )
    check_budget(budget - confidence_budget)
    longest = float(np.linalg.norm(matrix, axis=1).max())
    if longest > radius:
        raise ValueError(f"radius is {radius:.6g}, but an output has length {longest:.6g}: clip outputs.")
    dimension = matrix.shape[1]
    share = budget - confidence_budget
    mean = matrix.mean(axis=0)
    eigenvalues, vectors = np.linalg.eigh((matrix - mean).T @ (matrix - mean) / len(matrix))
    # Rounding may leave the eigenvalue of a direction without variance below 0.
    eigenvalues = np.maximum(eigenvalues, 0.0)
    gaps = np.abs(eigenvalues[:, None] - eigenvalues)
    np.fill_diagonal(gaps, math.inf)
    large = eigenvalues > security
    if large.any() and gaps[large].min() > radius * math.sqrt(dimension * security) + 2 * security:
        roots = np.sqrt(eigenvalues + 10 * security * share / confidence_budget)
        variances = roots * roots.sum() / (2 * share)
    else:
        variances = np.full(dimension, (eigenvalues.sum() + dimension * security) / (2 * share))
    return GaussianNoise(Axes(mean, vectors), variances, None, "confidence Auto-PAC")
