"""How far chance moves a noised metric: by its noise, and by which records it was measured on."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import (
    BinaryConfusionMatrix,
    BinaryPrecisionRecallCurve,
    BinaryStatScores,
    MulticlassConfusionMatrix,
    MulticlassStatScores,
)

__all__ = ["standard_error"]

_ONE_COUNT = (BinaryStatScores, BinaryConfusionMatrix, MulticlassConfusionMatrix)


def standard_error(
    metric: Metric, value: Callable[[Tensor], Any], released: Mapping[str, Tensor], bound: float, noise: float | None
) -> float | None:
    r"""The standard error of a metric that counts records, estimated from the release alone, so that it costs nothing.

    Of a value :math:`f(S)` that stays as it is where all counts double, with :math:`n_k` records of kind k, each of
    which adds :math:`s_k` to the sums, the delta method gives

    .. math:: \mathrm{Var} f = \sum_k n_k \, (\nabla f(S) \cdot s_k)^2 + \mathrm{noise}^2

    for records drawn independently, each of which is counted once. The kinds of a classification are its hits and
    misses, and of a curve the thresholds that a score lies between, whose numbers are differences of counts. Where a
    miss counts for two classes, in F1 over several classes, the sum is the largest that such counts allow.

    Args:
        metric: The metric.
        value: It as a function of its sums, in one row.
        released: The noised sums by their names, within what sums can be.
        bound: The norm that what a record adds was clipped to; all records alike, since they add as many counts.
        noise: Standard deviation of the noise in the value.

    Returns:
        None where it is not known how many records are of which kind, such as for a mean of losses.
    """
    sums = torch.cat([part.reshape(-1) for part in released.values()])
    spread = _spread(metric, released) if type(metric).__module__.startswith("torchmetrics.") else None
    if spread is None or noise is None:
        return None
    # Clipped by a factor c, n records have sums of c n, and a gradient 1 / c times as large meets c s.
    counts = len(released["confmat"]) if isinstance(metric, BinaryPrecisionRecallCurve) else 1
    clipped = min(1.0, bound / math.sqrt(counts))
    return math.hypot(noise, math.sqrt(clipped * max(0.0, float(spread(_gradient(value, sums))))))


def _spread(metric: Metric, released: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor] | None:
    """What the drawing of the records adds to the variance, as a function of the gradient."""
    if isinstance(metric, BinaryPrecisionRecallCurve) and list(released) == ["confmat"]:
        counts = released["confmat"].clamp(min=0.0)  # threshold, label, whether above it
        return lambda gradient: _of_curve(counts, gradient.reshape(counts.shape))
    is_multiclass = isinstance(metric, MulticlassStatScores) and metric.top_k == 1 and "tn" not in released
    if not is_multiclass and not isinstance(metric, _ONE_COUNT):
        return None
    twice = is_multiclass and {"fp", "fn"} <= set(released)
    weights = [(2.0 if twice and name != "tp" else 1.0) * part.reshape(-1) for name, part in released.items()]
    return lambda gradient: torch.cat(weights) @ gradient**2


def _of_curve(counts: Tensor, gradient: Tensor) -> Tensor:
    """Records whose score lies above k thresholds add one to `above` at those and to `below` at the others."""
    below, above = gradient.unbind(-1)
    zero = torch.zeros_like(above[:1])
    added = torch.cat([zero, above.cumsum(0)]) + torch.cat([below.flip(0).cumsum(0).flip(0), zero])
    reaching = torch.cat([counts.sum(-1).mean(0, keepdim=True), counts[..., 1], zero])  # at least k thresholds
    return ((reaching[:-1] - reaching[1:]) * added**2).sum()


def _gradient(value: Callable[[Tensor], Any], sums: Tensor) -> Tensor:
    """By differences over what chance moves a count by, of which float32 shows enough."""
    gradient = torch.zeros_like(sums)
    for place, count in enumerate(sums.tolist()):
        reach = 1.0 + math.sqrt(max(0.0, count))
        ends = [max(0.0, count - reach), count + reach]
        low, high = (float(value(sums.index_fill(0, torch.tensor([place]), end))) for end in ends)
        gradient[place] = (high - low) / (ends[1] - ends[0])
    return gradient
