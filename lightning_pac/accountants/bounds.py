"""From information to attack success, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

from lightning_pac._validation import TrueOrFalse, validated
from lightning_pac.information import binary_kl

__all__ = [
    "dp_epsilon_for_success",
    "dp_success_bound",
    "independent_bits_prior",
    "membership_prior",
    "membership_success_bound",
    "responses_until",
    "subset_recovery_prior",
    "world_success_bound",
]

# A million guesses, each held against every subset.
_MAX_ENUMERATED_RECORDS = 20
# e^700 is still a float, and 1 / (1 + e^-700) is 1 to every digit.
_LARGEST_LOGIT = 700.0
# By which a few roundings of numbers up to one may lower a bound.
_ROUNDINGS = 2.0**-52


@validated
def membership_success_bound(mutual_information: float, prior: float = 0.5) -> float:
    """Largest posterior success of any attack that learns at most this much.

    The largest `p >= p0` with `kl(p, p0) <= MI`, and 1 where `-ln p0 <= MI` (PAC-private responses, equation 2).

    Args:
        mutual_information: nats between the secret and everything released.
        prior: success probability `p0` of the best guess without the release, in (0, 1).

    Returns:
        The bound, never rounded down.

    Raises:
        ValueError: if the information is negative or the prior is not in (0, 1).

    Example:
        >>> print(f"{membership_success_bound(2**-4):.5f}")
        0.67491
    """
    _check_prior(prior)
    if not mutual_information >= 0:
        raise ValueError(f"mutual_information is {mutual_information}, but information is not negative.")
    if mutual_information >= -math.log(prior):
        return 1.0
    if mutual_information == 0:
        return prior
    prior = max(prior, 2.0**-1022)  # a likelier guess has the larger bound, and 1 / prior is to be a float
    # The excess u = p / p0 - 1 is bisected on a log scale: it is about sqrt(MI), far below what p itself resolves.
    # u = (1 - p0)/p0 is p = 1. The bound is kept at `low` and broken at `high`, which is returned: it errs upwards.
    # That end is raised by what two logarithms are rounded by, which is much where p0 is tiny.
    low, high = math.log(1e-300), math.log1p(-prior) - math.log(prior)
    high += 2.0**-51 * abs(high)
    for _ in range(200):
        middle = (low + high) / 2
        if _relative_kl(math.exp(middle), prior) <= mutual_information:
            low = middle
        else:
            high = middle
    # The exponential, the sum and the product are each off by half a unit in the last place or a little more.
    return min(1.0, prior * (1 + math.exp(high)) * (1 + 2.0**-51))


@validated
def dp_success_bound(epsilon: float, delta: float = 0.0) -> float:
    """Largest success of a membership attack with prior 1/2 on an (epsilon, delta)-DP release.

    `1 - (1 - delta)/(1 + e^epsilon)` (PAC-private algorithms, equation 2).

    Args:
        epsilon: privacy loss in nats, not negative.
        delta: failure probability, in [0, 1].

    Raises:
        ValueError: if epsilon is negative or delta is not in [0, 1].

    Example:
        >>> print(f"{dp_success_bound(1.0):.4f}")
        0.7311
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon is {epsilon}, but a privacy loss is not negative.")
    if not 0 <= delta <= 1:
        raise ValueError(f"delta is {delta}, but a failure probability lies in [0, 1].")
    # 1/(1 + e^eps) in terms of e^-eps, which cannot overflow.
    bound = 1 - (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))
    return min(1.0, bound + _ROUNDINGS) if epsilon or delta else bound


@validated
def dp_epsilon_for_success(success: float, delta: float = 1e-5) -> float:
    """Epsilon of the (epsilon, delta)-DP release with this success bound, the inverse of `dp_success_bound`.

    `max(0, ln((1 - delta)/(1 - p) - 1))`, infinite at p = 1.

    Args:
        success: bound on the success of an attack with prior 1/2, in [0, 1].
        delta: failure probability, in [0, 1].

    Raises:
        ValueError: if the success or delta is not in [0, 1].

    Example:
        >>> print(f"{dp_epsilon_for_success(0.75, delta=0.0):.4f}")
        1.0986
    """
    if not 0 <= success <= 1:
        raise ValueError(f"success is {success}, but a probability lies in [0, 1].")
    if not 0 <= delta <= 1:
        raise ValueError(f"delta is {delta}, but a failure probability lies in [0, 1].")
    if success == 1:
        return math.inf if delta < 1 else 0.0
    # (1 - delta)/(1 - p) - 1 as one fraction, so that nothing cancels near p = 1/2.
    odds = (success - delta) / (1 - success)
    return max(0.0, math.log(odds)) if odds > 0 else 0.0


@validated
def responses_until(epsilon: float, budget_per_response: float, delta: float = 1e-5) -> int:
    """Responses until the success bound reaches that of (epsilon, delta)-DP.

    `floor(kl(p_eps, 1/2) / b)` with `p_eps` from `dp_success_bound` (PAC-private responses, table 1).

    Args:
        epsilon: the privacy loss to compare with.
        budget_per_response: mutual information of each response, nats.
        delta: failure probability of the comparison.

    Raises:
        ValueError: if the budget is not positive or too small to count by, epsilon is negative or delta is not in
            [0, 1].

    Example:
        >>> responses_until(epsilon=1.0, budget_per_response=2**-8)
        28
    """
    if not budget_per_response > 0:
        raise ValueError(f"budget_per_response is {budget_per_response}, but a response costs more than nothing.")
    # The bound is (1 + u)/2: u keeps the digits that a sum with 1/2 would round away, up for a bound, too much here.
    excess = delta + (1 - delta) * math.tanh(epsilon / 2)
    # The last factor is for rounding, which the difference of two terms may raise to 2^-44 of it.
    number = _relative_kl(min(1.0, excess), 0.5) / budget_per_response * (1 - 2.0**-43)
    if not math.isfinite(number):
        raise ValueError(f"budget_per_response is {budget_per_response}, too little for its responses to be counted.")
    return math.floor(number)


@validated
def membership_prior(rate: float = 0.5) -> float:
    """Success of guessing one record's membership blindly: `max(r, 1 - r)` (PAC-private algorithms, section 3.1).

    Args:
        rate: probability that the record is in the secret subset; 1/2 for balanced subsets.

    Raises:
        ValueError: if the rate is not in [0, 1].
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is {rate}, but a probability lies in [0, 1].")
    return max(rate, 1 - rate)


@validated
def independent_bits_prior(num_correct: int, num_bits: int) -> float:
    """Probability of guessing at least k of n *independent uniform* bits: `1 - BinomCDF(k - 1; n, 1/2)`.

    For a finite table of subsets use `subset_recovery_prior`: there, guessing the index gets every bit at once.

    Args:
        num_correct: k, how many of the n bits must be right.
        num_bits: n.

    Raises:
        ValueError: if k is not between 0 and n.

    Source: *PAC-Private Algorithms*, Appendix C.

    Example:
        >>> independent_bits_prior(num_correct=2, num_bits=2)
        0.25
    """
    if not 0 <= num_correct <= num_bits:
        raise ValueError(f"num_correct is {num_correct}, but must lie between 0 and num_bits, {num_bits}.")
    return float(stats.binom.sf(num_correct - 1, num_bits, 0.5))


@validated
def subset_recovery_prior(
    memberships: TrueOrFalse, num_correct: int, weights: Sequence[float] | npt.NDArray[np.float64] | None = None
) -> float:
    """Best blind guess of at least k of n memberships when the secret is one of m subsets.

    `max_g sum_j P_j 1[column j agrees with g in at least k records]` over all 2^n guesses g.

    Args:
        memberships: table of booleans, one row per record and one column per subset, shape (n, m).
        num_correct: k, how many of the n memberships must be right.
        weights: prior of each subset, shape (m,); uniform if left out.

    Raises:
        ValueError: if there are more than 20 records (the guesses are enumerated) or the shapes do not fit.

    Source: *PAC-Private Algorithms*, Appendix C, with the prior of the finite table (ours).

    Example:
        >>> subset_recovery_prior([[True, False], [True, False]], num_correct=2)
        0.5
    """
    table = np.asarray(memberships, dtype=bool)
    if table.ndim != 2:
        raise ValueError(
            f"memberships has shape {table.shape}, but must have one row per record, one column per subset."
        )
    records, subsets = table.shape
    if records > _MAX_ENUMERATED_RECORDS:
        raise ValueError(
            f"There are {records} records, but the guesses are enumerated: choose at most {_MAX_ENUMERATED_RECORDS}."
        )
    if not 0 <= num_correct <= records:
        raise ValueError(f"num_correct is {num_correct}, but must lie between 0 and {records}, the number of records.")
    prior = np.full(subsets, 1 / subsets) if weights is None else np.asarray(weights, dtype=np.float64)
    if prior.shape != (subsets,):
        raise ValueError(f"weights has shape {prior.shape}, but there are {subsets} subsets.")
    # Subsets and guesses are n-bit integers; the ones of their exclusive or are the records that a guess gets wrong.
    places = 1 << np.arange(records, dtype=np.uint32)
    columns = (table.T * places).sum(axis=1).astype(np.uint32)  # (m,)
    counts = np.zeros(1, dtype=np.uint8)
    for _ in range(records):
        counts = np.concatenate([counts, counts + 1])  # number of ones of every integer below 2^n
    guesses = np.arange(1 << records, dtype=np.uint32)
    success = np.zeros(len(guesses))
    for column, weight in zip(columns, prior, strict=True):
        success += weight * (counts[guesses ^ column] <= records - num_correct)
    return float(success.max())


@validated
def world_success_bound(
    orders: npt.ArrayLike, epsilons: npt.ArrayLike, prior: float = 0.5, order_index: int | None = None
) -> float:
    """Largest success of an adversary who sees everything released in telling two worlds apart.

    The largest `prior p + (1 - prior)(1 - r)` over error rates (p, r) whose binary Rényi divergences obey
    `d_a(p||r) <= eps(a)` and `d_a(r||p) <= eps(a)` at every order (ours, by data processing). Sound, not tight: two
    Gaussians at distance 1 give 0.740, the truth is 0.691.

    Args:
        orders: Rényi orders, at least 1 (1 is Kullback-Leibler), shape (n,).
        epsilons: divergence bound at each order, in both directions, shape (n,).
        prior: probability of the first world, in (0, 1).
        order_index: use this order alone; any single order gives a valid bound.

    Raises:
        ValueError: if an order is below 1, an epsilon is negative, or the prior is not in (0, 1).

    Example:
        >>> a = np.geomspace(1.01, 64, 200)
        >>> print(f"{world_success_bound(a, a / 2):.3f}")
        0.740
    """
    _check_prior(prior)
    order = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    epsilon = np.atleast_1d(np.asarray(epsilons, dtype=np.float64))
    if order.shape != epsilon.shape or not np.all(order >= 1):
        raise ValueError("orders must be at least 1, with one epsilon each.")
    if not np.all(epsilon >= 0):
        raise ValueError("epsilons must not be negative: they bound divergences.")
    if order_index is not None:
        order, epsilon = order[[order_index]], epsilon[[order_index]]
    order, epsilon = order[np.isfinite(epsilon)], epsilon[np.isfinite(epsilon)]
    if not len(order):
        return 1.0
    # Both constraint sets are convex and swap under (p, r) -> (1 - r, 1 - p), which also keeps the objective at prior
    # 1/2: the maximum then lies on r = 1 - p.
    if prior == 0.5:
        logit = np.min(_largest_symmetric_logit(order, epsilon))
        return min(1.0, float(1 / (1 + math.exp(-logit))) + _ROUNDINGS)
    return _asymmetric_success(order, epsilon, prior)


def _largest_symmetric_logit(
    orders: npt.NDArray[np.float64], epsilons: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Logit of the largest p whose divergence from its mirror image 1 - p obeys each bound alone, shape (n,)."""
    low, high = np.zeros(len(orders)), np.full(len(orders), _LARGEST_LOGIT)
    for _ in range(100):
        # Geometric steps resolve small epsilons, where the logit is about sqrt(2 epsilon / order).
        middle = np.where(low > 0, np.sqrt(low * high), high * 1e-3)
        inside = _symmetric_divergence(orders, middle) <= epsilons
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        # The upper end is returned, so the search may stop anywhere: at 14 digits, or where p is 1/2 but for rounding.
        if np.all((high <= low * (1 + 1e-14)) | (high < 1e-15)):
            break
    return high


def _relative_kl(excess: float, prior: float) -> float:
    """`kl(p0 (1 + u), p0)` without forming `p0 (1 + u)`, which would round a small excess u away."""

    def term(weight: float, t: float) -> float:
        """`w ((1 + t) ln(1 + t) - t)`; the weight is small where t is large, and goes first, so that none overflows."""
        # Both parts cancel near 0; the first term left out of the series is below 1e-19 of the sum.
        if abs(t) < 1e-2:
            return weight * t * t * sum((-t) ** k / ((k + 1) * (k + 2)) for k in range(9))
        return weight if t <= -1 else weight * (1 + t) * math.log1p(t) - weight * t

    return term(prior, excess) + term(1 - prior, -prior * excess / (1 - prior))


def _symmetric_divergence(order: npt.NDArray[np.float64], logit: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Rényi divergence of Bernoulli(p) from Bernoulli(1 - p), `p = 1/(1 + e^-logit)`; order 1 is its limit."""
    excess = order - 1
    scaled = np.minimum(excess * logit, 30.0)
    # ln(p e^s + (1 - p) e^-s), s = (a - 1) logit. As log1p(2 sinh^2(s/2) + tanh(logit/2) sinh s), whose terms are not
    # negative, it keeps its digits near 0; as a sum in logarithms it does not overflow for large s.
    small = np.log1p(2 * np.sinh(scaled / 2) ** 2 + np.tanh(logit / 2) * np.sinh(scaled))
    large = np.logaddexp(excess * logit - np.log1p(np.exp(-logit)), -excess * logit - np.log1p(np.exp(-logit)) - logit)
    divergence = np.where(excess * logit < 30.0, small, large) / np.where(excess > 0, excess, 1.0)
    return np.where(excess > 0, divergence, logit * np.tanh(logit / 2))


def _binary_renyi(
    order: npt.NDArray[np.float64], p: npt.NDArray[np.float64], q: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        # ln(p^a q^(1-a) + (1-p)^a (1-q)^(1-a)), in logarithms since the powers overflow at high orders.
        terms = np.logaddexp(
            order * np.log(p) + (1 - order) * np.log(q), order * np.log1p(-p) + (1 - order) * np.log1p(-q)
        )
        return np.where(order > 1, terms / (order - 1), binary_kl(p, q))


def _asymmetric_success(order: npt.NDArray[np.float64], epsilon: npt.NDArray[np.float64], prior: float) -> float:
    # Rounding in ln(1 + tiny) / (a - 1) must not make a constraint look violated.
    allowed = epsilon + 1e-15 / np.where(order > 1, order - 1, 1.0)

    def largest_p(r: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        reference = np.repeat(r[:, None], len(order), axis=1)  # (points, orders)
        low, high = reference, np.ones_like(reference)
        for _ in range(52):
            middle = (low + high) / 2
            inside = _binary_renyi(order, middle, reference) <= allowed
            inside &= _binary_renyi(order, reference, middle) <= allowed
            low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        # Divergences grow away from r, so each order allows an interval above it, and all of them its shortest.
        return np.asarray(high.min(axis=1))

    # p_max(r) is concave, so success is unimodal in r and in its logit: the maximum lies beside the best grid point.
    low, high = -40.0, 40.0
    # Every round shortens the bracket 16-fold, to 2e-8 in the logit after the last.
    for _ in range(8):
        logits = np.linspace(low, high, 33)
        r = 1 / (1 + np.exp(-logits))
        best = int(np.argmax(prior * largest_p(r) + (1 - prior) * (1 - r)))
        low, high = float(logits[max(best - 1, 0)]), float(logits[min(best + 1, 32)])
    # p_max does not decrease in r: take it at one end of the bracket and 1 - r at the other.
    ends = 1 / (1 + np.exp(-np.array([low, high])))
    found = prior * float(largest_p(ends)[1]) + (1 - prior) * (1 - float(ends[0]))
    return min(1.0, max(found + _ROUNDINGS, prior, 1 - prior))


def _check_prior(prior: float) -> None:
    if not 0 < prior < 1:
        raise ValueError(f"prior is {prior}, but must lie strictly between 0 and 1.")
