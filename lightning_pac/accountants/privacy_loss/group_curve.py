r"""The curve of several records from that of one, by changing them one after the other.

Let g(a) be the largest power of a test of one world against the other at false alarms a, where they differ in one
record. Between worlds that differ in d records lie d - 1 others, each a record further, and a test of power
$g(\ldots g(a))$ at most tells the first from the last (Dong, Roth and Su 2022, theorem 2.14). g lies below all lines
$\delta(\varepsilon) + e^\varepsilon a$, also for $\varepsilon < 0$, where $\delta(-\varepsilon)$ is at most
$1 - e^{-\varepsilon} (1 - \delta(\varepsilon))$ by the other order of the worlds. Lines put into each other are a line
again, of slope $e^{\varepsilon_1 + \ldots + \varepsilon_d}$, above the power of d records everywhere: its offset
bounds their delta at the sum of the epsilons. Any choice of lines is a bound; those are taken that touch along the way
of some a.
"""

from __future__ import annotations

import numpy as np

from lightning_pac.accountants.privacy_loss.curve_losses import epsilon_grid, lower_hull
from lightning_pac.accountants.privacy_loss.curves import LatticeCurve, PrivacyCurve
from lightning_pac.information import Array

__all__ = ["group_curve"]

_NUM_WAYS = 4000
_NUM_POINTS = 6000
# Ways begin at false alarms down to e^-660, and the curve ends where its delta is that small, or e^epsilon overflows.
_RAREST = 660.0
_LEAST_DELTA = 1e-20
_LARGEST = 650.0
# Relative roundings of an offset: two operations in each link, each below 2^-53.
_ROUNDING = 1e-15


def group_curve(curve: PrivacyCurve, num_differing: int) -> PrivacyCurve:
    """A bound on the curve of worlds that differ in several records, in both orders.

    Args:
        curve: that of worlds that differ in any one of them, in both orders, whatever the others hold.
        num_differing: d.
    """
    if num_differing == 1:
        return curve
    logs, offsets = _lines(curve)
    # Lines are in the order of their slopes; of two neighbours the steeper is the lower one left of where they meet.
    slopes = np.exp(logs)
    meet = (offsets[:-1] - offsets[1:]) / np.diff(slopes)
    # Starts of ways: most of them near 1/2, from where the way of slope 1 begins if links are hardly told apart.
    alarms = 0.5 * np.exp(-_RAREST * np.linspace(0.0, 1.0, _NUM_WAYS) ** 3)
    totals, deltas = np.zeros(_NUM_WAYS), np.zeros(_NUM_WAYS)
    for _ in range(num_differing):
        # The number of meeting points to the right of a is the place of its line.
        line = len(meet) - np.searchsorted(meet[::-1], alarms, side="left")
        totals += logs[line]
        deltas = offsets[line] + slopes[line] * deltas
        alarms = np.minimum(1.0, offsets[line] + slopes[line] * alarms)
    deltas *= 1 + 3 * num_differing * _ROUNDING
    totals += 1e-12 * (1 + np.abs(totals))  # rounded upwards, where the same delta holds
    return _on_lattice(totals, deltas)


def _lines(curve: PrivacyCurve) -> tuple[Array, Array]:
    """Logarithms of the slopes, rising, and offsets of the lines that touch the largest power from above."""
    epsilons = epsilon_grid(curve)
    right = np.minimum.accumulate([curve.delta(float(epsilon)) for epsilon in epsilons])
    left = -np.expm1(-epsilons) + np.exp(-epsilons) * right
    logs = np.concatenate([-epsilons[:0:-1], epsilons])
    offsets = np.concatenate([left[:0:-1], right])
    corners = lower_hull(np.exp(logs), offsets)
    return logs[corners], offsets[corners]


def _on_lattice(epsilons: Array, deltas: Array) -> LatticeCurve:
    """Points of a convex function of `e^epsilon`, which never rises, as a curve on a lattice."""
    order = np.argsort(epsilons, kind="stable")
    epsilons, deltas = epsilons[order], np.minimum.accumulate(np.minimum(deltas[order], 1.0))
    small = np.flatnonzero((deltas <= _LEAST_DELTA) | (epsilons >= _LARGEST))
    last = float(epsilons[small[0] if len(small) else -1])
    lattice = np.linspace(0.0, max(last, 1e-6), _NUM_POINTS)
    step = float(lattice[1])
    right = np.searchsorted(epsilons, lattice, side="left")
    inside = (right > 0) & (right < len(epsilons))
    values = np.where(right == 0, 1.0, deltas[-1])
    below, above = epsilons[right[inside] - 1], epsilons[right[inside]]
    # On the chord in e^epsilon, written so that nothing overflows; a shorter way along it lies above a longer one.
    ways = np.exp(lattice[inside] - above) * np.expm1(below - lattice[inside]) / np.expm1(below - above)
    low, high = deltas[right[inside]], deltas[right[inside] - 1]
    values[inside] = high + (low - high) * ways * (1 - 1e-12)
    return LatticeCurve(0.0, step, np.minimum.accumulate(values))
