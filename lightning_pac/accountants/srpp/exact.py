"""The exact figures of a run: what is read from the curve of everything it releases."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache

from lightning_pac._validation import Noise, validated
from lightning_pac.accountants import bounds
from lightning_pac.accountants.privacy_loss import (
    GaussianRelease,
    PoissonSteps,
    PrivacyCurve,
    PrivacyEvent,
    Promise,
    SpreadSteps,
    least_noise,
    privacy_curve,
    promise_of,
)
from lightning_pac.scenarios import Sampling, TwoWorldScenario

__all__ = ["ExactFigures", "check_positive"]


@validated
class ExactFigures(ABC):
    """Figures that are read from the events of a run; the base of `SRPPAccountant`.

    The figures hold where the noise and the number of steps, or the most of them, were fixed beforehand. The notions
    that average over batches have no events: only their bound on guessing is stated, through the Kullback-Leibler
    order.
    """

    scenario: TwoWorldScenario
    sampling: Sampling

    @property
    @abstractmethod
    def is_mean_square(self) -> bool:
        """Whether the cost is an average over the draw of the batches."""

    @property
    @abstractmethod
    def is_amplified(self) -> bool:
        """Whether the secrecy of the draws lowers the cost."""

    @abstractmethod
    def units(self, num_steps: int | Sequence[int]) -> float:
        """The units of a run: its steps where the account is amplified, otherwise their `K_t^2`."""

    @abstractmethod
    def unit_price(self, noise_multiplier: Noise, order: float) -> float:
        """Unsliced cost of one unit, in nats."""

    def events(self, noise_multiplier: Noise, num_steps: int | Sequence[int]) -> tuple[PrivacyEvent, ...]:
        """Everything a run releases, for `privacy_curve`: it is no easier to tell apart than these.

        Secretly drawn Poisson batches are `PoissonSteps`, those that draw several records from blocks `SpreadSteps`,
        all others a `GaussianRelease` with `mu^2 = kappa^2 sum_t K_t^2 / sigma^2`.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            num_steps: optimizer steps started, or those of each stretch.

        Raises:
            ValueError: if the noise multiplier is not positive, or the notion is an average over batches.

        Example:
            >>> from lightning_pac.accountants import SRPPAccountant
            >>> from lightning_pac.scenarios import EpochShuffle, TwoWorldScenario
            >>> scenario = TwoWorldScenario(num_differing=10, num_records=5_000)
            >>> SRPPAccountant(scenario, EpochShuffle(50)).events(noise_multiplier=32.0, num_steps=300)
            (GaussianRelease(mu_squared=1.171875),)
        """
        return self.events_of_units(noise_multiplier, self.units(num_steps))

    def events_of_units(self, noise_multiplier: Noise, units: float) -> tuple[PrivacyEvent, ...]:
        """The `events` of a run that amounts to so many units.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            units: units of the run, as `units` counts them.

        Raises:
            ValueError: if the noise multiplier is not positive, or the notion is an average over batches.
        """
        check_positive("noise_multiplier", noise_multiplier)
        self.check_has_events()
        if self.is_amplified:
            assert self.sampling.amplified_rate is not None
            rate = self.sampling.amplified_rate
            several = self.sampling.amplifies_one_record and self.scenario.total_differing > 1
            kind = SpreadSteps if several else PoissonSteps
            return (kind.of(self.scenario, rate, float(noise_multiplier), int(units)),)
        return (GaussianRelease(units * (self.scenario.sensitivity_factor / noise_multiplier) ** 2),)

    def curve_of_units(self, noise_multiplier: Noise, units: float) -> PrivacyCurve:
        """The curve of a run that amounts to so many units; kept, since it is read several times.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            units: units of the run, as `units` counts them.

        Raises:
            ValueError: if the noise multiplier is not positive, or the notion is an average over batches.
        """
        return _curve(self.events_of_units(noise_multiplier, units))

    def check_has_events(self) -> None:
        """Refuse what an average over batches does not promise.

        Raises:
            ValueError: if the notion is such an average.
        """
        if self.is_mean_square:
            raise ValueError(
                "An average over batches (ms-ave, ms-joint) promises no (epsilon, delta), bound on guessing or "
                'trade-off: state epsilon at a Rényi order, or choose the notion "rpp".'
            )

    def noise_multiplier_for(
        self, *, world_success_bound: float, num_steps: int | Sequence[int], prior: float = 0.5
    ) -> float:
        """The least noise at which nobody names the right world more often than `world_success_bound`.

        Args:
            world_success_bound: how often a guess may be right, above the blind guess and below 1.
            num_steps: optimizer steps started, or those of each stretch.
            prior: probability of the first world before anything is released, in (0, 1).

        Raises:
            ValueError: if the bound is not between the blind guess and 1, there are no steps, or the notion is an
                average over batches.
        """
        promise = promise_of(world_success_bound=world_success_bound, prior=prior)
        assert promise is not None
        return self.noise_for(promise, num_steps)

    def noise_for(self, promise: Promise, num_steps: int | Sequence[int]) -> float:
        """The least noise at which a run keeps a promise, rounded up by at most a few parts in a million.

        Args:
            promise: an `EpsilonDelta` or a `SuccessBound`.
            num_steps: optimizer steps started, or those of each stretch.

        Raises:
            ValueError: if there are no steps, or the notion is an average over batches.
        """
        units = self.units(num_steps)
        self.check_has_events()
        if not units:
            raise ValueError(f"num_steps is {num_steps}, but noise is calibrated for at least one step.")
        return least_noise(promise, lambda noise: self.events_of_units(noise, units))

    def world_success_bound(self, noise_multiplier: Noise, num_steps: int | Sequence[int], prior: float = 0.5) -> float:
        """Largest success of telling the worlds apart from everything released.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            num_steps: optimizer steps started, or those of each stretch.
            prior: probability of the first world before anything is released, in (0, 1).
        """
        check_positive("noise_multiplier", noise_multiplier)
        return self.success_of_units(noise_multiplier, self.units(num_steps), prior)

    def success_of_units(self, noise_multiplier: Noise, units: float, prior: float = 0.5) -> float:
        """The `world_success_bound` of a run that amounts to so many units.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            units: units of the run, as `units` counts them.
            prior: probability of the first world before anything is released, in (0, 1).
        """
        if self.is_mean_square:
            divergence = self.unit_price(noise_multiplier, 1.0) * units
            return bounds.world_success_bound([1.0], [divergence], prior)
        return self.curve_of_units(noise_multiplier, units).success_bound(prior)

    def epsilon_at_delta(
        self, noise_multiplier: Noise, num_steps: int | Sequence[int], delta: float = 1e-5
    ) -> tuple[float, float]:
        """The (epsilon, delta) between the worlds: the least epsilon that goes with delta, and delta.

        For `TwoWorldScenario.differential_privacy()` this is (epsilon, delta)-differential privacy.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            num_steps: optimizer steps started, or those of each stretch.
            delta: failure probability, in (0, 1).

        Raises:
            ValueError: if delta is not in (0, 1), or the notion is an average over batches.
        """
        return self.curve_of_units(noise_multiplier, self.units(num_steps)).epsilon(delta), delta

    def trade_off(self, noise_multiplier: Noise, num_steps: int | Sequence[int]) -> Callable[[float], float]:
        """The attacker's trade-off: from a false-positive rate to the least false-negative rate of any test.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            num_steps: optimizer steps started, or those of each stretch.

        Raises:
            ValueError: if the notion is an average over batches.
        """
        return self.curve_of_units(noise_multiplier, self.units(num_steps)).trade_off


@lru_cache(maxsize=16)
def _curve(events: tuple[PrivacyEvent, ...]) -> PrivacyCurve:
    """Read several times: by the card of every checkpoint, for one."""
    return privacy_curve(events)


def check_positive(name: str, value: float) -> None:
    """Refuse a number that is not positive and finite.

    Raises:
        ValueError: if it is not.
    """
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}, but must be positive and finite.")
