"""The cheapest upward channel of bounded maximal leakage (Alg. 2)."""

import math

import numpy as np
import numpy.typing as npt

from lightning_pac._shown import shows_itself
from lightning_pac._validation import PrivateInteger, validated
from lightning_pac.information import Array
from lightning_pac.mechanisms.one_sided.distributions import draw_units, in_units
from lightning_pac.randomness import SecureGenerator, secure_generator

__all__ = ["LeakageChannel", "maximal_leakage", "optimal_channel"]

# Rounding of exponents up to 1,000, among them that of the smallest float, never understates a bound.
_UPWARDS = 1 + 2.0**-30


@shows_itself
class LeakageChannel:
    """Shows, for each true state, a random state at least as high.

    Args:
        transition: Probability of showing state j for input i, shape (n, m), rows with sum one.
        states: True state of each input, shape (n,).
        expected_cost: Mean cost under the prior it was designed for.
        generator: Source of the draws; None takes the process's secure generator.

    Raises:
        ValueError: If a row is not a distribution, or shows a state below the true one.
    """

    def __init__(
        self,
        transition: npt.ArrayLike,
        states: npt.ArrayLike,
        expected_cost: float,
        generator: SecureGenerator | None = None,
    ) -> None:
        self._transition = np.array(transition, dtype=np.float64)
        self._states = np.array(states, dtype=np.int64)
        below = np.arange(self._transition.shape[1])[None, :] < self._states[:, None]
        rows = self._transition.sum(axis=1)
        if (self._transition < 0).any() or (np.abs(rows - 1.0) > 1e-9).any() or (self._transition[below] != 0).any():
            raise ValueError(
                "transition must hold distributions over the states from each input's own upwards: rows of "
                "non-negative numbers with sum 1, zero below the true state."
            )
        # What is drawn has exactly these probabilities.
        units = np.stack([in_units(row) for row in self._transition])
        self._cumulative = np.cumsum(units, axis=1)
        self._transition = np.asarray(units / float(units[0].sum()), dtype=np.float64)
        self._expected_cost = float(expected_cost)
        self._generator = generator

    @property
    def transition(self) -> Array:
        """Probability of showing state j for input i, shape (n, m)."""
        return self._transition

    @property
    def states(self) -> npt.NDArray[np.int64]:
        """True state of each input, shape (n,)."""
        return self._states

    @property
    def expected_cost(self) -> float:
        """Mean cost of what is shown, under the prior."""
        return self._expected_cost

    @property
    def leakage(self) -> float:
        """Maximal leakage of one release in nats; T releases leak at most T times as much."""
        return maximal_leakage(self._transition)

    def guess_bound(self, prior: float, releases: int = 1) -> float:
        r"""Bound on the probability of guessing the secret after so many releases.

        $$P(\hat U = U) \le e^{T \ell} \max_u P(u)$$

        for every secret U that the inputs depend on, however, and every attacker who chooses what is shown next; for a
        single release of an input that is itself the secret and uniform, with equality.

        Args:
            prior: Probability of the likeliest value of the secret, for instance `2**-256` of a random key.
            releases: Number T of states that are shown.

        Raises:
            ValueError: If the prior is not in (0, 1], or the number of releases is negative.

        Source: *One-Sided Bounded Noise*, Section 5.2; Issa, Wagner and Kamath, *An Operational Approach to Information
        Leakage*.

        Example:
            >>> channel = optimal_channel([0, 1, 2, 3], [0.25] * 4, np.tile(np.arange(4.0), (4, 1)), leakage=np.log(2))
            >>> round(math.log2(channel.guess_bound(2.0**-256, releases=10)), 6)
            -246.0
        """
        if not 0.0 < prior <= 1.0:
            raise ValueError(f"prior must be the probability of the likeliest secret, in (0, 1], got {prior!r}.")
        if releases < 0:
            raise ValueError(f"releases must not be negative, got {releases}.")
        exponent = math.log(prior) + releases * self.leakage
        return min(1.0, math.exp(min(exponent, 0.0)) * _UPWARDS)

    @property
    def max_value(self) -> int:
        """The highest state that is ever shown."""
        return int(np.flatnonzero(self._transition.max(axis=0))[-1])

    def sample(self, index: int) -> int:
        """Draw the state to show for input `index`."""
        return int(draw_units(self._cumulative[index], self._generator or secure_generator()))

    def log_prob(self, index: int, state: int) -> float:
        """Natural logarithm of the probability of showing `state` for input `index`."""
        probability = float(self._transition[index, state])
        return math.log(probability) if probability > 0 else -math.inf

    @validated
    def pad(self, value: PrivateInteger) -> int:
        """The state to show in place of the true state `value`.

        Raises:
            ValueError: If the state is above every state that the channel was designed for.
        """
        higher = np.flatnonzero(self._states >= value)
        if not higher.size:
            raise ValueError(
                f"value is above the highest designed state, {int(self._states.max())}: design the channel for "
                "the largest value that can occur."
            )
        return self.sample(int(higher[np.argmin(self._states[higher])]))


def optimal_channel(states: npt.ArrayLike, prior: npt.ArrayLike, cost: npt.ArrayLike, leakage: float) -> LeakageChannel:
    """The upward channel of least expected cost whose maximal leakage is at most `leakage` (Theorem 4).

    With `v = e^leakage` a whole number, show v states only, the top one among them, and map each input to the next
    shown one; the choice is a shortest path, O(n m + v m^2). Else mix the choices for floor(v) and ceil(v), weighted
    `ceil(v) - v` and the rest, and fill each input's row upwards from its state (water filling).

    Args:
        states: True state of each input, integers from 0, shape (n,).
        prior: Probability of each input, shape (n,), with sum one.
        cost: Cost of showing state j for input i, shape (n, m); from the true state upwards it must not decrease, and
            below it is ignored.
        leakage: Budget in nats, at least 0.

    Raises:
        ValueError: If an argument is out of range or the cost decreases.

    Example:
        >>> cost = np.tile(np.arange(4.0), (4, 1))
        >>> channel = optimal_channel([0, 1, 2, 3], [0.25] * 4, cost, leakage=np.log(2))
        >>> channel.transition[0].tolist(), channel.expected_cost
        ([0.0, 1.0, 0.0, 0.0], 2.0)
    """
    true, weights, costs = _check(states, prior, cost, leakage)
    occurring = np.unique(true)
    # No channel from so many states can leak more than the logarithm of their number.
    budget = math.exp(min(leakage, math.log(occurring.size)))
    # exp(log v) is not v in floating point: a hair below a whole number is that number, never above the budget.
    nearest = round(budget)
    whole = nearest if abs(budget - nearest) <= 1e-12 * nearest else None
    bounds = np.zeros(costs.shape[1])
    if whole is not None:
        # `bounds[j]` is the largest probability in column j; their sum is e^leakage.
        bounds[_choose(true, weights, costs, whole)[0]] = 1.0
    else:
        low = math.floor(budget)
        for count, share in ((low, low + 1 - budget), (low + 1, budget - low)):
            bounds[_choose(true, weights, costs, count)[0]] += share
    transition = _fill(true, bounds)
    shown = transition > 0
    # Costs below the true state are ignored and may be infinite or NaN, which no weight of 0 removes.
    expected = float(np.sum(weights[:, None] * np.where(shown, transition * np.where(shown, costs, 0.0), 0.0)))
    return LeakageChannel(transition, true, expected)


def maximal_leakage(transition: npt.ArrayLike) -> float:
    """`ln sum_y max_x P(y | x)` in nats: by how much one observation can multiply any guess's success.

    Example:
        >>> round(maximal_leakage([[0.5, 0.5], [0.0, 1.0]]), 6)
        0.405465
    """
    return math.log(float(np.asarray(transition, dtype=np.float64).max(axis=0).sum()))


def _choose(states: npt.NDArray[np.int64], prior: Array, cost: Array, count: int) -> tuple[list[int], float]:
    """The `count` states to show, by dynamic programming over the next one, and their cost."""
    occurring, group = np.unique(states, return_inverse=True)
    size = occurring.size
    # grouped[g, k]: what the inputs of the g-th state cost together when the k-th occurring state is shown.
    reachable = np.where(states[:, None] <= occurring[None, :], cost[:, occurring], 0.0)
    grouped = np.zeros((size, size))
    np.add.at(grouped, group.ravel(), prior[:, None] * reachable)
    # cumulative[g, k]: the cost of the first g groups shown as k.
    cumulative = np.concatenate([np.zeros((1, size)), np.cumsum(grouped, axis=0)])
    # segment[a, k]: inputs of the groups a..k all shown as k; impossible for a > k.
    segment = cumulative[np.arange(1, size + 1), np.arange(size)][None, :] - cumulative[:size, :]
    segment[np.tril_indices(size, -1)] = np.inf
    best = np.append(segment[:, size - 1], 0.0)  # one state left: the top one
    following = [np.full(size, size - 1)]
    for _ in range(count - 1):
        # total[a, k]: groups a..k shown as k, and the rest, from k + 1 on, in the best way with one state fewer.
        total = segment + best[None, 1:]
        following.append(np.argmin(total, axis=1))
        best = np.append(total[np.arange(size), following[-1]], 0.0)
    # Walk the choices back from the first state upwards.
    chosen, position = [], 0
    for choice in reversed(following):
        if position >= size:
            break
        chosen.append(int(choice[position]))
        position = chosen[-1] + 1
    return [int(occurring[k]) for k in chosen], float(best[0])


def _fill(states: npt.NDArray[np.int64], bounds: Array) -> Array:
    """Water filling: from its own state upwards each input takes what a column still allows."""
    columns = np.arange(bounds.size)
    allowed = np.where(columns[None, :] >= states[:, None], bounds[None, :], 0.0)
    # The running total, cut at one, is the distribution function of each row.
    filled = np.minimum(np.cumsum(allowed, axis=1), 1.0)
    transition: Array = np.diff(filled, axis=1, prepend=0.0)
    # Rounding leaves the last running total near 1.
    return np.asarray(transition / transition.sum(axis=1, keepdims=True))


def _check(
    states: npt.ArrayLike, prior: npt.ArrayLike, cost: npt.ArrayLike, leakage: float
) -> tuple[npt.NDArray[np.int64], Array, Array]:
    given = np.asarray(states)
    weights, costs = np.asarray(prior, dtype=np.float64), np.asarray(cost, dtype=np.float64)
    if given.ndim != 1 or given.size == 0 or not np.issubdtype(given.dtype, np.integer) or given.min() < 0:
        raise ValueError("states must be one row of integers from 0: noise only ever adds, from a lowest state 0.")
    if weights.shape != given.shape or not (weights >= 0).all() or abs(weights.sum() - 1.0) > 1e-9:
        raise ValueError(
            f"prior must be {given.size} non-negative numbers with sum 1, got shape {weights.shape} with sum "
            f"{weights.sum():.9g}; divide it by its sum."
        )
    if costs.ndim != 2 or costs.shape[0] != given.size or costs.shape[1] <= given.max():
        raise ValueError(
            f"cost must have one row for each of the {given.size} inputs and a column for each state up to "
            f"{given.max()}, got shape {costs.shape}."
        )
    above = np.arange(costs.shape[1])[None, :] >= given[:, None]
    # Negated, so that NaN counts as a decrease.
    decreasing = above[:, :-1] & ~(costs[:, 1:] >= costs[:, :-1])
    if not np.isfinite(costs[above]).all() or decreasing.any():
        row = int(np.argmax(decreasing.any(axis=1)))
        raise ValueError(
            f"Cost decreases or is not finite in row {row}: from the true state upwards a higher state must not cost "
            "less (else showing it is free padding; order the states by cost)."
        )
    if not leakage >= 0.0 or not math.isfinite(leakage):
        raise ValueError(f"leakage must be a finite number of nats, at least 0, got {leakage!r}.")
    return given.astype(np.int64), weights, costs
