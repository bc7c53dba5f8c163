"""Does the loss give every record a gradient of its own? Asked of synthetic records, on a copy of the model."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_pac.callbacks.srpp_sgd.batch_shape import BatchShape
from lightning_pac.callbacks.srpp_sgd.loss_check.company import coupled_in_company
from lightning_pac.callbacks.srpp_sgd.loss_check.kept_state import TOLERANCE, remembers, taking_up_records
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import SEEDS, Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.readings import LEVELS
from lightning_pac.callbacks.srpp_sgd.loss_check.replica import Replica
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import EXAMPLES, GROUP, LAWS, SyntheticRecords
from lightning_pac.gradients import flat_sum, make_engine
from lightning_pac.strategies.whole_copies import WholeCopies

__all__ = ["LossCheck", "check_loss", "leaves_out_batch"]

# Of the records: the one class with another weight may be missing in a draw, of three classes in one draw of ten. Each
# but the first is made at a step of its own, since a term may be added in every tenth step, or from the hundredth on.
LATER = (1, 9, 99, 999, 9999)
DRAWS = 1 + len(LATER)

MANY = 64
"""Records of the largest batch that is compared with small ones; none is larger than two of the loader's."""

REMEMBERS = (
    "depends on the records of earlier batches, which the model keeps without noise (a hidden state that is carried "
    "on, a memory bank)"
)
MEANS_OF_ALL = (
    "a mean over all tokens or targets that count does so, or padding that is not masked; average in records, as "
    "per_record_mean(model, batch) does where the model computes its loss"
)

_NO_CLIPPING = 1e30
_TOO_LARGE = 1e18

BY_EXTREMES = "a function of the mean, a scale that the batch decides, or a mean over what is not missing does so"

NOT_THE_MEAN = "is not the mean over the records of a batch (a sum, or a divisor that depends on the batch)"


@dataclass(frozen=True)
class LossCheck:
    """The outcome of running `training_step` on synthetic records.

    Attributes:
        problem: How the loss couples records, or None.
        unchecked: Why nothing could be shown, or None.
        logged: Names that `training_step` logs.
        state: Names of buffers, parameters and whatever else a checkpoint holds that take up what the records hold, as
            running statistics do.
        keeps_order: Whether row i of what the layers see is record i of the batch.
        written: Names of all that a step writes to, be it what the records hold or not.
        unread: Hooks that add to checkpoints and did not run, and callbacks that cannot be copied.
        pads: Whether records of the dataset make batches of different shapes.
    """

    problem: str | None
    unchecked: str | None
    logged: tuple[str, ...]
    state: tuple[str, ...]
    keeps_order: bool
    written: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()
    pads: bool = False

    @property
    def not_shown(self) -> tuple[str, ...]:
        """Sentences on what synthetic records could not show, for the card."""
        sentences = []
        if self.unchecked:
            sentences.append(
                f"Synthetic records could not show that the loss is a mean over records ({self.unchecked}): that no "
                "record's loss depends on another record is taken at its word."
            )
        if self.unread:
            sentences.append(
                f"{' and '.join(self.unread)} could not be run on synthetic records: that no record decides what it "
                "puts into checkpoints or does to batches is taken at its word."
            )
        return tuple(sentences)


def check_loss(
    pl_module: pl.LightningModule,
    dataloader: DataLoader[Any],
    datamodule: pl.LightningDataModule | None = None,
    repeated: int = 0,
    callbacks: Sequence[pl.Callback] = (),
    batch_idx: int = 0,
) -> LossCheck:
    """Compare gradients of synthetic batches that a loss of single records relates to each other.

    Records only lend their structure (see `SyntheticRecords`); their values are drawn at random, and what is said of a
    failure holds none of them. Replacing one half of a batch must change the gradient by the same amount whatever the
    other half is, and the gradient of a batch must be the mean of those of its halves. A class-weighted mean, a
    contrastive loss, in-batch negatives, MixUp in the collate function and a sum in place of a mean all fail. The same
    is asked of records of different lengths and of ignored targets, where the model takes them: a mean over all tokens
    of a batch weighs a record by the lengths of the others. At last, what the layers see must be one row a record.

    Args:
        pl_module: The model; a copy of it is run, on the CPU.
        dataloader: Lends the dataset and the collate function.
        datamodule: Its transfer hooks are run as the Trainer would.
        repeated: How often the run was checked before. A repetition draws other records, and leaves out what depends on
            the code alone: lengths, ignored targets and rows.
        callbacks: Those whose hooks are run on synthetic records, too.
        batch_idx: Number of the batch that is to come.
    """
    whole = _whole(pl_module)
    found = _check(pl_module, dataloader, datamodule, repeated, callbacks, batch_idx, torch.float32, whole)
    if found.problem is None and found.unchecked is None:
        return found
    # Rounding does not survive in float64, and what is real does, so the tolerance is no larger for it.
    again = _check(pl_module, dataloader, datamodule, repeated, callbacks, batch_idx, torch.float64, whole)
    return found if again.unchecked is not None else again


def _check(
    pl_module: pl.LightningModule,
    dataloader: DataLoader[Any],
    datamodule: pl.LightningDataModule | None,
    repeated: int,
    callbacks: Sequence[pl.Callback],
    batch_idx: int,
    dtype: torch.dtype,
    whole: WholeCopies | None,
) -> LossCheck:
    logged: list[str] = []
    unread: set[str] = set()
    pads = False
    problem, unchecked, keeps_order = None, None, True
    state: tuple[str, ...] = ()
    written: frozenset[str] = frozenset()
    try:
        probe = _probe(pl_module, dataloader, datamodule, callbacks, dtype, whole)
        probe.batch_idx = batch_idx
        logged, unread = probe.replica.logged, probe.failed
        unread.update(f"{name}, which cannot be copied," for name in probe.replica.left_out)
        examples = _examples(dataloader.dataset)
        pads = not repeated and _pads(probe, examples)
        synthetic = SyntheticRecords(examples, probe.accepts)
        records = synthetic.draw(DRAWS * repeated)
        state, written = taking_up_records(probe, records)
        problem, unchecked = (REMEMBERS, None) if remembers(probe, records) else _compare(probe, records)
        for draw, number in enumerate(LATER, 1):
            if problem is None and unchecked is None and not repeated:
                problem, unchecked = _coupled_later(probe, synthetic.draw(draw), number)
        if problem is None and unchecked is None and not repeated:
            problem = _compare_many(probe, synthetic, dataloader) or _compare_readings(probe, records)
        comparable = problem is None and unchecked is None and not state
        if comparable and not repeated:
            problem, unchecked, keeps_order = _compare_varied(probe, records, synthetic)
        if comparable and problem is None and not probe.is_random:
            laws = list(LAWS)
            laws = laws[repeated % len(laws) :][:1] if repeated else laws
            problem = _compare_company(probe, synthetic, laws, keeps_order and not repeated)
    except Exception as error:  # any model, dataset or collate function may run here
        problem, unchecked = None, _place_of(error)
    names = tuple(dict.fromkeys(logged))
    return LossCheck(problem, unchecked, names, state, keeps_order, written, tuple(sorted(unread)), pads)


def leaves_out_batch(
    pl_module: pl.LightningModule, dataloader: DataLoader[Any], datamodule: pl.LightningDataModule | None, number: int
) -> bool:
    """Whether `on_train_batch_start` also leaves out two batches of synthetic records with that number in the pass."""
    whole = _whole(pl_module)
    try:
        probe = _probe(pl_module, dataloader, datamodule, whole=whole)
        records = SyntheticRecords(_examples(dataloader.dataset), probe.accepts).draw(0)
        return all(probe.leaves_out(part, number) for part in (records[: 2 * GROUP], records[2 * GROUP :]))
    except Exception:  # whatever a model may raise that needs its Trainer
        return False


def _probe(
    pl_module: pl.LightningModule,
    dataloader: DataLoader[Any],
    datamodule: pl.LightningDataModule | None,
    callbacks: Sequence[pl.Callback] = (),
    dtype: torch.dtype = torch.float32,
    whole: WholeCopies | None = None,
) -> Probe:
    replica = Replica.of(pl_module, callbacks, dtype, whole)
    hooks = [source for source in (datamodule, replica.model) if source is not None]
    return Probe(replica, dataloader.collate_fn, hooks, dtype)


def _whole(pl_module: pl.LightningModule) -> WholeCopies | None:
    """Gathered outside of what may fail on one rank alone."""
    trainer = pl_module._trainer
    return WholeCopies.of(pl_module, trainer.optimizers[0] if trainer is not None and trainer.optimizers else None)


def _compare(probe: Probe, records: list[Any]) -> tuple[str | None, str | None]:
    """The problem found, and the reason why none could be found."""
    whole = probe.gradient(records[: 2 * GROUP])
    if not np.isfinite(float(whole.norm())):
        return None, "its gradient on synthetic records is not finite"
    if not _is_small(probe.gradient(records[: 2 * GROUP]) - whole, float(whole.norm())):
        return None, "its gradient changes when it is evaluated again"
    for seed in SEEDS if probe.drew else SEEDS[:1]:
        found = _coupled(probe, records, seed)
        if found != (None, None):
            return found
    with probe.without_randomness():
        halves = [probe.gradient(records[start : start + GROUP]) for start in (0, GROUP)]
        if probe.drew:
            whole = probe.gradient(records[: 2 * GROUP])
            other = probe.gradient(records[: 2 * GROUP], SEEDS[1])
            probe.is_random = not _is_small(other - whole, float(whole.norm()))
    mean = (halves[0] + halves[1]) / 2
    if _is_small(mean - whole, float(whole.norm())):
        return None, None
    if probe.is_random:
        return None, "it draws random numbers that are not torch's in evaluation mode, too"
    # Least squares: the multiple of the halves' mean that is nearest to the whole.
    multiple = float(whole @ mean) / max(float(mean @ mean), 1e-300)
    if probe.drew and not _is_small(multiple * mean - whole, float(whole.norm())):
        return None, "its random draws could not be told apart by records"
    return NOT_THE_MEAN, None


def _coupled(probe: Probe, records: list[Any], seed: int) -> tuple[str | None, str | None]:
    first, second, other_first, other_second = (records[start : start + GROUP] for start in range(0, 4 * GROUP, GROUP))
    pairs = [first + second, other_first + second, first + other_second, other_first + other_second]
    whole, *corners = (probe.gradient(pair, seed) for pair in pairs)
    size = max(float(corner.norm()) for corner in [whole, *corners])
    if not np.isfinite(size):
        return None, "its gradient on synthetic records is not finite"
    if size == 0:
        return None, "its gradient on synthetic records is zero"
    # The gradient of a mean over records is f(a) + g(b), whose mixed difference is zero.
    if not _is_small(whole - corners[0] - corners[1] + corners[2], size):
        return "couples the records of a batch (a class-weighted mean, a contrastive loss or MixUp does so)", None
    return None, None


def _compare_many(probe: Probe, synthetic: SyntheticRecords, dataloader: DataLoader[Any]) -> str | None:
    """Whether more records than the few that were compared are coupled, by a rank among them or a number of them."""
    size = getattr(dataloader.batch_sampler, "batch_size", None) or MANY
    parts = [
        records[start : start + 2 * GROUP]
        for number in range(MANY // (4 * GROUP))
        for records in [synthetic.draw(number)]
        for start in (0, 2 * GROUP)
    ][: -(-2 * size // (2 * GROUP))]
    if probe.is_random or len(parts) < 2:
        return None
    with probe.without_randomness():
        whole = probe.gradient([record for part in parts for record in part])
        mean = torch.stack([probe.gradient(part) for part in parts]).mean(0)
    if _is_small(mean - whole, float(whole.norm())) or not np.isfinite(float(mean.norm())):
        return None
    return f"couples the records of a batch of {2 * GROUP * len(parts)}, which it does not in one of {2 * GROUP}"


def _compare_readings(probe: Probe, records: list[Any]) -> str | None:
    """Whether numbers that are read off a batch decide its gradient; of numbers of one record there are as many."""

    def gradient(number: int, level: float | None) -> tuple[Tensor, int]:
        with probe.copied(), probe.reading(level, only_sizes=True) as readings:
            return probe.gradient(records[:number]), readings.count

    with probe.without_randomness():
        whole, num_read = gradient(2 * GROUP, None)
        if probe.is_random or not num_read or gradient(GROUP, None)[1] != num_read:
            return None
        for level in LEVELS:
            try:
                found, _ = gradient(2 * GROUP, level)
            except Exception:  # the model refuses such numbers
                continue
            if not _is_small(found - whole, float(whole.norm())):
                return "depends on a number that is read off the batch (a branch on the loss, a scale of all records)"
    return None


def _coupled_later(probe: Probe, records: list[Any], number: int) -> tuple[str | None, str | None]:
    """As at that step of the run, if the model can be run out of its time."""
    try:
        with probe.at(number):
            found = _coupled(probe, records, SEEDS[0])
    except Exception:
        found = None, "it does not run"
    return found if found[1] is None else _coupled(probe, records, SEEDS[0])


def _compare_varied(
    probe: Probe, records: list[Any], synthetic: SyntheticRecords
) -> tuple[str | None, str | None, bool]:
    """Couplings that equal records do not show: other lengths, ignored targets, and rows that are no records.

    Returns:
        The problem found, what only the data could show, and whether rows keep the order of the records.
    """
    problem, keeps_order = _compare_rows(probe, records)
    if problem is not None or probe.is_random:
        return problem, None, keeps_order
    doubt = None
    for variation in synthetic.varied(records, probe.integers.may_be_ignored):
        try:
            with probe.without_randomness():
                problem, unchecked = _coupled(probe, variation.records, SEEDS[0])
            rows = _compare_rows(probe, variation.records) if problem is None and unchecked is None else (None, True)
        except Exception:  # these records are no input for the model
            continue
        keeps_order &= rows[1]
        if problem is not None and not variation.occurs:
            doubt = f"it couples records {variation.circumstance}, as the few that were looked at do not"
        elif problem is not None:
            return f"couples records {variation.circumstance} ({MEANS_OF_ALL})", None, keeps_order
        elif rows[0] is not None:
            return f"{rows[0]}, with records {variation.circumstance}", None, keeps_order
    return None, doubt, keeps_order


def _compare_rows(probe: Probe, records: list[Any]) -> tuple[str | None, bool]:
    """Whether an engine clips records: a group's norms must be the same in company and alone.

    Returns:
        The problem found, and whether row i is record i.
    """
    engine = make_engine(public_terms=True)
    with probe.without_randomness():
        parts = records[: 2 * GROUP], records[:GROUP], records[GROUP : 2 * GROUP]
        # An error without an engine is none of the engine's.
        ordinary = [probe.gradient(part) for part in parts]
        try:
            engine.attach(probe.model)
        except ValueError:  # says so again when the run attaches its own
            return None, True
        try:
            norms, means, public = [], [], []
            for part in parts:
                probe.loss(part).backward()  # type: ignore[no-untyped-call]
                sums, found = engine.clipped_sum(_NO_CLIPPING)
                norms.append(found[:, 0])
                public.append(engine.public_gradient if engine.public_gradient is not None else torch.zeros(()))
                means.append(flat_sum(sums).double() / len(found) + public[-1])
        except Exception as error:
            return f"cannot be taken apart into records: {str(error).rstrip('.')}", True
        finally:
            engine.detach()
    whole, alone = norms[0], torch.cat(norms[1:])
    if len(whole) != 2 * GROUP:
        return f"reaches the layers in {len(whole)} rows for {2 * GROUP} records", True
    if probe.is_random:
        return None, True
    if any(float(gradient.norm()) > _TOO_LARGE for gradient in ordinary):
        return "has gradients whose squares no float32 holds, which count as zero: scale it down", True
    size = float(whole.max())
    if not all(_is_small(gradient - public[0], float(public[0].norm())) for gradient in public):
        return "adds a term to the mean over the records whose gradient depends on them", True
    if not all(_is_small(mean - want, 10 * size) for mean, want in zip(means, ordinary, strict=True)):
        return "has another gradient than the records' gradients together", True
    if not _is_small(whole.sort().values - alone.sort().values, 10 * size):
        return "reaches the layers in rows that are no records", True
    return None, _is_small(whole - alone, 10 * size)


def _compare_company(probe: Probe, synthetic: SyntheticRecords, laws: list[str], keeps_order: bool) -> str | None:
    engine = make_engine(public_terms=True)
    try:
        engine.attach(probe.model)
    except ValueError:  # says so again when the run attaches its own
        return None
    try:
        with probe.without_randomness():
            found = coupled_in_company(probe, engine, synthetic, laws, keeps_order)
    finally:
        engine.detach()
    return None if found is None else f"couples records {found} ({BY_EXTREMES})"


def _is_small(difference: Tensor, size: float) -> bool:
    return float(difference.norm()) <= TOLERANCE * size


def _pads(probe: Probe, examples: list[Any]) -> bool:
    """Whether records come in batches of different shapes, each beside a copy of itself."""
    try:
        shapes = [BatchShape.of(probe.batch([example] * 2)) for example in examples]
    except Exception:  # whatever a collate function may raise here, the loader will, or not
        return False
    return not all(shape.matches(shapes[0]) for shape in shapes)


def _examples(dataset: Any) -> list[Any]:
    """Records from all over a dataset, since its first may be of one class."""
    size = len(dataset)
    return [dataset[index] for index in sorted({size * number // EXAMPLES for number in range(EXAMPLES)}) if size]


def _place_of(error: Exception) -> str:
    """Its kind and where it was raised; the message of an error that others raise may hold parts of a record."""
    frames = traceback.extract_tb(error.__traceback__)
    own = frames[-1].filename.startswith(str(Path(__file__).parent))
    if own and isinstance(error, TypeError | ValueError):
        return str(error)
    last = next((frame for frame in reversed(frames) if "site-packages" not in frame.filename), frames[-1])
    return f"{type(error).__name__} in {last.name}, {Path(last.filename).name} line {last.lineno}"
