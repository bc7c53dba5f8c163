"""An account that is charged step by step."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from lightning_pac._mutex import Mutex
from lightning_pac._validation import Natural, checks_itself, validated
from lightning_pac.accountants.privacy_loss import (
    EpsilonDelta,
    PrivacyCurve,
    PrivacyEvent,
    Promise,
    StepFigures,
    SuccessBound,
    privacy_curve,
)
from lightning_pac.randomness import finite_precision, missing_tail

__all__ = ["RunningAccount"]

_DELTA = 1e-5
# Parts of the planned units. Figures are computed at squares, since they grow about like the root of the steps.
_PARTS = 32**2


class _Terms(Protocol):
    """The prices of one run: units that its steps amount to, and what a unit costs at each Rényi order."""

    @property
    def renyi_order(self) -> float: ...
    @property
    def is_amplified(self) -> bool: ...
    @property
    def is_mean_square(self) -> bool: ...
    def units(self, num_steps: int | Sequence[int]) -> float: ...
    def unit_price(self, noise_multiplier: float, order: float) -> float: ...
    def aggregate(self, cost: float, order: float | None = None) -> float: ...
    def events_of_units(self, noise_multiplier: float, units: float) -> tuple[PrivacyEvent, ...]: ...
    def curve_of_units(self, noise_multiplier: float, units: float) -> PrivacyCurve: ...
    def success_of_units(self, noise_multiplier: float, units: float, prior: float = 0.5) -> float: ...
    def precision(self, num_steps: int) -> float: ...


_TermsT = TypeVar("_TermsT", bound=_Terms)


@validated
class RunningAccount(Generic[_TermsT]):
    """The cost of a run while it is going on, cheap enough to read at every step.

    The price of a unit is computed once; a step only counts. The account equals `SRPPAccountant.epsilon` of the same
    stretches exactly, and what noise from finite random bits adds. The bound on guessing and epsilon at delta are those
    of the next of a few numbers of steps: upper bounds, and exact after the planned steps.

    Args:
        accountant: the account's terms, an `SRPPAccountant`.
        noise_multiplier: noise deviation on the sum, in clipping norms.
        stretches: steps started before, by stretch (see `lightning_pac.scenarios.Sampling`). The next step continues
            the last stretch unless `begin_stretch` is called first.
        planned_steps: steps, earlier ones included, that the figures are spread over.
        promise: what must be kept; it also says for which delta and which prior the figures are.
        draws_per_step: noise values of a step, which come from finite random bits (`finite_precision`); 0 for noise in
            exact arithmetic.

    Raises:
        ValueError: if the promise is broken by the finite bits alone.

    Example:
        >>> from lightning_pac.accountants import SRPPAccountant
        >>> from lightning_pac.scenarios import EpochShuffle, TwoWorldScenario
        >>> scenario = TwoWorldScenario(num_differing=10, num_records=50_000)
        >>> account = SRPPAccountant(scenario, EpochShuffle(512)).track(noise_multiplier=64.0)
        >>> account.next_cost, account.start_step(), account.start_step()
        (0.78125, 0.78125, 0.0)
        >>> account.begin_stretch()
        >>> account.start_step(), account.stretches
        (0.78125, (2, 1))
    """

    def __init__(
        self,
        accountant: _TermsT,
        noise_multiplier: float,
        stretches: Sequence[int] = (),
        planned_steps: int = 0,
        promise: Promise | None = None,
        draws_per_step: Natural = 0,
    ) -> None:
        self.accountant = accountant
        self.noise_multiplier = float(noise_multiplier)
        self._closed = [int(steps) for steps in stretches[:-1]]
        self._open = int(stretches[-1]) if stretches else 0
        self._closed_units = accountant.units(self._closed)
        self._open_units = accountant.units(self._open)
        self._next_units = accountant.units(self._open + 1)
        self._price = accountant.unit_price(self.noise_multiplier, accountant.renyi_order)
        self._mutex = Mutex()
        self.promise = promise
        self.delta = promise.delta if isinstance(promise, EpsilonDelta) else _DELTA
        self.prior = promise.prior if isinstance(promise, SuccessBound) else 0.5
        self.draws_per_step = draws_per_step
        self._asked_steps = planned_steps
        self._planned_steps = max(planned_steps, self.num_steps + 1)
        self._left = self._leave_for_arithmetic()
        planned_open = max(planned_steps - sum(self._closed), self._open, 1)
        self._horizon = self._closed_units + accountant.units(planned_open)
        self._figures: StepFigures | None = None
        self._figured = self._horizon, self._planned_steps, self._left[1]  # units and steps that they reach, and delta
        self._kept_units: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_figures": None}  # computed anew where a copy is asked for one

    @property
    def stretches(self) -> tuple[int, ...]:
        """Steps started in each stretch."""
        return (*self._closed, self._open) if self._closed or self._open else ()

    @property
    def open_steps(self) -> int:
        """Steps started in the last stretch."""
        return self._open

    @property
    def num_steps(self) -> int:
        """Steps started in all."""
        return sum(self._closed) + self._open

    @property
    def epsilon(self) -> float:
        """Cost so far, in nats, at the accountant's order and notion."""
        return self._epsilon_of(self._units, self.num_steps)

    @property
    def next_cost(self) -> float:
        """The cost that the next step would add."""
        return self.next_epsilon - self.epsilon

    @property
    def next_epsilon(self) -> float:
        """Cost after the next step, to be compared with the budget before the step is started."""
        return self._epsilon_of(self._closed_units + self._next_units, self.num_steps + 1)

    @checks_itself
    def use_after(self, more_steps: int) -> tuple[float, float]:
        """Units and values of noise (coarse ones count as more) after so many steps more of the last stretch.

        Args:
            more_steps: steps to come.
        """
        units = self._next_units if more_steps == 1 else self.accountant.units(self._open + more_steps)
        steps = self.num_steps + more_steps
        return self._closed_units + units, self.draws_per_step * steps * self.accountant.precision(steps)

    def cost_of(self, more_steps: int) -> float:
        """The cost of so many steps more, in nats, if they continue the last stretch.

        Args:
            more_steps: steps to come.
        """
        return self._epsilon_of(self.use_after(more_steps)[0], self.num_steps + more_steps) - self.epsilon

    @property
    def arithmetic(self) -> tuple[float, float]:
        """The charge for finite random bits so far: nats to every epsilon and chance, and to every delta."""
        return self.arithmetic_of(self.num_steps)

    @checks_itself
    def arithmetic_of(self, num_steps: int) -> tuple[float, float]:
        """The charge for finite random bits over so many steps; see `arithmetic`."""
        draws = self.draws_per_step * num_steps
        return _arithmetic(draws, draws * self.accountant.precision(num_steps))

    def start_step(self) -> float:
        """Count a step and return what it adds."""
        with self._mutex:
            cost = self.next_cost
            self._open += 1
            self._open_units = self._next_units
            self._next_units = self.accountant.units(self._open + 1)
        return cost

    def begin_stretch(self) -> None:
        """From here on the batches are those of a fresh pass over the data."""
        with self._mutex:
            if self._open:
                self._closed.append(self._open)
                self._closed_units += self._open_units
                self._open, self._open_units, self._next_units = 0, 0, self.accountant.units(1)

    def world_success_bound(self) -> float:
        """Largest success of telling the worlds apart so far, or a little more, at the `prior`."""
        with self._mutex:
            figures, part = self._look_up()
            bound = figures.success_bound(part) + sum(self.arithmetic)
            kept = self.promise.limit if isinstance(self.promise, SuccessBound) and self._is_kept() else 1.0
        return min(bound, kept)

    def epsilon_at_delta(self) -> float:
        """Epsilon that goes with `delta` so far, or a little more; infinite where batches are averaged over."""
        with self._mutex:
            figures, part = self._look_up()
            epsilon = figures.epsilon(part) + self.arithmetic[0]
            kept = self.promise.limit if isinstance(self.promise, EpsilonDelta) and self._is_kept() else math.inf
        return min(epsilon, kept)

    def exact_success_bound(self) -> float:
        """`world_success_bound` of the steps so far, computed now."""
        bound = self.accountant.success_of_units(self.noise_multiplier, self._units, self.prior)
        return min(1.0, bound + sum(self.arithmetic))

    def exact_epsilon_at_delta(self) -> float:
        """`epsilon_at_delta` of the steps so far, computed now."""
        if self.accountant.is_mean_square:
            return math.inf
        nats, tail = self.arithmetic
        # A curve has no epsilon at delta 0: the least float stands for a delta that finite bits used up.
        return self._curve.epsilon(max(self.delta - tail, math.nextafter(0.0, 1.0))) + nats

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The most that any test of the worlds finds at so many false alarms, from everything released so far.

        Args:
            false_positive_rate: how often the test may be wrong in the first world, in [0, 1].

        Raises:
            ValueError: if the rate is not in [0, 1], or the notion is an average over batches.
        """
        nats, tail = self.arithmetic
        # Finite bits change the chance of an event by a factor e^nats and by `tail`, in either world.
        rate = min(1.0, math.exp(nats) * false_positive_rate + tail)
        return min(1.0, math.exp(nats) * (1 - self._curve.trade_off(rate)) + tail)

    def of_plan(self) -> RunningAccount[_TermsT]:
        r"""The account of all planned steps, which holds wherever the run ends.

        Whoever ends a run may have seen what it released, and figures of the steps taken are no bounds then. Of 16
        releases of mu = 0.5 that end where the likelihood ratio passes $e^{\pm 1.5}$, guesses are right in 82 % of
        cases; bounds for the number of releases taken are 76 % on average, that of all 16 is 84 %.
        """
        more = self._asked_steps - self.num_steps
        if more > 0 and self.promise is not None:  # which ends the run
            with self._mutex:
                kept = self._most_kept()
            more = bisect.bisect_right(
                range(1, more + 1),
                kept,
                key=lambda steps: self._closed_units + self.accountant.units(self._open + steps),
            )
        if more <= 0:
            return self
        stretches = [*self._closed, self._open + more]
        return RunningAccount(
            self.accountant, self.noise_multiplier, stretches, self._asked_steps, self.promise, self.draws_per_step
        )

    @checks_itself
    def planned_cost(self, order: float) -> float:
        """What `of_plan` costs at another Rényi order, in nats.

        Args:
            order: the order.
        """
        plan = self.of_plan()
        cost = plan.accountant.aggregate(plan.accountant.unit_price(plan.noise_multiplier, order) * plan._units, order)
        draws = plan.draws_per_step * plan.num_steps * plan.accountant.precision(plan.num_steps)
        return cost + (finite_precision(draws, order) if draws else 0.0)

    def next_keeps_promise(self) -> bool:
        """Whether the promise, if there is one, is kept after the next step as well."""
        with self._mutex:
            units = self._closed_units + self._next_units
            self._reach(units, self.num_steps + 1)
            return self.promise is None or units <= self._most_kept()

    def _is_kept(self) -> bool:
        """Whether the steps so far keep the promise, which may be less than the figure of a few steps more."""
        return self._units <= self._most_kept()

    def _most_kept(self) -> float:
        """The most of the planned units that keep the promise."""
        promise, _ = self._left
        if self._kept_units is None:
            self._kept_units = -1.0 if promise is None else self._most_units(promise)
        return self._kept_units

    @property
    def _units(self) -> float:
        return self._closed_units + self._open_units

    @property
    def _curve(self) -> PrivacyCurve:
        return self.accountant.curve_of_units(self.noise_multiplier, self._units)

    def _look_up(self) -> tuple[StepFigures, int]:
        units = self._units
        self._reach(units, self.num_steps)
        # The plan may have grown because a step beyond it was asked for: the figures of the steps taken stay as exact.
        if units > self._figured[0] or (self.draws_per_step and self.num_steps > self._figured[1]):
            self._figured, self._figures = (self._horizon, self._planned_steps, self._left[1]), None
        if self._figures is None:
            self._figures = self._compute_figures()
        # Rounded up beyond the quotient's own rounding, so that no part has fewer units than the run.
        part = math.ceil(units / self._figured[0] * _PARTS * (1 + 1e-12)) if units else 0
        return self._figures, min(_PARTS, part)

    def _reach(self, units: float, num_steps: int) -> None:
        """Plan for more if that is needed: a run was continued, or replays steps."""
        if units > self._horizon:
            self._horizon = 2 * units
            self._kept_units = None
        if num_steps > self._planned_steps and self.draws_per_step:
            self._planned_steps = 2 * num_steps
            self._kept_units = None
            try:
                self._left = self._leave_for_arithmetic()
            except ValueError:  # the finite bits alone have used the promise up
                self._left = None, self._left[1]

    def _leave_for_arithmetic(self) -> tuple[Promise | None, float]:
        """The rest of the promise and of delta behind the planned steps."""
        nats, tail = self.arithmetic_of(self._planned_steps)
        promise = None if self.promise is None else self.promise.less(nats, tail)
        return promise, max(self.delta - tail, math.nextafter(0.0, 1.0))

    def _compute_figures(self) -> StepFigures:
        """Figures of parts of the planned units."""
        accountant, noise = self.accountant, self.noise_multiplier
        horizon, _, delta = self._figured

        def units(part: int) -> float:
            return math.ceil(horizon * part / _PARTS) if accountant.is_amplified else horizon * part / _PARTS

        if not accountant.is_mean_square:
            return StepFigures.of(
                lambda part: accountant.events_of_units(noise, units(part)), _PARTS, delta, self.prior
            )
        parts = tuple(i * i for i in range(math.isqrt(_PARTS) + 1))
        return StepFigures(parts, lambda part: (math.inf, accountant.success_of_units(noise, units(part), self.prior)))

    def _most_units(self, promise: Promise) -> float:
        """The most of the planned units that keep a promise."""

        def is_kept(units: float) -> bool:
            return promise.is_kept_by(privacy_curve(self.accountant.events_of_units(self.noise_multiplier, units)))

        if is_kept(self._horizon):
            return self._horizon
        # Kept at `low`, which is returned; half a step suffices where units are whole steps.
        low, high = 0.0, self._horizon
        while high - low > (0.5 if self.accountant.is_amplified else 1e-9 * high):
            middle = (low + high) / 2
            low, high = (middle, high) if is_kept(middle) else (low, middle)
        return low

    def _epsilon_of(self, units: float, num_steps: int) -> float:
        epsilon = self.accountant.aggregate(self._price * units)
        if not self.draws_per_step:
            return epsilon
        draws = self.draws_per_step * num_steps * self.accountant.precision(num_steps)
        return epsilon + _precision_at(draws, self.accountant.renyi_order)


@lru_cache(maxsize=16)
def _precision_at(num_coarse: float, order: float) -> float:
    """What finite bits add to the Rényi divergence of that order; kept likewise."""
    return finite_precision(num_coarse, order)


@lru_cache(maxsize=16)
def _arithmetic(num_draws: float, num_coarse: float) -> tuple[float, float]:
    """Kept, since a step asks for that of the same draws again and again."""
    return finite_precision(num_coarse), missing_tail(num_draws)
