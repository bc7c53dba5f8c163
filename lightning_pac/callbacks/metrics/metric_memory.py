"""Attributes of a metric beside its states, and arguments of its `update` beside rows."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_mean, dim_zero_sum

from lightning_pac.data.records import digest

__all__ = [
    "KEEPS",
    "ONE_ROW",
    "constant_states",
    "other_than_rows",
    "remembered",
    "unsuited_states",
    "why_not_watched",
]

KEEPS = "keeps something of what it saw outside of its states"
ONE_ROW = (
    ", so what one record adds cannot be told: update it once a batch, with tensors that have one row a record, and "
    "let it keep sums in its states only"
)

# What torchmetrics itself writes down in an update, all of which `reset` forgets, and settings of no metric's own.
BOOKKEEPING = {
    "forward",
    "update",
    "compute",
    "reset",
    "training",
    "process_group",
    "distributed_available_fn",
    "_computed",
    "_forward_cache",
    "_update_count",
    "_update_signature",
    "_cache",
    "_is_synced",
    "_to_sync",
    "_should_unsync",
    "_enable_grad",
    "_device",
}


def remembered(metric: Metric, constants: Collection[str] = ()) -> bytes:
    """Digest of all that a metric holds and `reset` does not clear: attributes and inner metrics.

    Args:
        metric: Any metric.
        constants: States that no update may write to, which count as well.

    Raises:
        TypeError: If it holds something that can be neither looked into nor pickled.
    """

    def without_bookkeeping(part: Any) -> Any:
        if not isinstance(part, Metric):
            return part
        left_out = BOOKKEEPING | (metric._defaults.keys() - constants if part is metric else set())
        attributes = {name: value for name, value in vars(part).items() if name not in left_out}
        # Most are empty dictionaries of hooks; one that is filled appears.
        return {name: value for name, value in attributes.items() if not isinstance(value, dict) or value}

    return digest(metric, view=without_bookkeeping)


def other_than_rows(arguments: Any) -> str | None:
    """Names the first part of an update's arguments that cannot be cut into rows, but for None.

    Args:
        arguments: Tensors in lists, tuples and dictionaries.

    Example:
        >>> import torch
        >>> other_than_rows(((torch.ones(3), None), {"weight": 0.5}))
        'a float'
    """
    for value in _leaves(arguments):
        if isinstance(value, Tensor) and value.ndim == 0:
            return "a tensor without rows"
        if value is not None and not isinstance(value, Tensor):
            return f"a {type(value).__name__}"
    return None


def unsuited_states(metric: Metric) -> list[str]:
    """States on which a record's influence has no bound: those that are neither sums from zero nor constant."""
    constants = constant_states(metric)
    return [name for name in metric._defaults if not (name in constants or _is_sum(metric, name))]


def constant_states(metric: Metric) -> list[str]:
    """States beside sums that hold a setting, of which copies on several ranks have the mean: a range of pixels.

    No record moves a value by one: it is computed from what the metric was made with. An update that writes to one is
    refused all the same, since its value would be wrong.
    """
    constants = [
        name
        for name, default in metric._defaults.items()
        if isinstance(default, Tensor) and bool(default.any()) and metric._reductions[name] is dim_zero_mean
    ]
    return constants if any(_is_sum(metric, name) for name in metric._defaults) else []


def _is_sum(metric: Metric, name: str) -> bool:
    default = metric._defaults[name]
    return isinstance(default, Tensor) and not default.any() and metric._reductions[name] is dim_zero_sum


def why_not_watched(name: str, metric: Metric) -> str:
    """A sentence on a metric whose sums were not taken record by record.

    Args:
        name: Under which it is logged.
        metric: One with unsuited states, without any, or which the evaluation did not begin with.
    """
    kind, states = type(metric).__name__, unsuited_states(metric)
    if metric._defaults and not states:
        return (
            f"{name!r} is a {kind} that the model did not have, or did not log, in the first evaluation: let it be an "
            "attribute of the module, and log it in each evaluation."
        )
    cure = "log a metric of counts and sums (accuracy, recall, a mean error)"
    if getattr(metric, "thresholds", "absent") is None:
        cure = "give it thresholds=20, so that it counts"
    elif any(isinstance(part, Metric) for part in metric.modules() if part is not metric):
        cure = "log the wrapped metric itself"
    return (
        f"{name!r} is a {kind}, which keeps more than sums over records ({', '.join(states) or 'in other metrics'}), "
        f"so a record's influence on it has no bound: {cure}, or compute this one on public data."
    )


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value
