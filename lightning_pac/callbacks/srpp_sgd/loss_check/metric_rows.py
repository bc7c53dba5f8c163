"""Whether each row that a metric is updated with is of one record, asked of synthetic records."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import Metric

from lightning_pac.callbacks.srpp_sgd.loss_check.check import synthetic_probe
from lightning_pac.callbacks.srpp_sgd.loss_check.coupling import MANY
from lightning_pac.callbacks.srpp_sgd.loss_check.fixed_draws import SEEDS, FixedDraws, seeded
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP, OF_LENGTHS, SyntheticRecords
from lightning_pac.data import describe_loader
from lightning_pac.scenarios import Adjacency
from lightning_pac.strategies.whole_copies import WholeCopies

__all__ = ["MetricRows", "rows_of_metrics"]

_TOLERANCE = 1e-4
_FAR = 1e3
_PLACES = (0, 2, 5, 7)
_EVALUATIONS = 2
_SCALES = (0.3, 1.0, 2.0, 4.0)
_SECONDS = 1.0  # that an evaluation of a batch of the loader's size may be expected to take, if it is larger

Rows = list[dict[str, list[Tensor]]]
"""Of each evaluation, the rows of every metric."""

RowsOf = Callable[..., Rows]
"""Evaluates batches of records, with these numbers or one after another."""


@dataclass(frozen=True)
class MetricRows:
    """The use that an evaluation of synthetic records makes of the metrics of a model.

    Attributes:
        mixed: Names, in the model, of metrics of which one record decides more than one row.
        logged: Those of metrics, by the names under which they are logged.
        unchecked: Why nothing could be shown, or None.
    """

    mixed: frozenset[str] = frozenset()
    logged: Mapping[str, str] = field(default_factory=dict)
    unchecked: str | None = None


def rows_of_metrics(
    pl_module: pl.LightningModule,
    loaders: Sequence[DataLoader[Any]],
    datamodule: pl.LightningDataModule | None,
    stage: str,
    callbacks: Sequence[pl.Callback] = (),
    adjacency: Adjacency = "replace",
) -> MetricRows:
    """Evaluate batches of synthetic records in which one makes room for another.

    That other has numbers of the usual size, a thousand times as large, and none that is a number: with a loss over the
    largest of a batch, a row that is used twice, tokens of a record as rows, or a batch that is left out if any of it
    is not finite, several rows then change. The batch has eight records, and then as many as the loader's, up to 64;
    another batch comes before it or after, and both once more, in an evaluation in which what a model keeps of the
    first shows. A batch of sixteen is compared with parts of it, in which hits among those of a batch are others. Where
    records may be absent, one is left out, and under `add_remove` others move up into its batch: a
    row that is made of a batch, or of some batches only, then changes. So do rows of full batches only, which are also
    asked for at the loader's size, above 64 where that takes no time, and rows of the first batches only, which are
    asked for at the numbers that the loader has. Values of records are drawn at random (`SyntheticRecords`), so that
    nothing found here shows one.

    Args:
        pl_module: The model; a copy of it is run, on the CPU.
        loaders: Those of the evaluation, one after another.
        datamodule: Its transfer hooks are run as the Trainer would.
        stage: ``"validation"`` or ``"test"``, after which the hooks are named.
        callbacks: Those that may update a metric, too; a copy of them is run.
        adjacency: How records differ.
    """
    terms = (pl_module, loaders, datamodule, stage, callbacks, adjacency)
    return WholeCopies.in_turn(pl_module, lambda whole: _rows_of_metrics(*terms, whole))


def _rows_of_metrics(
    pl_module: pl.LightningModule,
    loaders: Sequence[DataLoader[Any]],
    datamodule: pl.LightningDataModule | None,
    stage: str,
    callbacks: Sequence[pl.Callback],
    adjacency: Adjacency,
    whole: WholeCopies | None,
) -> MetricRows:
    mixed: set[str] = set()
    logged: dict[str, str] = {}
    for number, loader in enumerate(loaders):
        try:
            probe, examples = synthetic_probe(pl_module, loader, datamodule, callbacks, whole)

            def rows_of(
                batches: list[list[Any]],
                numbers: Sequence[int] = (),
                seed: int = SEEDS[0],
                holds_draws: bool = False,
                probe: Probe = probe,
                number: int = number,
            ) -> Rows:
                found: Rows = []
                with probe.copied():
                    noted = _noting(probe.model, logged)
                    for _ in range(_EVALUATIONS):
                        with seeded(seed):
                            place = number if len(loaders) > 1 else None
                            _evaluate(probe, batches, stage, place, numbers, holds_draws)
                        found.append({name: list(_rows(updates)) for name, updates in noted.items()})
                        for updates in noted.values():
                            updates.clear()
                return found

            def accepts(records: list[Any], rows_of: RowsOf = rows_of) -> bool:
                rows = [row for of_metrics in rows_of([records]) for rows in of_metrics.values() for row in rows]
                return all(bool(row.isfinite().all()) for row in rows)

            synthetic = SyntheticRecords(examples, accepts)
            mixed |= _mixed(rows_of, synthetic, loader.batch_size) | _mixed_by_length(rows_of, synthetic)
            mixed |= _mixed_by_company(rows_of, synthetic.draw(0)) | _mixed_by_company(rows_of, synthetic.draw(1))
            with suppress(Exception):  # some models take no such numbers
                mixed |= _mixed_by_company(rows_of, _far_apart(synthetic, 0))
                mixed |= _mixed_by_company(rows_of, _far_apart(synthetic, 1))
            records = synthetic.draw(0)
            if adjacency != "replace" and _is_random(rows_of, records):
                # A record at another place draws other numbers, which are as likely as those that it drew.
                rows_of = functools.partial(rows_of, holds_draws=True)
            if adjacency != "replace":
                mixed |= _mixed_by_absence(rows_of, synthetic, moves_up=adjacency == "add_remove")
            if adjacency == "add_remove":
                mixed |= _mixed_by_number(rows_of, records[:2], len(loader))
                of_ranks, ranks = describe_loader(loader).expected_batch_size(), getattr(loader, "num_shares", 1)
                mixed |= _mixed_by_size(rows_of, synthetic, math.ceil(of_ranks / ranks))
        except Exception as error:  # any model, dataset or collate function may run here
            return MetricRows(frozenset(mixed), logged, type(error).__name__)
    return MetricRows(frozenset(mixed), logged)


def _mixed(rows_of: RowsOf, synthetic: SyntheticRecords, batch_size: int | None) -> set[str]:
    records, following = synthetic.draw(0), synthetic.draw(1)
    few, others = records[: 2 * GROUP], records[2 * GROUP :]
    drawn = [synthetic.draw(number) for number in range(2, 2 + MANY // len(records))]
    many = [record for draw in drawn for record in draw][: batch_size or MANY]
    if any(map(_moved, *[rows_of([few, following]) for _ in range(2)])):
        raise ValueError("rows are drawn at random")
    found = set()
    for batch, places, order in ((few, _PLACES, -1), (few, _PLACES[:1], 1), (many, _PLACES[3:], -1)):
        if batch is many and len(many) <= len(few):
            continue
        first = rows_of([batch, following][::order])
        for place in places:
            other = others[place]
            for factor in (1.0, _FAR, math.nan):
                record = _times(other, factor)
                try:
                    rows = rows_of([[*batch[:place], record, *batch[place + 1 :]], following][::order])
                except Exception:
                    if factor == factor:
                        raise
                    continue  # the evaluation ends with such a record, and shows nothing
                for before, after in zip(first, rows, strict=True):
                    found |= {name for name, number in _moved(before, after).items() if number > 1}
    return found


def _mixed_by_length(rows_of: RowsOf, synthetic: SyntheticRecords) -> set[str]:
    """Metrics in which the longest record of a batch, to which others are padded, changes their rows."""
    found, following = set(), synthetic.draw(1)
    for variation in synthetic.varied(synthetic.draw(0), ignores=False):
        if variation.circumstance != OF_LENGTHS:
            continue
        # The first is cut least, and the others by half or more.
        longest, short, few = variation.records[0], variation.records[2 * GROUP], variation.records[10:]
        try:
            both = [rows_of([[first, *few], following]) for first in (longest, short)]
        except Exception:  # such as in a stack of records of one length
            continue
        for before, after in zip(*both, strict=True):
            # Rows that are padded themselves have another shape, and do not compare.
            alike = [name for name, rows in before.items() if _shapes(rows) == _shapes(after[name])]
            moved = _moved({name: before[name] for name in alike}, after, rounded=True)
            found |= {name for name, number in moved.items() if number > 1}
    return found


def _mixed_by_company(rows_of: RowsOf, records: list[Any]) -> set[str]:
    """Metrics of which records have other rows in a batch with more of them.

    Such are hits among those of a batch, or hits at the threshold that serves a batch best.
    """
    if _is_random(rows_of, records):
        return set()  # other places in a batch draw other numbers
    together = rows_of([records])
    for size in (GROUP, 2 * GROUP):
        try:
            parts = [rows_of([records[start : start + size]]) for start in range(0, len(records), size)]
        except Exception:  # too few for the model
            continue
        found = set()
        for whole, *few in zip(together, *parts, strict=True):
            for name, rows in whole.items():
                apart = [row for part in few for row in part[name]]
                alike = len(rows) == len(apart) and _shapes(rows) == _shapes(apart)
                if alike and _unmatched(rows, apart, _rounding(rows)):
                    found.add(name)
        return found
    return set()


def _far_apart(synthetic: SyntheticRecords, number: int) -> list[Any]:
    """Records whose scores lie far apart, and with either label, as only these show a threshold between them."""
    generator = torch.Generator().manual_seed(number)

    def drawn(value: Tensor, factor: float) -> Tensor:
        numbers = torch.randn(value.shape, generator=generator, dtype=torch.float64) * factor
        found = numbers if value.numel() > 1 else numbers > 0  # of which labels are made
        return found.to(value.dtype) if value.is_floating_point() else value

    draws = [synthetic.draw(number) for number in range(MANY // (4 * GROUP))]
    # The halves of a draw have other labels.
    records = [draw[half + place] for draw in draws for place in range(2 * GROUP) for half in (0, 2 * GROUP)]
    return [apply_to_collection(record, Tensor, drawn, _SCALES[place % GROUP]) for place, record in enumerate(records)]


def _is_random(rows_of: RowsOf, records: list[Any]) -> bool:
    return any(map(_moved, *[rows_of([records], seed=seed) for seed in SEEDS[:2]]))


def _mixed_by_absence(rows_of: RowsOf, synthetic: SyntheticRecords, moves_up: bool) -> set[str]:
    """Metrics in which a record that is left out takes more with it than its own row."""
    few, following = synthetic.draw(0)[: 2 * GROUP], synthetic.draw(1)

    def evaluated(first: list[Any]) -> Rows:
        stream = [*first, *following]
        starts = range(0, len(stream), len(few))
        return rows_of([stream[start : start + len(few)] for start in starts] if moves_up else [first, following])

    found, everything = set(), evaluated(few)
    for place in _PLACES[::2]:
        for before, after in zip(everything, evaluated([*few[:place], *few[place + 1 :]]), strict=True):
            for name, rows in before.items():
                rounding = _rounding(rows)
                if _unmatched(rows, after[name], rounding) > 1 or _unmatched(after[name], rows, rounding):
                    found.add(name)
    return found


def _mixed_by_number(rows_of: RowsOf, pair: list[Any], num_batches: int) -> set[str]:
    """Metrics that the number of a batch decides about, which a record that moves up changes."""
    numbers = [number for number in range(num_batches) if number < MANY or number & (number - 1) == 0]
    numbers += [num_batches - 1] * (num_batches > MANY)
    found = set()
    for one, several in zip(rows_of([pair]), rows_of([pair] * len(numbers), numbers), strict=True):
        for name, rows in one.items():
            expected = rows * len(numbers)
            if len(expected) != len(several[name]) or _unmatched(expected, several[name], _rounding(expected)):
                found.add(name)
    return found


def _mixed_by_size(rows_of: RowsOf, synthetic: SyntheticRecords, largest: int) -> set[str]:
    """Metrics that leave out batches which are not full, so that one record less takes all of its batch with it."""
    pool = [record for number in range(MANY // (4 * GROUP)) for record in synthetic.draw(number)]
    if largest > MANY:
        started = time.process_time()
        rows_of([pool])
        if (time.process_time() - started) * largest > _SECONDS * MANY:
            largest = MANY
    found = set()
    for size in {2, largest} - {0, 1}:
        records = (pool * -(-size // MANY))[:size]
        try:
            both = rows_of([records]), rows_of([records[1:]])
        except Exception:
            if size > 2:
                raise
            continue  # some models take no single record
        for before, after in zip(*both, strict=True):
            found |= {name for name, rows in before.items() if len(rows) - len(after[name]) not in (0, 1)}
    return found


def _times(record: Any, factor: float) -> Any:
    return apply_to_collection(record, Tensor, lambda value: value * factor if value.is_floating_point() else value)


def _moved(before: dict[str, list[Tensor]], after: dict[str, list[Tensor]], rounded: bool = False) -> dict[str, int]:
    """How many rows of each metric are others, of those where any are."""
    counts = {}
    for name, rows in before.items():
        rounding = _rounding(rows) if rounded else 0.0
        counts[name] = max(_unmatched(rows, after[name], rounding), _unmatched(after[name], rows, rounding))
    return {name: count for name, count in counts.items() if count}


def _rounding(rows: list[Tensor]) -> float:
    """By how much numbers may differ in another place of a batch or beside other padding, by rounding."""
    return _TOLERANCE * max((float(row.nan_to_num(0, 0, 0).abs().max()) for row in rows), default=0.0)


def _shapes(rows: list[Tensor]) -> set[tuple[int, ...]]:
    return {tuple(row.shape) for row in rows}


def _unmatched(rows: list[Tensor], others: list[Tensor], rounding: float = 0.0) -> int:
    """How many rows are not among the others, of which each is taken once."""
    left, count = list(others), 0
    for row in rows:
        place = next((place for place, other in enumerate(left) if _is_close(row, other, rounding)), None)
        if place is None:
            count += 1
        else:
            left.pop(place)
    return count


def _is_close(first: Tensor, second: Tensor, rounding: float) -> bool:
    same_shape = first.shape == second.shape
    return same_shape and torch.allclose(first, second, rtol=_TOLERANCE, atol=rounding, equal_nan=True)


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
    step = getattr(probe.model.eval(), f"{stage}_step")
    numbered = is_param_in_hook_signature(step, "batch_idx", min_args=2)
    loader = [] if dataloader_idx is None else [dataloader_idx]
    with torch.no_grad(), probe.integers:
        probe.run_hook(f"on_{stage}_start")
        probe.run_hook(f"on_{stage}_epoch_start")
        for number, records in zip(numbers or range(len(batches)), batches, strict=True):
            with FixedDraws(list(map(id, records)), SEEDS[0]) if holds_draws else nullcontext():
                batch = probe.batch(records)
                probe.run_hook(f"on_{stage}_batch_start", batch, number, *loader)
                output = step(batch, *([number] if numbered else []), *loader)
                probe.run_hook(f"on_{stage}_batch_end", output, batch, number, *loader)
        probe.run_hook(f"on_{stage}_epoch_end")


def _noting(model: Any, logged: dict[str, str]) -> dict[str, list[Any]]:
    """Let the metrics of a model do nothing but note what they are updated with, and logging their names."""
    noted: dict[str, list[Any]] = {}
    names: dict[int, str] = {}
    for name, metric in model.named_modules():
        if isinstance(metric, Metric):
            names[id(metric)] = name
            updates = noted.setdefault(name, [])

            def note(*args: Any, updates: list[Any] = updates, **kwargs: Any) -> Tensor:
                updates.append((args, kwargs))
                return torch.tensor(0.0)

            for method, stand_in in {"forward": note, "update": note, "compute": torch.zeros(()).clone}.items():
                setattr(metric, method, stand_in)

    def log(name: str, value: Any = None, *args: Any, **kwargs: Any) -> None:
        if id(value) in names:
            logged[name] = names[id(value)]

    def log_dict(dictionary: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        for name, value in dictionary.items():
            log(name, value)

    model.log, model.log_dict = log, log_dict
    return noted


def _rows(updates: list[Any]) -> Iterator[Tensor]:
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
