"""How far the noise of a private metric moves its value, and where that is shown."""

import math
import statistics
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torchmetrics import MeanMetric, Metric

__all__ = [
    "log_deviations",
    "noise_of_value",
    "refuse_several_values",
    "value_of",
    "warn_if_clipped",
    "warn_if_noisy",
]

_DRAWS = 64


def noise_of_value(value: Callable[[Tensor], Any], released: Tensor, deviation: float) -> float | None:
    """Standard deviation of the value, estimated from the release alone, so that it costs nothing.

    The noise is drawn again around the released sums, which stand for the exact ones; the estimate is about 9 % off.

    Args:
        value: The metric as a function of its sums.
        released: The noised sums.
        deviation: Standard deviation of the noise in each.

    Returns:
        None where the value is not one finite number.
    """
    generator = torch.Generator().manual_seed(0)  # public, unlike the noise itself
    drawn: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(_DRAWS):
            found = value(released + deviation * torch.randn(released.shape, generator=generator, dtype=released.dtype))
            if not isinstance(found, Tensor) or found.numel() != 1 or not math.isfinite(found):
                return None
            drawn.append(float(found))
    return statistics.stdev(drawn)


def value_of(noised: Metric) -> Any:
    """What a metric computes from its noised sums; not a number, with a word, where it refuses them.

    Args:
        noised: The metric, with these sums.
    """
    try:
        return noised.compute()
    except ValueError as error:  # sums that no records have, such as those of less than two
        rank_zero_warn(f"PrivateMetrics: {type(noised).__name__} has no value at its noised sums: {error}")
        return torch.tensor(torch.nan)


def refuse_several_values(metric: Metric, value: Any) -> None:
    """Refuse a metric of which Lightning could show no value, before one is paid for.

    Args:
        metric: The metric.
        value: What it computes from sums that are all zero.

    Raises:
        MisconfigurationException: If that is no single number.
    """
    if not (isinstance(value, Tensor) and value.numel() == 1):
        raise MisconfigurationException(
            f"{type(metric).__name__} has several values, of which Lightning logs none: log one number, as a metric "
            'with average="macro" has, or a metric for each class or output.'
        )


def warn_if_clipped(metric: Metric, name: str, value: Any, max_contribution: float) -> None:
    """Say where a noised mean shows that many records are clipped, which makes a mean of large errors too small."""
    is_mean = isinstance(metric, MeanMetric) or type(metric).__module__.startswith("torchmetrics.regression")
    if is_mean and isinstance(value, Tensor) and value.numel() == 1 and float(value.abs()) > max_contribution:
        rank_zero_warn(
            f"PrivateMetrics: {name} is {float(value):.3g}, but a record adds at most "
            f"{max_contribution:g} to its sums, so larger ones count for less and the value is wrong: log it on a "
            "scale where few exceed that (targets in [-1, 1]), or give PrivateMetrics a larger max_contribution."
        )


def warn_if_noisy(metric: Metric, name: str, value: Any, deviation: float | None, max_contribution: float) -> None:
    """Say where the noise in a value is more than half as large as the value, or as a tenth of a mean's scale."""
    least = max_contribution / 10 if isinstance(metric, MeanMetric) else 0.0  # on which zero may be in the middle
    if deviation is not None and deviation > max(abs(float(value)), least) / 2:
        rank_zero_warn(
            f"PrivateMetrics: {name} is {float(value):.2g}, give or take {deviation:.2g} of noise, "
            "which says little: evaluate more records, or less often, or promise more for the metrics (a larger "
            "epsilon or bound on guessing)."
        )


def log_deviations(trainer: pl.Trainer, deviations: Mapping[str | None, float | None]) -> dict[str, float]:
    """Log those that are numbers as `NAME_deviation`, beside the metric of that name, and return all that are known."""
    known = {name: noise for name, noise in deviations.items() if name is not None and noise is not None}
    step = trainer.fit_loop.epoch_loop._batches_that_stepped  # where Lightning logs the metrics themselves
    logged = {f"{name}_deviation": noise for name, noise in known.items() if not math.isnan(noise)}
    for logger in trainer.loggers if logged else []:
        logger.log_metrics(logged, step)
    return known
