"""The price of a private training run in Rényi Pufferfish privacy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scipy import optimize
from typing_extensions import override

from lightning_pac._roots import moved_until
from lightning_pac._validation import Cost, Natural, Noise, checks_itself, validated
from lightning_pac.accountants.correlated_noise import BandedMatrix
from lightning_pac.accountants.privacy_loss import EpsilonDelta, Promise, most_steps, promise_of
from lightning_pac.accountants.srpp.amplified import cached_step_cost
from lightning_pac.accountants.srpp.conditions import conditions_of
from lightning_pac.accountants.srpp.exact import ExactFigures, check_positive
from lightning_pac.accountants.srpp.running import RunningAccount
from lightning_pac.accountants.srpp.slices import SliceCoefficients
from lightning_pac.scenarios import Sampling, TwoWorldScenario

__all__ = ["Notion", "SRPPAccountant"]

Notion = Literal["ave", "joint", "ms-ave", "ms-joint", "rpp"]
"""The adversaries that an epsilon of training bounds: `rpp` every adversary in the worst case; `ave` and `joint` those
who see one projection, on average over slices or jointly; `ms-ave` and `ms-joint` likewise, averaged over batches."""

_CURRENCIES: dict[Notion, str] = {
    "ave": "srpp_ave",
    "joint": "srpp_joint",
    "ms-ave": "ms_srpp_ave",
    "ms-joint": "ms_srpp_joint",
    "rpp": "rpp",
}


@validated
@dataclass(frozen=True)
class SRPPAccountant(ExactFigures):
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

    Epsilon at a Rényi order is the cheap total, which adds over runs. Everything else is exact (`ExactFigures`): the
    bound on guessing, (epsilon, delta) and the attacker's trade-off are read from the curve of the run's `events`.

    Args:
        scenario: the two worlds, with the number of records bound (`TwoWorldScenario.resolve`) where it matters.
        sampling: how batches are drawn.
        renyi_order: order a at which epsilon is stated, above 1.
        notion: one of `ave`, `joint`, `ms-ave`, `ms-joint`, `rpp`.
        slices: per-slice coefficients of several clipping blocks, for the paper's `ave` and `joint` figures, which
            are then uncertified. The noise multiplier is `effective_noise_multiplier`.
        joint_aggregation: `logsumexp`, or `max` for the paper's largest slice. `ms-joint` always takes the largest.
        correlation: how the noise of one step returns in later ones; independent noise if left out.

    Raises:
        ValueError: if the order is not above 1, the notion unknown, or the sampling does not carry the notion.

    Example:
        >>> from lightning_pac.scenarios import Poisson
        >>> scenario = TwoWorldScenario(num_differing=10, adjacency="zero_out")
        >>> accountant = SRPPAccountant(scenario, Poisson(rate=512 / 50_000))
        >>> print(f"{accountant.noise_multiplier(epsilon=8.0, num_steps=3906):.2f}")
        6.56
        >>> print(f"{accountant.noise_multiplier(epsilon=3.0, num_steps=3906, delta=1e-5):.2f}")
        8.96
        >>> print(f"{accountant.noise_multiplier_for(world_success_bound=0.6, num_steps=3906):.2f}")
        12.65
    """

    scenario: TwoWorldScenario
    sampling: Sampling
    renyi_order: float = 16.0
    notion: Notion = "rpp"
    slices: SliceCoefficients | None = None
    joint_aggregation: Literal["logsumexp", "max"] = "logsumexp"
    correlation: BandedMatrix | None = None

    def __post_init__(self) -> None:
        if not 1 < self.renyi_order < math.inf:
            raise ValueError(f"renyi_order is {self.renyi_order}, but must be finite and above 1.")
        if self.slices is not None and self.notion == "rpp":
            raise ValueError('The notion "rpp" is unsliced: leave slices out, or choose "ave" or "joint".')
        if self.correlation is not None:
            self._check_correlation(self.correlation)
        independent = self.sampling.is_certified and self.sampling.independent_draws
        if self.scenario.adjacency == "add_remove" and not independent:
            raise ValueError(
                f"add_remove does not hold under {type(self.sampling).__name__}, where a record's absence moves the "
                "others: use Poisson sampling, or the adjacency zero_out."
            )
        # Refuses here, with the sampler's own sentence, what the sampler cannot bound.
        self.squares(1)

    @property
    def currency(self) -> str:
        """Currency of its costs in a ledger."""
        return _CURRENCIES[self.notion]

    @property
    def epsilon_name(self) -> str:
        """Name of its epsilon on a card."""
        return f"{self.currency}_epsilon" + ("" if self.is_certified else "_uncertified")

    @property
    def metric_name(self) -> str:
        """Name under which its epsilon is logged."""
        return f"privacy/{self.epsilon_name}"

    @property
    def is_certified(self) -> bool:
        """Whether the cost of several steps is a bound; per-slice costs of several blocks do not add."""
        return self.slices is None

    @property
    @override
    def is_mean_square(self) -> bool:
        """Whether the cost is an average over the draw of the batches."""
        return self.notion.startswith("ms-")

    @property
    @override
    def is_amplified(self) -> bool:
        """Whether the secrecy of the draws lowers the cost."""
        amplified = self.sampling.is_certified and self.sampling.amplified_rate is not None
        return self.notion == "rpp" and amplified

    @checks_itself
    def squares(self, num_steps: int | Sequence[int]) -> float:
        """The units of a run: `sum_t K_t^2`, worst case or expected."""
        differing, records = self.scenario.total_differing, self.scenario.num_records
        if self.is_mean_square:
            return self.sampling.expected_square_sum(differing, records, num_steps)
        if self.correlation is not None:
            return self.correlation.square_sum(self.sampling, differing, records, num_steps)
        return self.sampling.worst_case_square_sum(differing, records, num_steps)

    def epsilon(self, noise_multiplier: Noise, num_steps: int | Sequence[int], order: float | None = None) -> float:
        """Cost of a run, in nats.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            num_steps: optimizer steps started, or those of each stretch.
            order: Rényi order; the accountant's own if left out.

        Raises:
            ValueError: if the noise multiplier is not positive.
        """
        check_positive("noise_multiplier", noise_multiplier)
        order = self.renyi_order if order is None else order
        return self.aggregate(self.unsliced_epsilon(noise_multiplier, num_steps, order), order)

    def unsliced_epsilon(self, noise_multiplier: Noise, num_steps: int | Sequence[int], order: float) -> float:
        """Cost of a run to an adversary who sees every coordinate of every step; order 1 is Kullback-Leibler.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            num_steps: optimizer steps started, or those of each stretch.
            order: Rényi order, at least 1.
        """
        return self.unit_price(noise_multiplier, order) * self.units(num_steps)

    @override
    @checks_itself
    def units(self, num_steps: int | Sequence[int]) -> float:
        """The units of a run: its steps where the account is amplified, otherwise their `K_t^2`."""
        return self.sampling.amplified_steps(num_steps) if self.is_amplified else self.squares(num_steps)

    @override
    @checks_itself
    def unit_price(self, noise_multiplier: float, order: float) -> float:
        """Unsliced cost of one unit, in nats; constant over a run.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            order: Rényi order, at least 1.
        """
        if self.is_amplified and order > 1:
            assert self.sampling.amplified_rate is not None
            rate = self.sampling.amplified_rate
            return cached_step_cost(self.scenario, rate, noise_multiplier, order, self.sampling.amplifies_one_record)
        # a kappa^2 / (2 sigma^2) for a unit of K^2. Units of an amplified account are steps, which at order 1 cost as
        # if K were d and the draws known.
        price = order * (self.scenario.sensitivity_factor / noise_multiplier) ** 2 / 2
        return price * self.scenario.total_differing**2 if self.is_amplified else price

    def noise_multiplier(self, epsilon: Cost, num_steps: int | Sequence[int], delta: float | None = None) -> float:
        """The least noise at which a run costs no more than `epsilon`, rounded up by at most a few parts in a million.

        Args:
            epsilon: what the run may cost, in nats: with `delta` as (epsilon, delta), otherwise at the accountant's
                Rényi order.
            num_steps: optimizer steps started, or those of each stretch.
            delta: failure probability, in (0, 1).

        Raises:
            ValueError: if epsilon is not positive and finite, delta not in (0, 1), there are no steps, or delta is
                asked of an average over batches.
        """
        if delta is not None:
            return self.noise_for(EpsilonDelta(epsilon, delta), num_steps)
        check_positive("epsilon", epsilon)
        squares = self.squares(num_steps)
        if not squares:
            raise ValueError(f"num_steps is {num_steps}, but noise is calibrated for at least one step.")
        # a kappa^2 S / (2 sigma^2) = epsilon solved for sigma, which is more than enough with amplification or slices.
        high = self.scenario.sensitivity_factor * math.sqrt(self.renyi_order * squares / (2 * epsilon))
        if not 0 < high < math.inf:
            raise ValueError(f"epsilon is {epsilon} at order {self.renyi_order}, for which no noise can be computed.")
        if self.is_amplified or self.slices is not None:
            high = self._search_noise(epsilon, num_steps, high)
        # Rounding may leave the cost just above epsilon: the cost itself decides.
        step = high * (1e-7 if self.is_amplified else 1e-15)
        return moved_until(lambda noise: self.epsilon(noise, num_steps) <= epsilon, high, step)

    def num_steps(
        self,
        noise_multiplier: Noise,
        epsilon: Cost | None = None,
        delta: float | None = None,
        *,
        world_success_bound: float | None = None,
        prior: float = 0.5,
    ) -> int:
        """The most steps of an uninterrupted run that keep one promise.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            epsilon: what the run may cost, in nats: with `delta` as (epsilon, delta), otherwise at the accountant's
                Rényi order.
            delta: failure probability, in (0, 1).
            world_success_bound: how often a guess may be right, in place of epsilon.
            prior: probability of the first world before anything is released; it goes with the bound.

        Raises:
            ValueError: if a number is out of range, not exactly one promise is given, or any number of steps keeps it.
        """
        promise = promise_of(epsilon, delta, world_success_bound, prior)
        if promise is not None:
            return most_steps(promise, lambda steps: self.events(noise_multiplier, steps))
        if epsilon is None:
            raise ValueError("Nothing is promised: pass epsilon, epsilon and delta, or world_success_bound.")
        check_positive("epsilon", epsilon)
        limit = epsilon
        return _most(lambda steps: self.epsilon(noise_multiplier, steps) <= limit)

    def step_cost(self, noise_multiplier: Noise, step: Natural = 0) -> float:
        """Marginal cost of step number `step` (from 0) of a run.

        Pass-wise samplers charge what the differing records can do as early as they can do it: the first steps of a
        pass cost, the others are free.
        """
        if self.slices is not None:
            return self.epsilon(noise_multiplier, step + 1) - self.epsilon(noise_multiplier, step)
        return self.unit_price(noise_multiplier, self.renyi_order) * (self.units(step + 1) - self.units(step))

    def track(
        self,
        noise_multiplier: Noise,
        stretches: Sequence[int] = (),
        planned_steps: int = 0,
        promise: Promise | None = None,
        draws_per_step: Natural = 0,
    ) -> RunningAccount[SRPPAccountant]:
        """An account that is charged step by step, from what a journal says was started before.

        Args:
            noise_multiplier: noise deviation on the sum, in clipping norms.
            stretches: steps that were started in each stretch of earlier attempts.
            planned_steps: steps up to which exact figures are computed ahead; more of them are when they are needed.
            promise: what must be kept, an `EpsilonDelta` or a `SuccessBound`.
            draws_per_step: noise values of a step, which come from finite random bits; 0 for exact arithmetic.
        """
        check_positive("noise_multiplier", noise_multiplier)
        return RunningAccount(self, noise_multiplier, stretches, planned_steps, promise, draws_per_step)

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
        if self.correlation is not None:
            declaration["correlation"] = list(self.correlation.coefficients)
        return declaration

    @checks_itself
    def precision(self, num_steps: int) -> float:
        """The coarseness of the noise beside independent draws, as a factor on their number in `finite_precision`.

        Args:
            num_steps: steps of the run.
        """
        return 1.0 if self.correlation is None else self.correlation.precision(num_steps)

    def conditions(self) -> tuple[str, ...]:
        """The assumptions of the guarantee, in sentences for the privacy card."""
        sentences = conditions_of(self.scenario, self.sampling, self.notion, self.is_amplified, self.slices is not None)
        if self.correlation is None:
            return sentences
        return (
            *sentences,
            f"The noise is correlated over {self.correlation.num_bands} steps and never stored, and a record comes "
            "back after as many steps at the earliest. That float64 costs it no more than is charged for finite bits "
            "is argued from the error of a step, and not proven for all steps together.",
        )

    @checks_itself
    def aggregate(self, cost: float, order: float | None = None) -> float:
        """The notion's cost where the unsliced one is `cost`: equal to it unless there are slices."""
        if self.slices is None:
            return cost
        order = self.renyi_order if order is None else order
        if self.notion in ("ave", "ms-ave"):
            return self.slices.average(cost)
        # An expectation inside the log-sum-exp would err downwards (Jensen), so ms takes the largest slice.
        return self.slices.joint(cost, order, "max" if self.is_mean_square else self.joint_aggregation)

    def _check_correlation(self, correlation: BandedMatrix) -> None:
        if self.is_mean_square or self.slices is not None:
            raise ValueError(
                'Correlated noise has no average over batches and no price by slices: use the notion "rpp", or '
                "independent noise."
            )
        correlation.check_separation(self.sampling, self.scenario.num_records)

    def _search_noise(self, epsilon: float, num_steps: int | Sequence[int], high: float) -> float:
        def excess(log_noise: float) -> float:
            return math.log(self.epsilon(math.exp(log_noise), num_steps) / epsilon)

        # In ln sigma, where the cost falls: down from noise that suffices, in growing steps, to noise that does not.
        upper = math.log(high) + 1e-9
        lower = upper - 0.5
        while excess(lower) <= 0:
            upper, lower = lower, 2 * lower - upper - 0.5
        return math.exp(float(optimize.brentq(excess, lower, upper, xtol=1e-8)))


def _most(is_kept: Callable[[int], bool]) -> int:
    low, high = 0, 1
    while is_kept(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_kept(middle) else (low, middle)
    return low
