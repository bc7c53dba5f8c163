"""How far the noise of a private metric moves its value, and where that is shown."""

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import MulticlassStatScores, MultilabelStatScores

from lightning_pac.callbacks.shared import on_record, words_on_other_ledgers

__all__ = [
    "COUNTS",
    "log_beside",
    "noise_of_value",
    "norm_bound",
    "refuse_several_values",
    "tell_values",
    "value_of",
    "warn_if_clipped",
    "warn_if_noisy",
]

_DRAWS = 128
_SUM_AND_NUMBER = 2  # states of a mean
COUNTS = {"tp", "fp", "tn", "fn"}
"""States of a metric of hits and misses."""


def noise_of_value(value: Callable[[Tensor], Any], released: Tensor, deviation: float) -> float | None:
    """Typical size of the noise in the value, estimated from the release alone, so that it costs nothing.

    The noise is drawn again around the released sums, which stand for the exact ones, and the root mean square of what
    it does to the value is the standard deviation of a value that is linear in the noise: exactly for up to 64 sums,
    and within about 6 % for more. Where noise may bring a denominator near zero, few draws decide, and it is larger
    than what most releases are off by.

    Args:
        value: The metric as a function of its sums.
        released: The noised sums, within what sums can be.
        deviation: Standard deviation of the noise in each.

    Returns:
        None where the value is not one finite number.
    """
    squares: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        centre = value(released)
        for direction in _directions(len(released)):
            found = value(released + deviation * direction.to(released.dtype))
            if not isinstance(found, Tensor) or found.numel() != 1 or not math.isfinite(found):
                return None
            squares.append(float(found - centre) ** 2)
    return math.sqrt(math.fsum(squares) / _DRAWS)


def _directions(number: int) -> Iterator[Tensor]:
    """Draws of standard normal noise: few of them have the wrong covariance, by which all figures would be off alike.

    So each has its negative among them, and together they have unit covariance, as far as there are enough.
    """
    generator = torch.Generator().manual_seed(0)  # public, unlike the noise itself
    if number > _DRAWS // 2:
        for _ in range(_DRAWS):
            yield torch.randn(number, generator=generator, dtype=torch.float64)
        return
    drawn = torch.randn(_DRAWS // 2, number, generator=generator, dtype=torch.float64)
    frame = torch.linalg.qr(drawn).Q * math.sqrt(_DRAWS / 2)
    yield from (*frame, *-frame)


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


def norm_bound(metric: Metric, max_contribution: float, states: Collection[str]) -> float:
    r"""The norm that what a record adds to a metric's sums is clipped to, so that ordinary records are not.

    A mean divides its sum by the number of records, to which each adds one, so that values up to C stay as they are
    below :math:`\sqrt{C^2 + 1}`. Counts of a classification have the most that one row can add, such as
    :math:`\sqrt{2}` where a miss counts for two classes. Below, misses or large values would weigh less than others.

    Args:
        metric: The metric.
        max_contribution: C.
        states: Names of those that are released.
    """
    if set(metric._defaults) == COUNTS:
        return max(max_contribution, math.sqrt(_most_counts(metric, states)))
    is_quotient = len(metric._defaults) == _SUM_AND_NUMBER and {"total", "weight"} & set(metric._defaults)
    return math.hypot(max_contribution, 1.0) if is_quotient else max_contribution


def _most_counts(metric: Any, states: Collection[str]) -> float:
    """The square of the norm of what one row adds to counts of hits and misses, at most."""
    if isinstance(metric, MultilabelStatScores):
        return float(metric.num_labels)
    if not isinstance(metric, MulticlassStatScores):
        return 1.0
    # Of one row, all classes but one or two are rightly not named; micro averages add up what is of all classes.
    power = 2 if metric.average == "micro" else 1
    classes: int = metric.num_classes or 1
    hit = ("tp" in states) + ("tn" in states) * (classes - 1) ** power
    miss = ("fn" in states) + ("fp" in states) + ("tn" in states) * max(0, classes - 2) ** power
    return float(max(hit, miss, 1))


def _is_mean(metric: Metric) -> bool:
    return isinstance(metric, MeanMetric) or type(metric).__module__.startswith("torchmetrics.regression")


def warn_if_clipped(metric: Metric, name: str, value: Any, max_contribution: float) -> None:
    """Say where a noised mean shows that many records are clipped, which makes a mean of large errors too small."""
    if _is_mean(metric) and isinstance(value, Tensor) and value.numel() == 1 and float(value.abs()) > max_contribution:
        rank_zero_warn(
            f"PrivateMetrics: {name} is {float(value):.3g}, but a record adds at most "
            f"{max_contribution:g} to its sums, so larger ones count for less and the value is wrong: log it on a "
            "scale where few exceed that (targets in [-1, 1]), or give PrivateMetrics a larger max_contribution."
        )


def warn_if_noisy(metric: Metric, name: str, value: Any, deviation: float | None, max_contribution: float) -> None:
    """Say where the noise in a value is more than half as large as the value, and as a tenth of its scale."""
    is_share = type(metric).__module__.startswith("torchmetrics.classification")  # a recall of 0 +- 0.01 says much
    least = max_contribution / 10 if isinstance(metric, MeanMetric) else 0.1 if is_share else 0.0
    if deviation is not None and deviation > max(abs(float(value)), least) / 2:
        rank_zero_warn(
            f"PrivateMetrics: {name} is {float(value):.2g}, give or take {deviation:.2g} of noise, "
            "which says little: evaluate more records, or less often, or promise more for the metrics (a larger "
            "epsilon or bound on guessing)."
        )


def log_beside(trainer: pl.Trainer, what: str, figures: Mapping[str | None, float | None]) -> dict[str, float]:
    """Log those that are numbers as `NAME_what`, beside the metric of that name, and return all that are known."""
    known = {name: figure for name, figure in figures.items() if name is not None and figure is not None}
    step = trainer.fit_loop.epoch_loop._batches_that_stepped  # where Lightning logs the metrics themselves
    logged = {f"{name}_{what}": figure for name, figure in known.items() if not math.isnan(figure)}
    for logger in trainer.loggers if logged else []:
        logger.log_metrics(logged, step)
    return known


def tell_values(
    trainer: pl.Trainer, values: Mapping[str | None, tuple[Any, float | None, float | None]], ledger: Path
) -> None:
    """Say what an evaluation measured and how far chance moves it; and outside a fit, which says so, its record."""
    told = [
        f"{name} is {float(value):.4g}, give or take {error or noise:.2g}{' of noise alone' * (error is None)}"
        for name, (value, error, noise) in values.items()
        if name is not None and noise is not None and math.isfinite(error or noise)
    ]
    record = ""
    if trainer.state.fn != TrainerFn.FITTING:
        record = f" {on_record(ledger)}{words_on_other_ledgers(ledger, is_named=True)}"
    if (told or record) and not trainer.sanity_checking:
        rank_zero_info(f"PrivateMetrics: {', '.join(told) or 'an evaluation'}.{record}")
