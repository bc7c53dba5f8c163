"""Entropies and divergences of discrete laws, in nats.

All functions work in log space and are vectorized over leading axes; laws lie along the last axis.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, xlogy

from lightning_pac._validation import validated

__all__ = [
    "Array",
    "binary_kl",
    "check_budget",
    "check_total_budget",
    "entropy",
    "kl_divergence",
    "renyi_divergence",
]

Array = npt.NDArray[np.float64]
"""An array of double-precision numbers."""

# Noise for less overflows beside ordinary outputs; a release that tells e^256 values apart hides nothing.
SMALLEST_BUDGET, LARGEST_BUDGET = 2.0**-100, 256.0


@validated
def binary_kl(p: npt.ArrayLike, q: npt.ArrayLike) -> Array:
    """Kullback-Leibler divergence of two Bernoulli laws, `p ln(p/q) + (1-p) ln((1-p)/(1-q))`.

    Each term is taken with `-p + q` beside it, which sum to 0, so that nearly equal laws lose no digits.

    Args:
        p: success probability of the first law, in [0, 1].
        q: success probability of the second law, in [0, 1]; broadcast against p.

    Returns:
        The divergence in nats, infinite where p is not absolutely continuous.

    Raises:
        ValueError: if a probability is outside [0, 1].

    Example:
        >>> print(f"{binary_kl(0.75, 0.5):.6f}")
        0.130812
    """
    first, second = np.broadcast_arrays(_probability("p", p), _probability("q", q))
    difference = first - second
    divergence: Array = (_excess(first, second, difference) + _excess(1 - first, 1 - second, -difference))[()]
    return divergence


def check_budget(budget: float | npt.NDArray[Any], name: str = "budget") -> None:
    """Refuse a budget of mutual information that no release can be made for.

    Args:
        budget: In nats: a number, or an array of any shape.
        name: The argument's name in the refusal.

    Raises:
        ValueError: If it is not positive and finite throughout, or not within 2^-100 and 256.
    """
    check_total_budget(budget, name)
    if isinstance(budget, int | float):
        within = SMALLEST_BUDGET <= budget <= LARGEST_BUDGET
    else:
        values = np.asarray(budget, dtype=np.float64)
        within = bool(((values >= SMALLEST_BUDGET) & (values <= LARGEST_BUDGET)).all())
    if not within:
        raise ValueError(
            f"{name} is {budget!r}, but a mutual information budget of a release must be from {SMALLEST_BUDGET:.2g} to "
            f"{LARGEST_BUDGET:g} nats: noise for less is beyond floating-point numbers, and more hides nothing."
        )


def check_total_budget(budget: float | npt.NDArray[Any], name: str = "budget") -> None:
    """Refuse a budget of mutual information that is none.

    Args:
        budget: In nats: a number, or an array of any shape.
        name: The argument's name in the refusal.

    Raises:
        ValueError: If it is not positive and finite throughout.
    """
    if isinstance(budget, int | float):  # asked for every answer of a responder
        positive = 0 < budget < math.inf
    else:
        values = np.asarray(budget, dtype=np.float64)
        positive = bool(((values > 0) & (values < math.inf)).all())
    if not positive:
        raise ValueError(f"{name} is {budget!r}, but a mutual information budget must be positive and finite.")


@validated
def entropy(weights: npt.ArrayLike) -> Array:
    """Shannon entropy `-sum_j P_j ln P_j`.

    Args:
        weights: probabilities, shape (..., m).

    Returns:
        Entropy in nats, shape (...).

    Example:
        >>> print(f"{entropy([0.5, 0.5]):.6f}")
        0.693147
    """
    probabilities = _law("weights", weights)
    nats: Array = -np.sum(xlogy(probabilities, probabilities), axis=-1) + 0.0
    return nats


@validated
def kl_divergence(p: npt.ArrayLike, q: npt.ArrayLike) -> Array:
    """Kullback-Leibler divergence `sum_j p_j ln(p_j / q_j)` of two laws on the same finite set.

    Args:
        p: first law, shape (..., m).
        q: second law, shape (..., m); broadcast against p.

    Returns:
        Divergence in nats, shape (...), infinite where p is not absolutely continuous.

    Example:
        >>> print(f"{kl_divergence([0.75, 0.25], [0.5, 0.5]):.6f}")
        0.130812
    """
    first, second = np.broadcast_arrays(_law("p", p), _law("q", q))
    # The terms -p + q sum to 0, and no summand is negative with them, so that nothing cancels.
    divergence: Array = np.sum(_excess(first, second, first - second), axis=-1)
    return divergence


@validated
def renyi_divergence(p: npt.ArrayLike, q: npt.ArrayLike, order: float) -> Array:
    """Rényi divergence `1/(a-1) ln sum_j p_j^a q_j^(1-a)` of two laws on the same finite set.

    Args:
        p: first law, shape (..., m).
        q: second law, shape (..., m); broadcast against p.
        order: `a`, above 0; order 1 is the Kullback-Leibler divergence and infinity the largest log-ratio.

    Returns:
        Divergence in nats, shape (...).

    Raises:
        ValueError: if the order is not positive.

    Example:
        >>> print(f"{renyi_divergence([0.75, 0.25], [0.5, 0.5], order=2):.6f}")
        0.223144
    """
    if not order > 0:
        raise ValueError(f"order is {order}, but a Rényi order is positive.")
    if order == 1:
        return kl_divergence(p, q)
    first, second = np.broadcast_arrays(_law("p", p), _law("q", q))
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.where(first > 0, np.log(first) - np.log(second), -math.inf)
    if math.isinf(order):
        return np.asarray(np.max(log_ratio, axis=-1))[()]
    # The mean of (p/q)^(a-1) over p, in which what p leaves out has no part.
    with np.errstate(over="ignore"):
        powers = np.where(first > 0, (order - 1) * log_ratio, 0.0)
    return np.asarray(np.maximum(log_mean_exp(powers, first) / (order - 1), 0.0))[()]


def log_mean_exp(exponents: npt.ArrayLike, weights: npt.ArrayLike) -> Array:
    """`ln sum_j w_j e^(x_j)` for weights of sum 1, with all its digits also where every exponent is near 0.

    Args:
        exponents: x, shape (..., m).
        weights: w, shape (m,) or (..., m); a rounding of their sum costs nothing.

    Returns:
        Shape (...).

    Example:
        >>> print(f"{log_mean_exp([1e-12, 3e-12], [0.5, 0.5]):.3e}")
        2.000e-12
    """
    values, shares = np.asarray(exponents, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    shares = shares / shares.sum(axis=-1, keepdims=True)
    largest = np.max(np.where(shares > 0, values, -math.inf), axis=-1)
    # Taking the ones off first leaves nothing to cancel. Larger powers would overflow, and next to a mean far below 1
    # the ones are all that is seen.
    excess = (np.expm1(np.minimum(values, 1.0)) * shares).sum(axis=-1)
    is_near = (largest < 1.0) & (excess > -0.5)
    with np.errstate(divide="ignore", invalid="ignore"):
        far = logsumexp(np.where(shares > 0, values + np.log(shares), -math.inf), axis=-1)
    return np.asarray(np.where(is_near, np.log1p(np.where(is_near, excess, 0.0)), far))[()]


def _excess(first: Array, second: Array, difference: Array) -> Array:
    """`p ln(p/q) - p + q` from p, q and p - q, never negative, by its series where those terms would cancel."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        t = difference / second
        # Far from 0, t may be rounded to -1 or be beyond floats, where p/q has a logarithm all the same.
        ratio = np.where(np.abs(t) < 0.5, np.log1p(t), np.log(first) - np.log(second))
        direct = np.where(first > 0, first * ratio - difference, second)
    # q sum_n (-t)^n / (n (n - 1)); below 0.01 the first term left out is less than 1e-21 of the sum.
    powers = np.arange(2, 12)
    small = np.abs(t) < 0.01
    series = np.sum((-1.0) ** powers * np.where(small, t, 0.0)[..., None] ** powers / (powers * (powers - 1)), axis=-1)
    return np.where(small, second * series, direct)


def _probability(name: str, value: npt.ArrayLike) -> Array:
    array = np.asarray(value, dtype=np.float64)
    if not array.size or not np.all((array >= 0) & (array <= 1)):
        raise ValueError(f"{name} is {value!r}, but a probability lies in [0, 1].")
    return array


def _law(name: str, value: npt.ArrayLike) -> Array:
    array = _probability(name, value)
    total = np.sum(array, axis=-1)
    if not np.allclose(total, 1, rtol=0, atol=1e-6):
        raise ValueError(f"{name} sums to {total}, but probabilities sum to 1: divide by their sum first.")
    return array
