"""The price of one secretly Poisson-sampled step, worst case and unsliced."""

from __future__ import annotations

import math
from functools import lru_cache

from scipy import optimize

from lightning_pac.accountants.srpp.mixture import mixture_divergence, opposite_mixtures_divergence
from lightning_pac.scenarios import TwoWorldScenario

__all__ = ["amplified_step_cost"]

_MAX_ORDER = 500.0
_SPLIT_TOLERANCE = 1e-3


@lru_cache(maxsize=1 << 14)
def amplified_step_cost(scenario: TwoWorldScenario, rate: float, noise_multiplier: float, order: float) -> float:
    """Rényi divergence of one noised, clipped, Poisson-sampled gradient sum between the two worlds (ours).

    The records outside the d differing ones are drawn independently of those inside; conditioned on, they shift both
    worlds alike. By Kahane's convexity inequality aligned gradients are the worst, which leaves the mixture G and the
    Gaussian Z of `lightning_pac.accountants.srpp.mixture`:

    - all d records in one world (`add_remove`, `zero_out`): `max(D_a(G||Z), D_a(Z||G))`;
    - records in both (`num_differing=(d1, d2)`, or `nested=False`: every split), and `replace`: the triangle bound
      `(a-1/p)/(a-1) D_pa(G1||Z) + D_r(a-1/p)(Z||G2)`, `1/p + 1/r = 1`, minimized over p, in both orders.

    Never more than the cost without amplification, and checked to be at least that of opposite mixtures, which a real
    pair of worlds attains.

    Args:
        scenario: the two worlds.
        rate: probability q that a record enters the batch.
        noise_multiplier: deviation of the noise on the sum, in clipping norms.
        order: Rényi order a, above 1.

    Returns:
        An upper bound in nats.

    Raises:
        ArithmeticError: if the quadrature contradicts the lower bound.

    Example:
        >>> cost = amplified_step_cost(TwoWorldScenario.differential_privacy(), 0.01, 1.3, 16.0)
        >>> print(f"{cost:.6f}")
        0.006314
    """
    unamplified = order * (scenario.sensitivity_factor * scenario.total_differing / noise_multiplier) ** 2 / 2
    if scenario.adjacency == "replace":
        pairs = [(scenario.total_differing, scenario.total_differing)]
    else:
        pairs = [pair for split in scenario.splits for pair in {split, split[::-1]}]
    largest = 0.0
    for pair in pairs:
        enough = largest * (1 + _SPLIT_TOLERANCE)
        largest = max(largest, _directed_cost(order, noise_multiplier, rate, *pair, enough=enough))
    return min(unamplified, largest)


def _directed_cost(
    order: float, noise_multiplier: float, rate: float, num_first: int, num_second: int, enough: float
) -> float:
    """`D_a` of the world with d1 records of its own from the world with d2.

    The caller takes a maximum, so any bound that does not pass `enough` will do.
    """
    if num_second == 0:
        return mixture_divergence(order, noise_multiplier, rate, num_first, reverse=False)
    if num_first == 0:
        return mixture_divergence(order, noise_multiplier, rate, num_second, reverse=True)
    bound = _triangle_bound(order, noise_multiplier, rate, num_first, num_second, enough)
    if bound <= enough or not math.isfinite(bound):
        return bound
    attained = opposite_mixtures_divergence(order, noise_multiplier, rate, num_first, num_second)
    if bound < attained * (1 - 1e-6) - 1e-15:
        raise ArithmeticError(
            f"The certified cost {bound} at order {order} lies below {attained}, which two real worlds attain: "
            "the quadrature failed, so report the scenario, rate and noise multiplier."
        )
    return bound


def _triangle_bound(
    order: float, noise_multiplier: float, rate: float, num_first: int, num_second: int, enough: float = 0.0
) -> float:
    if order >= _MAX_ORDER / 2:
        return math.inf

    def log_bound(log_exponent: float) -> float:
        p = 1 + math.exp(log_exponent)
        weight = (order - 1 / p) / (order - 1)
        there = mixture_divergence(p * order, noise_multiplier, rate, num_first, reverse=False)
        back = mixture_divergence((p * order - 1) / (p - 1), noise_multiplier, rate, num_second, reverse=True)
        return math.log(weight * there + back)

    # Every p gives a bound, so the search can lose tightness at most, never soundness. It spans all p at which neither
    # order passes the largest that is integrated: the best p of high orders lies close to 1.
    ends = math.log((order - 1) / (_MAX_ORDER - order)), math.log(_MAX_ORDER / order - 1)
    if enough > 0:
        # Where sampling acts like a shift by the mean, this exponent is the best.
        guess = math.log((order - 1) / order * num_second / num_first)
        quick = math.exp(log_bound(min(max(guess, ends[0]), ends[1])))
        if quick <= enough:
            return quick
    found = optimize.minimize_scalar(log_bound, bounds=ends, method="bounded", options={"xatol": 1e-3})
    return math.exp(float(found.fun))
