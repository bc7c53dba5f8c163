"""Runs a copy of a model on synthetic records."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor

from lightning_pac.callbacks.srpp_sgd.loss_check.copied_optimizer import same_gradients
from lightning_pac.callbacks.srpp_sgd.loss_check.fixed_draws import (
    SEEDS,
    FixedDraws,
    Seed,
    generator_states,
    seeded,
    states_after,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.readings import Readings, Replaced
from lightning_pac.callbacks.srpp_sgd.loss_check.replica import Replica, RoundLoader, collated
from lightning_pac.callbacks.srpp_sgd.loss_check.scaled_integers import ScaledIntegers
from lightning_pac.callbacks.srpp_sgd.loss_check.watched_calls import WatchedCalls
from lightning_pac.data.records import Surroundings, copy_small
from lightning_pac.gradients.calls import nested_tensors

__all__ = ["AT_THE_END", "Probe"]

_VALIDATED = "batches of a validation"

# Of a validation, the end of an epoch and the beginning of the next.
AFTER_A_BATCH = (
    "on_validation_start",
    "on_validation_epoch_start",
    _VALIDATED,
    "on_validation_epoch_end",
    "on_validation_end",
    "on_train_epoch_end",
    "on_train_epoch_start",
)
_OF_A_STEP = ("on_before_zero_grad", "optimizer_zero_grad", "on_before_optimizer_step", "optimizer_step")
AT_THE_END = ("on_train_end", "on_fit_end")


class Probe:
    """Runs `training_step` on records, under seeds of its own.

    Args:
        replica: A copy of the model and of what is around it.
        collate_fn: Makes a batch of records.
        hooks: Objects whose transfer hooks are run, the first that has one; the model's are, if none has.
        dtype: Type of the floating-point numbers in a batch.

    Attributes:
        replica: The copy that is run.
        drew, drew_elsewhere: Whether it has drawn random numbers, and some that are not torch's.
        integers: What is done with integers.
        failed: Hooks that add to checkpoints and did not run.
        batch_idx, ends: The number that batches are given, and whether each round is the last of the run.
        validated: Records of a validation, which are no training data; none if left out, None for those of the round.
        num_errors: Hooks that ended in an error so far; `broken` has their names.
        forgets: Whether each gradient begins in the same state, which the one before would change.
        dtype: Type of the model's numbers, in which a gradient that is kept takes half the memory.
        surroundings: State that the code around the model keeps beside objects.
    """

    def __init__(
        self,
        replica: Replica,
        collate_fn: Callable[[list[Any]], Any],
        hooks: list[Any],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.replica, self.integers = replica, WatchedCalls(dtype)
        self.drew = self.drew_elsewhere = self.forgets = self.ends = self._holds_draws = False
        self._left_out: tuple[str, ...] = ()
        self.batch_idx, self.num_errors, self.failed, self.broken = 0, 0, set[str](), set[str]()
        self.validated: list[Any] | None = []
        self._scaled: AbstractContextManager[Any] = nullcontext()
        self._readings: Readings | None = None
        self.collate_fn, self.hooks, self.dtype, self._numbers = collate_fn, hooks, dtype, dict[int, int]()
        around = [part for callback in replica.callbacks for part in (callback, *vars(callback).values())]
        around += [*(config.scheduler for config in replica.schedules), replica.optimizer]
        self.surroundings = Surroundings(replica.model, *around, collate_fn, *hooks)
        self._explicit = is_param_in_hook_signature(replica.model.training_step, "batch_idx", min_args=2)

    @property
    def model(self) -> pl.LightningModule:
        """The model that is run."""
        return self.replica.model

    def copy_around(self, memo: dict[int, Any]) -> None:
        """Run copies of the collate function and of what has transfer hooks from now on, and leave theirs alone."""
        self.collate_fn, self.hooks = (copy_small(value, memo) for value in (self.collate_fn, self.hooks))

    def begin_training(self) -> None:
        """Run what comes before the first batch."""
        with seeded(SEEDS[0]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.run_hook("on_train_start")
            self.run_hook("on_train_epoch_start")
        self.broken.clear()  # rounds have a loader, too

    def end_training(self) -> None:
        """Let each round from now on be of the epoch before, which was the last, with what comes after it."""
        self.ends, view = True, self.replica.view
        view.moved = {"current_epoch": max(0, view.current_epoch - 1)}

    @contextmanager
    def copied(self, memo: dict[int, Any] | None = None, keeps_data: bool = False) -> Iterator[Replica]:
        """Run another copy meanwhile, which shares nothing that it writes to but what `memo` gives it."""
        memo = {} if memo is None else memo
        collate_fn, hooks, number = self.collate_fn, self.hooks, self.batch_idx
        replica = self.replica.copy(memo, keeps_data)
        with self.surroundings.copied(memo), self.using(replica):
            self.collate_fn, self.hooks = (copy_small(value, memo) for value in (collate_fn, hooks))
            try:
                yield replica
            finally:
                self.collate_fn, self.hooks, self.batch_idx = collate_fn, hooks, number

    @contextmanager
    def using(self, other: Replica) -> Iterator[Replica]:
        """Run that copy meanwhile."""
        replica, self.replica = self.replica, other
        try:
            yield other
        finally:
            self.replica = replica

    def gradient(self, records: list[Any], seed: Seed = SEEDS[0]) -> Tensor:
        """The gradient of their loss, in one row."""
        with self.in_one_state():
            return self.next_gradient(records, seed)

    def in_one_state(self) -> AbstractContextManager[object]:
        """Where it forgets, run another copy meanwhile."""
        return self.copied(keeps_data=True) if self.forgets else nullcontext()

    def next_gradient(self, records: list[Any], seed: Seed = SEEDS[0]) -> Tensor:
        """The same, in the state that the one before left."""
        parameters = [one for one in self.model.parameters() if one.requires_grad]
        loss = self.loss(records, seed)
        if loss.requires_grad:  # a branch may lead to a number
            loss.backward()  # type: ignore[no-untyped-call]
        found, start = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64), 0
        for parameter in parameters:
            stop = start + parameter.numel()
            if parameter.grad is not None:
                found[start:stop] = parameter.grad.to_dense().reshape(-1)
            parameter.grad = None  # one by one: a gradient may be as large as what is left of the memory
            start = stop
        return found

    def accepts(self, records: list[Any]) -> bool:
        """Whether their gradient is finite, in a model that forgets them; raises if there is none."""
        with self.copied():
            return bool(self.gradient(records).isfinite().all())

    def loss(self, records: list[Any], seed: Seed = SEEDS[0]) -> Tensor:
        """The loss of a batch of these records."""
        return self._step(records, seed)[0]

    def batch(self, records: list[Any], loader: int = 0) -> Any:
        """Their batch as `training_step` is given it, or an evaluation for the loader with that number."""
        return collated(records, self.collate_fn, [*self.hooks, self.model], self.dtype, loader)

    def shuffles(self, records: list[Any]) -> bool:
        """Whether the rows of their batch come in an order that is drawn."""
        orders = []
        for seed in SEEDS:
            with self.copied(), seeded(seed):
                tensors = [tensor for tensor in nested_tensors(self.batch(records)) if len(tensor.shape)]
            orders.append([[repr(row.tolist()) for row in tensor] for tensor in tensors])
        columns = list(zip(*orders, strict=False))
        return any(
            len({*map(tuple, column)}) > 1 == len({tuple(sorted(order)) for order in column}) for column in columns
        )

    @property
    def keeps_after_steps(self) -> bool:
        """Whether code of the user's runs after a step, which may hand something on to later ones."""
        hooks = ("on_train_batch_end", *AFTER_A_BATCH)
        return bool(self.replica.callbacks) or any(is_overridden(hook, self.model) for hook in hooks)

    @property
    def shorter_rounds(self) -> list[tuple[str, ...]]:
        """Hooks that a round within an epoch, or a step, is without, if they may wipe out what a step has kept."""
        several = not self.ends and getattr(self.replica.view, "accumulate_grad_batches", 1) > 1
        within_epoch = not self.ends and (self.keeps_after_steps or is_overridden("validation_step", self.model))
        within_step = several and any(is_overridden(hook, self.model) for hook in _OF_A_STEP)
        return [AFTER_A_BATCH] * within_epoch + [(*AFTER_A_BATCH, *_OF_A_STEP)] * within_step

    @contextmanager
    def without(self, hooks: tuple[str, ...]) -> Iterator[None]:
        """Leave these hooks out of each round meanwhile."""
        self._left_out = hooks
        try:
            yield
        finally:
            self._left_out = ()

    def leaves_out(self, records: list[Any], number: int, level: float | None) -> bool:
        """Whether the model's hook leaves out their batch, were it the one with that number in a pass.

        Args:
            records: Those of the batch, and of a step before it, of which numbers may have been kept.
            number: That of the batch.
            level: Made what is read off the records; see `Readings`.
        """
        with self.copied(), self.reading(level) as readings:
            self.run_round(records)
            with seeded(SEEDS[0]):
                batch = self.batch(records)
                readings.mark(list(nested_tensors(batch)))
                return self.model.on_train_batch_start(batch, number) == -1

    def round(self, records: list[Any], after_hook: Callable[[], object], level: float | None = None) -> int:
        """A step with the hooks around it, as far as they run here, and the end of an epoch; weights stay.

        Args:
            records: Those of the step.
            after_hook: Called after the step and after hooks.
            level: Made what is read off the records; see `Readings`.

        Returns:
            How many numbers were read off the records.
        """
        with self.reading(level) as readings:
            self.run_round(records, after_hook)
        return readings.count

    @contextmanager
    def reading(
        self, level: float | None, replaced: Replaced | None = None, num_records: int = 1
    ) -> Iterator[Readings]:
        """Make what is read off the records of that level, and count it; see `Readings`."""
        self._readings = Readings(level, replaced, num_records)
        try:
            with self._readings as readings:
                yield readings
        finally:
            self._readings = None

    def run_round(self, records: list[Any], after_hook: Callable[[], object] = lambda: None) -> None:
        """Run it, and go on to the number of the next batch, which lasts while the copy does."""
        optimizer, view = self.replica.optimizer, self.replica.view
        if view is not None:
            view.train_dataloader = loader = RoundLoader(records, self.collate_fn, view)
            self.model.train_dataloader = lambda: loader  # type: ignore[method-assign]
        with seeded(SEEDS[0]), torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.run_hook("on_train_epoch_start")
            loss, output, batch = self._step(records, SEEDS[0])
            self.run_hook("on_before_zero_grad", optimizer)
            self._run_override("optimizer_zero_grad", 0, self.batch_idx, optimizer)
            with suppress(Exception):
                torch.autograd.grad(loss, [p for p in self.model.parameters() if p.requires_grad], allow_unused=True)
            self.run_hook("on_after_backward")
            with same_gradients(self.model, self.replica.logged):
                self.run_hook("on_before_optimizer_step", optimizer)
            self._run_override("optimizer_step", 0, 0, optimizer, lambda: None)
            # What schedules on a plateau monitor is named in a warning.
            for config in [config for config in self.replica.schedules if not config.reduce_on_plateau]:
                with suppress(Exception):
                    type(self.model).lr_scheduler_step(self.model, config.scheduler, None)
            after_hook()
            with same_gradients(self.model):  # until the next step begins
                # What was written may be of the batch before, whose hook saw as many steps as there are now.
                for step, number in enumerate((self.last_number, self.batch_idx)):
                    if view is not None:
                        view.moved["global_step"] = view.global_step + step
                    self.run_hook("on_train_batch_end", output, batch, number)
                    after_hook()
                for hook in (*AFTER_A_BATCH, *(AT_THE_END if self.ends else ())):
                    self._validate(records) if hook == _VALIDATED else self.run_hook(hook)
                    after_hook()
                self.hooks = getattr(view, "copied_hooks", None) or self.hooks  # what they hold may change batches
                self.batch_idx += 1  # as the next one begins, what was kept of this may be used
                self.run_hook("on_train_batch_start", batch, self.batch_idx)

    def run_hook(self, hook: str, *arguments: Any, loader: tuple[int, ...] = ()) -> None:
        """Run a hook of the callbacks and of the model, as far as it runs here; not all take the loader's number."""
        if hook in self._left_out:
            return
        around: Any = self.replica.view, self.model
        for user in (*self.replica.callbacks, self.model):
            name, terms = (hook, ()) if user is self.model else (f"{hook} of {type(user).__name__}", around)
            with self._noting_errors(name):
                run = getattr(user, hook)
                takes_loader = loader and is_param_in_hook_signature(run, "dataloader_idx")
                run(*terms, *arguments, *(loader if takes_loader else ()))

    def _run_override(self, method: str, *arguments: Any) -> None:
        """That of the class: the instance may have one that hides the loss."""
        if is_overridden(method, self.model) and method not in self._left_out:
            with suppress(Exception):
                getattr(type(self.model), method)(self.model, *arguments)

    def _validate(self, records: list[Any]) -> None:
        """Two batches of a validation, unless one is going on, in which metrics may be noised."""
        logged, is_going_on = list(self.replica.logged), getattr(self.replica.view, "evaluating", False)
        nothing = self.validated == [] or not is_overridden("validation_step", self.model)
        if nothing or is_going_on or _VALIDATED in self._left_out:
            return
        modes = [(module, module.training) for module in self.model.modules()]
        if not is_overridden("on_validation_model_eval", self.model):
            self.model.eval()
        with torch.no_grad():
            self._run_override("on_validation_model_eval")
            with self._noting_errors(_VALIDATED):
                batch = self.batch(records if self.validated is None else self.validated)
                numbered = is_param_in_hook_signature(self.model.validation_step, "batch_idx", min_args=2)
                for number in range(2):
                    self.run_hook("on_validation_batch_start", batch, number, loader=(0,))
                    output = self.model.validation_step(batch, *([number] if numbered else []))
                    self.run_hook("on_validation_batch_end", output, batch, number, loader=(0,))
        for module, training in modes:
            module.training = training
        self._run_override("on_validation_model_train")
        self.replica.logged[:] = logged

    @property
    def last_number(self) -> int:
        """That of the batch before this one, which may have been in another pass."""
        batches = getattr(self.replica.view, "num_training_batches", 1) if self.batch_idx == 0 else self.batch_idx
        return int(batches) - 1 if 0 < batches < math.inf else 0

    @contextmanager
    def _noting_errors(self, hook: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.num_errors += 1
            self.broken.add(hook)

    def _step(self, records: list[Any], seed: Seed) -> tuple[Tensor, Any, Any]:
        numbers = [self._numbers.setdefault(id(record), len(self._numbers)) for record in records]
        held = FixedDraws(numbers, SEEDS[0]) if self._holds_draws else nullcontext()
        with seeded(seed), held, torch.enable_grad(), self.integers, self._scaled:
            batch = self.batch(records)
            tensors = list(nested_tensors(batch))
            if isinstance(self._scaled, ScaledIntegers):
                self._scaled.batch = tensors
            if self._readings is not None:
                self._readings.mark(tensors)
            # This hook may change the batch in place; it may also need a Trainer, and then shows nothing.
            self.run_hook("on_train_batch_start", batch, self.batch_idx)
            output = self.model.training_step(batch, *([self.batch_idx] if self._explicit else []))
            self.drew |= generator_states() != states_after(seed)
            self.drew_elsewhere |= generator_states()[1:] != states_after(seed)[1:]
        loss = output["loss"] if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            raise TypeError("training_step returned no loss.")
        self.run_hook("on_before_backward", loss)  # it may hang a hook on the loss
        return loss, output if isinstance(output, Mapping) else {"loss": loss.detach()}, batch

    @contextmanager
    def scaling(self, factors: Sequence[float]) -> Iterator[None]:
        """Multiply what the integers of a batch's records are turned into."""
        self._scaled = ScaledIntegers(factors)
        try:
            yield
        finally:
            self._scaled = nullcontext()

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        """As if it were the run's step, and the epoch and the batch in it, with that number."""
        before, view = self.batch_idx, self.replica.view
        if view is not None:
            moved: dict[str, Any] = view.moved
            is_last = step == self.last_number
            epoch = view.max_epochs - 1 if is_last and (view.max_epochs or -1) > 0 else step
            view.moved = {**moved, "global_step": step, "current_epoch": epoch, "is_last_batch": is_last}
        self.batch_idx = step
        try:
            yield
        finally:
            self.batch_idx = before
            if view is not None:
                view.moved = moved

    @contextmanager
    def without_randomness(self) -> Iterator[None]:
        """Whole batches and parts of them must not differ by dropout masks, nor by draws of the step itself."""
        modes = [(module, module.training) for module in self.model.modules()]
        if self.drew:
            self.model.eval()
        self._holds_draws = self.drew
        try:
            yield
        finally:
            self._holds_draws = False
            for module, training in modes:
                module.training = training
