"""The records that an evaluation hands to the metrics, each of them once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader

from lightning_pac.callbacks.shared import hide_evaluated_lengths
from lightning_pac.callbacks.srpp_sgd import SRPPSGD
from lightning_pac.data import (
    PrivateDataLoader,
    check_records_alone,
    count_records,
    describe_loader,
    hide_worker_seeds,
    rebuild_loader,
)
from lightning_pac.data.loader import divides_all_records
from lightning_pac.data.records import DeliveredRows, check_each_record_once, watch_loader
from lightning_pac.scenarios import Adjacency, Sequential
from lightning_pac.strategies import Ranks
from lightning_pac.strategies.agreement import share_records

__all__ = ["DeliveredRecords", "guard_evaluation", "modes_before", "tell_of_persons"]


class DeliveredRecords:
    """Counts the records that this process was given in one evaluation, so that none can be added to a metric twice.

    Attributes:
        batch: Number of the batch that was delivered last, over all loaders; 0 before the first.
        in_batch: Records in it, which is none where it only keeps this rank in step with the others; None outside of
            the batches.
        in_all: Records of this evaluation so far.
        loaders: Numbers of the loaders of the batch, or of all outside of the batches.
        all_loaders: The evaluation's loaders.
        in_trial: Whether this is a check of Lightning's, on a few batches, whose values nobody looks at.
        of_several: Loader and place in it of each batch of two or more records, by its number.

    Args:
        loaders: The evaluation's loaders, in the order of their batches.
        in_trial: As above.
    """

    def __init__(self, loaders: list[DataLoader[Any]], in_trial: bool = False) -> None:
        self.batch = 0
        self.in_batch: int | None = None
        self.in_all = 0
        self.loaders = frozenset[int]()
        self.all_loaders = loaders
        self.in_trial = in_trial
        self.of_several: dict[int, tuple[int, int]] = {}
        self._shared: dict[frozenset[int], bool] = {}

    @classmethod
    def of(cls, trainer: pl.Trainer, adjacency: Adjacency = "replace") -> "DeliveredRecords":
        """Those of the evaluation that begins.

        Raises:
            MisconfigurationException: If a loader may deliver a record more than once, on one rank or on several, or
                one record less decides which others are delivered.
        """
        # A private name: `trainer.val_dataloaders` gives those of an earlier fit while `validate` runs.
        combined = _loop(trainer)._combined_loader
        if len(combined.flattened) > 1 and combined._mode != "sequential":
            raise MisconfigurationException(
                f"Loaders that are combined by {combined._mode!r} may deliver a record more than once: pass them as a "
                "list, which is evaluated one after another."
            )
        if adjacency == "add_remove":
            hide_evaluated_lengths(trainer)
        in_trial = trainer.sanity_checking or bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
        for loader in combined.flattened:
            _check_each_record_once(loader, trainer.world_size)
            if adjacency == "add_remove" and not in_trial:
                _check_all_records(loader, trainer)
        return cls(combined.flattened, in_trial)

    def begin_batch(self, batch_idx: int, dataloader_idx: int) -> None:
        """Count the records of the batch that is delivered now."""
        loader, self.loaders = self.all_loaders[dataloader_idx], frozenset([dataloader_idx])
        if isinstance(loader, PrivateDataLoader):
            assert loader.num_drawn is not None
            self.in_batch = loader.num_drawn
        else:
            size, total = _batch_size(loader), _num_delivered(loader)
            self.in_batch = min(size, total - batch_idx * size)
        self.in_all += self.in_batch
        self.batch += 1
        if self.in_batch > 1:
            self.of_several[self.batch] = (dataloader_idx, batch_idx)

    def end_batches(self) -> None:
        """From now on, a metric may be updated with records of all batches."""
        self.in_batch, self.loaders = None, frozenset(range(len(self.all_loaders)))

    def share_records(self, numbers: frozenset[int]) -> bool:
        """Whether loaders with these numbers deliver a record twice, as far as that shows."""
        if len(numbers) < 2:
            return False
        if numbers not in self._shared:
            try:
                check_each_record_once(ConcatDataset([self.all_loaders[number].dataset for number in sorted(numbers)]))
            except ValueError:
                self._shared[numbers] = True
            else:
                self._shared[numbers] = False
        return self._shared[numbers]


def tell_of_persons(callbacks: Sequence[pl.Callback], loaders: Sequence[DataLoader[Any]], differing: int) -> None:
    """Warn where training protects persons, and one may have more records in an evaluation than its metrics count."""
    units = [callback.arguments.unit for callback in callbacks if isinstance(callback, SRPPSGD)]
    for unit in filter(None, units):
        try:
            # Names are public, as in training.
            records = ConcatDataset[Any]([loader.dataset for loader in loaders])
            persons = replace(unit, at_most=len(records)).records_of(records)
        except Exception:  # the records may not say whose they are, or be there one after the other only
            persons = [list(range(differing + 1))]
        if max(map(len, persons), default=0) > differing:
            rank_zero_warn(
                "PrivateMetrics: training protects persons, and a value protects one for as many records as "
                f"num_differing says, {differing} here, but one may have more in this evaluation: keep so many of "
                "each, or give PrivateMetrics a larger num_differing."
            )


def guard_evaluation(trainer: pl.Trainer) -> Callable[[], None]:
    """Divide evaluated records among several ranks, hold what comes against what is declared; return how to undo that.

    Lightning's sampler fills the ranks' shares up with repeated records, whose contributions would count twice, and
    does not ask whether the ranks have the same records. The division is the same but for these: where a rank has no
    record for a batch, the batch holds one that does not count.
    """
    strategy = trainer.strategy
    original = strategy.process_dataloader
    ranks = Ranks.of(trainer)
    undo_watching: list[Callable[[], None]] = []
    memory: dict[int, DeliveredRows] = {}
    number = 0

    def process_dataloader(dataloader: object) -> object:
        nonlocal number
        processed = original(dataloader)
        if not (trainer.validating or trainer.testing or trainer.sanity_checking):
            return processed
        # Where one cannot be divided, it is refused when the evaluation begins.
        if ranks.size > 1 and all(ranks.exchange(lambda: _is_divisible(processed, ranks), list)):
            # The order is that of the dataset, so nothing is drawn with the key of the share.
            share, step = share_records(ranks, processed, "evaluation loader", lambda loader: _step(loader, ranks))
            processed = rebuild_loader(cast(DataLoader[Any], processed), step, share=share)
        if isinstance(processed, DataLoader):
            # Loaders come one after another, and in the same order when the Trainer asks for them again.
            loaded = len(trainer.num_test_batches if trainer.testing else trainer.num_val_batches)
            place = number % loaded if loaded else number
            undo_watching.extend([hide_worker_seeds(processed), watch_loader(processed, memory, place)])
            number += 1
        return processed

    strategy.process_dataloader = process_dataloader  # type: ignore[method-assign]

    def undo() -> None:
        strategy.__dict__.pop("process_dataloader", None)
        while undo_watching:
            undo_watching.pop()()

    return undo


def _is_divisible(dataloader: object, ranks: Ranks) -> bool:
    if isinstance(dataloader, PrivateDataLoader) or not isinstance(dataloader, DataLoader):
        return False
    return divides_all_records(dataloader, ranks.rank, ranks.size)


def _step(dataloader: DataLoader[Any], ranks: Ranks) -> Sequential:
    assert dataloader.batch_size is not None
    return Sequential(dataloader.batch_size * ranks.size, dataloader.drop_last)


def modes_before(trainer: pl.Trainer) -> dict[str, bool]:
    """Whether each layer was in training mode before the evaluation that goes on, by name."""
    return dict(_loop(trainer)._module_mode.mode)


def _loop(trainer: pl.Trainer) -> Any:
    loops = {
        TrainerFn.FITTING: trainer.fit_loop.epoch_loop.val_loop,
        TrainerFn.VALIDATING: trainer.validate_loop,
        TrainerFn.TESTING: trainer.test_loop,
    }
    assert trainer.state.fn is not None
    return loops[trainer.state.fn]


def _batch_size(loader: DataLoader[Any]) -> int:
    return int(describe_loader(loader).expected_batch_size())


def _num_delivered(loader: DataLoader[Any]) -> int:
    """Records in a pass, which a sampler with `num_samples` cuts short."""
    if type(loader.batch_sampler) is not BatchSampler:
        return count_records(loader)
    sampler: Any = loader.sampler
    return len(sampler)


def _check_each_record_once(loader: Any, num_ranks: int) -> None:
    try:
        sampling = describe_loader(loader)
        check_records_alone(loader.dataset)
    except (TypeError, ValueError) as error:
        problem = str(error).rstrip(".")
    else:
        if not sampling.each_record_once:
            problem = f"it draws by {sampling}"
        elif num_ranks > 1 and getattr(loader, "num_shares", 1) != num_ranks:
            problem = f"each of {num_ranks} ranks evaluates all of it"
        else:
            return
    raise MisconfigurationException(
        f"A private metric counts each record once, and a loader may deliver one more often ({problem}): evaluate a "
        "DataLoader over a map-style dataset without a sampler of your own, and let the Trainer divide it among ranks."
    )


def _check_all_records(loader: DataLoader[Any], trainer: pl.Trainer) -> None:
    limit = trainer.limit_test_batches if trainer.testing else trainer.limit_val_batches
    # A limit of twice as many batches as there are is no nearer with a record more.
    if limit < 1 or (isinstance(limit, int) and limit < 2 * len(loader)):
        problem, cure = f"limit_{'test' if trainer.testing else 'val'}_batches={limit}", "leave it out"
    elif getattr(describe_loader(loader), "drop_last", False):
        problem, cure = "drop_last=True", "set it to False"
    elif _num_delivered(loader) < count_records(loader):
        problem, cure = "a sampler that draws some of the records", "leave it out"
    else:
        return
    raise MisconfigurationException(
        f"Under add_remove, one record less lets others into an evaluation or out of it if it leaves some out, which "
        f"nothing pays for, and this one has {problem}: {cure}, or let records be chosen one by one, such as by a hash."
    )
