"""SRPP-SGD: private gradients for any LightningModule."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import lightning.pytorch as pl
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_pac._validation import Count, validated
from lightning_pac.accountants import Banded, RunningAccount, SRPPAccountant
from lightning_pac.callbacks.shared import HiddenRandomness, SharedAccount, TrainerCallback
from lightning_pac.callbacks.srpp_sgd.arguments import RunArguments, as_floats
from lightning_pac.callbacks.srpp_sgd.first_check import check_loss_first, name_raw_evaluation, name_raw_values
from lightning_pac.callbacks.srpp_sgd.guards import LockedHooks, RepeatedCheck, UnseenState, WritingCallbacks
from lightning_pac.callbacks.srpp_sgd.loss_check import LossCheck, StateWatch, check_loss, refuse_left_out_batch
from lightning_pac.callbacks.srpp_sgd.noise_design import words_on_bands
from lightning_pac.callbacks.srpp_sgd.planned_end import recount_progress
from lightning_pac.callbacks.srpp_sgd.refused_together import (
    refuse_at_setup,
    refuse_late,
    refuse_options,
    refuse_other_trainer,
)
from lightning_pac.callbacks.srpp_sgd.reporting import (
    announce_end,
    announce_interruption,
    announce_start,
    announce_stop,
    log_clipped_fraction,
    log_metrics,
    make_card,
    save_card,
    shown_state,
    warn_of_early_end,
)
from lightning_pac.callbacks.srpp_sgd.run import PrivateRun
from lightning_pac.callbacks.srpp_sgd.set_buffers import small_buffers, tell_of_set_buffers
from lightning_pac.callbacks.srpp_sgd.start import (
    agreed_terms,
    begin_attempt,
    choose_noise,
    draws_per_step,
    open_journal,
    read_loader,
)
from lightning_pac.callbacks.srpp_sgd.step import ClippingBlocks
from lightning_pac.callbacks.srpp_sgd.step_sampling import DrawnRecords, swap_loader
from lightning_pac.data import Persons, ResumableDataLoader
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.ledger import LedgerArgument
from lightning_pac.scenarios import Sampling, TwoWorldScenario
from lightning_pac.strategies import Ranks
from lightning_pac.strategies.private_strategy import PrivateStrategy

__all__ = ["SRPPSGD"]


@validated
class SRPPSGD(TrainerCallback):
    r"""Trains with clipped and noised gradients, and keeps one promise of how well two worlds can be told apart.

    Every optimizer step uses

    .. math:: g_t = \frac{1}{B} \Big( \sum_i \mathrm{clip}_C(g_i) + N(0, \sigma^2 C^2 I) \Big)

    in place of the gradient: the gradient of each record is clipped to norm :math:`C`, noise of multiplier
    :math:`\sigma` is added once, and the public batch size :math:`B` divides the sum. An adversary who sees every step
    learns no more about the secret than the promise says; the optimizer, the schedule and the model are the user's
    own. The cost so far is logged as ``privacy/...`` metrics, the run stops before a step that would break the
    promise, and a privacy card is saved with every checkpoint. Source: *Sliced Rényi Pufferfish Privacy* (SRPP-SGD and
    ms-SRPP-SGD); the exact accounts, the amplified one and the cap of a shuffled epoch are ours.

    Exactly one of these is promised, and the noise is calibrated to the steps that the Trainer is going to take:

    - ``epsilon=3, delta=1e-5``: (epsilon, delta) between the two worlds, which is differential privacy where they
      differ in one record (see `DPSGD`);
    - ``world_success_bound=0.6``: nobody who sees everything guesses the right world more often, where a coin is right
      half of the time, or the likelier world has the probability that `prior` says;
    - ``epsilon=8, renyi_order=16``: a Rényi divergence, which adds over runs.

    Note:
        The promise does not cover values that the model logs without noise (``train_loss``), nor anything chosen by
        them (``EarlyStopping``); one warning at the start names them. Steps that a crash repeats are charged again.

    Example::

        from lightning_pac import Poisson, SRPPSGD, TwoWorldScenario

        scenario = TwoWorldScenario(num_differing=10)
        private = SRPPSGD(scenario, sampling=Poisson(rate=0.01), world_success_bound=0.6)
        trainer = Trainer(max_epochs=40, callbacks=[private])

    Attributes:
        account: The cost of the run so far; None before it has started.

    Args:
        scenario: The two worlds that must not be told apart. Its number of records defaults to the dataset's.
        epsilon: What the run may cost, in nats, with `delta` or with `renyi_order`.
        noise_multiplier: Noise deviation on the sum in clipping norms, in place of a promise.
        renyi_order: Order at which epsilon is promised, above 1. With a bound on guessing, or with `noise_multiplier`,
            it only says at which order the ledger counts; left out, that is the order it counts at already, or 16.
        notion: ``"rpp"`` is unsliced, worst-case and amplified under our own Poisson sampling; others are the paper's.
        sampling: How the batch of an optimizer step is drawn, over all its accumulated microbatches: the train loader
            is then rebuilt with our own sampler (workers and collate function stay). Left out, what the loader does is
            read and accounted for.
        max_grad_norm: Clipping norm :math:`C` of a record's gradient; or norms by the names of submodules, each of
            which is then clipped on its own, ``{"backbone": 0.5, "head": 1.0}``; or ``"auto"``, which gives nearly all
            gradients the norm 1, so that only the learning rate is left to choose.
        block_noise: How several blocks share the noise: ``"optimal"`` for the least noise power at the same guarantee,
            ``"isotropic"`` for the same noise on every coordinate.
        ledger: A ledger, or its path, that several runs on the data may share; left out, one of its own by the logs.
        delta: Probability, in (0, 1), with which epsilon may fail: well below one in the number of records.
        world_success_bound: How often a guess of the world may be right, above a blind guess and below 1.
        prior: Probability of one of the worlds before anything is released, for `world_success_bound`.
        noise: ``Banded(bands=16)`` correlates the noise over steps, at the same guarantee, so that most of it cancels
            in the weights; it needs ``sampling=CyclicShuffle(batch_size)`` or ``BlockedPoisson``, or a loader that does
            not shuffle. ``Banded("best")`` computes the number for the promise, under ``Poisson`` also of blocks.
        views: How often each drawn record is loaded, under fresh draws of the random transforms in the dataset; it is
            clipped once, with the mean of their gradients.
        unit: `Persons`, if all records of a person are to be hidden at once: rates and numbers count persons then.

    Raises:
        ValueError: If an argument is out of range, or not exactly one promise or `noise_multiplier` is given.
        TypeError: If `scenario` or `sampling` is something else.
        MisconfigurationException: In ``fit``, if the Trainer, the model or the loader would break the guarantee.
        BudgetExceededError: In ``fit``, if the promise or a budget does not allow a single step.
        LedgerMismatchError: In ``fit``, if a run is resumed under other terms than its own.
        PrivacyViolationError: In ``fit``, if the optimizer did not use the released gradient.
    """

    def __init__(
        self,
        scenario: TwoWorldScenario,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        renyi_order: float | None = None,
        notion: Literal["ave", "joint", "ms-ave", "ms-joint", "rpp"] = "rpp",
        sampling: Sampling | None = None,
        max_grad_norm: float | Literal["auto"] | dict[str, float | Literal["auto"]] = 1.0,
        block_noise: Literal["optimal", "isotropic"] = "optimal",
        ledger: LedgerArgument | None = None,
        delta: float | None = None,
        world_success_bound: float | None = None,
        prior: float = 0.5,
        noise: Banded | None = None,
        views: Count = 1,
        unit: Persons | None = None,
    ) -> None:
        super().__init__()
        self.arguments = RunArguments(
            scenario=scenario, epsilon=epsilon, noise_multiplier=noise_multiplier, notion=notion, sampling=sampling,
            renyi_order=None if renyi_order is None else float(renyi_order), max_grad_norm=as_floats(max_grad_norm),
            block_noise=block_noise, ledger=ledger, delta=delta, world_success_bound=world_success_bound, prior=prior,
            noise=noise, views=views, unit=unit,
        )  # fmt: skip
        self._run: PrivateRun | None = None
        self.account: RunningAccount[SRPPAccountant] | None = None
        self._repeated: RepeatedCheck | None = None
        self._violation: PrivacyViolationError | None = None
        self._charged: SharedAccount | None = None
        self._log_dir = ""
        self._before_setup: dict[str, Tensor] = {}
        self._set_up: list[str] = []
        self._restored: dict[str, Any] | None = None
        self._undo: list[Callable[[], None]] = []
        self._hidden_randomness: HiddenRandomness | None = None
        self._locked: LockedHooks | None = None

    @property
    @override
    def state_key(self) -> str:
        # A key built from arguments would drop the account without a word when one of them changes.
        return "lightning_pac.SRPPSGD"

    def _shown_state(self) -> dict[str, Any]:
        state = self.state_dict()
        return shown_state(self.account, self.arguments, state["journal"]) if self.account and state else {}

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit":
            name_raw_evaluation(trainer)
            return
        self._run = self._violation = None  # what an earlier fit has cost is in `_restored`
        connected = isinstance(trainer.strategy, PrivateStrategy)  # any other is refused, on each rank alone
        (Ranks.of(trainer) if connected else Ranks()).together(lambda: refuse_at_setup(trainer, pl_module, self))
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        callbacks.insert(0, callbacks.pop(callbacks.index(self)))  # those behind it see the released gradient only
        self._undo.append(swap_loader(trainer, self.arguments, lambda: self._restored))
        self._before_setup = small_buffers(pl_module)

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        Ranks.of(trainer).together(lambda: refuse_options(trainer, pl_module, self))
        resumed = trainer.ckpt_path is not None  # the checkpoint has put its buffers in place of those that were set
        self._set_up = [] if resumed else tell_of_set_buffers(self._before_setup, pl_module, self)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        refuse_late(was_set_up=bool(self._undo))
        ranks = Ranks.of(trainer)
        loader, accountant, told = agreed_terms(self, self.arguments, trainer, pl_module, self._restored)
        planned_steps = trainer.estimated_stepping_batches
        self._set_up = [*dict.fromkeys([*(self._restored or {}).get("set_up", []), *self._set_up, *told])]
        blocks = ClippingBlocks.of(pl_module, self.arguments.max_grad_norm, self.arguments.block_noise)
        draws = draws_per_step(blocks, accountant.scenario, trainer.accumulate_grad_batches, self._restored)
        choice = (self.arguments, accountant, planned_steps, draws, self._restored)
        noise_multiplier = ranks.from_first(lambda: choose_noise(*choice))
        found, cost = ranks.together(lambda: check_loss_first(trainer, pl_module, loader))
        self._log_dir = trainer.log_dir or trainer.default_root_dir  # asked of all ranks at once, or it hangs
        journal = open_journal(
            self.arguments, accountant, noise_multiplier, planned_steps, draws, self._log_dir, self._restored, ranks,
            trainer.global_step,
        )  # fmt: skip
        self._charged, self.account = journal.account, journal.running
        begin_attempt(trainer, loader, journal, self._restored)
        self._run = PrivateRun(
            pl_module, loader, journal, blocks, trainer.accumulate_grad_batches, planned_steps, found.keeps_order,
            [*found.not_shown, *self._set_up, *words_on_bands(self.arguments, accountant)],
        )  # fmt: skip
        self._drawn = DrawnRecords(loader, accountant)
        unseen = UnseenState(trainer, pl_module)  # before functions of ours stand for the user's
        watch, self._locked = StateWatch(pl_module, trainer.optimizers[0]), LockedHooks(trainer, pl_module)
        writing = WritingCallbacks(trainer, pl_module, watch, self._locked, found.broken)
        repeat = partial(self._repeat_check, trainer, unseen)
        self._repeated = RepeatedCheck(watch, writing, repeat, found, cost, self._run.copying_ranks, unseen)
        self._run.before_update, self._run.after_update = self._repeated.check_writes, self._repeated.after_update
        self._undo.append(self._repeated.close)
        self._run.watch.begin(self._run, trainer, pl_module)
        announce_start(self._run, type(self).__name__, trainer.optimizers[0])
        save_card(make_card(self._run), trainer, self._log_dir, journal.account)  # also for a run that is killed
        self._hidden_randomness = HiddenRandomness()
        self._undo += [name_raw_values(trainer, pl_module, found), self._hidden_randomness.restore]

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        run = self._running()
        if run.exhausted:
            raise StopIteration  # ends the fit; `min_epochs` and `min_steps` override `should_stop`
        if trainer.train_dataloader is not run.loader:
            run.loader = read_loader(trainer, self.arguments.unit)
            self._drawn.check_replacement(trainer, run.loader)
            run.planned_end.begin_loader()
        run.begin_epoch(trainer.global_step)
        if not run.journal.can_afford_step():  # a pass that was cut short makes the next step dearer
            self._stop(trainer, run)
            raise StopIteration

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        run = self._running()
        refuse_other_trainer(trainer, pl_module)
        if run.exhausted:
            raise StopIteration
        run.begin_batch(batch_idx, batch)
        if run.begins_step:
            assert self._repeated is not None
            self._repeated.begin_step(trainer.global_step + 1, trainer.current_epoch, batch_idx == 0)

    @override
    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert self._hidden_randomness is not None
        self._hidden_randomness.check()
        self._running().add_gradient()

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        self._running().release_gradient(trainer.global_step)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        run = self._running()
        run.end_batch()
        if run.released:
            log_metrics(pl_module, run)
            if not run.journal.can_afford_step():
                self._stop(trainer, run)

    @override
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._repeated is not None:
            self._repeated.begin_validation()

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert self._repeated is not None
        self._repeated.end_validation()
        run, datamodule = self._running(), trainer.datamodule  # type: ignore[attr-defined]
        log_clipped_fraction(pl_module, run)
        run.planned_end.check_epoch(run.loader, run.left_out_batch)
        if run.copying_ranks.anywhere(run.left_out_batch):
            with run.engine_detached():
                number = run.batch_idx
                run.copying_ranks.together(lambda: refuse_left_out_batch(pl_module, run.loader, datamodule, number))

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        run = self._running()
        run.planned_end.check()
        if trainer.should_stop and not run.exhausted:
            run.stopped_by_others = True
            warn_of_early_end(trainer)
        with run.engine_detached(for_good=True):  # other hooks may export what is trained
            announce_end(run, type(self).__name__)
        run.watch.end(trainer, pl_module)
        save_card(make_card(run), trainer, self._log_dir, run.journal.account)

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._violation is not None:
            raise PrivacyViolationError(f"{self._violation} The model may now hold raw values, so it is not saved.")
        if self._run is not None:
            if self._repeated is not None:
                self._repeated.check_writes()
            card = make_card(self._run, pl_module)
            checkpoint["privacy_card"] = card.to_dict()
            save_card(card, trainer, self._log_dir, self._run.journal.account)

    @override
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        recount_progress(checkpoint)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._violation = exception if isinstance(exception, PrivacyViolationError) else None
        if self._run is not None and isinstance(exception, KeyboardInterrupt):
            announce_interruption(self._run, type(self).__name__, trainer)
        self._release_resources()
        if self._locked is not None:
            self._locked.restore()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            if self._repeated is not None:
                self._repeated.check_end()
            self._release_resources()

    @override
    def state_dict(self) -> dict[str, Any]:
        if self._run is None:
            return self._restored or {}
        return {
            "arguments": self.arguments.to_dict(),
            "noise_multiplier": self._run.journal.running.noise_multiplier,
            "renyi_order": self._run.journal.running.accountant.renyi_order,
            "draws_per_step": self._run.journal.running.draws_per_step,
            "correlation": self._run.journal.running.accountant.to_dict().get("correlation"),
            "set_up": self._set_up,
            "journal": self._run.journal.state(),
            "loader": self._run.loader.state_dict() if isinstance(self._run.loader, ResumableDataLoader) else None,
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.arguments.compare(state_dict["arguments"])
        self._restored = state_dict

    def _running(self) -> PrivateRun:
        assert self._run is not None
        return self._run

    def _repeat_check(
        self, trainer: pl.Trainer, unseen: UnseenState, number: int, users: Sequence[pl.Callback], ended: bool
    ) -> LossCheck:
        run, model, datamodule = self._running(), unseen.pl_module, trainer.datamodule  # type: ignore[attr-defined]
        if not ended:
            self._drawn.check_again(trainer, lambda: read_loader(trainer, self.arguments.unit), run.batch_idx == 0)
        with run.engine_detached(for_good=ended):
            terms = model, run.loader, datamodule, number, users, run.batch_idx, ended, unseen.beginning
            return unseen.told(run, ended, check_loss(*terms))

    def _stop(self, trainer: pl.Trainer, run: PrivateRun) -> None:
        trainer.should_stop = run.exhausted = run.journal.is_spent = True
        announce_stop(run, type(self).__name__, trainer)

    def _release_resources(self) -> None:
        """Leave Trainer and model as they were, and let others write the ledger."""
        self._repeated = None
        if self._run is not None:
            self._restored = self.state_dict()
            self._run.close()
        while self._undo:
            self._undo.pop()()
        if self._charged is not None:
            self._charged.close()
        self._charged = None
