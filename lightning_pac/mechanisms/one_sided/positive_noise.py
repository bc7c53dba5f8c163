"""`PositiveNoise`: one-sided noise for each of the three privacy notions."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from lightning_pac._shown import shows_itself
from lightning_pac._validation import Count, Natural, Positive, validated
from lightning_pac.mechanisms.one_sided.distributions import DiscreteNoise, UnresolvedDeltaError, kept_delta, stretch
from lightning_pac.mechanisms.one_sided.laplace import LARGEST_EPSILON
from lightning_pac.mechanisms.one_sided.leakage_channels import LeakageChannel, optimal_channel
from lightning_pac.mechanisms.one_sided.pac_release import PACNoise, optimal_pac_noise
from lightning_pac.mechanisms.one_sided.repeated_release import Accounting, ComposedRelease, default_max_value
from lightning_pac.mechanisms.one_sided.single_release import optimal_release
from lightning_pac.randomness import SecureGenerator

__all__ = ["DPGuarantee", "DPNoise", "PositiveNoise"]


@dataclass(frozen=True)
class DPGuarantee:
    """A promise of noise: releasing `query + noise` `compositions` times is (epsilon, delta)-DP.

    Attributes:
        epsilon: Privacy parameter of all releases together, as accounted for.
        delta: Failure probability of all releases together.
        compositions: Number of releases.
        sensitivity: Largest difference between neighbouring queries, an integer.
        accounting: `"exact"` (against every adaptive choice of directions, `ShiftComposition`) or `"hybrid_rdp"`.
    """

    epsilon: float
    delta: float
    compositions: int
    sensitivity: int
    accounting: Accounting


@shows_itself
class DPNoise(DiscreteNoise):
    """Noise on {0..R} with the guarantee it was designed for."""

    def __init__(
        self, probabilities: npt.ArrayLike, guarantee: DPGuarantee, generator: SecureGenerator | None = None
    ) -> None:
        super().__init__(probabilities, generator)
        self.guarantee = guarantee


@validated
class PositiveNoise:
    """Designs noise that only ever adds, never more than a maximum, at least cost.

    For side channels: processing time, message counts and sizes can be padded, not shortened. Each method returns an
    object to draw from, with `sample`, `log_prob`, `mean` and `second_moment`, and `pad(value)` for one padded value.

    Example:
        >>> noise = PositiveNoise.for_dp(epsilon=1.0, delta=1e-4)
        >>> noise.max_value, round(noise.second_moment, 3)
        (18, 75.377)
    """

    @staticmethod
    def for_dp(
        epsilon: Positive | None = None,
        delta: float = 1e-6,
        compositions: Count = 1,
        max_value: Natural | None = None,
        *,
        second_moment: Positive | None = None,
        sensitivity: Count = 1,
        accounting: Accounting = "exact",
    ) -> DPNoise:
        """Noise of least second moment for (epsilon, delta)-DP, or of least epsilon for a second-moment budget.

        One release takes the closed-form optimum; several are optimized against the exact composition, or against
        hybrid RDP (Alg. 1).

        Args:
            epsilon: Privacy parameter of all releases together; None where `second_moment` is given instead.
            delta: Failure probability of all releases together, in (0, 1). It cannot be 0: bounded noise always has
                outputs that give one of two neighbours away.
            compositions: Number T of releases, chosen adaptively if need be.
            max_value: Largest noise R; None takes a range wide enough to cost next to nothing.
            second_moment: Budget of `E[e^2]`, where epsilon is sought.
            sensitivity: Largest difference between the queries of neighbours, an integer (`stretch`).
            accounting: `"exact"`, or `"hybrid_rdp"` for the paper's.

        Raises:
            ValueError: If an argument is out of range, or no noise within `max_value` is private enough; the message
                says the least one that works. If delta is too small for probabilities of 62 bits.
        """
        _check(epsilon, delta, second_moment)
        if epsilon is None:
            assert second_moment is not None
            p, epsilon = _least_epsilon(delta, compositions, max_value, second_moment, sensitivity, accounting)
        else:
            p = _least_moment(epsilon, delta, compositions, max_value, sensitivity, accounting)
        guarantee = DPGuarantee(float(epsilon), float(delta), int(compositions), int(sensitivity), accounting)
        return DPNoise(stretch(p, sensitivity), guarantee)

    @staticmethod
    def for_maximal_leakage(
        states: npt.ArrayLike, prior: npt.ArrayLike, cost: npt.ArrayLike, leakage: float
    ) -> LeakageChannel:
        """The cheapest channel to higher states of bounded maximal leakage (`optimal_channel`).

        Args:
            states: True state of each input, integers from 0, shape (n,).
            prior: Probability of each input, shape (n,).
            cost: Cost of showing state j for input i, shape (n, m).
            leakage: Budget in nats; T releases leak at most T times as much.

        Raises:
            ValueError: If an argument is out of range or the cost decreases.
        """
        return optimal_channel(states, prior, cost, leakage)

    @staticmethod
    def for_pac(output_variance: float, max_value: float, second_moment: float) -> PACNoise:
        """The noise on [0, R] that leaves the least mutual information (`optimal_pac_noise`).

        `mutual_information` adds over outputs that were fixed beforehand, `adaptive_information` over all.

        Args:
            output_variance: Largest variance of the output.
            max_value: R.
            second_moment: Budget of `E[e^2]`.

        Raises:
            ValueError: If an argument is out of range.
        """
        return optimal_pac_noise(output_variance, max_value, second_moment)


def _least_moment(
    epsilon: float, delta: float, compositions: int, max_value: int | None, sensitivity: int, accounting: Accounting
) -> npt.NDArray[np.float64]:
    # `stretch` makes s (limit + 1) values of noise on 0..limit, which must fit into 0..R.
    limit = None if max_value is None else (max_value + 1) // sensitivity - 1
    if compositions == 1:
        p = _single_release(epsilon, delta, sensitivity)
        least = p.size - 1
    else:
        limit = default_max_value(epsilon, delta, compositions) if limit is None else limit
        kept = kept_delta(epsilon, delta, compositions, sensitivity * (limit + 1))
        design = ComposedRelease(kept, compositions, max(limit, 1), accounting)
        found = design.minimize_moment(epsilon) if limit >= 1 else None
        if found is not None:
            return found
        least = design.least_max_value(epsilon)
    if limit is not None and least > limit:
        raise ValueError(
            f"max_value is {max_value}, but no noise on 0..{max_value} makes {compositions} releases ({epsilon:g}, "
            f"{delta:g})-DP at sensitivity {sensitivity}: the least that works is {sensitivity * (least + 1) - 1}."
        )
    return p


def _least_epsilon(
    delta: float,
    compositions: int,
    max_value: int | None,
    second_moment: float,
    sensitivity: int,
    accounting: Accounting,
) -> tuple[npt.NDArray[np.float64], float]:
    # s e + U costs s^2 E[e^2] + s (s - 1) E[e] + (s - 1)(2 s - 1) / 6; the budget is spent on what is really shown.
    limit = None if max_value is None else (max_value + 1) // sensitivity - 1
    found: dict[float, npt.NDArray[np.float64]] = {}

    known: dict[float, float] = {}

    def excess(log_epsilon: float) -> float:
        if log_epsilon not in known:
            known[log_epsilon] = solve(log_epsilon)
        return known[log_epsilon]

    def solve(log_epsilon: float) -> float:
        epsilon = math.exp(log_epsilon)
        range_end = default_max_value(epsilon, delta, compositions) if limit is None else limit
        try:
            if compositions == 1:
                p = _single_release(epsilon, delta, sensitivity)
                candidate = p if limit is None or p.size <= limit + 1 else None
            else:
                kept = kept_delta(epsilon, delta, compositions, sensitivity * (range_end + 1))
                candidate = ComposedRelease(kept, compositions, max(1, range_end), accounting).minimize_moment(epsilon)
        except UnresolvedDeltaError:
            candidate = None
        if candidate is None:
            # No noise: far above the budget, and finite for the root search.
            return 50.0
        found[log_epsilon] = candidate
        return math.log(_second_moment(stretch(candidate, sensitivity)) / second_moment)

    # The second moment falls like epsilon^-2: step from 1 to the side where the budget lies.
    low = high = 0.0
    while excess(low) <= 0.0 and low > math.log(0.01):
        low -= 0.7
    while excess(high) > 0.0 and high < math.log(20.0):
        high += 0.7
    if excess(high) > 0.0:
        on_range = "" if max_value is None else f" on 0..{max_value}"
        raise ValueError(
            f"second_moment is {second_moment:g}, but no such noise{on_range} makes {compositions} releases "
            f"private at delta {delta:g} with epsilon up to 20: raise second_moment, max_value or delta."
        )
    if excess(low) > 0.0:
        # The tightest bracket among the targets that were tried.
        low = max([low, *(key for key, value in known.items() if value > 0.0)])
        high = min(key for key, value in known.items() if value <= 0.0)
        brentq(excess, low, high, xtol=1e-4)
    # The root is inexact: of all noises within the budget, the one of least epsilon.
    within = [key for key, p in found.items() if _second_moment(stretch(p, sensitivity)) <= second_moment]
    best = min(within)
    return found[best], math.exp(best)


def _single_release(epsilon: float, delta: float, sensitivity: int) -> npt.NDArray[np.float64]:
    """The optimum for what is left of delta once its probabilities are rounded, which takes one value more at most."""
    size = optimal_release(epsilon, delta).size + 1
    return optimal_release(epsilon, kept_delta(epsilon, delta, 1, sensitivity * size))


def _second_moment(p: npt.NDArray[np.float64]) -> float:
    return float(p @ np.arange(p.size, dtype=np.float64) ** 2)


def _check(epsilon: float | None, delta: float, second_moment: float | None) -> None:
    if (epsilon is None) == (second_moment is None):
        raise ValueError(
            "epsilon or second_moment must be given, and not both: the one that is left out is what is minimized."
        )
    if epsilon is not None and epsilon > LARGEST_EPSILON:
        raise ValueError(f"epsilon must be at most {LARGEST_EPSILON:g}, got {epsilon!r}: beyond, nothing is hidden.")
    if not 0.0 < delta < 1.0:
        raise ValueError(
            f"delta must lie in (0, 1), got {delta!r}: bounded one-sided noise always has outputs that give one of two "
            "neighbours away, so delta = 0 is impossible."
        )
