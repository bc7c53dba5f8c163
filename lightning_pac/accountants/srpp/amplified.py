"""The price of one secretly Poisson-sampled step, worst case and unsliced."""

from __future__ import annotations

from functools import lru_cache

from lightning_pac._validation import validated
from lightning_pac.accountants.privacy_loss import PoissonSteps, SpreadSteps, renyi_divergence
from lightning_pac.scenarios import TwoWorldScenario

__all__ = ["amplified_step_cost"]


@validated
def amplified_step_cost(scenario: TwoWorldScenario, rate: float, noise_multiplier: float, order: float) -> float:
    """Rényi divergence of one noised, clipped, Poisson-sampled gradient sum between the two worlds (ours).

    The exact divergence of the worst pair of worlds, `G_d1` against the mirror image of `G_d2` (theorem in
    `lightning_pac.accountants.privacy_loss.mixtures`), in the worse order and for the worst split of the records
    between the worlds: (d, 0) where one world holds them all (`add_remove`, `zero_out`), (d, d) under `replace`. Never
    more than the cost without amplification.

    Args:
        scenario: the two worlds.
        rate: probability q that a record enters the batch.
        noise_multiplier: deviation of the noise on the sum, in clipping norms.
        order: Rényi order a, above 1.

    Returns:
        An upper bound in nats.

    Example:
        >>> cost = amplified_step_cost(TwoWorldScenario.differential_privacy(), 0.01, 1.3, 16.0)
        >>> print(f"{cost:.6f}")
        0.006314
    """
    return cached_step_cost(scenario, rate, noise_multiplier, order)


@lru_cache(maxsize=1 << 14)
def cached_step_cost(
    scenario: TwoWorldScenario, rate: float, noise_multiplier: float, order: float, spread: bool = False
) -> float:
    """`amplified_step_cost` for the accountant, which asks in every step with arguments that it has checked.

    Where records are spread over blocks, it is the cost of a step of each.
    """
    kind = SpreadSteps if spread and scenario.total_differing > 1 else PoissonSteps
    return renyi_divergence([kind.of(scenario, rate, noise_multiplier, num_steps=1)], order)
