r"""A curve alone as finitely many losses, so that what is known by its curve composes with everything else.

Let h be the hockey stick $h(\gamma) = \int (P - \gamma Q)_+$ of the releases in one order of the worlds, and delta a
bound on it at $\gamma = e^\varepsilon$ in both orders. As $(P - \gamma Q)_+ = P - \gamma Q + (\gamma Q - P)_+$,

.. math:: h(e^{-\varepsilon}) = 1 - e^{-\varepsilon} + e^{-\varepsilon} h'(e^\varepsilon)
          \le 1 - e^{-\varepsilon} (1 - \delta(\varepsilon)),

with h' for the other order, and $h(0) = 1$. h is convex and never rises, so it lies below every chord between points
that lie above it, hence below their lower convex hull, a broken line. A broken line is the hockey stick of a finite
pair: at a corner gamma where its slope rises by s, Q has the mass s and P the mass $\gamma s$ at the loss
$\ln \gamma$; beyond the last corner P has what is left, at an infinite loss. That pair dominates the releases, and so
composes in their place (Zhu, Dong and Wang 2022, theorem 10).
"""

from __future__ import annotations

import numpy as np

from lightning_pac.accountants.privacy_loss.curves import PrivacyCurve
from lightning_pac.accountants.privacy_loss.discretization import LossAtoms
from lightning_pac.information import Array

__all__ = ["curve_losses", "epsilon_grid", "lower_hull"]

# Of the chance of larger losses, which are charged as infinite ones.
_LEFT_OUT = 1e-20
_LARGEST = 600.0
_NUM_POINTS = 1500
# Bound on the rounding of a mass, as a share of h at the corner before: slopes are differences over steps of at least
# `_FINEST`, by which errors of 2^-52 grow to 1e-12.
_ROUNDING = 4e-12
_FINEST = 1e-3


def curve_losses(curve: PrivacyCurve) -> LossAtoms:
    """Losses of a finite pair that no release with this curve, in both orders of the worlds, is easier to tell than.

    Args:
        curve: delta at every epsilon, in both orders.
    """
    epsilons = epsilon_grid(curve)
    deltas = np.array([curve.delta(float(epsilon)) for epsilon in epsilons])
    right = np.minimum.accumulate(deltas)
    left = (-np.expm1(-epsilons) + np.exp(-epsilons) * right)[:0:-1]
    losses = np.concatenate([-epsilons[:0:-1], epsilons])
    heights = np.concatenate([left, right])
    corners = lower_hull(np.concatenate([[0.0], np.exp(losses)]), np.concatenate([[1.0], heights]))
    # gamma times the rise of the slope, from gaps of the losses, which keeps digits where gamma is small or large.
    gammas = np.concatenate([[0.0], np.exp(losses)])[corners]
    points = np.concatenate([[1.0], heights])[corners]
    slopes = np.append(np.diff(points) / np.diff(gammas), 0.0)
    masses = gammas[1:] * np.diff(slopes)
    kept = losses[corners[1:] - 1]
    raised = np.maximum(masses, 0.0) + _ROUNDING * points[:-1]
    return LossAtoms(kept, raised, float(heights[-1]), 4e-16 * float(np.abs(kept).max(initial=0.0)))


def epsilon_grid(curve: PrivacyCurve) -> Array:
    """Epsilons from 0 to where delta has hardly anything left to fall."""
    # Powers put more points where delta is largest; none are closer than the rounding of slopes allows.
    spaced = _reach(curve) * np.linspace(0.0, 1.0, _NUM_POINTS) ** 1.5
    return np.asarray(spaced[np.append(True, np.diff(np.floor(spaced / _FINEST)) > 0)])


def _reach(curve: PrivacyCurve) -> float:
    """An epsilon from which on delta has hardly anything left to fall."""
    reach = 1.0
    while reach < _LARGEST and curve.delta(reach) > _LEFT_OUT and curve.delta(2 * reach) < curve.delta(reach):
        reach *= 2
    low, high = 0.0, min(reach, _LARGEST)
    floor = max(_LEFT_OUT, curve.delta(high) * (1 + 1e-3))
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if curve.delta(middle) > floor else (low, middle)
    return max(high, 4 * _FINEST)


def lower_hull(x: Array, y: Array) -> Array:
    """Indices of the corners of the lower convex hull of points with rising x, the first and the last among them."""
    hull: list[int] = []
    for index in range(len(x)):
        while len(hull) > 1:
            before, last = hull[-2], hull[-1]
            # The last corner stays if the slope rises there.
            if (y[last] - y[before]) * (x[index] - x[last]) < (y[index] - y[last]) * (x[last] - x[before]):
                break
            hull.pop()
        hull.append(index)
    return np.array(hull)
