"""The noise of a run and everything that follows from it: the figures of a plan, and of a table of samplings."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_pac._shown import shows_itself
from lightning_pac._validation import Count, Noise, OpenProbability, Positive, validated
from lightning_pac.accountants.privacy_loss import Promise
from lightning_pac.accountants.signal import signal_of_run, signal_to_noise
from lightning_pac.accountants.srpp import SRPPAccountant

__all__ = ["RunFigures", "run_figures"]


@shows_itself
@dataclass(frozen=True)
class RunFigures:
    """The figures of a run alone.

    Attributes:
        noise_multiplier: deviation of the noise on the sum, in clipping norms.
        epsilon: at the accountant's Rényi order, in nats.
        world_success_bound: how often a guess of the world is right at most; None for an average over batches.
        epsilon_at_delta: epsilon between the worlds at delta, in nats; None for an average over batches.
        signal_of_run: the signal of all steps beside their noise; None where the number of parameters is open.
    """

    noise_multiplier: float
    epsilon: float
    world_success_bound: float
    epsilon_at_delta: float | None
    signal_of_run: float | None


@validated
def run_figures(
    accountant: SRPPAccountant,
    num_steps: Count,
    batch_size: Positive,
    noise: Noise | Promise,
    parameters: Count | None = None,
    delta: OpenProbability = 1e-5,
    prior: OpenProbability = 0.5,
) -> RunFigures:
    """The figures of a run with a noise, or with the least noise that keeps a promise.

    Args:
        accountant: the terms of the run.
        num_steps: optimizer steps.
        batch_size: records in a batch, or expected in one.
        noise: the noise multiplier, or an exact promise.
        parameters: trainable parameters.
        delta: failure probability that epsilon goes with.
        prior: probability of one of the worlds before anything is released.

    Raises:
        ValueError: if the noise cannot be computed, or the notion keeps no such promise.
    """
    multiplier = accountant.noise_for(noise, num_steps) if isinstance(noise, Promise) else noise
    signal = None
    if parameters is not None:
        signal = signal_of_run(signal_to_noise(batch_size, multiplier, parameters), num_steps, parameters)
    exact = not accountant.is_mean_square
    return RunFigures(
        multiplier,
        accountant.epsilon(multiplier, num_steps),
        accountant.world_success_bound(multiplier, num_steps, prior),
        accountant.epsilon_at_delta(multiplier, num_steps, delta)[0] if exact else None,
        signal,
    )
