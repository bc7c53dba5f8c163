"""How loud the noise of a run is beside what it could learn; public numbers only, and no part of any guarantee."""

from __future__ import annotations

import math

from lightning_pac._validation import Count, Noise, NonNegative, validated

__all__ = ["HOPELESS_SIGNAL", "signal_of_run", "signal_to_noise"]

HOPELESS_SIGNAL = 1.0
"""Below this `signal_of_run`, 2 in 5 of the runs that were tried ended no better than the majority class."""


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
def signal_of_run(ratio: NonNegative, num_steps: NonNegative) -> float:
    """The ratio of all steps together: signal adds up, and noise only as the root of their number.

    Args:
        ratio: that of a step, see `signal_to_noise`.
        num_steps: optimizer steps.

    Example:
        >>> signal_of_run(0.1, 100)
        1.0
    """
    return ratio * math.sqrt(num_steps)
