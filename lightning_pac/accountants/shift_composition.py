"""Exact accounting of bounded integer noise: the privacy loss distribution of its T-fold release."""

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from dp_accounting.pld import pld_pmf

__all__ = ["ShiftComposition", "shift_hockey_stick"]

Array = npt.NDArray[np.float64]


class ShiftComposition:
    """T releases of a sensitivity-1 integer query plus noise p on {0..R}, accounted by privacy loss distribution.

    A neighbour may raise some of the T queries and lower others, in an order of its own choosing, and for asymmetric
    noise such a mixture can be worse than all up or all down. Both directions are therefore replaced by one pair of
    distributions whose hockey-stick divergence is the larger of the two at every epsilon: it dominates every mixture,
    adaptive ones too (ours; the pair exists by Zhu, Dong and Wang, 2022). It is discretised pessimistically (connect
    the dots, Doroshenko et al., 2022) and composed by `dp-accounting`.

    Args:
        probabilities: The noise, shape (R + 1,), not negative with sum one.
        compositions: Number T of releases.
        discretization: Step of the loss grid; None chooses one that is fine against the loss's own spread.

    Raises:
        ValueError: If the noise is not a distribution, or compositions is less than one.

    Example:
        >>> composition = ShiftComposition([0.001, 0.499, 0.499, 0.001], compositions=2)
        >>> composition.delta(epsilon=20.0) >= 1 - 0.999**2
        True
    """

    def __init__(
        self, probabilities: npt.ArrayLike, compositions: int = 1, discretization: float | None = None
    ) -> None:
        p = np.asarray(probabilities, dtype=np.float64)
        if p.ndim != 1 or not np.isfinite(p).all() or (p < 0).any() or abs(p.sum() - 1.0) > 1e-9:
            raise ValueError("probabilities must be one row of non-negative numbers with sum 1.")
        if compositions < 1:
            raise ValueError(f"compositions must be at least 1, got {compositions}.")
        self.compositions = compositions
        self.discretization = discretization or _fitting_step(p, compositions)
        single = _dominating_pmf(p, self.discretization)
        # What dp-accounting truncates it adds to delta: far below any delta of interest.
        self._composed = single.to_dense_pmf().self_compose(compositions, 1e-15)

    def delta(self, epsilon: float) -> float:
        """The least delta that goes with epsilon."""
        return float(self._composed.get_delta_for_epsilon(epsilon))

    def epsilon(self, delta: float) -> float:
        """The least epsilon that goes with delta; infinite where the tails alone spend it."""
        return float(self._composed.get_epsilon_for_delta(delta))


def shift_hockey_stick(probabilities: npt.ArrayLike, epsilon: npt.ArrayLike, shift: int = 1) -> Array:
    """The worst hockey-stick divergence between noise and the noise moved by `shift`, over both directions.

    `max(sum_y (p_y - e^eps p_{y-shift})_+, sum_y (p_{y-shift} - e^eps p_y)_+)`: the least delta of one release.

    Args:
        probabilities: The noise, shape (R + 1,).
        epsilon: One value or an array of them.
        shift: By how much neighbouring queries differ.

    Example:
        >>> float(shift_hockey_stick([0.25, 0.5, 0.25], epsilon=0.0))
        0.5
    """
    p = np.asarray(probabilities, dtype=np.float64)
    here, there = np.append(p, np.zeros(shift)), np.append(np.zeros(shift), p)
    epsilons = np.asarray(epsilon, dtype=np.float64)
    flat = np.atleast_1d(epsilons).ravel()
    worst = np.maximum(_hockey_sticks(here, there, flat), _hockey_sticks(there, here, flat))
    return worst.reshape(epsilons.shape)


def _hockey_sticks(upper: Array, lower: Array, epsilons: Array) -> Array:
    """`sum_y (upper_y - e^eps lower_y)_+` for every epsilon, sorting the losses once."""
    upper, lower = upper[upper > 0], lower[upper > 0]
    with np.errstate(divide="ignore"):
        losses = np.log(upper) - np.log(lower)
    order = np.argsort(losses)
    tail_upper = np.append(np.cumsum(upper[order][::-1])[::-1], 0.0)
    tail_lower = np.append(np.cumsum(lower[order][::-1])[::-1], 0.0)
    first = np.searchsorted(losses[order], epsilons, side="right")
    with np.errstate(over="ignore", invalid="ignore"):
        charged = np.exp(epsilons) * tail_lower[first]
    return np.asarray(np.maximum(tail_upper[first] - np.where(tail_lower[first] > 0, charged, 0.0), 0.0))


def _dominating_pmf(p: Array, step: float) -> "pld_pmf.PLDPmf":
    from dp_accounting.pld import pld_pmf

    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.abs(np.diff(np.log(p)))
    losses = losses[np.isfinite(losses)]
    reach = math.ceil((float(losses.max()) if losses.size else 0.0) / step) + 1
    epsilons = np.arange(-reach, reach + 1)
    deltas = np.minimum.accumulate(np.clip(shift_hockey_stick(p, epsilons * step), 0.0, 1.0))
    return pld_pmf.create_pmf_pessimistic_connect_dots(step, epsilons, deltas)


def _fitting_step(p: Array, compositions: int) -> float:
    """A step that inflates the loss's variance by about a thousandth, with at most a few million grid points."""
    positive = (p[1:] > 0) & (p[:-1] > 0)
    losses = np.log(p[1:][positive]) - np.log(p[:-1][positive])
    if not losses.size:
        return 1e-3
    spread = math.sqrt(float(np.minimum(p[1:], p[:-1])[positive] @ np.minimum(losses**2, 1.0)))
    reach = float(np.abs(losses).max())
    return min(max(spread / 16.0, reach / 1e6, 1e-7), 1e-3)
