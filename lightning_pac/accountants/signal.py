"""Noise of a run beside the signal it could learn from; public numbers only, and no part of any guarantee."""

from __future__ import annotations

import math

from lightning_pac._validation import Count, Noise, NonNegative, Positive, Probability, validated

__all__ = ["HOPELESS_SIGNAL", "LARGE_RATE", "fitting_rate", "signal_of_run", "signal_to_noise"]

HOPELESS_SIGNAL = 3.0
"""Below this `signal_of_run`, 3 in 4 of the runs that were tried ended no better than the majority class."""

LARGE_RATE = 20.0
"""From ten times `fitting_rate` on SGD ended less accurate in most settings that were tried, from thirty on in all."""


@validated
def signal_to_noise(batch_size: NonNegative, noise_multiplier: Noise, num_parameters: Count) -> float:
    """The largest ratio a step can have: `B / (sigma sqrt(P))`, all records clipped and aligned, over the noise's norm.

    Args:
        batch_size: records in a batch, or expected in one.
        noise_multiplier: deviation of the noise on the sum, in clipping norms.
        num_parameters: trainable parameters.

    Example:
        >>> signal_to_noise(400, 20.0, 100)
        2.0
    """
    return batch_size / (noise_multiplier * math.sqrt(num_parameters))


@validated
def signal_of_run(ratio: NonNegative, num_steps: NonNegative, num_parameters: Count) -> float:
    r"""The signal of all steps of a run beside their noise, $B \sqrt T / (\sigma P^{1/4})$.

    Signal adds up over steps, and noise only as the root of their number. Of the noise in P parameters, what turns a
    record's prediction is the part along that record's own gradient, which a linear model shows at any P alike, while
    a deep one has more such directions than one: between the power 0 and the 1/2 of `signal_to_noise`, 1/4 told the
    runs apart that learned (`benchmarks/learning_warning.py`).

    Args:
        ratio: that of a step, see `signal_to_noise`.
        num_steps: optimizer steps.
        num_parameters: trainable parameters.

    Example:
        >>> signal_of_run(0.1, 100, 16)
        2.0
    """
    return ratio * math.sqrt(num_steps * math.sqrt(num_parameters))


@validated
def fitting_rate(ratio: NonNegative, momentum: Probability = 0.0, max_grad_norm: Positive = 1.0) -> float:
    r"""A learning rate of SGD to start at, $\min(r, 4) (1 - m) / C$.

    Both the step that fits and the noise in it are proportional to the rate, so the louder the noise, the smaller the
    rate. That the best is about the ratio itself where that is small, and no more than about 4, was seen on a few data
    sets (some are in `benchmarks/learning_rates.py`), and is not proven. Few steps do not build up all of a
    momentum: at 0.9, two to three times this rate did best, a quarter of that without momentum.

    Args:
        ratio: r, that of a step, see `signal_to_noise`.
        momentum: m, by which a step counts 1 / (1 - m) times in all.
        max_grad_norm: the clipping norm C.

    Example:
        >>> fitting_rate(2.0)
        2.0
    """
    return min(ratio, 4.0) * (1.0 - momentum) / max_grad_norm
