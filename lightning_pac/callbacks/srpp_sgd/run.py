"""One private fit: from the clipped gradients of microbatches to a released gradient that the optimizer used."""

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lightning_pac.callbacks.shared import SharedAccount, checksum_of, refuse_gradient_hook
from lightning_pac.callbacks.srpp_sgd.batch_shape import PAD, BatchShape
from lightning_pac.callbacks.srpp_sgd.journal import RunJournal
from lightning_pac.callbacks.srpp_sgd.planned_end import PlannedEnd
from lightning_pac.callbacks.srpp_sgd.step import ClippingBlocks, NoisySum, ReleasedGradient, enable_hooks, hide_loss
from lightning_pac.callbacks.srpp_sgd.watching import Watch
from lightning_pac.data import PrivateDataLoader, ResumableDataLoader, batch_sizes
from lightning_pac.data.persons import UnitRows
from lightning_pac.data.public_rows import largest_mean, most_records
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.gradients import make_engine
from lightning_pac.gradients.contract import held_below
from lightning_pac.gradients.refusals import may_mix_in_training, mixing_reason
from lightning_pac.strategies import FixedScalePrecision, Ranks
from lightning_pac.strategies.sharding import Sharding, held_parameters, local_part

__all__ = ["PrivateRun"]


class PrivateRun:
    """One private fit: its loader, the model's trainable parameters and the journal of its steps.

    Args:
        pl_module: The model; its parameters that are trainable now are those that are trained.
        loader: The loader whose batches are trained on.
        journal: Where steps are charged.
        blocks: Clipping norms of a record's gradient, and shares of the noise.
        num_microbatches: Microbatches in each optimizer step; Lightning divides the loss by it.
        planned_steps: Optimizer steps that the Trainer is going to take, possibly infinite.
        keeps_order: Whether row i of what the layers see is record i of the batch.
        not_shown: Further sentences for the card, as on what the check of the loss could not show.
    """

    def __init__(
        self,
        pl_module: pl.LightningModule,
        loader: DataLoader[Any],
        journal: RunJournal,
        blocks: ClippingBlocks,
        num_microbatches: int,
        planned_steps: float,
        keeps_order: bool = True,
        not_shown: Sequence[str] = (),
    ) -> None:
        accountant = journal.running.accountant
        self._ranks = Ranks.of(pl_module.trainer)
        self._sharding = Sharding.of(pl_module, self._ranks)
        trainable = {name: held for name, held in held_parameters(pl_module).items() if held.requires_grad}
        here = {name: local_part(held) for name, held in trainable.items()}
        self.loader, self.journal = loader, journal
        self.planned_steps = planned_steps
        self.keeps_order = keeps_order
        self.not_shown = list(not_shown)
        self.batch_size = accountant.sampling.expected_batch_size(accountant.scenario.num_records)
        self.noisy_sum = NoisySum(here, blocks, journal.running.noise_multiplier, accountant.correlation)
        self.released = self.exhausted = self.stopped_by_others = self._awaiting_gradient = False
        self._num_microbatches = num_microbatches
        precision = pl_module.trainer.precision_plugin
        self._loss_scale = precision.scale if isinstance(precision, FixedScalePrecision) else 1.0
        self._pl_module = pl_module
        self._trained = {id(parameter) for parameter in trainable.values()}
        self._trainable = list(trainable.values())
        self._gradient = ReleasedGradient(trainable)
        self._num_drawn: int | None = None
        self._unused_rows: Tensor | None = None
        self._batch_sizes = batch_sizes(loader)
        self._first_batch: int | None = None
        self._mixing_if_trained = may_mix_in_training(pl_module)
        self._num_added = self._fingerprint = self._steps_this_epoch = 0
        self._shape: BatchShape | None = None
        self._clipped: Tensor | None = None
        self.final_weights: int | None = None  # their checksum, once the run is over
        self.logged: dict[str, float] = {}
        of_whole_model = self._sharding is None  # public terms would have a gradient of that
        self._engine = make_engine(public_terms=of_whole_model, rests=lambda: pl_module.trainer.evaluating)
        self._public: Tensor | None = None
        units: UnitRows | None = loader.units if isinstance(loader, PrivateDataLoader) else None
        self._rows_per_unit = 1 if units is None else units.size
        self._records_per_unit = 1 if units is None else units.records
        self._attach()
        self._optimizer: Optimizer = pl_module.trainer.optimizers[0]
        self.before_update: Callable[[], None] | None = None
        self.after_update: Callable[[], None] | None = None
        enable_hooks(self._optimizer)
        self._hooks = [
            self._optimizer.register_step_pre_hook(self._around_closure),
            self._optimizer.register_step_post_hook(self._end_update),
        ]
        self._show_loss, self.planned_end, self.watch = hide_loss(pl_module), PlannedEnd(pl_module.trainer), Watch()
        self.batch_idx = 0  # a run that goes on from its last step has no batch

    def __reduce__(self) -> tuple[Callable[[SharedAccount], None], tuple[SharedAccount]]:
        # A copied callback has the figures, and goes on with the account in a fit of its own; the run stays with its
        # model. While it is going on, its open account refuses the copy.
        return _leave_out, (self.journal.account,)

    def begin_epoch(self, first_step: int) -> None:
        """Tell the journal of a fresh pass, unless the last one was complete."""
        accountant = self.journal.running.accountant
        if self.journal.stretch_steps % accountant.sampling.steps_per_epoch(accountant.scenario.num_records):
            self.journal.begin_stretch(first_step)
            self.noisy_sum.begin_stretch()
        self.noisy_sum.clear()  # an epoch may have ended between two microbatches of a step
        self._public = None
        self.watch.begin_step()
        self._batch_sizes = batch_sizes(self.loader)
        self._num_added = self._first_batch = self._fingerprint = 0
        self._steps_this_epoch, self._clipped = 0, None
        self.logged.clear()
        self._fill_batches()

    def begin_batch(self, batch_idx: int, batch: Any) -> None:
        """Note how many records the microbatch holds, and hold its shape against that of the first."""
        if self._num_added >= self._num_microbatches:
            raise PrivacyViolationError(
                "An optimizer step was left out, so its batch would be added to the next one and a record could "
                "enter one step twice: take a step for every batch, and let accumulate_grad_batches add batches up."
            )
        if self._first_batch is None:  # only a loader that keeps its place goes on in the middle of a pass
            self._first_batch = 0 if hasattr(self.loader, "load_state_dict") else batch_idx
        self.batch_idx = batch_idx
        self._batch_number = batch_idx - self._first_batch  # past the last where a complete epoch gets one more
        if isinstance(self.loader, PrivateDataLoader):
            # Later, within the user's hooks, the loader says nothing of the draw.
            self._num_drawn, self._unused_rows = self.loader.num_drawn, self.loader.unused_rows
            if self.loader.fingerprint is not None:
                self._fingerprint = zlib.crc32(self.loader.fingerprint.to_bytes(4, "big"), self._fingerprint)
            if self.loader.microbatch != batch_idx % self._num_microbatches:
                raise PrivacyViolationError(
                    f"Batch {batch_idx} is microbatch {self.loader.microbatch} of its draw, so one step would mix "
                    "two draws: resume from a checkpoint that was saved after an optimizer step."
                )
        shape = BatchShape.of(batch, self._expected_rows())
        self._shape = self._shape or shape
        if not shape.matches(self._shape):
            raise PrivacyViolationError(f"A batch has another shape than the first, {PAD}")
        self._mark_last_batch(unused=True)
        self.watch.see_batch(batch, self.loader)
        self._awaiting_gradient = self._num_drawn != 0
        self.released = False

    @property
    def begins_step(self) -> bool:
        """Whether the microbatch is the first of its optimizer step."""
        return self._num_added == 0

    def add_gradient(self) -> None:
        """Clip the gradients of the microbatch and add them up; a microbatch without records adds nothing."""
        self._check_model()
        ours = self.loader if isinstance(self.loader, PrivateDataLoader) else None
        padded = ours is not None and ours.padded_with_dummies
        if not self.keeps_order and (padded or self._rows_per_unit > 1):
            alike = "dummies and records" if padded else "the rows of records"
            raise MisconfigurationException(
                f"What the layers see is in another order than the batch, so {alike} cannot be told apart: leave "
                "out what sorts a batch, in the collate function or the model."
            )
        blocks = self.noisy_sum.blocks
        # A mean over a person's records becomes the sum, of which the scale does not depend on how many those may be.
        scale = self._num_microbatches / self._loss_scale * self._records_per_unit
        clip = self._engine.clipped_sum if self._sharding is None else self._engine.clipped_parts
        sums: Iterable[Tensor]
        sums, norms = clip(blocks.norms, scale, self._num_drawn if padded else None, blocks.rule, self._unused_rows)
        self._check_rows(len(norms) * self._rows_per_unit)
        if self._num_drawn == 0:
            sums, norms = map(torch.zeros_like, sums), norms[:0]
        if self._sharding is not None:  # all ranks take part, with records or without
            sums = self._sharding.reduce(sums)
        self.noisy_sum.add(sums, norms)
        if self._engine.public_gradient is not None:
            public = self._engine.public_gradient / self._loss_scale
            self._public = public if self._public is None else self._public + public
        self._num_added += 1
        self._awaiting_gradient = False

    def release_gradient(self, step: int) -> None:
        """Charge the step, durably; only then draw its noise and hand the optimizer its gradient.

        Raises:
            BudgetExceededError: If the step would exceed the budget; nothing is released.
            PrivacyViolationError: If the step is not what the account assumes.
        """
        self._check_gradient_was_added()
        if self.released:
            raise PrivacyViolationError(
                "The optimizer evaluates the gradient twice in one step, and each evaluation is a release of its own: "
                "use an optimizer that evaluates it once."
            )
        self._check_optimizer()
        self._mark_last_batch(unused=False)
        self._ranks.check_equal(self._fingerprint, "the records of a step")
        self._fingerprint = 0
        self.journal.start_step(step)
        self.watch.see_sum(self.noisy_sum)
        release = self.noisy_sum.release(self._sharding or self._ranks)
        self.watch.end_step(release, self._public is not None, self._pl_module)
        self._num_added = 0
        self._gradient.write(release, self.batch_size, self._public)
        self._public = None
        fraction = self.noisy_sum.clipped_fraction(release, self.batch_size)
        if fraction is not None:
            self._clipped = fraction if self._clipped is None else self._clipped + fraction
        self._steps_this_epoch += 1
        self.released = True

    def end_batch(self) -> None:
        """Check that the optimizer used the released gradient."""
        self._check_gradient_was_added()
        self.planned_end.check()
        self._mark_last_batch(unused=False)
        if self.released:
            self._gradient.verify()

    def metrics(self) -> dict[str, float]:
        """Guarantees so far."""
        running = self.journal.running
        exact = {} if running.accountant.is_mean_square else {"privacy/epsilon_at_delta": running.epsilon_at_delta()}
        return {
            "privacy/rpp_epsilon": self.journal.rpp_epsilon,
            running.accountant.metric_name: self.journal.epsilon,
            "privacy/world_success_bound": running.world_success_bound(),
            **exact,
            "privacy/noise_multiplier": running.noise_multiplier,
        }

    @property
    def mean_clipped_fraction(self) -> tuple[Tensor, float] | None:
        """The mean of the clipped fractions of this epoch's steps and the standard deviation of its noise, if any."""
        if self._clipped is None:
            return None
        steps = self._steps_this_epoch
        return self._clipped / steps, self.noisy_sum.clipped_fraction_deviation(self.batch_size, steps)

    @contextmanager
    def engine_detached(self, for_good: bool = False) -> Iterator[None]:
        """The model without what the engine attaches to it, between two microbatches, or after the last."""
        if for_good:  # hooks may freeze, replace and remove layers
            return (yield self._engine.detach())
        self._check_model()
        self._engine.detach()
        try:
            yield
        finally:
            self._check_model()
            self._attach()

    def close(self) -> None:
        """Leave the model and the optimizer as they were."""
        self._engine.detach()
        for hook in self._hooks:
            hook.remove()
        if isinstance(self.loader, PrivateDataLoader):
            self.loader.fill_to = None
        self._show_loss()
        self.final_weights = checksum_of(self._pl_module) if self._sharding is None else None

    def _attach(self) -> None:
        blocks, rows = self.noisy_sum.blocks.names, self._rows_per_unit
        if self._sharding is None:
            self._engine.attach(self._pl_module, blocks, rows)
        else:
            self._sharding.let_go()
            self._engine.attach(self._pl_module, blocks, rows, self._sharding.gathered, self._sharding.gathering)

    def _around_closure(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Begin the optimizer's own update, which follows the closure and all hooks of the step."""

        def then_update(closure: Callable[[], Any]) -> Callable[[], Any]:
            def evaluate() -> Any:
                result = closure()
                self._gradient.check()
                if self.before_update is not None:
                    self.before_update()
                return result

            return evaluate

        if not self.released and not any(map(callable, [*args, *kwargs.values()])):
            raise PrivacyViolationError(
                "The optimizer was to take a step before its gradient was released, because a hook or training_step "
                "calls optimizer.step itself: leave the steps to the Trainer."
            )
        self._gradient.check()  # where the closure was called before
        # A step that calls that of its superclass comes by twice, and need not hand the closure on.
        arguments = tuple(then_update(value) if callable(value) else value for value in args)
        return arguments, {name: then_update(value) if callable(value) else value for name, value in kwargs.items()}

    def _end_update(self, *_: Any) -> None:
        stock = type(self._optimizer) is torch.optim.SGD  # with foreach, Nesterov's step is made in the gradients
        self._gradient.verify(used_up=stock and any(group["nesterov"] for group in self._optimizer.param_groups))
        if self.after_update is not None:
            self.after_update()

    def _mark_last_batch(self, unused: bool) -> None:
        if isinstance(self.loader, ResumableDataLoader):
            self.loader.last_is_unused = unused

    def _check_model(self) -> None:
        """Check again what was checked at the start."""
        module = self._pl_module
        held = held_below(module) if self._sharding is None else held_parameters(module).values()
        changed = any(one.requires_grad != (id(one) in self._trained) or one._backward_hooks for one in held)
        for name, parameter in held_parameters(module).items() if changed else ():
            if parameter.requires_grad and id(parameter) not in self._trained:
                parameter.grad = None
                raise MisconfigurationException(
                    f"{name!r} was unfrozen after training had started, and its gradient is raw: unfreeze it before "
                    "fit, or call fit again."
                )
            if not parameter.requires_grad and id(parameter) in self._trained:
                raise MisconfigurationException(
                    f"{name!r} was frozen after training had started, and the noise of its gradient would move it "
                    "still: freeze it before fit, or let a scheduler take the learning rate of its group to zero."
                )
            refuse_gradient_hook(name, parameter._backward_hooks)
        for name, layer in self._mixing_if_trained.items():
            reason = mixing_reason(layer)
            if reason is not None:
                raise PrivacyViolationError(
                    f"The layer {name!r} was put into training mode during the run: it {reason}"
                )

    def _fill_batches(self) -> None:
        """Give every batch a public size if the number of records is secret."""
        accountant = self.journal.running.accountant
        if accountant.scenario.adjacency == "add_remove":
            assert isinstance(self.loader, PrivateDataLoader)  # nothing else draws Poisson batches in secret
            differing = accountant.scenario.total_differing
            share = accountant.sampling.inclusion_rate() / self._num_microbatches
            most = most_records(largest_mean(self.batch_size) / self._num_microbatches, differing, differing * share)
            self.loader.fill_to = math.ceil(most / self._ranks.size)

    def _expected_rows(self) -> int | None:
        if isinstance(self.loader, PrivateDataLoader):
            return self.loader.num_rows
        return None if self._batch_sizes is None else self._batch_sizes[self._batch_number % len(self._batch_sizes)]

    def _check_rows(self, found: int) -> None:
        expected = self._expected_rows()
        if expected is not None and found != expected:
            raise PrivacyViolationError(
                f"The layers of {type(self._pl_module).__name__} saw more or fewer rows than the batch has records, so "
                "that rows would be clipped and not records: keep the records in the first dimension of the batch's "
                "tensors, and let the collate function return each of them once."
            )

    def _check_optimizer(self) -> None:
        if [*map(id, self._pl_module.trainer.optimizers)] != [id(self._optimizer)]:
            raise PrivacyViolationError(
                "The optimizer was replaced or joined by another one after training had started, and what set it up "
                "may be raw: return one from configure_optimizers, and change it by a scheduler."
            )
        for group in self._optimizer.param_groups:
            if any(parameter.grad is not None and id(parameter) not in self._trained for parameter in group["params"]):
                raise MisconfigurationException(
                    "The optimizer was given a parameter after training had started, and its gradient is raw: give it "
                    "all parameters in configure_optimizers."
                )

    @property
    def left_out_batch(self) -> bool:
        """Whether the batch that began last has records and gave no gradient."""
        return self._awaiting_gradient

    @property
    def copying_ranks(self) -> Ranks:
        """Those that can only copy the model together: all where it is sharded, or this one alone."""
        return Ranks() if self._sharding is None else self._ranks

    def _check_gradient_was_added(self) -> None:
        if not self._pl_module.automatic_optimization:
            raise PrivacyViolationError(
                "automatic_optimization was switched off during the run, and how many gradients a batch gives would be "
                "decided by training_step: leave it on, and the steps to the Trainer."
            )
        if self.left_out_batch:
            raise PrivacyViolationError(
                "training_step returned no loss for a batch with records, so whether a batch is skipped depends "
                "on its records: return a loss for every batch."
            )


def _leave_out(account: SharedAccount) -> None:
    """A run, for a copy of its callback."""
