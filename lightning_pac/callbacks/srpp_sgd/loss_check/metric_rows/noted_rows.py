"""An evaluation of synthetic records, of which metrics note the rows, and how two are compared."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils._pytree import tree_map

from lightning_pac.callbacks.srpp_sgd.loss_check.fixed_draws import SEEDS, FixedDraws, Seed, seeded
from lightning_pac.callbacks.srpp_sgd.loss_check.metric_rows.noted_metrics import NotedMetric, ShownMetrics, noting
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.replica import TRANSFER_HOOKS
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import SyntheticRecords
from lightning_pac.data.reading_lock import ReadingLock
from lightning_pac.data.records import copy_small

__all__ = [
    "AT_THE_END",
    "Evaluation",
    "NotedRows",
    "Rows",
    "RowsOf",
    "add_rows",
    "are_equal",
    "differing_rows",
    "is_close",
    "moved",
    "rounding_of",
    "settings_differ",
    "shapes",
    "unmatched",
]

AT_THE_END = "A hook at the end of the evaluation"

_TOLERANCE = 1e-4
_EVALUATIONS, _MANY, _LATE = 2, 16, 8

# Between two validations of a training, which its batches do not concern here.
_UNTIL_THE_NEXT: tuple[tuple[Any, ...], ...] = (
    ("on_train_epoch_end",),
    ("on_train_epoch_start",),
    ("on_train_batch_start", None, 0),
    ("on_train_batch_end", None, None, 0),
)

Rows = list[dict[str, "NotedRows"]]
"""Of each evaluation, the rows of every metric."""

RowsOf = Callable[..., Rows]
"""Evaluates batches of records, with these numbers or one after another."""


class NotedRows(list[Tensor]):
    """Rows that a metric was updated with.

    Attributes:
        kept: What it keeps beside its states when the next evaluation begins; None where nobody asked.
        is_logged: Whether the evaluation logged it.
    """

    is_logged = False

    def __init__(self, rows: Iterable[Tensor] = (), kept: bytes | None = None) -> None:
        super().__init__(rows)
        self.kept = kept


class _Loader:
    """What code may ask of a loader of an evaluation, which has so many batches here."""

    def __init__(self, original: Any, num_batches: int, lock: ReadingLock) -> None:
        self._original, self._num_batches, self._lock = original, num_batches, lock
        self.batch_size: Any = getattr(original, "batch_size", None)
        self._copy: Any = None

    @property
    def dataset(self) -> Any:
        """A copy, of which what is not a record's can be read and set; its length outside of the evaluation."""
        if not self._lock.is_closed:
            return _Length(self._original.dataset)
        if self._copy is None:
            with self._lock.copied():
                self._copy = copy.copy(self._original.dataset)
        return self._copy

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[Any]:
        self._lock.check()
        raise TypeError("A copy of the model has no records to evaluate.")


class _Length:
    def __init__(self, original: Any) -> None:
        self._original = original

    def __len__(self) -> int:
        return len(self._original)


class Evaluation:
    """Evaluates synthetic records in place of those of a loader.

    Args:
        probe: Runs a copy of the model.
        examples: Real records, of which synthetic ones take the structure; None where others are evaluated.
        stage: ``"validation"`` or ``"test"``.
        dataloader_idx: Number of the loader, where there are several.
        shown: Metrics as they are logged, of which it is given the names.
        lock: On the records of all loaders.
        earlier: Evaluations of the loaders before it, of which each time a batch comes first, and what makes it.

    Attributes:
        synthetic, recombined: Draw the records, and others that are made of parts of real ones, if it takes those.
        updated: Names of metrics that had rows.
    """

    def __init__(
        self,
        probe: Probe,
        examples: list[Any] | None,
        stage: str,
        dataloader_idx: int | None,
        shown: ShownMetrics,
        lock: ReadingLock,
        earlier: "Sequence[tuple[Evaluation, Callable[[list[Any]], Any]]]" = (),
    ) -> None:
        self._stage, self._dataloader_idx, self._earlier = stage, dataloader_idx, tuple(earlier)
        self._probe, self._shown, self._lock, self.updated = probe, shown, lock, set[str]()
        self.recombined: SyntheticRecords | None = None
        if examples is not None:
            try:
                self.synthetic = SyntheticRecords(examples, self._accepts)
            except Exception:  # the model takes no such values, or there are no numbers
                self.synthetic = SyntheticRecords(examples, self._accepts, recombined=True)
            with suppress(Exception):
                self.recombined = SyntheticRecords(examples, self._accepts, recombined=True)

    def rows_of(
        self,
        batches: list[list[Any]],
        numbers: Sequence[int] = (),
        seed: int = SEEDS[0],
        holds_draws: bool = False,
    ) -> Rows:
        """Those of batches of these records, and of the same batches once more.

        Args:
            batches: The records of each.
            numbers: Of the batches, where they do not come one after another.
            seed: Of the global generators.
            holds_draws: Whether each record gets the same draws at any place.
        """
        with self._lock.copied(), self._probe.copied():
            return self.rows_with(self._probe, [batches] * _EVALUATIONS, numbers, seed, holds_draws)

    def rows_after(self, earlier: list[Any], records: list[Any]) -> dict[str, NotedRows]:
        """Those of the last batch, of these records, after many evaluations of others and several batches of them."""
        with self._lock.copied(), self._probe.copied():
            late = [earlier] * _LATE
            *_, before, last = self.rows_with(self._probe, [*[[earlier] * 2] * _MANY, late, [*late, records]])
        return {name: NotedRows(rows[len(before.get(name, ())) :], rows.kept) for name, rows in last.items()}

    def reads_data(self, batches: list[list[Any]], num_rows: int) -> set[str]:
        """Metrics of which records have other rows where tables of the datamodule with so many rows hold others."""
        found: list[Rows] = []
        for repeats in (None, num_rows):
            with self._probe.copied() as replica:
                if replica.view is None:
                    return set()
                replica.view.repeats_held = repeats
                if any(is_overridden(name, hooks) for hooks in self._probe.hooks for name in TRANSFER_HOOKS):
                    self._probe.hooks = [replica.view.datamodule]
                found.append(self.rows_with(self._probe, [batches] * _EVALUATIONS))
                if not replica.view.copied_hooks:  # nothing has looked at it
                    return set()
        return {name for before, after in zip(*found, strict=True) for name in moved(before, after)}

    def rows_with(
        self,
        probe: Probe,
        evaluations: list[list[list[Any]]],
        numbers: Sequence[int] = (),
        seed: int = SEEDS[0],
        holds_draws: bool = False,
    ) -> Rows:
        """Those of evaluations one after another, with a probe whose copy keeps what they leave."""
        found: Rows = []
        with noting(probe.model, self._shown) as noted:
            before = [(one, Probe(probe.replica, copy_small(make, {}), probe.hooks)) for one, make in self._earlier]
            for batches in evaluations:
                if found:
                    _go_on(probe, noted, seed)
                rows: dict[str, NotedRows] = {}
                with seeded(seed), self._evaluating(probe, noted, rows, max(numbers, default=len(batches) - 1) + 1):
                    for earlier, of_it in before:
                        earlier._evaluate_batches(of_it, [earlier.synthetic.draw(0)])
                        _taken(noted)
                    self._evaluate_batches(probe, batches, numbers, holds_draws)
                found.append(rows)
                self.updated |= {name for name, of_metric in rows.items() if of_metric}
        return found

    @staticmethod
    def rows_of_several(
        evaluations: "Sequence[tuple[Evaluation, Callable[[list[Any]], Any]]]", drawn: Sequence[list[Any]]
    ) -> list[dict[str, NotedRows]]:
        """Those of each of several loaders, in evaluations that go through all of them.

        Args:
            evaluations: Of each loader, with what makes batches of its records.
            drawn: The records of each, which are one batch.
        """
        first, memo = evaluations[0][0], dict[int, Any]()
        found: list[dict[str, NotedRows]] = [{} for _ in evaluations]
        with first._probe.copied(memo) as replica, noting(replica.model, first._shown) as noted:
            probes = [Probe(replica, copy_small(make, memo), first._probe.hooks) for _, make in evaluations]
            for evaluated in range(_EVALUATIONS):
                if evaluated:
                    _go_on(probes[0], noted, SEEDS[0])
                left: dict[str, NotedRows] = {}
                with seeded(SEEDS[0]), first._evaluating(probes[0], noted, left, 1):
                    for number, (evaluation, _) in enumerate(evaluations):
                        evaluation._evaluate_batches(probes[number], [drawn[number]])
                        add_rows(found[number], _taken(noted))
                for rows in found:
                    add_rows(rows, {name: NotedRows(kept=last.kept) for name, last in left.items()})
        return found

    def _accepts(self, records: list[Any]) -> bool:
        rows = [row for of_metrics in self.rows_of([records]) for rows in of_metrics.values() for row in rows]
        return all(bool(row.isfinite().all()) for row in rows)

    @contextmanager
    def _evaluating(
        self, probe: Probe, noted: list[NotedMetric], rows: dict[str, NotedRows], num_batches: int
    ) -> Iterator[None]:
        """Run the hooks of an evaluation, as far as they run here.

        Args:
            probe: Runs the model.
            noted: Its metrics.
            rows: Is given those that the metrics have noted, once the evaluation has ended.
            num_batches: Of each loader.
        """
        stage, trainer = self._stage, getattr(probe.replica.view, "_trainer", None)
        if trainer is not None:
            kind, before = "val" if stage == "validation" else "test", len(self._earlier)
            numbers, loaders = (getattr(trainer, what) for what in (f"num_{kind}_batches", f"{kind}_dataloaders"))
            each = [1] * before + [num_batches] * (len(numbers) - before)
            setattr(probe.replica.view, f"num_{kind}_batches", each)
            left = iter(each)
            if loaders is not None:  # a Trainer that has evaluated nothing yet has none
                shown = tree_map(lambda loader: _Loader(loader, next(left), self._lock), loaders)
                setattr(probe.replica.view, f"{kind}_dataloaders", shown)
        with torch.no_grad():
            if trainer is None:
                probe.model.eval()
            # The hook may leave layers in training mode, and turn gradients on. It has run before the model was copied.
            modes = [(layer, layer.training) for layer in probe.model.modules()]
            self._shown.current.clear()
            with self._lock.closed(f"{stage}_step or a hook before it"):
                try:
                    getattr(probe.model, f"on_{stage}_model_eval")()
                except Exception:
                    for layer, mode in modes:
                        layer.training = mode
                probe.run_hook(f"on_{stage}_start")
                probe.run_hook(f"on_{stage}_epoch_start")
                yield
            with self._lock.closed(AT_THE_END):
                probe.run_hook(f"on_{stage}_epoch_end")
                probe.run_hook(f"on_{stage}_end")
            rows |= _taken(noted)
            for metric in noted:
                if metric.name in self._shown.logged.values():  # Lightning resets it, and no other
                    metric.metric.reset()
        for metric in noted:
            rows[metric.name].kept = self._shown.settings_of(metric.name, metric.metric)
            rows[metric.name].is_logged = metric.name in self._shown.current

    def _evaluate_batches(
        self, probe: Probe, batches: Sequence[list[Any]], numbers: Sequence[int] = (), holds_draws: bool = False
    ) -> None:
        """Run the steps on batches of these records, with the hooks around each."""
        stage = self._stage
        step = getattr(probe.model, f"{stage}_step")
        numbered = is_param_in_hook_signature(step, "batch_idx", min_args=2)
        loader = [] if self._dataloader_idx is None else [self._dataloader_idx]
        for number, records in zip(numbers or range(len(batches)), batches, strict=True):
            with FixedDraws(list(map(id, records)), SEEDS[0]) if holds_draws else nullcontext(), probe.integers:
                batch = probe.batch(records, *loader)
                probe.run_hook(f"on_{stage}_batch_start", batch, number, *loader)
                output = step(batch, *([number] if numbered else []), *loader)
                probe.run_hook(f"on_{stage}_batch_end", output, batch, number, *loader)


def add_rows(rows: dict[str, NotedRows], others: dict[str, NotedRows]) -> None:
    """Add rows of each metric to those before; what it keeps is what it kept at last."""
    for name, found in others.items():
        rows[name] = NotedRows([*rows.get(name, ()), *found], found.kept)


def moved(
    before: Mapping[str, list[Tensor]], after: Mapping[str, list[Tensor]], rounded: bool = False
) -> dict[str, int]:
    """How many rows of each metric are others, of those where any are."""
    counts = {}
    for name, rows in before.items():
        rounding = rounding_of(rows) if rounded else 0.0
        counts[name] = max(unmatched(rows, after[name], rounding), unmatched(after[name], rows, rounding))
    return {name: count for name, count in counts.items() if count}


def rounding_of(rows: list[Tensor]) -> float:
    """By how much numbers may differ in another place of a batch or beside other padding, by rounding."""
    return _TOLERANCE * max((float(row.nan_to_num(0, 0, 0).abs().max()) for row in rows), default=0.0)


def shapes(rows: list[Tensor]) -> set[tuple[int, ...]]:
    """Those that occur."""
    return {tuple(row.shape) for row in rows}


def unmatched(rows: list[Tensor], others: list[Tensor], rounding: float = 0.0) -> int:
    """How many rows are not among the others, of which each is taken once; what a metric keeps is for all of them."""
    left, count = list(others), 2 * settings_differ(rows, others)
    for row in rows:
        place = next((place for place, other in enumerate(left) if is_close(row, other, rounding, _TOLERANCE)), None)
        if place is None:
            count += 1
        else:
            left.pop(place)
    return count


def are_equal(rows: list[Tensor], others: list[Tensor]) -> bool:
    """Whether they are the same in the same order, of a metric that keeps the same."""
    return not settings_differ(rows, others) and len(rows) == len(others) and all(map(is_close, rows, others))


def differing_rows(first: Mapping[str, NotedRows], second: Mapping[str, NotedRows]) -> set[str]:
    """Names of metrics with other rows, or other settings."""
    names, nothing = first.keys() | second.keys(), NotedRows()
    return {name for name in names if not are_equal(first.get(name, nothing), second.get(name, nothing))}


def is_close(first: Tensor, second: Tensor, rounding: float = 0.0, tolerance: float = 0.0) -> bool:
    """Whether two rows have one shape, and numbers that differ by no more than this."""
    return first.shape == second.shape and torch.allclose(first, second, rtol=tolerance, atol=rounding, equal_nan=True)


def _go_on(probe: Probe, noted: list[NotedMetric], seed: Seed) -> None:
    """Run hooks of a training that come between two of its validations."""
    trainer = getattr(probe.replica.view, "_trainer", None)
    if trainer is not None and trainer.state.fn == TrainerFn.FITTING:
        with seeded(seed), torch.no_grad():
            for hook, *arguments in _UNTIL_THE_NEXT:
                probe.run_hook(hook, *arguments)
        _taken(noted)


def settings_differ(rows: list[Tensor], others: list[Tensor]) -> bool:
    """Whether a metric keeps other things than it kept then, where that is known of both."""
    both = [found.kept for found in (rows, others) if isinstance(found, NotedRows) and found.kept is not None]
    return len(both) == 2 and both[0] != both[1]


def _taken(noted: list[NotedMetric]) -> dict[str, NotedRows]:
    """The rows of each metric since they were taken before."""
    rows = {metric.name: NotedRows(_rows_in(metric.updates)) for metric in noted}
    for metric in noted:
        metric.updates.clear()
    return rows


def _rows_in(updates: list[Any]) -> Iterator[Tensor]:
    """Each row of each update, its numbers one after another.

    An update that has a number in place of rows, which is refused when it comes, stands for one.
    """
    for update in updates:
        tensors: list[Tensor] = []
        apply_to_collection(update, Tensor, tensors.append)
        if any(tensor.ndim == 0 for tensor in tensors):
            yield torch.zeros(1)
        elif tensors and len({len(tensor) for tensor in tensors}) == 1:
            rows = [tensor.detach().double().reshape(len(tensor), tensor[:1].numel()) for tensor in tensors]
            yield from torch.cat(rows, 1)
