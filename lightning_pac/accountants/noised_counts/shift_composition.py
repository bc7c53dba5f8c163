"""Exact accounting of bounded integer noise: what the worst adaptive neighbour tells from T releases."""

import math

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import validated
from lightning_pac.accountants.noised_counts.loss_induction import HockeyStickCurve, ReleaseLoss, backward_induction
from lightning_pac.information import Array

__all__ = ["ShiftComposition", "shift_hockey_stick"]

_MAX_BLOCK = 1024
_COARSEST_STEP = 2.0**-10


@validated
class ShiftComposition:
    r"""T releases of a sensitivity-1 integer query plus noise p on {0..R}, accounted against adaptive neighbours.

    A neighbour may raise the query by one, lower it by one or leave it, in each release anew and by all that was
    released before; the two directions of asymmetric noise cost differently, and a mixture can cost more than either.
    What the worst neighbour reaches is computed by backward induction over the privacy loss.

    **Theorem** (ours). Let `L_up` and `L_down` be the losses `ln p_e / p_{e-1}` and `ln p_e / p_{e+1}` of one draw e.
    The largest hockey-stick divergence between the releases of any two neighbours is $V_0(0)$, where
    $V_T(l) = (1 - e^{\epsilon - l})_+$ and $V_t(l) = \max_d E[V_{t+1}(l + L_d)]$ over d = up, down.

    *Proof.* Fix what a neighbour does. Each shift is a function of the past releases (to show random choices of its own
    to the observer only helps), so both runs' laws P and Q are products of conditional pairs, and
    `sum (P - e^epsilon Q)_+` is the expectation under P of $(1 - e^{\epsilon - L})_+$, L being the sum of the T losses.
    Given the past, what is left to maximise depends on it through the loss so far alone. By induction from the last
    release, no strategy gets more than $V_t$ there, and to take a maximising direction at every loss gets it: the
    worst strategy is deterministic. As a function of weights a and b of the two runs, $a V_t(\ln a / b)$ is convex and
    homogeneous, hence not raised by garbling an output and not lowered by one more release: to leave a query as it is
    never helps, and mixtures of shifts (`stretch`) are covered. Exchanging the runs exchanges up and down, so both
    orders of the pair have the same value.

    Up to 1,024 releases are followed one by one. More are divided into equal blocks. The value of a block, as a
    function of epsilon, is the hockey-stick curve of one pair of distributions, which dominates all that a neighbour
    can do within the block (Zhu, Dong and Wang, 2022); these pairs are composed by the same induction. That is an upper
    bound, and never more than one dominating pair for each release gives. It is close to the value where blocks are
    long: what sets the directions apart is the skewness of the loss, which falls with the root of a block's length.

    Args:
        probabilities: The noise, shape (R + 1,), not negative with sum one.
        compositions: Number T of releases.
        discretization: Largest step of the loss grid; None chooses one that is fine against the loss's own spread. All
            roundings are upwards.

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
        if discretization is not None and not 0 < discretization < math.inf:
            raise ValueError(f"discretization must be positive and finite, got {discretization!r}.")
        self.compositions = compositions
        p = p / p.sum()  # the noise that is drawn; the sum may miss 1 a little, and by as much in every release
        # Both laws over the outputs 0, ..., R + 1, the second query being one higher.
        here, there = np.append(p, 0.0), np.append(0.0, p)
        directions = [ReleaseLoss.between(here, there), ReleaseLoss.between(there, here)]
        self.discretization = _exact_step(discretization or _fitting_step(directions))
        self._curve = _compose(directions, compositions, self.discretization)

    def delta(self, epsilon: float) -> float:
        """The least delta that goes with epsilon."""
        return self._curve.delta(epsilon)

    def epsilon(self, delta: float) -> float:
        """The least epsilon that goes with delta; infinite where the tails alone spend it."""
        return self._curve.epsilon(delta)


@validated
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
    if p.ndim != 1:
        raise ValueError(f"probabilities has shape {p.shape}, but must be one row of noise.")
    if np.isnan(epsilon).any():
        raise ValueError("epsilon must hold no NaN.")
    if shift < 0:
        raise ValueError(f"shift is {shift}, but must not be negative.")
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
    # Sorted by loss, the positive part is a tail: its sums under both laws are cumulated once for all epsilons.
    order = np.argsort(losses)
    tail_upper = np.append(np.cumsum(upper[order][::-1])[::-1], 0.0)
    tail_lower = np.append(np.cumsum(lower[order][::-1])[::-1], 0.0)
    first = np.searchsorted(losses[order], epsilons, side="right")
    # e^epsilon may overflow where the lower law has no mass left, and counts nothing there.
    with np.errstate(over="ignore", invalid="ignore"):
        charged = np.exp(epsilons) * tail_lower[first]
    return np.asarray(np.maximum(tail_upper[first] - np.where(tail_lower[first] > 0, charged, 0.0), 0.0))


def _compose(releases: list[ReleaseLoss], count: int, step: float) -> HockeyStickCurve:
    """The curve of `count` releases; in blocks of equal length, and again in blocks of blocks, where there are many."""
    while True:
        num_blocks = math.ceil(count / _MAX_BLOCK)
        length = math.ceil(count / num_blocks)
        curve = backward_induction(releases, length, step)
        if num_blocks == 1:
            return curve
        # The loss of a block spreads like the root of its length, and so may the grid.
        coarsening = 2 ** (int(math.log2(length)) // 2)
        releases, count, step = [curve.as_release(coarsening)], num_blocks, curve.step * coarsening


def _fitting_step(directions: list[ReleaseLoss]) -> float:
    """A step that inflates the loss's variance by about a thousandth."""
    # Splitting losses between points h apart adds h^2 / 6 to their variance on average: 1/864 of it at h = spread / 12.
    spread = max(direction.spread for direction in directions)
    return min(spread / 12.0, _COARSEST_STEP) if spread > 0.0 else _COARSEST_STEP


def _exact_step(step: float) -> float:
    # Three significant bits: multiples are then exact, so that no loss is rounded to the wrong side of a grid point.
    unit = 2.0 ** (math.floor(math.log2(step)) - 2)
    return unit * math.floor(step / unit)
