"""An evaluation of synthetic records, of which metrics do nothing but note the rows, and how two are compared."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torchmetrics import Metric

from lightning_pac.callbacks.shared import let_log
from lightning_pac.callbacks.srpp_sgd.loss_check.fixed_draws import SEEDS, FixedDraws, seeded
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import SyntheticRecords
from lightning_pac.data.records import copy_small

__all__ = ["Evaluation", "Rows", "RowsOf", "are_equal", "is_close", "moved", "rounding_of", "shapes", "unmatched"]

_TOLERANCE = 1e-4
_EVALUATIONS = 2

Rows = list[dict[str, list[Tensor]]]
"""Of each evaluation, the rows of every metric."""

RowsOf = Callable[..., Rows]
"""Evaluates batches of records, with these numbers or one after another."""


class Evaluation:
    """Evaluates synthetic records in place of those of a loader.

    Args:
        probe: Runs a copy of the model.
        examples: Real records, of which synthetic ones take the structure.
        stage: ``"validation"`` or ``"test"``.
        dataloader_idx: Number of the loader, where there are several.
        logged: Is given the names of metrics in the model, by those under which they are logged.

    Attributes:
        synthetic: Draws the records.
    """

    def __init__(
        self, probe: Probe, examples: list[Any], stage: str, dataloader_idx: int | None, logged: dict[str, str]
    ) -> None:
        self._terms, self._probe, self._logged = (stage, dataloader_idx), probe, logged
        self.synthetic = SyntheticRecords(examples, self._accepts)

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
        with self._probe.copied():
            return self.rows_with(self._probe, [batches] * _EVALUATIONS, numbers, seed, holds_draws)

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
        with _noting(probe.model, self._logged) as noted:
            for batches in evaluations:
                with seeded(seed):
                    _evaluate(probe, batches, *self._terms, numbers, holds_draws)
                found.append({name: list(_rows_in(updates)) for name, (_, updates) in noted.items()})
                for metric, updates in noted.values():
                    updates.clear()
                    metric._update_count = 0  # Lightning resets it
        return found

    @staticmethod
    def rows_of_several(
        evaluations: "Sequence[tuple[Evaluation, Callable[[list[Any]], Any]]]", drawn: Sequence[list[Any]]
    ) -> list[dict[str, list[Tensor]]]:
        """Those of each of several loaders, in evaluations that go through all of them.

        Args:
            evaluations: Of each loader, with what makes batches of its records.
            drawn: The records of each, which are one batch.
        """
        first, memo = evaluations[0][0], dict[int, Any]()
        found: list[dict[str, list[Tensor]]] = [{} for _ in evaluations]
        with first._probe.copied(memo) as replica, _noting(replica.model, first._logged) as noted:
            probes = [Probe(replica, copy_small(make, memo), first._probe.hooks) for _, make in evaluations]
            for _ in range(_EVALUATIONS):
                with seeded(SEEDS[0]), _around_batches(probes[0], first._terms[0]):
                    for number, (evaluation, _) in enumerate(evaluations):
                        _evaluate_batches(probes[number], [drawn[number]], *evaluation._terms, (), False)
                        for name, (_, updates) in noted.items():
                            found[number].setdefault(name, []).extend(_rows_in(updates))
                            updates.clear()
                for metric, _ in noted.values():
                    metric._update_count = 0
        return found

    def _accepts(self, records: list[Any]) -> bool:
        rows = [row for of_metrics in self.rows_of([records]) for rows in of_metrics.values() for row in rows]
        return all(bool(row.isfinite().all()) for row in rows)


def moved(before: dict[str, list[Tensor]], after: dict[str, list[Tensor]], rounded: bool = False) -> dict[str, int]:
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
    """How many rows are not among the others, of which each is taken once."""
    left, count = list(others), 0
    for row in rows:
        place = next((place for place, other in enumerate(left) if is_close(row, other, rounding, _TOLERANCE)), None)
        if place is None:
            count += 1
        else:
            left.pop(place)
    return count


def are_equal(rows: list[Tensor], others: list[Tensor]) -> bool:
    """Whether they are the same in the same order."""
    return len(rows) == len(others) and all(map(is_close, rows, others))


def is_close(first: Tensor, second: Tensor, rounding: float = 0.0, tolerance: float = 0.0) -> bool:
    """Whether two rows have one shape, and numbers that differ by no more than this."""
    return first.shape == second.shape and torch.allclose(first, second, rtol=tolerance, atol=rounding, equal_nan=True)


def _evaluate(
    probe: Probe,
    batches: Sequence[list[Any]],
    stage: str,
    dataloader_idx: int | None,
    numbers: Sequence[int],
    holds_draws: bool = False,
) -> None:
    """Evaluate batches of these records, with the hooks around the steps, as far as they run here.

    Args:
        probe: Runs the model.
        batches: The records of each.
        stage: ``"validation"`` or ``"test"``.
        dataloader_idx: Number of the loader, where there are several.
        numbers: Of the batches, where they do not come one after another.
        holds_draws: Whether each record gets the same draws at any place.
    """
    with _around_batches(probe, stage):
        _evaluate_batches(probe, batches, stage, dataloader_idx, numbers, holds_draws)


@contextmanager
def _around_batches(probe: Probe, stage: str) -> Iterator[None]:
    """Run the hooks of an evaluation, as far as they run here."""
    probe.model.eval()
    with torch.no_grad():
        probe.run_hook(f"on_{stage}_start")
        probe.run_hook(f"on_{stage}_epoch_start")
        yield
        probe.run_hook(f"on_{stage}_epoch_end")


def _evaluate_batches(
    probe: Probe,
    batches: Sequence[list[Any]],
    stage: str,
    dataloader_idx: int | None,
    numbers: Sequence[int],
    holds_draws: bool,
) -> None:
    step = getattr(probe.model, f"{stage}_step")
    numbered = is_param_in_hook_signature(step, "batch_idx", min_args=2)
    loader = [] if dataloader_idx is None else [dataloader_idx]
    for number, records in zip(numbers or range(len(batches)), batches, strict=True):
        with FixedDraws(list(map(id, records)), SEEDS[0]) if holds_draws else nullcontext(), probe.integers:
            batch = probe.batch(records)
            probe.run_hook(f"on_{stage}_batch_start", batch, number, *loader)
            output = step(batch, *([number] if numbered else []), *loader)
            probe.run_hook(f"on_{stage}_batch_end", output, batch, number, *loader)


@contextmanager
def _noting(model: Any, logged: dict[str, str]) -> Iterator[dict[str, tuple[Metric, list[Any]]]]:
    """Let the metrics of a model do nothing but note what they are updated with, and logging their names.

    Afterwards they and the modes of all layers are as before: training may go on.
    """
    noted: dict[str, tuple[Metric, list[Any]]] = {}
    modes = [(layer, layer.training) for layer in model.modules()]
    own: list[tuple[Metric, dict[str, Any]]] = []
    names: dict[int, str] = {}
    for name, metric in model.named_modules():
        if isinstance(metric, Metric):
            names[id(metric)] = name
            updates: list[Any] = []
            noted[name] = (metric, updates)

            def note(*args: Any, metric: Metric = metric, updates: list[Any] = updates, **kwargs: Any) -> Tensor:
                updates.append((args, kwargs))
                metric._update_count += 1  # code may ask for it
                return torch.tensor(0.0)

            metric.distributed_available_fn = _alone  # copies on several ranks wait for none
            stand_ins = {"forward": note, "update": note, "compute": _value_of(metric.compute)}
            own.append((metric, {method: vars(metric).get(method) for method in stand_ins}))
            vars(metric).update(stand_ins)

    def note_name(name: str, value: Any) -> None:
        if id(value) in names:
            logged[name] = names[id(value)]

    let_log(model, note_name)
    try:
        yield noted
    finally:
        for metric, methods in own:
            for method, before in methods.items():
                vars(metric).pop(method)
                vars(metric).update({method: before} if before else {})
        for layer, mode in modes:
            layer.training = mode


def _alone() -> bool:
    return False


def _value_of(compute: Callable[[], Any]) -> Callable[[], Any]:
    """What a metric holds, if that has a value: evaluations may use that of a metric of the training."""

    def value() -> Any:
        try:
            return compute()
        except Exception:  # there may be nothing to compute from
            return torch.tensor(0.0)

    return value


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
