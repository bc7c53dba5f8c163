"""Metrics of a copy that note what they are updated with, and work on, since what they hold may decide rows."""

import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_pac.callbacks.shared import let_log

__all__ = ["NotedMetric", "ShownMetrics", "noting"]

_LARGEST = 2**20  # numbers that a metric may hold, with all below that do not weigh beside the model


def _nothing_kept(metric: Metric) -> bytes:
    return b""


@dataclass(frozen=True)
class ShownMetrics:
    """Metrics of a model as they are logged.

    Attributes:
        names: Of those that are private, under which they are logged.
        kept_by: What a metric keeps beside its states, such as a threshold.
        logged: Names of metrics in the model, by those under which an evaluation has logged them so far.
        others: Names under which it has logged anything else, such as a number.
        current: Names of metrics in the model that the last evaluation has logged.
    """

    names: Collection[str] = ()
    kept_by: Callable[[Metric], bytes] = _nothing_kept
    logged: dict[str, str] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    current: set[str] = field(default_factory=set)

    def is_private(self, name: str) -> bool:
        """Whether the metric of that name in the model is known to be."""
        return any(self.logged.get(shown) == name for shown in self.names)

    def settings_of(self, name: str, metric: Metric) -> bytes:
        """What a private metric keeps, of others nothing."""
        try:
            return self.kept_by(metric) if self.is_private(name) else b""
        except TypeError:  # which is refused where it is evaluated
            return b""


class NotedMetric:
    """Notes what a metric is updated with, and lets it do its work.

    What it holds may be a threshold, or a bank of neighbours, for rows of another. A private one does nothing but note,
    as all that it shows is released with noise. So does one of which an update takes long, by its network or by its
    states, or ends in an error, as some do for synthetic records.

    Args:
        name: Its name in the model.
        metric: The metric.
        shown: Says whether it is private.
        working: Those that are at work: a metric of metrics updates these, which is no update of the model's.

    Attributes:
        updates: The arguments of each.
    """

    def __init__(self, name: str, metric: Metric, shown: ShownMetrics, working: list["NotedMetric"]) -> None:
        self.name, self.metric, self.updates = name, metric, list[Any]()
        self._shown, self._working = shown, working
        held = [*metric.parameters(), *metric.buffers(), *metric._defaults.values()]
        self._is_large = sum(part.numel() for part in held if isinstance(part, Tensor)) > _LARGEST
        self._before = {method: vars(metric).get(method) for method in ("forward", "update", "compute")}
        self._own = {method: getattr(metric, method) for method in self._before}
        metric.distributed_available_fn = _alone  # copies on several ranks wait for none
        vars(metric).update(forward=self._forward, update=self._update, compute=self._compute)

    def restore(self) -> None:
        """Give it its own methods back."""
        for method, before in self._before.items():
            vars(self.metric).pop(method)
            vars(self.metric).update({method: before} if before else {})

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._updated("forward", torch.tensor(0.0), args, kwargs)

    def _update(self, *args: Any, **kwargs: Any) -> None:
        self._updated("update", None, args, kwargs)

    def _compute(self) -> Any:
        try:
            return self._work("compute")
        except Exception:  # there may be nothing to compute from
            return torch.tensor(0.0)

    def _updated(self, method: str, otherwise: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        works = not self._is_large and not self._shown.is_private(self.name)
        if not (works and self._working):
            self.updates.append((args, kwargs))
        count = self.metric._update_count
        if works:
            try:
                return self._work(method, *args, **kwargs)
            except Exception:
                if self._working:
                    raise
        self.metric._update_count = count + 1  # code may ask for it
        return otherwise

    def _work(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self._working.append(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self._own[method](*args, **kwargs)
        finally:
            self._working.pop()


@contextmanager
def noting(model: Any, shown: ShownMetrics) -> Iterator[list[NotedMetric]]:
    """Let the metrics of a model note what they are updated with, and logging their names.

    Afterwards they have their own methods, and the modes of all layers are as before: training may go on.
    """
    modes = [(layer, layer.training) for layer in model.modules()]
    named = [(name, metric) for name, metric in model.named_modules() if isinstance(metric, Metric)]
    names = {id(metric): name for name, metric in named}
    working: list[NotedMetric] = []
    noted = [NotedMetric(name, metric, shown, working) for name, metric in named]

    values: Any = getattr(model._trainer, "callback_metrics", {})

    def note_name(name: str, value: Any) -> None:
        if name in shown.names:
            values.setdefault(name, torch.tensor(0.0))  # hooks at the end may look for what is released
        if id(value) in names:
            shown.logged[name] = names[id(value)]
            shown.current.add(names[id(value)])
        else:
            shown.others.add(name)

    let_log(model, note_name)
    try:
        yield noted
    finally:
        for metric in noted:
            metric.restore()
        for layer, mode in modes:
            layer.training = mode


def _alone() -> bool:
    return False
