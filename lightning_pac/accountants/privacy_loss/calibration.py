"""The least noise, and the most steps, at which a promise is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lightning_pac._roots import moved_until
from lightning_pac._validation import validated
from lightning_pac.accountants.privacy_loss.composition import privacy_curve
from lightning_pac.accountants.privacy_loss.curves import PrivacyCurve
from lightning_pac.accountants.privacy_loss.events import PrivacyEvent
from lightning_pac.accountants.privacy_loss.promises import Promise

__all__ = ["least_noise", "most_steps"]

# Of ln sigma: the width of the bracket at the end, and the furthest step in search of it.
_TOLERANCE = 1e-6
_LARGEST_MOVE = math.log(16.0)
_LARGEST_NOISE = 1e12
_MOST_STEPS = 1 << 32


@validated
def least_noise(
    promise: Promise,
    events: Callable[[float], Sequence[PrivacyEvent]],
    others: Callable[[float], Sequence[PrivacyCurve]] | None = None,
) -> float:
    """The least noise multiplier that keeps a promise, rounded up by at most a few parts in a million.

    The figure of the returned noise, rounded upwards like every figure, keeps the promise: it is computed, not
    extrapolated.

    Args:
        promise: what is to be kept.
        events: everything released, as a function of the noise multiplier.
        others: curves of further releases, likewise.

    Raises:
        ValueError: if no noise keeps the promise, since other events break it, or any noise does.

    Example:
        >>> from lightning_pac.accountants.privacy_loss import GaussianRelease, SuccessBound
        >>> print(f"{least_noise(SuccessBound(0.6), lambda noise: [GaussianRelease(1 / noise**2)]):.4f}")
        1.9736
    """

    def curve(noise: float) -> PrivacyCurve:
        return privacy_curve(events(noise), () if others is None else others(noise))

    def log_share(log_noise: float) -> float:
        return promise.log_share(curve(math.exp(log_noise)))

    # Figures fall about like the inverse of the noise, or faster: that is where to look for the other end.
    here = 0.0
    share = log_share(here)
    broken, kept = (here, None) if share > 0 else (None, here)
    shares = {here: share}
    while broken is None or kept is None:
        move = max(-_LARGEST_MOVE, min(_LARGEST_MOVE, share))
        # ln sigma has to move by about the logarithm of the share; a little more puts the next point on the other side.
        here += 1.1 * move + math.copysign(0.01, move if share else -1.0)
        if abs(here) > math.log(_LARGEST_NOISE):
            raise ValueError(
                f"No noise keeps {promise}: what else is released breaks it, so raise the promise or release less."
                if here > 0
                else f"Any noise keeps {promise}: there is nothing to calibrate without a step."
            )
        share = shares[here] = log_share(here)
        broken, kept = (here, kept) if share > 0 else (broken, here)
    while kept - broken > _TOLERANCE:
        low, high = shares[broken], shares[kept]
        # The secant's point, kept off the ends so that both of them move.
        part = low / (low - high) if math.isfinite(low - high) else 0.5
        here = broken + (kept - broken) * min(0.99, max(0.01, part))
        aside = 0.25 * _TOLERANCE
        here = min(kept - aside, max(broken + aside, here + (aside if part > 0.5 else -aside)))
        share = shares[here] = log_share(here)
        broken, kept = (here, kept) if share > 0 else (broken, here)
    # The logarithms above are rounded: the promise itself decides.
    return math.exp(moved_until(lambda log_noise: promise.is_kept_by(curve(math.exp(log_noise))), kept, 1e-9))


@validated
def most_steps(promise: Promise, events: Callable[[int], Sequence[PrivacyEvent]]) -> int:
    """The most steps that keep a promise; 0 where one breaks it.

    Args:
        promise: what is to be kept.
        events: everything released, as a function of the number of steps.

    Raises:
        ValueError: if even no step breaks the promise, since other events do, or any number keeps it.

    Example:
        >>> from lightning_pac.accountants.privacy_loss import GaussianRelease, SuccessBound
        >>> most_steps(SuccessBound(0.6), lambda steps: [GaussianRelease(0.01 * steps)])
        25
    """

    def is_kept(steps: int) -> bool:
        return promise.is_kept_by(privacy_curve(events(steps)))

    if not is_kept(0):
        raise ValueError(f"{promise} is broken before the first step: raise the promise or release less.")
    # Figures never fall with the number of steps, so bisection finds the last that keeps the promise.
    low, high = 0, 1
    while is_kept(high):
        low, high = high, 2 * high
        if high > _MOST_STEPS:
            raise ValueError(f"Any number of steps keeps {promise}: the noise is too large for a limit to matter.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_kept(middle) else (low, middle)
    return low
