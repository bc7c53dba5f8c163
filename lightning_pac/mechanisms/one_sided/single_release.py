"""The least one-sided noise for one (epsilon, delta)-DP release."""

import math
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack, identity, vstack

from lightning_pac.information import Array

__all__ = ["linear_program_release", "optimal_release", "theorem_1_release"]


_MOST_VALUES = 3_000_000


def optimal_release(epsilon: float, delta: float) -> Array:
    """The noise of least moments, of every order at once, for one release of a sensitivity-1 integer query (ours).

    (epsilon, delta)-DP on half-lines bounds the distribution function F by the value before:
    `F_i <= min(e^eps F_{i-1} + delta, 1 - e^{-eps} (1 - F_{i-1} - delta), 1)`. Both bounds grow with `F_{i-1}`, so
    taking equality at every i gives the largest F there is; its ratios lie within `e^{+-eps}` but for the two ends,
    which spend delta exactly, so it is (epsilon, delta)-DP on every event. It is stochastically smallest, hence optimal
    for every nondecreasing cost, and equals the linear program. The paper's closed form (Theorem 1) scales the whole
    descending side instead of its end and is up to 1.3e-4 above.

    Args:
        epsilon: Privacy parameter, positive.
        delta: Failure probability in (0, 1).

    Returns:
        Probabilities of 0..R, with R the least there is.

    Raises:
        ValueError: If R would be above three million, which takes more than ten seconds.

    Example:
        >>> p = optimal_release(1.0, 1e-4)
        >>> round(float(p @ np.arange(p.size) ** 2), 3)
        75.377
    """
    # F grows from 0, and 1 - F falls to 0, by e^eps a value, beyond the first delta / (e^eps - 1).
    largest = 2 * math.log1p(math.expm1(min(epsilon, 700.0)) / (2 * delta)) / epsilon
    if largest > _MOST_VALUES:
        raise ValueError(
            f"epsilon is {epsilon} at delta {delta}, where noise reaches about {largest:.0e}: raise epsilon or delta."
        )
    shrinkage = math.exp(-epsilon)
    probabilities = []
    below, above = 0.0, 1.0  # F and 1 - F, each exact where it is small
    while above > 0.0:
        # The next step of F allowed by the ratio to the mass below, and by the ratio to the mass above.
        rise = math.expm1(epsilon) * below + delta
        fall = (1.0 - shrinkage) * above + shrinkage * delta
        step = min(rise, fall, above)
        probabilities.append(step)
        below += step
        # Where `fall` is taken, above - fall is written without its cancellation.
        above = max(0.0, shrinkage * (above - delta) if step == fall else above - step)
    p = np.array(probabilities)
    return np.asarray(p / p.sum())


def linear_program_release(epsilon: float, delta: float, max_value: int, sensitivity: int = 1) -> Array:
    """The least second moment on {0..R} by linear programming, over all shifts up to the sensitivity.

    Variables are scaled by delta, so that a solver's tolerance of 1e-7 is relative to delta and not to one. Dense in
    the sensitivity; for checking, and for small ranges.

    Args:
        epsilon: Privacy parameter, positive.
        delta: Failure probability in (0, 1).
        max_value: Largest allowed noise R.
        sensitivity: Largest difference s between neighbouring queries.

    Raises:
        ValueError: If no noise on {0..R} is private enough.

    Example:
        >>> p = linear_program_release(4.0, 1e-4, max_value=8)
        >>> round(float(p @ np.arange(9) ** 2), 3)
        7.556
    """
    size = max_value + 1
    growth = math.exp(epsilon)
    rows, columns = [], []
    for shift in range(1, sensitivity + 1):
        outputs = size + shift
        here = csr_matrix((np.ones(size), (np.arange(size), np.arange(size))), shape=(outputs, size))
        there = csr_matrix((np.ones(size), (np.arange(size) + shift, np.arange(size))), shape=(outputs, size))
        # Rows p_y - e^eps p_{y - shift} and the mirror image, one for each output y.
        for upper, lower in ((here, there), (there, here)):
            rows.append(upper - growth * lower)
            columns.append(outputs)
    # One slack a row holds the positive part of `p_y - e^eps p_{y-shift}`; each direction's slacks sum to delta
    # at most.
    excess = vstack(rows)
    total = excess.shape[0]
    sums = np.zeros((len(columns), total))
    start = 0
    for k, count in enumerate(columns):
        sums[k, start : start + count] = 1.0
        start += count
    above = hstack([excess, -identity(total)])
    within = hstack([csr_matrix((len(columns), size)), csr_matrix(sums)])
    # Over R^2, so that no cost is above 1.
    costs = np.concatenate([np.arange(size, dtype=np.float64) ** 2 / max(1, max_value) ** 2, np.zeros(total)])
    solution: Any = linprog(  # type: ignore[call-overload, unused-ignore]
        costs,
        A_ub=csr_matrix(vstack([above, within])),
        # In units of delta the slacks of a direction sum to 1 at most, and the probabilities to 1 / delta.
        b_ub=np.concatenate([np.zeros(total), np.ones(len(columns))]),
        A_eq=np.concatenate([np.ones(size), np.zeros(total)])[None, :],
        b_eq=np.array([1.0 / delta]),
        bounds=(0, None),
        method="highs",
    )
    if solution.status != 0:
        raise ValueError(
            f"No noise on 0..{max_value} makes one release ({epsilon:g}, {delta:g})-DP at sensitivity {sensitivity}: "
            "raise max_value, epsilon or delta."
        )
    p = np.maximum(np.asarray(solution.x[:size]), 0.0)
    return np.asarray(p / p.sum())


def theorem_1_release(epsilon: float, delta: float) -> Array:
    """The paper's closed form (Theorem 1), kept for the reproduction of its tables; `optimal_release` is smaller.

    Args:
        epsilon: Privacy parameter, positive.
        delta: Failure probability in (0, 1).

    Example:
        >>> p = theorem_1_release(1.0, 1e-4)
        >>> round(float(p @ np.arange(p.size) ** 2), 3)
        75.385
    """
    ratio = math.exp(epsilon)
    # The turning point of Theorem 1, then the falling side, rescaled to the mass that is left.
    omega = math.ceil(math.log(2.0 / (ratio + 1.0) + (ratio - 1.0) / (delta * (ratio + 1.0))) / epsilon)
    rising = delta * np.exp(epsilon * np.arange(omega))
    left = 1.0 - rising.sum()
    for last in (2 * omega, 2 * omega - 1):
        falling = delta * np.exp(epsilon * (2 * omega - np.arange(omega, last + 1)))
        scale = left / falling.sum()
        if scale >= math.exp(-2.0 * epsilon):
            break
    return np.concatenate([rising, scale * falling])
