"""The price of a private training run in Rényi Pufferfish privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy import optimize

from lightning_pac.accountants import bounds, orders
from lightning_pac.accountants.srpp.amplified import amplified_step_cost
from lightning_pac.accountants.srpp.conditions import conditions_of
from lightning_pac.accountants.srpp.running import RunningAccount
from lightning_pac.accountants.srpp.slices import SliceCoefficients
from lightning_pac.scenarios import Sampling, TwoWorldScenario, as_stretches

__all__ = ["Notion", "SRPPAccountant"]

Notion = Literal["ave", "joint", "ms-ave", "ms-joint", "rpp"]
"""The adversaries that an epsilon of training bounds: `rpp` every adversary in the worst case; `ave` and `joint` those
who see one projection, on average over slices or jointly; `ms-ave` and `ms-joint` likewise, averaged over batches."""

_METRICS: dict[Notion, str] = {
    "ave": "privacy/srpp_ave_epsilon",
    "joint": "privacy/srpp_joint_epsilon",
    "ms-ave": "privacy/ms_srpp_ave_epsilon",
    "ms-joint": "privacy/ms_srpp_joint_epsilon",
    "rpp": "privacy/rpp_epsilon",
}


@dataclass(frozen=True)
class SRPPAccountant:
    """Account of one SRPP-SGD run (sliced Rényi Pufferfish privacy, section 5; the `rpp` notion is ours).

    Gradients are clipped per record to norm c, summed, and get noise `N(0, sigma^2 c^2 I)`; sigma is the noise
    multiplier. A step in whose batch K records differ costs `a kappa^2 K^2 / (2 sigma^2)`, and costs add over steps.

    - `ave`, `joint`: the largest `sum_t K_t^2` on any path of batches. With one flat clipping block the two agree and
      bound the unsliced divergence as well; `slices` tells them apart.
    - `ms-ave`, `ms-joint`: its expectation over the draw of the batches. Weaker in kind: an average over draws that
      the adversary did not choose.
    - `rpp`: unsliced and worst-case; under Poisson sampling with secret draws amplified, otherwise as `joint`.

    Steps are an integer or the steps started in each stretch (see `lightning_pac.scenarios.Sampling`), so that a
    resumed run is charged for its journal.

    Args:
        scenario: the two worlds, with the number of records bound (`TwoWorldScenario.resolve`) where it matters.
        sampling: how batches are drawn.
        renyi_order: order a at which epsilon is stated, above 1.
        notion: one of `ave`, `joint`, `ms-ave`, `ms-joint`, `rpp`.
        slices: per-slice coefficients of several clipping blocks, for the paper's `ave` and `joint` figures, which
            are then uncertified. The noise multiplier is `effective_noise_multiplier`.
        joint_aggregation: `logsumexp`, or `max` for the paper's largest slice. `ms-joint` always takes the largest.

    Raises:
        ValueError: if the order is not above 1, the notion unknown, or the sampling does not carry the notion.

    Example:
        >>> from lightning_pac.scenarios import Poisson
        >>> scenario = TwoWorldScenario(num_differing=10, adjacency="zero_out")
        >>> accountant = SRPPAccountant(scenario, Poisson(rate=512 / 50_000))
        >>> print(f"{accountant.noise_multiplier(epsilon=8.0, num_steps=3906):.2f}")
        6.56
    """

    scenario: TwoWorldScenario
    sampling: Sampling
    renyi_order: float = 16.0
    notion: Notion = "rpp"
    slices: SliceCoefficients | None = None
    joint_aggregation: Literal["logsumexp", "max"] = "logsumexp"

    def __post_init__(self) -> None:
        if not 1 < self.renyi_order < math.inf:
            raise ValueError(f"renyi_order is {self.renyi_order}, but must be finite and above 1.")
        if self.notion not in get_args(Notion):
            raise ValueError(f"notion is {self.notion!r}, but must be one of {', '.join(get_args(Notion))}.")
        if self.joint_aggregation not in ("logsumexp", "max"):
            raise ValueError(f"joint_aggregation is {self.joint_aggregation!r}, but must be logsumexp or max.")
        if self.slices is not None and self.notion == "rpp":
            raise ValueError('The notion "rpp" is unsliced: leave slices out, or choose "ave" or "joint".')
        independent = self.sampling.is_certified and self.sampling.independent_draws
        if self.scenario.adjacency == "add_remove" and not independent:
            raise ValueError(
                f"add_remove does not hold under {type(self.sampling).__name__}, where a record's absence moves the "
                "others: use Poisson sampling, or the adjacency zero_out."
            )
        # Refuses here, with the sampler's own sentence, what the sampler cannot bound.
        self.squares(1)

    @property
    def metric_name(self) -> str:
        """Name under which epsilon is logged."""
        return _METRICS[self.notion] + ("" if self.is_certified else "_uncertified")

    @property
    def is_certified(self) -> bool:
        """Whether the cost of several steps is a bound; per-slice costs of several blocks do not add."""
        return self.slices is None

    @property
    def is_mean_square(self) -> bool:
        """Whether the cost is an average over the draw of the batches."""
        return self.notion.startswith("ms-")

    @property
    def is_amplified(self) -> bool:
        """Whether the secrecy of the draws lowers the cost."""
        return self.notion == "rpp" and self.sampling.is_certified and self.sampling.amplified_rate is not None

    @cached_property
    def orders(self) -> tuple[float, ...]:
        """Every order tracked: the stated one and `DEFAULT_ORDERS`."""
        return tuple(sorted({*orders.DEFAULT_ORDERS, float(self.renyi_order)}))

    def squares(self, num_steps: int | Sequence[int]) -> float:
        """The units of a run: `sum_t K_t^2`, worst case or expected."""
        differing, records = self.scenario.total_differing, self.scenario.num_records
        if self.is_mean_square:
            return self.sampling.expected_square_sum(differing, records, num_steps)
        return self.sampling.worst_case_square_sum(differing, records, num_steps)

    def epsilon(self, noise_multiplier: float, num_steps: int | Sequence[int], order: float | None = None) -> float:
        """Cost of a run, in nats.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            num_steps: optimizer steps started, or those of each stretch.
            order: Rényi order; the accountant's own if left out.

        Raises:
            ValueError: if the noise multiplier is not positive.
        """
        _check_positive("noise_multiplier", noise_multiplier)
        order = self.renyi_order if order is None else order
        return self.aggregate(self.unsliced_epsilon(noise_multiplier, num_steps, order), order)

    def unsliced_epsilon(self, noise_multiplier: float, num_steps: int | Sequence[int], order: float) -> float:
        """Cost of a run to an adversary who sees every coordinate of every step; order 1 is Kullback-Leibler.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            num_steps: optimizer steps started, or those of each stretch.
            order: Rényi order, at least 1.
        """
        return self.unit_price(noise_multiplier, order) * self.units(num_steps)

    def units(self, num_steps: int | Sequence[int]) -> float:
        """The units of a run: its steps where the account is amplified, otherwise their `K_t^2`."""
        return sum(as_stretches(num_steps)) if self.is_amplified else self.squares(num_steps)

    def unit_price(self, noise_multiplier: float, order: float) -> float:
        """Unsliced cost of one unit, in nats; constant over a run.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            order: Rényi order, at least 1.
        """
        if self.is_amplified and order > 1:
            assert self.sampling.amplified_rate is not None
            rate = self.sampling.amplified_rate
            return amplified_step_cost(self.scenario, rate, float(noise_multiplier), float(order))
        price = order * (self.scenario.sensitivity_factor / noise_multiplier) ** 2 / 2
        return price * self.scenario.total_differing**2 if self.is_amplified else price

    def noise_multiplier(self, epsilon: float, num_steps: int | Sequence[int]) -> float:
        """The least noise at which a run costs no more than `epsilon`, rounded up by at most one part in a million.

        Args:
            epsilon: what the run may cost, in nats at the accountant's order.
            num_steps: optimizer steps started, or those of each stretch.

        Raises:
            ValueError: if epsilon is not positive and finite, or there are no steps.
        """
        _check_positive("epsilon", epsilon)
        squares = self.squares(num_steps)
        if not squares:
            raise ValueError(f"num_steps is {num_steps}, but noise is calibrated for at least one step.")
        high = self.scenario.sensitivity_factor * math.sqrt(self.renyi_order * squares / (2 * epsilon))
        if self.is_amplified or self.slices is not None:
            high = self._search_noise(epsilon, num_steps, high)
        while self.epsilon(high, num_steps) > epsilon:
            high *= 1 + 1e-7 if self.is_amplified else 1 + 1e-15
        return high

    def num_steps(self, noise_multiplier: float, epsilon: float) -> int:
        """The most steps of an uninterrupted run that cost no more than `epsilon`.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            epsilon: what the run may cost, in nats at the accountant's order.

        Raises:
            ValueError: if epsilon or the noise multiplier is not positive and finite.
        """
        _check_positive("epsilon", epsilon)
        low, high = 0, 1
        while self.epsilon(noise_multiplier, high) <= epsilon:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self.epsilon(noise_multiplier, middle) <= epsilon:
                low = middle
            else:
                high = middle
        return low

    def step_cost(self, noise_multiplier: float, step: int = 0) -> float:
        """Marginal cost of step number `step` (from 0) of a run.

        Pass-wise samplers charge what the differing records can do as early as they can do it: the first steps of a
        pass cost, the others are free.
        """
        if self.slices is not None:
            return self.epsilon(noise_multiplier, step + 1) - self.epsilon(noise_multiplier, step)
        return self.unit_price(noise_multiplier, self.renyi_order) * (self.units(step + 1) - self.units(step))

    def track(self, noise_multiplier: float, stretches: Sequence[int] = ()) -> RunningAccount[SRPPAccountant]:
        """An account that is charged step by step, from what a journal says was started before.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            stretches: steps that were started in each stretch of earlier attempts.
        """
        _check_positive("noise_multiplier", noise_multiplier)
        return RunningAccount(self, noise_multiplier, stretches)

    def epsilons(
        self, noise_multiplier: float, num_steps: int | Sequence[int], at: Sequence[float] | None = None
    ) -> npt.NDArray[np.float64]:
        """Unsliced cost at each order of a grid (`orders` if left out), shape (len(at),).

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            num_steps: optimizer steps started, or those of each stretch.
            at: Rényi orders, at least 1.
        """
        _check_positive("noise_multiplier", noise_multiplier)
        grid = self.orders if at is None else at
        return np.array([self.unsliced_epsilon(noise_multiplier, num_steps, order) for order in grid])

    def world_success_bound(self, noise_multiplier: float, num_steps: int | Sequence[int], prior: float = 0.5) -> float:
        """Largest success of telling the worlds apart from everything released; see `bounds.world_success_bound`.

        Mean-square notions bound it through the Kullback-Leibler order alone, on average over the batches.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            num_steps: optimizer steps started, or those of each stretch.
            prior: probability of the first world before anything is released, in (0, 1).
        """
        tracked = self.success_orders
        return bounds.world_success_bound(tracked, self.epsilons(noise_multiplier, num_steps, tracked), prior)

    @property
    def success_orders(self) -> tuple[float, ...]:
        """Orders that bound the adversary's success: Kullback-Leibler where it is exact, alone for `ms`."""
        if self.is_mean_square:
            return (1.0,)
        return self.orders if self.is_amplified else (1.0, *self.orders)

    def epsilon_at_delta(
        self, noise_multiplier: float, num_steps: int | Sequence[int], delta: float = 1e-5
    ) -> tuple[float, float]:
        """Epsilon of an (epsilon, delta) guarantee between the worlds, and the order that gives it.

        For `TwoWorldScenario.differential_privacy()` this is (epsilon, delta)-differential privacy.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            num_steps: optimizer steps started, or those of each stretch.
            delta: failure probability, in (0, 1).

        Raises:
            ValueError: if the notion is not `rpp`.
        """
        if self.notion != "rpp":
            raise ValueError(f'(epsilon, delta) follows from the notion "rpp" only, not from {self.notion!r}.')
        return orders.epsilon_at_delta(self.orders, self.epsilons(noise_multiplier, num_steps), delta)

    def to_dict(self) -> dict[str, Any]:
        """The declaration of this account in a ledger, as plain values."""
        declaration: dict[str, Any] = {
            "scenario": self.scenario.to_dict(),
            "sampling": self.sampling.to_dict(),
            "renyi_order": float(self.renyi_order),
            "notion": self.notion,
        }
        if self.slices is not None:
            declaration["slices"] = {
                "coefficients": list(self.slices.coefficients),
                "weights": list(self.slices.weights),
                "joint_aggregation": self.joint_aggregation,
            }
        return declaration

    def conditions(self) -> tuple[str, ...]:
        """The assumptions of the guarantee, in sentences for the privacy card."""
        return conditions_of(self.scenario, self.sampling, self.notion, self.is_amplified, self.slices is not None)

    def aggregate(self, cost: float, order: float | None = None) -> float:
        """The notion's cost where the unsliced one is `cost`: equal to it unless there are slices."""
        if self.slices is None:
            return cost
        order = self.renyi_order if order is None else order
        if self.notion in ("ave", "ms-ave"):
            return self.slices.average(cost)
        # An expectation inside the log-sum-exp would err downwards (Jensen), so ms takes the largest slice.
        return self.slices.joint(cost, order, "max" if self.is_mean_square else self.joint_aggregation)

    def _search_noise(self, epsilon: float, num_steps: int | Sequence[int], high: float) -> float:
        def excess(log_noise: float) -> float:
            return math.log(self.epsilon(math.exp(log_noise), num_steps) / epsilon)

        upper = math.log(high) + 1e-9
        lower = upper - 0.5
        while excess(lower) <= 0:
            upper, lower = lower, 2 * lower - upper - 0.5
        return math.exp(float(optimize.brentq(excess, lower, upper, xtol=1e-8)))


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}, but must be positive and finite.")
