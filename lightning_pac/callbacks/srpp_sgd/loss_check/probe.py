"""Runs a copy of a model on synthetic records."""

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lightning_pac.callbacks.srpp_sgd.loss_check.fixed_draws import FixedDraws
from lightning_pac.callbacks.srpp_sgd.loss_check.integer_arguments import IntegerArguments

__all__ = ["SEEDS", "Probe", "copied", "detached_copy"]

# A step that mixes records with some probability does so under one of them, be it by torch, NumPy or Python.
SEEDS = (1, 2, 3)


class Probe:
    """Runs `training_step` on records, under seeds of its own.

    Args:
        model: A copy of the model.
        collate_fn: Makes a batch of records.
        hooks: Objects whose transfer hooks are run, the first that has one.
        callbacks: Those that keep something in checkpoints.

    Attributes:
        drew: Whether it has drawn random numbers.
        is_random: Whether it does so in evaluation mode, and otherwise than by torch's own functions.
        integers: What is done with integers.
        optimizer: Given to the hooks of a round.
    """

    optimizer: torch.optim.Optimizer

    def __init__(
        self,
        model: pl.LightningModule,
        collate_fn: Callable[[list[Any]], Any],
        hooks: list[Any],
        callbacks: Sequence[pl.Callback] = (),
    ) -> None:
        self.model = model
        self.callbacks = callbacks
        self.drew = False
        self.is_random = False
        self.integers = IntegerArguments()
        self._holds_draws = False
        self._numbers: dict[int, int] = {}
        self._collate_fn, self._hooks = collate_fn, hooks
        self._explicit = is_param_in_hook_signature(model.training_step, "batch_idx", min_args=2)

    def gradient(self, records: list[Any], seed: int = SEEDS[0]) -> Tensor:
        """The gradient of their loss, in one row."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(self.loss(records, seed), parameters, allow_unused=True)
        parts = [torch.zeros(1) if part is None else part.to_dense().reshape(-1) for part in gradients]
        return torch.cat([part.double() for part in parts])

    def accepts(self, records: list[Any]) -> bool:
        """Whether their gradient is finite, in a model that forgets them; raises if there is none."""
        model = self.model
        self.model = copied(model)
        try:
            return bool(self.gradient(records).isfinite().all())
        finally:
            self.model = model

    def loss(self, records: list[Any], seed: int = SEEDS[0]) -> Tensor:
        """The loss of a batch of these records."""
        return self._step(records, seed)[0]

    def round(self, records: list[Any]) -> None:
        """A step with the hooks around it, as far as they run here, and the end of an epoch; weights stay."""
        self._start_optimizer()
        with _seeded(SEEDS[0]), torch.enable_grad():
            loss, output, batch = self._step(records, SEEDS[0])
            with suppress(Exception):
                torch.autograd.grad(loss, [p for p in self.model.parameters() if p.requires_grad], allow_unused=True)
            around: list[tuple[str, tuple[Any, ...]]] = [
                ("on_before_zero_grad", (self.optimizer,)),
                ("on_after_backward", ()),
                ("on_before_optimizer_step", (self.optimizer,)),
                ("on_train_batch_end", (output, batch, 0)),
                ("on_train_epoch_end", ()),
            ]
            for hook, arguments in around:
                for callback in self.callbacks:
                    with suppress(Exception):
                        getattr(callback, hook)(self.model._trainer, self.model, *arguments)
                with suppress(Exception):
                    getattr(self.model, hook)(*arguments)
                if hook == "on_before_optimizer_step" and is_overridden("optimizer_step", self.model):
                    with suppress(Exception):  # that of the class: the instance may have one that hides the loss
                        type(self.model).optimizer_step(self.model, 0, 0, self.optimizer, lambda: None)

    def _start_optimizer(self) -> None:
        """One with the settings of the model's own and no gradient to use."""
        view: Any = self.model._trainer
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.SGD(parameters, lr=0.0)
        if isinstance(view, _TrainerView):
            groups = [{"params": parameters if number == 0 else []} for number in range(len(view.settings))]
            for group, settings in zip(groups, view.settings, strict=True):
                group.update(copy.deepcopy(settings))
            self.optimizer.param_groups = groups or self.optimizer.param_groups
            view.optimizers = [self.optimizer]

    def _step(self, records: list[Any], seed: int) -> tuple[Tensor, Any, Any]:
        numbers = [self._numbers.setdefault(id(record), len(self._numbers)) for record in records]
        held = FixedDraws(numbers, SEEDS[0]) if self._holds_draws else nullcontext()
        with _seeded(seed), held, torch.enable_grad(), self.integers:
            before = _generator_states()
            batch = _collate(records, self._collate_fn, self._hooks)
            self._start_batch(batch)
            step = self.model.training_step
            output = step(batch, 0) if self._explicit else step(batch)
            self.drew |= before != _generator_states()
        loss = output["loss"] if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            raise TypeError("training_step returned no loss.")
        return loss, output if isinstance(output, Mapping) else {"loss": loss.detach()}, batch

    def _start_batch(self, batch: Any) -> None:
        """The model's own hook may change the batch in place; it may also need a Trainer, and then shows nothing."""
        for callback in self.callbacks:
            with suppress(Exception):
                callback.on_train_batch_start(self.model._trainer, self.model, batch, 0)  # type: ignore[arg-type]
        if is_overridden("on_train_batch_start", self.model):
            with suppress(Exception):
                self.model.on_train_batch_start(batch, 0)

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


def copied(model: pl.LightningModule) -> pl.LightningModule:
    """A copy that reads the same Trainer."""
    found = copy.deepcopy(model)
    found.trainer = model._trainer
    return found


def detached_copy(pl_module: pl.LightningModule, logged: list[str]) -> pl.LightningModule:
    """A copy on the CPU that logs names only, to `logged`, and reads of its Trainer what `_TrainerView` shows."""
    model = copy.deepcopy(pl_module).cpu().float()

    def log(name: str, *args: Any, **kwargs: Any) -> None:
        logged.append(name)

    def log_dict(dictionary: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        logged.extend(dictionary)

    if pl_module._trainer is not None:
        model.trainer = _TrainerView(pl_module.trainer)  # type: ignore[assignment]
    model.log = log  # type: ignore[method-assign]
    model.log_dict = log_dict  # type: ignore[assignment, method-assign]
    return model


class _TrainerView:
    """What of a Trainer a copy may read: plain values such as `current_epoch`, an optimizer, and no logger."""

    logger = None
    loggers: tuple[Any, ...] = ()

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self.optimizers: list[torch.optim.Optimizer] = []
        groups = trainer.optimizers[0].param_groups if trainer.optimizers else []
        self.settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._trainer, name)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise AttributeError(f"A copy of the model has no trainer.{name}.")


def _collate(records: list[Any], collate_fn: Callable[[list[Any]], Any], hooks: list[Any]) -> Any:
    batch = apply_to_collection(collate_fn(records), Tensor, lambda t: t.float() if t.is_floating_point() else t)
    transfer: list[tuple[str, tuple[Any, ...]]] = [
        ("on_before_batch_transfer", ()),
        ("transfer_batch_to_device", (torch.device("cpu"),)),
        ("on_after_batch_transfer", ()),
    ]
    for name, arguments in transfer:
        source = next((hook for hook in hooks if is_overridden(name, hook)), None)
        if source is not None:
            batch = getattr(source, name)(batch, *arguments, 0)
    return batch


def _generator_states() -> tuple[Any, ...]:
    numpy_state: Any = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy_state[1].tobytes(), numpy_state[2:]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Run with fixed global generators, and leave them as they were, also after an error."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
