"""A user's promise about everything released, as a figure that a curve must not exceed."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from lightning_pac._validation import validated
from lightning_pac.accountants.privacy_loss.curves import PrivacyCurve
from lightning_pac.accountants.privacy_loss.gaussian import mu_for_epsilon, mu_for_success

__all__ = ["EpsilonDelta", "Promise", "SuccessBound", "one_promise", "promise_of"]


class Promise(ABC):
    """A limit on one figure of a curve."""

    @property
    @abstractmethod
    def limit(self) -> float:
        """The largest value that the figure may take."""

    @property
    @abstractmethod
    def blind(self) -> float:
        """The figure where nothing is released."""

    @property
    @abstractmethod
    def largest_mu(self) -> float:
        """The largest mu at which a Gaussian keeps the promise: unamplified runs are calibrated by it."""

    @abstractmethod
    def figure(self, curve: PrivacyCurve) -> float:
        """The figure of a curve, rounded upwards."""

    @abstractmethod
    def less(self, nats: float, tail: float) -> Promise:
        """The rest to promise in exact arithmetic, where noise from finite bits adds to every figure.

        Args:
            nats: what it adds to an epsilon, or to a chance of success.
            tail: what it adds to a delta.

        Raises:
            ValueError: if nothing is left.
        """

    def is_kept_by(self, curve: PrivacyCurve) -> bool:
        """Whether a curve's figure, rounded upwards, is within the limit."""
        return self.figure(curve) <= self.limit

    def log_share(self, curve: PrivacyCurve) -> float:
        """Logarithm of the share of the way from `blind` to `limit` that a curve uses; positive where too much."""
        used = self.figure(curve) - self.blind
        return math.log(used / (self.limit - self.blind)) if used > 0 else -math.inf


@validated
@dataclass(frozen=True)
class EpsilonDelta(Promise):
    """No more than (epsilon, delta) between the two worlds; differential privacy where they differ in one record.

    Args:
        epsilon: privacy loss in nats, positive.
        delta: failure probability, in (0, 1).

    Raises:
        ValueError: if epsilon is not positive and finite, or delta not in (0, 1).

    Example:
        >>> print(f"{EpsilonDelta(1.0, 1e-5).largest_mu:.4f}")
        0.2681
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon is {self.epsilon}, but a privacy loss to be kept is positive and finite.")
        if not 0 < self.delta < 1:
            raise ValueError(
                f"delta is {self.delta}, but must lie strictly between 0 and 1: choose it well below one in the number "
                "of records, such as 1e-5."
            )

    @property
    @override
    def limit(self) -> float:
        return self.epsilon

    @property
    @override
    def blind(self) -> float:
        return 0.0

    @property
    @override
    def largest_mu(self) -> float:
        return mu_for_epsilon(self.epsilon, self.delta)

    @override
    def figure(self, curve: PrivacyCurve) -> float:
        return curve.epsilon(self.delta)

    @override
    def less(self, nats: float, tail: float) -> EpsilonDelta:
        if not (nats < self.epsilon and tail < self.delta):
            raise ValueError(
                f"epsilon is {self.epsilon:g} and delta {self.delta:g}, but noise from finite random bits alone takes "
                f"{nats:.2g} and {tail:.2g} of them in this run: promise more than that."
            )
        return EpsilonDelta(self.epsilon - nats, self.delta - tail)


@validated
@dataclass(frozen=True)
class SuccessBound(Promise):
    """Nobody who sees everything released names the right world more often than this.

    Args:
        bound: probability of naming the right world, above that of the likelier world and below 1.
        prior: probability of one of the worlds before anything is released, in (0, 1).

    Raises:
        ValueError: if the prior is not in (0, 1), or the bound not between the blind guess and 1.

    Example:
        >>> print(f"{SuccessBound(0.6).largest_mu:.4f}")
        0.5067
    """

    bound: float
    prior: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.prior < 1:
            raise ValueError(f"prior is {self.prior}, but must lie strictly between 0 and 1.")
        if not self.blind < self.bound < 1:
            raise ValueError(
                f"bound is {self.bound}, but must lie above {self.blind:g}, which a blind guess reaches, and below 1."
            )

    @property
    @override
    def limit(self) -> float:
        return self.bound

    @property
    @override
    def blind(self) -> float:
        return max(self.prior, 1 - self.prior)

    @property
    @override
    def largest_mu(self) -> float:
        return mu_for_success(self.bound, self.prior)

    @override
    def figure(self, curve: PrivacyCurve) -> float:
        return curve.success_bound(self.prior)

    @override
    def less(self, nats: float, tail: float) -> SuccessBound:
        if not self.bound - nats - tail > self.blind:
            raise ValueError(
                f"world_success_bound is {self.bound}, but noise from finite random bits alone adds {nats + tail:.2g} "
                f"to the {self.blind:g} of a blind guess in this run: promise more than that."
            )
        return SuccessBound(self.bound - nats - tail, self.prior)


def promise_of(
    epsilon: float | None = None,
    delta: float | None = None,
    world_success_bound: float | None = None,
    prior: float = 0.5,
) -> Promise | None:
    """The exact promise that these figures state; None where they state none, or epsilon alone.

    Args:
        epsilon: privacy loss in nats.
        delta: failure probability that goes with it.
        world_success_bound: how often a guess of the world may be right.
        prior: probability of one of the worlds before anything is released; it goes with the bound.

    Raises:
        ValueError: if two promises are stated, half of one, or one out of range.

    Example:
        >>> promise_of(epsilon=3.0, delta=1e-5)
        EpsilonDelta(epsilon=3.0, delta=1e-05)
    """
    if world_success_bound is not None:
        if epsilon is not None or delta is not None:
            raise ValueError(
                "world_success_bound is one promise and epsilon with delta another: pass exactly one of them, and the "
                "other figure is reported."
            )
        try:
            return SuccessBound(world_success_bound, prior)
        except ValueError as error:
            raise ValueError(re.sub("^bound", "world_success_bound", str(error))) from None
    if prior != 0.5:
        raise ValueError(f"prior is {prior}, but belongs to a bound on guessing: pass world_success_bound as well.")
    if delta is None:
        return None
    if epsilon is None:
        raise ValueError(f"delta is {delta}, but belongs to an epsilon: pass epsilon as well.")
    return EpsilonDelta(epsilon, delta)


class _Promising(Protocol):
    """Arguments that state a promise."""

    @property
    def epsilon(self) -> float | None: ...
    @property
    def delta(self) -> float | None: ...
    @property
    def renyi_order(self) -> float | None: ...
    @property
    def world_success_bound(self) -> float | None: ...
    @property
    def prior(self) -> float: ...


def one_promise(arguments: _Promising, noise_multiplier: float | None = None) -> Promise | None:
    """The exact promise that arguments state; None for epsilon at a Rényi order, and where the noise is given.

    Args:
        arguments: whatever has the arguments of a promise.
        noise_multiplier: noise that may be given in place of a promise.

    Raises:
        ValueError: if not exactly one promise is stated, or a number is out of range.
    """
    epsilon, delta, order = arguments.epsilon, arguments.delta, arguments.renyi_order
    promise = promise_of(epsilon, delta, arguments.world_success_bound, arguments.prior)
    given = {
        "epsilon": epsilon,
        "world_success_bound": arguments.world_success_bound,
        "noise_multiplier": noise_multiplier,
    }
    stated = [name for name, value in given.items() if value is not None]
    if len(stated) != 1:
        found = f"{' and '.join(stated)} each decide the noise" if stated else "epsilon is None, and so are the others"
        raise ValueError(
            f"{found}: pass exactly one of epsilon (with delta or renyi_order), world_success_bound and "
            "noise_multiplier."
        )
    if epsilon is not None and delta is None and order is None:
        raise ValueError(
            f"epsilon={epsilon:g} says nothing by itself: pass delta=1e-5 beside it for (epsilon, delta) between the "
            "worlds, or renyi_order=16 for a Rényi divergence of that order."
        )
    if epsilon is not None and delta is not None and order is not None:
        raise ValueError(
            f"epsilon={epsilon:g} with delta={delta:g} is one promise, and with renyi_order={order:g} another: leave "
            "one of them out."
        )
    return promise
