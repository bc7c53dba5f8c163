"""Copies of a model, of callbacks and schedules around it, and of what of a Trainer they may read."""

import dataclasses
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, SubsetRandomSampler
from torchmetrics import Metric

from lightning_pac.callbacks.shared import let_log
from lightning_pac.callbacks.srpp_sgd.loss_check.copied_optimizer import copy_if_own, copy_optimizer
from lightning_pac.callbacks.srpp_sgd.loss_check.passing_state import attributes_of
from lightning_pac.data.quiet_copies import deep_copied, without_graphs
from lightning_pac.data.records import copy_of, copy_small
from lightning_pac.data.tables import is_of, repeat_rows, repeat_rows_held
from lightning_pac.strategies.stand_in_collectives import held_by_all
from lightning_pac.strategies.whole_copies import WholeCopies

__all__ = ["MOST_BYTES", "TRANSFER_HOOKS", "Replica", "RoundLoader", "collated", "hidden_behind", "transferred"]

MOST_BYTES = 2**28  # of a dataset that is copied
TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


@dataclass
class Replica:
    """A model with its optimizer, its schedules and callbacks, which know each other and none of the originals.

    Attributes:
        model: The model, on the CPU.
        optimizer: Takes no step; it has the settings and the state of the model's own.
        schedules: The Trainer's configurations of schedulers of that optimizer.
        callbacks: The user's own.
        logged: Names that the model and the callbacks log.
        left_out: Kinds of callbacks that cannot be copied.
        originals: The callbacks that are copied, in their order.
        copies: Of all objects, by the `id` of the original, to which functions of the model may lead.
    """

    model: pl.LightningModule
    optimizer: torch.optim.Optimizer
    schedules: list[Any]
    callbacks: list[pl.Callback]
    logged: list[str]
    left_out: tuple[str, ...] = ()
    originals: tuple[pl.Callback, ...] = ()
    copies: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        pl_module: pl.LightningModule,
        callbacks: Sequence[pl.Callback] = (),
        dtype: torch.dtype = torch.float32,
        whole: WholeCopies | None = None,
        memo: dict[int, Any] | None = None,
    ) -> "Replica":
        """Copy what is trained; a callback that cannot be copied is left out, and named.

        Args:
            pl_module: The model, attached to a Trainer or not.
            callbacks: Those that are copied with it.
            dtype: Type of the copy's floating-point numbers.
            whole: Makes the copy of a sharded model.
            memo: Is given the copies of all objects, as in `copy.deepcopy`.
        """
        trainer, logged = pl_module._trainer, list[str]()
        view = None if trainer is None else _TrainerView(trainer)
        memo = {} if memo is None else memo
        if trainer is not None:
            memo[id(trainer)] = view
        memo.update(without_graphs(pl_module))
        original = None if trainer is None or not trainer.optimizers else trainer.optimizers[0]
        if original is not None and whole is None:
            copy_if_own(original, memo)
        model: Any = deep_copied(pl_module, memo) if whole is None else whole.copy(memo)
        model = model.cpu()
        model = model.double() if dtype == torch.float64 else model.float()
        memo[id(pl_module)] = model
        for name, value in list(vars(model).items()):
            if isinstance(getattr(value, "__dict__", {}).get(_ORIGINAL), types.MethodType):
                del model.__dict__[name]  # the class has it
        model.trainer = view
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = copy_optimizer(original, trained, memo)
        if trainer is not None and original is not None:
            memo |= {id(one): optimizer for one in (original, *getattr(trainer.strategy, "_lightning_optimizers", ()))}
        schedules = [] if trainer is None else list(_copies(trainer.lr_scheduler_configs, memo))
        failed: list[str] = []
        pairs = [(original, copied) for original in callbacks for copied in _copies([original], memo, failed)]
        kept, originals = [copied for _, copied in pairs], tuple(original for original, _ in pairs)
        found = cls(model, optimizer, schedules, kept, logged, tuple(failed), originals, dict(memo))
        found._let_log()
        return found

    def copy(self, memo: dict[int, Any], keeps_data: bool = False) -> "Replica":
        """Another one, which shares the list of logged names.

        Args:
            memo: Is given the copies of all objects, as in `copy.deepcopy`.
            keeps_data: Whether it sees what hooks have written to the datamodule and the dataset.
        """
        view: Any = self.model._trainer
        if view is not None:
            memo[id(view)] = _TrainerView(view._trainer)
            memo[id(view)].moved, memo[id(view)].repeats_rows = dict(view.moved), view.repeats_rows
            memo[id(view)].callback_metrics.update(view.callback_metrics)
            if keeps_data:
                memo[id(view)].take_data(view, memo)
        memo.update(without_graphs(self.model))
        model, optimizer = deep_copied(self.model, memo), deep_copied(self.optimizer, memo)
        model.trainer = memo.get(id(view))
        schedules, callbacks = (list(_copies(originals, memo)) for originals in (self.schedules, self.callbacks))
        # Code that leads to an original, by a closure or a global variable, goes on with the copy (`Surroundings`).
        copies = {original: memo[id(own)] for original, own in self.copies.items() if id(own) in memo}
        memo.update(copies)
        found = Replica(model, optimizer, schedules, callbacks, self.logged, self.left_out, self.originals, copies)
        found._let_log()
        return found

    @property
    def view(self) -> Any:
        """The stand-in for the Trainer; None where the model has none."""
        return self.model._trainer

    def _let_log(self) -> None:
        """Let the model log names to the list, and values to where its Trainer would show them."""
        names, view = self.logged, self.view
        values = {} if view is None else view.callback_metrics

        def show(name: str, value: Any) -> None:
            names.append(name)
            with suppress(Exception):  # a metric may have no value yet
                value = value.compute() if isinstance(value, Metric) else value
                number = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value))
                values.update({name: number, f"{name}_step": number, f"{name}_epoch": number})

        let_log(self.model, show)
        if view is not None:
            view.show(self)


class _TrainerView:
    """The part of a Trainer that a replica may read: plain values such as `current_epoch`, and the rest of the replica.

    Attributes:
        should_stop: Whether the replica asked for the end.
        train_dataloader: Made of the records that a round is run on; outside of rounds, all it has is a length.
        moved: Values that take the place of the Trainer's.
        repeats_rows: Whether every second row of the copied dataset is made a copy of the first.
        repeats_held: Of tables with how many rows in the datamodule the same is done.
        dataset: A copy of the training data that hooks may write to, once one has looked at it.
    """

    progress_bar_callback = None

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self.should_stop = self.repeats_rows = False
        self.repeats_held: int | None = None
        self.dataset: Any = None
        self.train_dataloader: Any = _Lengths(self.original_loader)
        self._datamodule: Any = None
        self.moved: dict[str, Any] = {}
        # As they were shown last: to ask for them anew may need all ranks.
        shown: dict[str, Tensor] = getattr(getattr(trainer, "_logger_connector", None), "_callback_metrics", {})
        self.callback_metrics = dict(shown)
        self.logged_metrics = self.progress_bar_metrics = self.callback_metrics
        self.loggers = [DummyLogger() for _ in trainer.loggers]
        self.logger = next(iter(self.loggers), None)
        self.strategy = types.SimpleNamespace(root_device=torch.device("cpu"))
        self.strategy.broadcast = self.strategy.barrier = _handed_back
        if trainer.world_size == 1:  # what one process does
            self.strategy.all_gather = self.strategy.reduce = _handed_back
        else:
            self.strategy.all_gather = partial(_gathered, trainer.world_size, trainer.global_rank)
            self.strategy.reduce = partial(_reduced, trainer.world_size)

    def show(self, replica: Replica) -> None:
        """Let the parts of the replica see each other."""
        self.lightning_module = self.model = replica.model
        self.optimizers = [replica.optimizer]
        self.strategy.optimizers = self.strategy._lightning_optimizers = self.optimizers
        self.strategy.model = self.strategy.lightning_module = replica.model
        self.lr_scheduler_configs, self.callbacks = replica.schedules, replica.callbacks

    @property
    def original_loader(self) -> Any:
        """That of the run itself."""
        return getattr(self._trainer, "train_dataloader", None)

    @property
    def validates_trained(self) -> bool:
        """Whether the run validates on records that it is trained on."""
        with suppress(Exception):  # loaders without a dataset, or datasets without a length
            loader, given = self.original_loader, tree_leaves(self._trainer.val_dataloaders)
            if not isinstance(loader.sampler, SubsetRandomSampler):
                return any(is_of(one.dataset, loader.dataset) for one in given)
        return False

    @property
    def state(self) -> Any:
        """A copy, in which a step of training is one."""
        own = self._trainer.state
        return dataclasses.replace(own, stage=RunningStage.TRAINING if self.moved.get("training") else own.stage)

    def copy_data(self) -> Any:
        """The copy of the training data; None where there is none."""
        if self.dataset is None and self._datamodule is None:
            # A hook from which the data are kept may look at the copy, which is closed as well.
            with suppress(Exception), torch._C.DisableTorchFunction():  # open files and the like have no copies
                original = getattr(self.original_loader, "dataset", None)  # none in an evaluation alone
                datamodule = self._trainer.datamodule  # type: ignore[attr-defined]
                held = [
                    value for part in (original, *_datasets_of(datamodule)) for value in attributes_of(part).values()
                ]
                if sum(value.nbytes for value in held if isinstance(value, Tensor | np.ndarray)) < MOST_BYTES:
                    memo: dict[int, Any] = {id(self._trainer): self}
                    self.dataset, self._datamodule = deep_copied((original, datamodule), memo)
                    if self.repeats_rows:
                        repeat_rows(self.dataset)
                    if self.repeats_held is not None:
                        repeat_rows_held(self._datamodule, self.repeats_held)
        return self.dataset

    def take_data(self, other: "_TrainerView", memo: dict[int, Any]) -> None:
        """Go on with copies of another one's data as they are now; what is large is shared."""
        if other.dataset is not None:
            self.dataset = copy_of(other.dataset, memo) if hasattr(other.dataset, "__dict__") else other.dataset
            self._datamodule = copy_small(other._datamodule, memo)

    @property
    def datamodule(self) -> Any:
        """A copy, of which the data are that of the training data."""
        self.copy_data()
        if self._datamodule is None:
            raise AttributeError("A copy of the model has no trainer.datamodule.")
        return self._datamodule

    @property
    def copied_hooks(self) -> list[Any]:
        """That copy, if a hook has looked at it or at the data."""
        return [] if self._datamodule is None else [self._datamodule]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self.moved[name] if name in self.moved else getattr(self._trainer, name)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise AttributeError(f"A copy of the model has no trainer.{name}.")


class _Lengths:
    """What steps may ask of a loader or of its dataset: how long it is."""

    def __init__(self, of: Any) -> None:
        self._of = of

    @property
    def dataset(self) -> "_Lengths":
        """That of a loader."""
        return _Lengths(self._of.dataset)

    def __len__(self) -> int:
        return len(self._of)


def _handed_back(value: Any = None, *args: Any, **kwargs: Any) -> Any:
    return value


def _gathered(ranks: int, own: int, value: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
    return torch.stack(held_by_all(ranks, own, value if sync_grads else value.detach()))


def _reduced(ranks: int, value: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
    return value * ranks if "sum" in str(reduce_op).lower() else value


def _datasets_of(holder: Any) -> list[Any]:
    return [value for value in getattr(holder, "__dict__", {}).values() if isinstance(value, Dataset)]


class RoundLoader:
    """Batches of a round's records.

    Args:
        records: Those of the round.
        collate_fn: Makes a batch of them.
        view: A stand-in for the Trainer, of whose dataset a copy is made if it is asked for, to be written to.
    """

    def __init__(self, records: list[Any], collate_fn: Callable[[list[Any]], Any], view: "_TrainerView") -> None:
        self._records, self._view = records, view
        self.collate_fn, self.batch_size = collate_fn, len(records)

    @property
    def dataset(self) -> Any:
        """What a hook may look at, or write to."""
        found = self._view.copy_data()
        return self._records if found is None else found

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        yield self.collate_fn(self._records)


def collated(
    records: list[Any], collate_fn: Callable[[list[Any]], Any], hooks: list[Any], dtype: torch.dtype, loader: int = 0
) -> Any:
    """A batch of these records of the loader with that number, on the CPU, with floating-point numbers of that type."""
    batch = apply_to_collection(collate_fn(records), Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t)
    return transferred(batch, hooks, loader)


def transferred(batch: Any, hooks: Sequence[Any], loader: int = 0) -> Any:
    """A batch as `training_step` is given it, on the CPU, by the transfer hooks of the first object that has each."""
    transfer: list[tuple[str, tuple[Any, ...]]] = [
        ("on_before_batch_transfer", ()),
        ("transfer_batch_to_device", (torch.device("cpu"),)),
        ("on_after_batch_transfer", ()),
    ]
    for name, arguments in transfer:
        source = next((hook for hook in hooks if is_overridden(name, hook)), None)
        if source is not None:
            batch = getattr(source, name)(batch, *arguments, loader)
    return batch


def _copies(originals: Sequence[Any], memo: dict[int, Any], failed: list[str] | None = None) -> Iterator[Any]:
    for original in originals:
        try:
            found = deep_copied(original, memo)
            _rebind(found, memo)
            _rebind(getattr(found, "scheduler", None), memo)
        except Exception:
            if failed is not None:
                failed.append(type(original).__name__)
            continue
        yield found


def hidden_behind(wrapper: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """A function that stands in an attribute for another one, as `wrapper` does, and is not copied with its holder."""
    wrapper.__dict__[_ORIGINAL] = original
    return wrapper


_ORIGINAL = "_original_of_replicas"


def _rebind(holder: Any, memo: dict[int, Any]) -> None:
    """Let functions in attributes, and in lists there, see the copies; `copy.deepcopy` never copies a function."""
    for name, value in list(getattr(holder, "__dict__", {}).items()):
        original = getattr(value, "__dict__", {}).get(_ORIGINAL)
        if isinstance(original, types.MethodType):
            del holder.__dict__[name]  # the class has it
        elif isinstance(original or value, types.FunctionType):
            holder.__dict__[name] = _rebound(original or value, memo)
        elif type(value) is list:
            value[:] = [_rebound(entry, memo) if isinstance(entry, types.FunctionType) else entry for entry in value]


def _rebound(function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
    """The function with copies of what it keeps in its closure, default arguments and attributes."""

    def rebound_cell(cell: types.CellType) -> types.CellType:
        with suppress(ValueError):  # not filled yet
            found = memo[id(cell)] = types.CellType(copy_small(cell.cell_contents, memo))
            return found
        return cell

    cells = tuple(map(rebound_cell, function.__closure__ or ()))
    defaults, keywords, attributes = (
        copy_small(values, memo) for values in (function.__defaults__, function.__kwdefaults__, vars(function))
    )
    found = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells or None)
    found.__kwdefaults__ = keywords
    found.__dict__.update(attributes)
    return found
