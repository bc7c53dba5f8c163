"""One run of a private selection: what it is given, and what it must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelSummary, ProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import Tensor
from torch.nn.parameter import is_lazy

from lightning_pac._validation import validated
from lightning_pac.accountants import LedgerPlan, PlannedLedger, PoissonSteps, PrivacyEvent, SRPPAccountant
from lightning_pac.callbacks import SRPPSGD, PrivateMetrics
from lightning_pac.callbacks.shared import is_stopped_by_noised_metric
from lightning_pac.exceptions import BudgetExceededError
from lightning_pac.ledger import LedgerArgument, LedgerHandle, PrivacyLedger
from lightning_pac.scenarios import TwoWorldScenario

__all__ = [
    "SelectionRun",
    "check_apart",
    "check_begins_anew",
    "check_callbacks_apart",
    "check_run",
    "check_scenario",
    "check_shares",
    "check_writers",
    "train_run",
    "trainable",
    "without_validation",
]


@validated
@dataclass(frozen=True)
class SelectionRun:
    """The settings of one run of a selection.

    Attributes:
        settings: Values that were drawn for it.
        folder: Where it may write: `default_root_dir` of its Trainer, and of its loggers. It is removed.
        plan: What it may release; its ledger lets nothing pass a share.
    """

    settings: Mapping[str, Any]
    folder: Path
    plan: LedgerPlan

    @property
    def path(self) -> Path:
        """The ledger of this run alone, which is removed with it: the selection was charged for it."""
        return self.folder / "ledger.db"

    def ledger(self, share: str | None = None) -> PlannedLedger:
        """The ledger of this run, for `ledger=` of its callbacks.

        Args:
            share: The share of `one_run` that the callback draws on, None for the only one that fits.
        """
        return PlannedLedger(self.path, share=share, plan=self.plan)


def check_run(run: SelectionRun, trainer: pl.Trainer, score: str) -> None:
    """Refuse a Trainer whose run would tell more than its price, or leave traces outside its folder.

    Raises:
        MisconfigurationException: Says what to change.
    """
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    if trainer.world_size > 1:
        raise MisconfigurationException(
            f"The Trainer has {trainer.world_size} processes, and a selection keeps its draw in one: use one device."
        )
    if not any(isinstance(callback, SRPPSGD) and callback.arguments.ledger for callback in callbacks):
        raise MisconfigurationException(
            "A run of a selection is private by itself, but its Trainer has no SRPPSGD with a ledger: add "
            "SRPPSGD(..., ledger=run.ledger())."
        )
    if not any(isinstance(callback, PrivateMetrics) and score in callback.names for callback in callbacks):
        raise MisconfigurationException(
            f"The score {score!r} is not private, so choosing by it has no price: name it in "
            "PrivateMetrics(..., ledger=run.ledger())."
        )
    for callback in callbacks:
        if isinstance(callback, SRPPSGD) and callback.arguments.unit is not None:
            raise MisconfigurationException(
                "SRPPSGD has unit=Persons(...), but a selection and its score are about records: leave the unit out, "
                "or pay for each run of a sweep."
            )
        for path in _ledgers_of(callback):
            if path.resolve() != run.path.resolve():
                raise MisconfigurationException(
                    f"{type(callback).__name__} charges {path}, where charges of single runs would tell how many there "
                    "are: give it ledger=run.ledger()."
                )
    check_writers(run, trainer)
    with run.ledger():
        pass  # is declared with the plan now, also if callbacks were given the path alone
    _check_inside(run, trainer.default_root_dir, "default_root_dir of the Trainer")
    for logger in trainer.loggers:
        if not isinstance(logger, CSVLogger | TensorBoardLogger):
            raise MisconfigurationException(
                f"{type(logger).__name__} may show losing runs to others, which tells how many there are: use a "
                "CSVLogger or TensorBoardLogger below run.folder, or logger=False."
            )
        _check_inside(run, logger.save_dir or ".", f"save_dir of {type(logger).__name__}")


def check_writers(run: SelectionRun, trainer: pl.Trainer) -> None:
    """Refuse what writes checkpoints, also those of an error, or profiles outside of a run's folder.

    Raises:
        MisconfigurationException: Names what does.
    """
    for writer in (*trainer.callbacks, trainer.profiler):  # type: ignore[attr-defined]
        folder = getattr(writer, "dirpath", None)
        if folder is not None:
            _check_inside(run, folder, f"dirpath of {type(writer).__name__}")


def check_apart(module: pl.LightningModule, other: pl.LightningModule) -> None:
    """Refuse runs that train the same weights one after another: the price is that of runs that do not know each other.

    Raises:
        MisconfigurationException: Names a weight.
    """
    held = {_storage(one) for one in module.parameters() if one.requires_grad and not is_lazy(one)}
    for name, weight in other.named_parameters():
        if weight.requires_grad and not is_lazy(weight) and _storage(weight) in held:
            raise MisconfigurationException(
                f"Every run has the same weight {name!r}, so each would go on from where the last one ended: make the "
                "model anew in make_trainer, from a copy of a pretrained part (copy.deepcopy)."
            )


def check_callbacks_apart(trainer: pl.Trainer, other: pl.Trainer) -> None:
    """Refuse callbacks that see several runs, and may carry weights or choices from one into the next.

    Raises:
        MisconfigurationException: Names one.
    """
    seen = set(map(id, other.callbacks))  # type: ignore[attr-defined]
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if id(callback) in seen and not isinstance(callback, ProgressBar | ModelSummary):
            raise MisconfigurationException(
                f"Every run has the same {type(callback).__name__}, which may carry something from one into the next: "
                "make callbacks anew in make_trainer."
            )


def _storage(weight: Tensor) -> int:
    return weight.untyped_storage().data_ptr()


def check_scenario(trainer: pl.Trainer, scenario: TwoWorldScenario) -> None:
    """Refuse a run that is private in other worlds than the selection is priced for.

    Raises:
        MisconfigurationException: Names the callback.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if not isinstance(callback, SRPPSGD | PrivateMetrics):
            continue
        own = callback.arguments.scenario if isinstance(callback, SRPPSGD) else callback.scenario
        if own.coupling() != scenario.coupling():
            raise MisconfigurationException(
                f"The selection is priced for {scenario!r}, and {type(callback).__name__} in make_trainer is for "
                f"{own!r}: give both the same."
            )


def check_shares(run: SelectionRun, trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Refuse a run that its plan would not pay for; every run would fail by it, and nobody see why.

    Raises:
        MisconfigurationException: If the noise is not fixed.
        BudgetExceededError: If a share is too small.
        ValueError: If no share could pay.
    """
    parameters = sum(value.numel() for value in module.parameters() if value.requires_grad)
    steps = sum(event.num_steps for event in run.plan.by_name.values() if isinstance(event, PoissonSteps))
    if parameters * max(steps, trainer.max_steps) > run.plan.num_draws:
        raise BudgetExceededError(
            f"{parameters:,} parameters in {max(steps, trainer.max_steps):,} steps draw more values of noise than the "
            f"{run.plan.num_draws:.4g} whose finite bits one run pays for: state more as num_draws."
        )
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, SRPPSGD):
            arguments = callback.arguments
            if arguments.noise_multiplier is None:
                raise MisconfigurationException(
                    "SRPPSGD has a promise of its own, but what a run of a selection may release is stated as one_run: "
                    "give it the noise_multiplier that one_run was computed with."
                )
            if arguments.sampling is not None:
                accountant = SRPPAccountant(arguments.scenario, arguments.sampling)
                known = max(1, trainer.max_steps)
                _check_share(run.plan, accountant.events(arguments.noise_multiplier, known), arguments.ledger)
        elif isinstance(callback, PrivateMetrics):
            _check_share(run.plan, callback.planned_events(), callback.ledger)


def _check_share(plan: LedgerPlan, events: Sequence[PrivacyEvent], ledger: LedgerArgument | None) -> None:
    assert ledger is not None
    share = plan.share_for(events[0], LedgerHandle(ledger).share)
    if not plan.holds(share, plan.amount(share, events)):
        raise BudgetExceededError(
            f"Share {share!r} of one_run does not pay for a run, which needs {plan.amount(share, events):.6g} of "
            f"{plan.size(share):.6g}: state a larger one, or release less."
        )


def check_begins_anew(module: pl.LightningModule, earlier: Iterable[Path]) -> None:
    """Refuse weights that an earlier run has trained: the price is that of runs that know nothing of each other.

    Args:
        module: Of the run that begins.
        earlier: Files of the parameters that runs have moved.
    """
    begun = trainable(module)
    for path in earlier:
        for name, ended in torch.load(path, weights_only=True).items():
            if name in begun and torch.equal(begun[name], ended):
                raise MisconfigurationException(
                    f"{name} is at the start of a run what an earlier one has made of it, but the price is that of "
                    "runs that begin anew."
                )


def trainable(module: pl.LightningModule) -> dict[str, Tensor]:
    """Copies of the parameters that may be trained, by name."""
    found = {name: value for name, value in module.named_parameters() if value.requires_grad and not is_lazy(value)}
    return {name: value.detach().cpu().clone() for name, value in found.items()}


def train_run(
    run: SelectionRun,
    trainer: pl.Trainer,
    module: pl.LightningModule,
    data: pl.LightningDataModule,
    score: str,
    keep: Callable[[dict[str, Any], bool], None],
) -> float:
    """Train, keep the weights and whether the training ended early, then evaluate once, and return the noised score.

    What the evaluation sets, such as a temperature, is made of records without noise, and is not kept.
    """
    with without_validation(trainer):
        trainer.fit(module, datamodule=data)
    ended_early = trainer.should_stop and trainer.global_step < trainer.estimated_stepping_batches
    keep(module.state_dict(), ended_early and not is_stopped_by_noised_metric(trainer))
    trainer.validate(module, datamodule=data, verbose=False)
    with PrivacyLedger.read_only(run.path) as ledger:
        if not any(account.num_charges for account in ledger.accounts() if "max_contribution" in account.declaration):
            raise MisconfigurationException(f"{score!r} was shown without a charge, so it is not a private score.")
    return float(trainer.callback_metrics[score])


@contextmanager
def without_validation(trainer: pl.Trainer) -> Iterator[None]:
    """Let a fit evaluate nothing: a value at an earlier epoch would be charged, and none be left for the last."""
    limit = trainer.limit_val_batches
    trainer.limit_val_batches = 0
    try:
        yield
    finally:
        trainer.limit_val_batches = limit


def _ledgers_of(callback: pl.Callback) -> list[Path]:
    values = list(vars(callback).values())
    if isinstance(callback, SRPPSGD) and callback.arguments.ledger is not None:
        values.append(LedgerHandle(callback.arguments.ledger))
    return [value.path for value in values if isinstance(value, LedgerHandle | PrivacyLedger)]


def _check_inside(run: SelectionRun, path: str | Path, name: str) -> None:
    if not Path(path).resolve().is_relative_to(run.folder.resolve()):
        raise MisconfigurationException(
            f"{name} is {path}, where files of losing runs would tell how many there are: use run.folder."
        )
