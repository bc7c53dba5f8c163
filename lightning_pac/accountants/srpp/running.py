"""An account that is charged step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from lightning_pac._mutex import Mutex
from lightning_pac.accountants import bounds

__all__ = ["RunningAccount"]

_REFRESH_GROWTH = 1.1


class _Terms(Protocol):
    """The prices of one run: units that its steps amount to, and what a unit costs at each Rényi order."""

    @property
    def renyi_order(self) -> float: ...
    @property
    def success_orders(self) -> tuple[float, ...]: ...
    def units(self, num_steps: int | Sequence[int]) -> float: ...
    def unit_price(self, noise_multiplier: float, order: float) -> float: ...
    def aggregate(self, cost: float, order: float | None = None) -> float: ...


_TermsT = TypeVar("_TermsT", bound=_Terms)


class RunningAccount(Generic[_TermsT]):
    """The cost of a run while it is going on, cheap enough to read at every step.

    The price of a unit is computed once; a step only counts. The account equals `SRPPAccountant.epsilon` of the same
    stretches exactly.

    Args:
        accountant: the account's terms, an `SRPPAccountant`.
        noise_multiplier: noise deviation on the sum, in clipping norms.
        stretches: steps started before, by stretch (see `lightning_pac.scenarios.Sampling`). The next step continues
            the last stretch unless `begin_stretch` is called first.

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

    def __init__(self, accountant: _TermsT, noise_multiplier: float, stretches: Sequence[int] = ()) -> None:
        self.accountant = accountant
        self.noise_multiplier = float(noise_multiplier)
        self._closed = [int(steps) for steps in stretches[:-1]]
        self._open = int(stretches[-1]) if stretches else 0
        self._closed_units = accountant.units(self._closed)
        self._open_units = accountant.units(self._open)
        self._next_units = accountant.units(self._open + 1)
        self._price = accountant.unit_price(self.noise_multiplier, accountant.renyi_order)
        self._tangent: tuple[float, float, float, float] | None = None
        self._mutex = Mutex()

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
        return self._epsilon_of(self._closed_units + self._open_units)

    @property
    def next_cost(self) -> float:
        """The cost that the next step would add."""
        return self._epsilon_of(self._closed_units + self._next_units) - self.epsilon

    @property
    def next_epsilon(self) -> float:
        """Cost after the next step, to be compared with the budget before the step is started."""
        return self._epsilon_of(self._closed_units + self._next_units)

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
        """Largest success of telling the worlds apart so far, at prior 1/2.

        Any single order gives a bound; the best one moves slowly, so it is looked up again only when the account has
        grown by a tenth. The number is at most slightly above `SRPPAccountant.world_success_bound`.
        """
        units = self._closed_units + self._open_units
        if not units:
            return 0.5
        if self._tangent is None or units > _REFRESH_GROWTH * self._tangent[0]:
            orders = self.accountant.success_orders
            prices = np.array([self.accountant.unit_price(self.noise_multiplier, order) for order in orders])
            logits = bounds.largest_symmetric_logit(np.array(orders), prices * units)
            best = int(np.argmin(logits))
            self._tangent = (units, orders[best], float(prices[best]), float(logits[best]))
        _, order, price, logit = self._tangent
        logit = bounds.raise_symmetric_logit(order, price * units, logit)
        return 1 / (1 + math.exp(-logit))

    def _epsilon_of(self, units: float) -> float:
        return self.accountant.aggregate(self._price * units)
