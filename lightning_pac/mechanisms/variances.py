"""Gaussian noise of each direction for a budget, and the information a surrogate Gaussian would leak through it."""

from typing import Literal

import numpy as np

from lightning_pac._validation import Numbers, validated
from lightning_pac.information import Array

__all__ = ["linear_variances", "logdet_bound", "logdet_variances"]

CompositionRule = Literal["logdet", "linear"]

_MAX_STEPS = 200


@validated
def logdet_bound(eigenvalues: Numbers, variances: Numbers) -> Array:
    r"""Mutual information bound $\frac12 \sum_i \ln(1 + \lambda_i / e_i)$ in nats; a direction without signal adds 0.

    Args:
        eigenvalues: Variances of the output along the directions, shape (..., r).
        variances: Noise variances along the same directions, shape (..., r).

    Source: *PAC-Private Algorithms*, equation 4; *Residual-PAC*, Theorem 1.
    """
    try:
        signal, noise = np.broadcast_arrays(np.asarray(eigenvalues, np.float64), np.asarray(variances, np.float64))
    except ValueError as error:
        raise ValueError(f"eigenvalues and variances must fit: {error}") from None
    # Signal without noise is infinite information, and no error.
    with np.errstate(divide="ignore"):
        ratio = np.divide(signal, noise, out=np.zeros(signal.shape), where=signal > 0)
    return np.asarray(0.5 * np.log1p(ratio).sum(axis=-1))


@validated
def linear_variances(eigenvalues: Numbers, budget: Numbers) -> Array:
    r"""The linear rule $e_i = \sqrt{\lambda_i} \sum_j \sqrt{\lambda_j} / (2b)$, optimal for the bound $\ln(1+x) \le x$.

    Args:
        eigenvalues: Variances of the output along the directions, shape (..., r).
        budget: Mutual information budget b in nats, shape (...).

    Source: *PAC-Private Responses*, Theorem 2.4; *PAC-Private Algorithms*, Theorem 1.

    Example:
        >>> linear_variances([0.25], 0.5)
        array([0.25])
    """
    return share_linearly(np.atleast_1d(np.asarray(eigenvalues, np.float64)), np.asarray(budget, np.float64))


@validated
def logdet_variances(eigenvalues: Numbers, budget: Numbers) -> Array:
    r"""The least total noise variance with $\frac12 \sum_i \ln(1 + \lambda_i / e_i) = b$.

    In terms of $s = \sqrt{2/\nu}$ the optimum $e_i = \nu\lambda_i / (\lambda_i + \sqrt{\lambda_i^2 + 2\nu\lambda_i})$
    reads $e_i = \lambda_i / (e^{2 a_i} - 1)$ with $a_i = \operatorname{arsinh}(s \sqrt{\lambda_i} / 2)$, and its
    information is $\sum_i a_i$. That sum is concave in s, so Newton's steps from the linear rule's s stay at or below
    the budget.

    Args:
        eigenvalues: Variances of the output along the directions, shape (..., r).
        budget: Mutual information budget b in nats, shape (...).

    Source: *Residual-PAC*, Proposition 2; the form in s is ours.

    Example:
        >>> logdet_variances([0.25], 0.5).round(4)
        array([0.1455])
    """
    return share_optimally(np.atleast_1d(np.asarray(eigenvalues, np.float64)), np.asarray(budget, np.float64))


def share_linearly(signal: Array, budget: Array) -> Array:
    """`linear_variances` for the responder, which asks for every answer."""
    roots = np.sqrt(signal)
    return np.asarray(roots * roots.sum(axis=-1, keepdims=True) / (2 * budget[..., None]))


def share_optimally(signal: Array, budget: Array) -> Array:
    """`logdet_variances` for the responder, which asks for every answer."""
    target = np.broadcast_to(budget, signal.shape[:-1])[..., None]
    halves = np.sqrt(signal) / 2
    total = halves.sum(axis=-1, keepdims=True)
    # arsinh(x) <= x: the linear rule's s, at which the information is within the budget.
    scale = np.divide(target, total, out=np.zeros(total.shape), where=total > 0)
    for _ in range(_MAX_STEPS):
        argument = scale * halves
        gap = target - np.arcsinh(argument).sum(axis=-1, keepdims=True)
        slope = (halves / np.sqrt(1 + argument**2)).sum(axis=-1, keepdims=True)
        step = np.divide(gap, slope, out=np.zeros(total.shape), where=total > 0)
        # Relative steps below rounding change nothing.
        if not (step > 1e-15 * scale).any():
            break
        # From below the root Newton's steps are positive; a negative one is rounding.
        scale = scale + np.maximum(step, 0)
    information = np.arcsinh(scale * halves)
    # a = arsinh(s sqrt(lambda) / 2), and e^{2a} - 1 by expm1, since weak signals would cancel.
    variances: Array = np.divide(signal, np.expm1(2 * information), out=np.zeros(signal.shape), where=signal > 0)
    return variances
