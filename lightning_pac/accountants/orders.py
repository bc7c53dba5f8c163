"""Rényi orders that an account tracks, and what follows from a divergence at every one of them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import validated

__all__ = ["DEFAULT_ORDERS", "epsilon_at_delta"]

DEFAULT_ORDERS: tuple[float, ...] = (
    *(1.01, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0),
    *(14.0, 16.0, 20.0, 24.0, 28.0, 32.0, 40.0, 48.0, 64.0, 96.0, 128.0, 256.0),
)
"""Rényi orders that an account tracks beside its own; the low ones matter where epsilon is large."""


@validated
def epsilon_at_delta(orders: npt.ArrayLike, epsilons: npt.ArrayLike, delta: float) -> tuple[float, float]:
    """The smallest epsilon of an (epsilon, delta) guarantee that Rényi bounds imply.

    `min_a [eps(a) + ln((a-1)/a) - (ln delta + ln a)/(a-1)]`, at least 0 (Canonne, Kamath and Steinke, 2020,
    proposition 12).

    Args:
        orders: Rényi orders above 1, shape (n,).
        epsilons: divergence bound at each order, in both directions, shape (n,).
        delta: failure probability, in (0, 1).

    Returns:
        The epsilon and the order at which it is attained.

    Raises:
        ValueError: if delta is not in (0, 1) or an order is not above 1.

    Example:
        >>> epsilon, order = epsilon_at_delta([2.0, 8.0, 32.0], [0.02, 0.08, 0.32], delta=1e-5)
        >>> print(f"{epsilon:.3f} at order {order:.0f}")
        0.548 at order 32
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}, but a failure probability lies strictly between 0 and 1.")
    order, epsilon = np.asarray(orders, dtype=np.float64), np.asarray(epsilons, dtype=np.float64)
    if order.ndim != 1 or not order.size or not np.all(order > 1):
        raise ValueError("orders must be one row of Rényi orders above 1.")
    if epsilon.shape != order.shape:
        raise ValueError("epsilons must be one divergence for each of the orders.")
    converted = epsilon + np.log1p(-1 / order) - (math.log(delta) + np.log(order)) / (order - 1)
    # The bound holds at every order by itself, so a minimum over a coarse grid is sound, if not the least.
    best = int(np.argmin(converted))
    return max(0.0, float(converted[best])), float(order[best])
