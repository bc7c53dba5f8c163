"""Does the loss give every record a gradient of its own? Asked of synthetic records, on a copy of the model."""

import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from lightning_pac.callbacks.srpp_sgd.batch_shape import BatchShape
from lightning_pac.callbacks.srpp_sgd.loss_check.coupling import (
    OF_RANDOMNESS,
    compare_many,
    compare_readings,
    compare_whole,
    coupled_later,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.probe import Probe
from lightning_pac.callbacks.srpp_sgd.loss_check.readings import LEVELS
from lightning_pac.callbacks.srpp_sgd.loss_check.rows import compare_company, compare_varied
from lightning_pac.callbacks.srpp_sgd.loss_check.state import (
    LATER,
    Beginning,
    looks_through,
    remembers,
    remembers_at,
    taking_up_records,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_probe import probe_of
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records import GROUP, LAWS, SyntheticRecords, shown_records
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.strategies.whole_copies import WholeCopies

__all__ = ["UNCHECKED", "LossCheck", "check_loss", "refuse_left_out_batch"]

DRAWS = 2 + len(LATER)

REMEMBERS = (
    "depends on the records of earlier batches, which the model keeps without noise (a hidden state that is carried "
    "on, a memory bank)"
)


LOOKS_THROUGH = (
    "depends on rows of the dataset that the step, a hook or a callback looks through for all records (prototypes of "
    "classes, weights by all losses)"
)

UNCHECKED = "Synthetic records could not show that the loss is a mean over records"

SHUFFLES = "is given its rows in an order that the collate function, or a hook, draws"


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
        broken: Hooks of the model, and of callbacks, that ended in an error, so that nothing of them was shown.
        saving: Methods of the model and the datamodule that put something into checkpoints.
        unseen: Parts of records, such as texts, of which the loss may use values that were not tried.
    """

    problem: str | None
    unchecked: str | None
    logged: tuple[str, ...]
    state: tuple[str, ...]
    keeps_order: bool
    written: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()
    pads: bool = False
    broken: frozenset[str] = frozenset()
    saving: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def not_shown(self) -> tuple[str, ...]:
        """Sentences on what synthetic records could not show, for the card."""
        sentences = []
        if self.unchecked:
            sentences.append(
                f"{UNCHECKED} ({self.unchecked}): that no record's loss depends on another record is taken on trust."
            )
        if self.unread:
            sentences.append(
                f"{' and '.join(self.unread)} could not be run on synthetic records: that no record decides what it "
                "puts into checkpoints or does to batches is taken on trust."
            )
        if self.saving:
            sentences.append(
                f"Checkpoints hold what {' and '.join(self.saving)} adds to them, without noise: that nothing of it "
                "was read off the records before training is taken on trust."
            )
        return tuple(sentences)


def check_loss(
    pl_module: pl.LightningModule,
    dataloader: DataLoader[Any],
    datamodule: pl.LightningDataModule | None = None,
    repeated: int = 0,
    callbacks: Sequence[pl.Callback] = (),
    batch_idx: int = 0,
    ended: bool = False,
    beginning: Beginning | None = None,
) -> LossCheck:
    """Compare gradients of synthetic batches that a loss of single records relates to each other.

    Records lend their structure (see `SyntheticRecords`), and values are drawn at random; parts of real records are put
    together as well, at the start and where those show nothing. What is said of a failure holds no value. Replacing one
    half of a batch must change the gradient by the same amount whatever the other half is, and the gradient of a batch
    must be the mean of those of its halves. A class-weighted mean, a contrastive loss, in-batch negatives, MixUp in the
    collate function and a sum in place of a mean all fail. The same is asked of records of different lengths and of
    ignored targets, where the model takes them: a mean over all tokens of a batch weighs a record by the lengths of the
    others. At last, what the layers see must be one row a record.

    Args:
        pl_module: The model; a copy of it is run, on the CPU.
        dataloader: Lends the dataset and the collate function.
        datamodule: Its transfer hooks are run as the Trainer would.
        repeated: How often the run was checked before. A repetition draws other records, and leaves out what depends on
            the code alone: lengths, ignored targets and rows.
        callbacks: Those whose hooks are run on synthetic records, too.
        batch_idx: Number of the batch that is to come.
        ended: Whether training has ended; then only what a step and the hooks at the end write is asked.
        beginning: What was kept when the training began; none at the start.
    """

    def check(whole: WholeCopies | None, recombined: bool = False) -> LossCheck:
        broken = set[str](), set[str]()
        arguments = pl_module, dataloader, datamodule, repeated, callbacks, batch_idx, ended, beginning, whole
        found = _check(*arguments, torch.float32, broken[0], recombined)
        if ended or (found.problem is None and found.unchecked is None):
            return found
        # Rounding does not survive in float64, nor what each gradient does to the next (power iterations) where all
        # begin in one state; what is real does, so the tolerance is no larger for it.
        again = _check(*arguments, torch.float64, broken[1], recombined)
        # Hooks that take numbers of float32 from elsewhere end in an error there, and then show nothing.
        found = found if again.unchecked is not None or broken[1] - broken[0] else again
        if found.unchecked in {None, *OF_RANDOMNESS} or recombined:
            return found
        # No drawn number equals 1.0, which classes are compared with, or is a code that is looked up.
        other = check(whole, recombined=True)
        return found if other.unchecked is not None else other

    return WholeCopies.in_turn(pl_module, check)


def _check(
    pl_module: pl.LightningModule,
    dataloader: DataLoader[Any],
    datamodule: pl.LightningDataModule | None,
    repeated: int,
    callbacks: Sequence[pl.Callback],
    batch_idx: int,
    ended: bool,
    beginning: Beginning | None,
    whole: WholeCopies | None,
    dtype: torch.dtype,
    broken: set[str],
    recombined: bool,
) -> LossCheck:
    logged: list[str] = []
    unread: set[str] = set()
    pads = False
    saving: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    problem, unchecked, keeps_order = None, None, True
    state: tuple[str, ...] = ()
    written: frozenset[str] = frozenset()
    apart = ExitStack()
    try:
        memo: dict[int, Any] = {}
        probe = probe_of(pl_module, dataloader, datamodule, callbacks, dtype, whole, memo)
        apart.enter_context(probe.surroundings.copied(memo))
        probe.copy_around(memo)
        probe.broken = broken
        if not repeated:
            probe.begin_training()
        if ended:
            probe.end_training()
        probe.batch_idx, probe.forgets = batch_idx, dtype == torch.float64
        logged, unread = probe.replica.logged, probe.failed
        unread.update(f"{name}, which cannot be copied," for name in probe.replica.left_out)
        examples, all_seen = shown_records(dataloader.dataset, others=not repeated and not ended)
        pads = not repeated and _pads(probe, examples)
        saving = () if repeated else _saving(probe)
        synthetic = SyntheticRecords(examples, probe.accepts, all_seen or repeated > 0 or ended, recombined)
        unseen = synthetic.unseen
        broken.clear()  # by values that no record holds
        records, probe.validated = synthetic.draw(DRAWS * repeated), synthetic.draw(DRAWS * repeated + 1)[:GROUP]
        if getattr(probe.replica.view, "validates_trained", False):
            probe.validated = None
        state, written = taking_up_records(probe, records, (LATER[-1], LATER[-1] + 1), repeated > 0, beginning)
        wide = list(synthetic.drawn_by("wide"))
        # Small numbers alone pass no threshold, and leave a median of larger ones where it is.
        for other in wide if (written or ended) and not state else ():
            with suppress(Exception):  # a model may refuse them
                others = [*records[: 2 * GROUP], *other]
                state += taking_up_records(probe, others, earlier=repeated > 0, beginning=beginning)[0]
        if ended:
            return LossCheck(None, None, (), state, True, written)
        remembered = remembers(probe, lambda number: synthetic.draw(DRAWS * repeated + number), wide)
        if remembered is False and not repeated:
            remembered = any(remembers_at(probe, records, step) for step in (0, LATER[-1], probe.last_number))
        problem, unchecked = (REMEMBERS, None) if remembered else compare_whole(probe, records, repeated)
        if remembered is None and problem is None:
            unchecked = "its gradient is not finite after a batch of synthetic records"
        if problem is None and looks_through(probe, records[: 2 * GROUP], memo):
            problem, unchecked = LOOKS_THROUGH, None
        if problem is None and not repeated and probe.shuffles(records):
            problem = SHUFFLES
        for draw, step in enumerate((*LATER, probe.last_number), 1):
            if problem is None and unchecked is None and not repeated:
                problem, unchecked = coupled_later(probe, synthetic.draw(draw), step, draw)
        if problem is None and unchecked is None and not repeated:
            problem, unchecked = compare_many(probe, synthetic, dataloader)
        if problem is None and unchecked is None and not repeated and not recombined:
            with suppress(Exception):  # these may be none that the model takes
                real = SyntheticRecords(examples, probe.accepts, recombined=True)
                problem, _ = compare_whole(probe, real.draw(0), repeated)
        if problem is None and unchecked is None:
            problem = compare_readings(probe, records)
        comparable = problem is None and unchecked is None and not state
        if comparable and not repeated:
            problem, unchecked, keeps_order = compare_varied(probe, records, synthetic)
        if comparable and problem is None:
            laws = list(LAWS)
            laws = laws[repeated % len(laws) :][:1] if repeated else laws
            problem = compare_company(probe, synthetic, laws, keeps_order and not repeated, 1 + repeated)
    except Exception as error:  # any model, dataset or collate function may run here
        problem, unchecked = None, _place_of(error)
    finally:
        apart.close()
    names = tuple(dict.fromkeys(logged))
    return LossCheck(
        problem, unchecked, names, state, keeps_order, written, tuple(sorted(unread)), pads, frozenset(broken),
        saving, unseen,
    )  # fmt: skip


def refuse_left_out_batch(
    pl_module: pl.LightningModule, dataloader: DataLoader[Any], datamodule: pl.LightningDataModule | None, number: int
) -> None:
    """Refuse `on_train_batch_start` that left out a batch, unless it leaves out synthetic records with that number.

    It has to do so whatever is read off them.

    Raises:
        PrivacyViolationError: If it takes some.
    """

    def by_number(whole: WholeCopies | None) -> bool:
        try:
            probe = probe_of(pl_module, dataloader, datamodule, whole=whole)
            records = SyntheticRecords(shown_records(dataloader.dataset, False)[0], probe.accepts).draw(0)
            parts = records[: 2 * GROUP], records[2 * GROUP :]
            return all(probe.leaves_out(part, number, level) for part in parts for level in (None, *LEVELS))
        except Exception:  # whatever a model may raise that needs its Trainer
            return False

    if not WholeCopies.in_turn(pl_module, by_number):
        raise PrivacyViolationError(
            "on_train_batch_start left out a batch of records, and does not leave out one of synthetic records, so "
            "that private ones may decide it: let its number decide, or limit_train_batches of the Trainer."
        )


def _pads(probe: Probe, examples: list[Any]) -> bool:
    """Whether records come in batches of different shapes, each beside a copy of itself."""
    try:
        with probe.copied():
            shapes = [BatchShape.of(probe.batch([example] * 2)) for example in examples]
    except Exception:  # whatever a collate function may raise here, the loader will, or not
        return False
    return not all(shape.matches(shapes[0]) for shape in shapes)


def _saving(probe: Probe) -> tuple[str, ...]:
    """Methods that put something into checkpoints; those that end in an error are named elsewhere."""
    found: list[str] = []
    with probe.copied():
        checkpoint: dict[str, Any] = {"state_dict": {}, "hyper_parameters": dict(probe.model.hparams)}
        known = len(checkpoint)
        with suppress(Exception):
            probe.model.on_save_checkpoint(checkpoint)
        found += [f"on_save_checkpoint of {type(probe.model).__name__}"] * (len(checkpoint) > known)
        for holder in probe.hooks:  # the datamodule, if there is one
            with suppress(Exception):
                found += [f"state_dict of {type(holder).__name__}"] * bool(holder.state_dict())
    return tuple(found)


def _place_of(error: Exception) -> str:
    """Its kind and where it was raised; the message of an error that others raise may hold parts of a record."""
    frames = traceback.extract_tb(error.__traceback__)
    own = frames[-1].filename.startswith(str(Path(__file__).parent))
    if own and isinstance(error, AttributeError | TypeError | ValueError):
        return str(error)
    last = next((frame for frame in reversed(frames) if "site-packages" not in frame.filename), frames[-1])
    return f"{type(error).__name__} in {last.name}, {Path(last.filename).name} line {last.lineno}"
