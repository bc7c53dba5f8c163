"""Gaussian differential privacy: what a mechanism tells that is exactly as good as one draw of N(mu, 1) or N(0, 1).

Runs without amplification are of this kind. With `kappa K_t` the most that the differing records can move the sum of
step t, in clipping norms, and sigma the noise, `mu = kappa sqrt(sum_t K_t^2) / sigma`: given the past, a step's privacy
loss is at most that of a Gaussian shifted by `kappa K_t / sigma`, and Gaussians compose to a Gaussian whose `mu^2` is
the sum of theirs (Dong, Roth and Su 2022, corollary 3.3), whatever the steps learn from each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from lightning_pac._roots import moved_until

__all__ = ["gaussian_log_delta", "gaussian_trade_off", "log_delta_error", "mu_for_epsilon", "mu_for_success"]

# Gauss-Legendre nodes on [-1, 1].
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
# Where 11 terms of the asymptotic series leave less than 1e-17 of it.
_SERIES_FROM = 20.0
_LARGEST_MU = 1e8
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def gaussian_log_delta(mu: float, epsilon: float) -> float:
    """Logarithm of the least delta that goes with epsilon between N(0, 1) and N(mu, 1).

    `delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)` (Balle and Wang 2018, theorem 8). As
    `e^eps phi(t + mu) = phi(t)` at `t = eps/mu - mu/2`, it equals `phi(t) (M(t) - M(t + mu))` with Mills' ratio M, and
    for small mu the difference is the integral of `-M'(s) = 1 - s M(s)`: nothing overflows and nothing cancels.

    Args:
        mu: distance of the two means in deviations, not negative.
        epsilon: privacy loss in nats, not negative.

    Returns:
        `ln delta`, right to `log_delta_error`; minus infinity at mu = 0.

    Example:
        >>> print(f"{math.exp(gaussian_log_delta(1.0, 0.0)):.6f}")  # 2 Phi(1/2) - 1
        0.382925
    """
    if mu == 0 or math.isinf(epsilon):
        return -math.inf
    near = epsilon / mu - mu / 2
    far = near + mu
    # Mills' ratio overflows far left of 0, where for mu >= 1 the plain difference loses no digits.
    log_density = -near * near / 2 - _LOG_SQRT_2PI  # a power of floats would raise an error where it overflows
    if mu >= 1 and near < 0:
        return math.log(float(special.ndtr(-near)) - math.exp(log_density) * float(_mills(far)))
    if mu >= 1:
        difference = float(_mills(near) - _mills(far))
    else:
        # The integral of -M' over [t, t + mu], which is smooth and positive.
        difference = mu / 2 * float(_WEIGHTS @ _mills_slope(near + mu / 2 * (1 + _NODES)))
    # ln phi(t) is added in the end: the tails may underflow where their logarithms do not.
    return log_density + math.log(difference) if difference > 0 else -math.inf


def log_delta_error(mu: float) -> float:
    """A bound on the error of `gaussian_log_delta`: twelve digits of delta, less where `eps/mu - mu/2` cancels.

    That is right to d = 6e-17 mu, and `180 d` covers the square of up to 180; of more, delta is 0, by d or by itself.
    """
    return 1e-11 + 1e-14 * mu


def gaussian_trade_off(mu: float, false_positive_rate: float) -> float:
    """The least false-negative rate of a test of N(0, 1) against N(mu, 1): `Phi(-Phi^-1(FPR) - mu)`.

    Example:
        >>> print(f"{gaussian_trade_off(1.0, 0.05):.4f}")
        0.7405
    """
    return float(special.ndtr(-special.ndtri(false_positive_rate) - mu))


def mu_for_epsilon(epsilon: float, delta: float) -> float:
    """The largest mu whose Gaussians are (epsilon, delta)-indistinguishable.

    Args:
        epsilon: privacy loss in nats, not negative.
        delta: failure probability, in (0, 1).

    Example:
        >>> print(f"{mu_for_epsilon(1.0, 1e-5):.4f}")
        0.2681
    """
    return _largest_mu(lambda mu: gaussian_log_delta(mu, epsilon) + log_delta_error(mu) - math.log(delta))


def mu_for_success(bound: float, prior: float = 0.5) -> float:
    """The largest mu at which a guess of the world is right with at most this probability.

    The inverse of `pi Phi(mu/2 + L/mu) + (1 - pi) Phi(mu/2 - L/mu)`, `L = ln(pi/(1 - pi))`; `2 Phi^-1(bound)` at prior
    1/2.

    Args:
        bound: success probability, above that of the blind guess.
        prior: probability of the first world before anything is released, in (0, 1).

    Example:
        >>> print(f"{mu_for_success(0.6):.4f}")
        0.5067
    """
    rarer = min(prior, 1 - prior)
    log_delta, epsilon = math.log((bound - (1 - rarer)) / rarer), math.log((1 - rarer) / rarer)
    return _largest_mu(lambda mu: gaussian_log_delta(mu, epsilon) + log_delta_error(mu) - log_delta)


def _largest_mu(excess: Callable[[float], float]) -> float:
    """The root of an increasing function of mu, rounded down."""

    def of_log(log_mu: float) -> float:
        # The search needs finite values, also where delta underflows.
        return max(-1e9, excess(math.exp(log_mu)))

    low, high = -1.0, 1.0
    while of_log(high) < 0:
        low, high = high, high + 2
        if high > math.log(_LARGEST_MU):
            return _LARGEST_MU
    while of_log(low) > 0:
        low, high = low - 2, low
    root = float(optimize.brentq(of_log, low, high, xtol=1e-14, rtol=1e-14))
    # Lowered until the promise is kept.
    return math.exp(moved_until(lambda log_mu: of_log(log_mu) <= 0, root, -1e-13))


def _mills(t: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Mills' ratio `M(t) = Phi(-t) / phi(t)`."""
    # erfcx(x) = e^(x^2) erfc(x), which neither over- nor underflows right of 0.
    return np.asarray(math.sqrt(math.pi / 2) * special.erfcx(np.asarray(t) / math.sqrt(2)))


def _mills_slope(t: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """`1 - t M(t) = -M'(t)`, by its asymptotic series where the difference would cancel."""
    direct = 1 - t * _mills(t)
    inverse_square = 1 / np.maximum(t, _SERIES_FROM) ** 2
    # 1 - t M(t) = 1/t^2 - 3/t^4 + 15/t^6 - ..., an alternating sum of (2n - 1)!! / t^(2n).
    series, term = np.zeros_like(t), np.ones_like(t)
    for n in range(1, 12):
        term = term * (2 * n - 1) * inverse_square
        series += term if n % 2 else -term
    return np.asarray(np.where(t < _SERIES_FROM, direct, series))
