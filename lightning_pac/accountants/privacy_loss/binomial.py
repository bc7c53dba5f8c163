"""Binomial probabilities to nearly all digits, with a proven bound on what rounding takes.

By logarithms of factorials, as SciPy has them, `ln P` lost 3e-10 of 10^5 trials, and all probabilities alike: over 10^6
steps their sum was 0.9999, and figures were too small by as much.
"""

from __future__ import annotations

import math

import numpy as np

from lightning_pac.information import Array

__all__ = ["ROUNDING", "log_binomial", "log_binomial_error"]

# Largest relative error of one operation in float64.
ROUNDING = 2.0**-53
# Below this, k ln(k / m) + m - k cancels, and is summed as a series instead.
_NEAR = 0.3
# ln k! - ln(sqrt(2 pi k) (k/e)^k): of a product near 1 for small k, which has all its digits, and by Stirling's series
# beyond, of which the next term is 1e-16.
_STIRLING = np.array(
    [0.0, *(math.log(math.factorial(k) / k**k * math.exp(k) / math.sqrt(2 * math.pi * k)) for k in range(1, 16))]
)


def log_binomial(number: int, rate: float) -> Array:
    """`ln P(k)` of the binomial law for k = 0, ..., number, shape (number + 1,), right to `log_binomial_error`.

    The saddle-point form of Loader (2000, Fast and accurate computation of binomial probabilities): nothing in it is
    much larger than the logarithm itself.

    Args:
        number: trials n.
        rate: probability q of a success, in (0, 1).
    """
    if number == 0:
        return np.zeros(1)
    logs = np.empty(number + 1)
    logs[0], logs[-1] = number * math.log1p(-rate), number * math.log(rate)
    inside = np.arange(1.0, number)  # both ends are powers
    missed = _stirling_error(np.arange(number + 1.0))
    logs[1:-1] = (
        missed[-1]
        - missed[1:-1]
        - missed[-2:0:-1]
        - 0.5 * np.log(2 * math.pi * inside * (number - inside) / number)
        - _deviance(inside, number * rate)
        - _deviance(number - inside, number * (1 - rate))
    )
    return logs


def log_binomial_error(number: int, rate: float, counts: Array, logs: Array) -> float:
    r"""A bound on the errors of `log_binomial` at these counts, which is also one on their relative errors after `exp`.

    With $u = 2^{-53}$: the three errors of Stirling's formula, below 1/12, and half a logarithm, below 25, are right to
    60 u. A deviance is right to 21 u of itself: near the mean the first term of its series has five operations and the
    rest is at most a seventh of it, and further away quotient, logarithm, product and difference lose at most 3.3 k u,
    where it is at least 0.157 k. Its derivative in the mean m is $1 - k/m$, so that two rounded means add $3 u |k - n
    q|$, since the second has two roundings. Both deviances together are at most $|\ln P|$, as the other factors are at
    most 1. The remaining 68 u and 3 u of $|\ln P|$ are for the last sums and for `exp`.

    Args:
        number: trials n.
        rate: probability q of a success.
        counts: successes k, shape (terms,).
        logs: `ln P(k)`, shape (terms,).
    """
    furthest = float(np.abs(counts - number * rate).max())
    return ROUNDING * (128 + 24 * float(np.abs(logs).max()) + 3 * furthest)


def _stirling_error(counts: Array) -> Array:
    inverse = 1 / np.maximum(counts, 1.0)
    square = inverse**2
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188))))
    series[:16] = _STIRLING[: len(counts)]
    return np.asarray(series)


def _deviance(counts: Array, mean: float) -> Array:
    """`k ln(k / m) + m - k`, which is not negative, for counts k from 1 and a mean m."""
    log_ratio = np.log(counts) - math.log(mean) if mean < 1 else np.log(counts / mean)  # no quotient overflows
    far = counts * log_ratio + (mean - counts)
    # With v = (k - m) / (k + m): (k - m) v + 2 k (v^3 / 3 + v^5 / 5 + ...).
    v = (counts - mean) / (counts + mean)
    near = np.abs(v) < _NEAR
    counts, v = counts[near], v[near]
    square, tail = v * v, np.zeros_like(v)
    for odd in range(35, 1, -2):
        tail = square * (tail + 1 / odd)
    far[near] = (counts - mean) * v + 2 * counts * v * tail
    return np.asarray(far)
