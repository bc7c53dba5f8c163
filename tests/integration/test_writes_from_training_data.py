"""Weights, buffers, optimizers and checkpoints change by the released gradient and by public numbers only."""

import itertools
import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from slow_cases import mostly_slow
from tiny_fits import Classifier, make_loader, make_private, make_trainer

from lightning_pac.callbacks.srpp_sgd.loss_check import check_loss
from lightning_pac.exceptions import PrivacyViolationError

pytestmark = pytest.mark.checks_each_fit


class Momentum(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss)
        self.last = float(loss.detach())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)


def set_rate(trainer: pl.Trainer, rate: float) -> None:
    trainer.optimizers[0].param_groups[0]["lr"] = rate


class RateByTheLoss(pl.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        set_rate(trainer, float(outputs["loss"]))


class RateByABranch(pl.Callback):
    """On a value that no synthetic record has."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if float(batch[0].abs().max()) > 2:
            set_rate(trainer, 0.01)


class RateByALoggedValue(pl.Callback):
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step:
            pl_module.optimizers().param_groups[0]["lr"] = float(trainer.callback_metrics["train_loss"])


class RateAtTheEpochsEnd(pl.Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(float(outputs["loss"]))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        set_rate(trainer, 0.1 * sum(self.losses) / len(self.losses))


class WeightsBehindTheVersion(pl.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pl_module.network[0].weight.data.add_(1e-3 * batch[0].mean(0))


class GoesBackAfterALargeLoss(pl.Callback):
    """To weights that it repeats on a copy without a trace, since they are those of then."""

    def __init__(self) -> None:
        self.best, self.kept = float("inf"), dict[str, torch.Tensor]()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = float(outputs["loss"])
        if loss < self.best:
            self.best, self.kept = loss, {name: value.clone() for name, value in pl_module.state_dict().items()}
        else:
            pl_module.load_state_dict(self.kept)


class WritesMomentum(pl.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.optimizers[0].state[pl_module.network[0].weight]["momentum_buffer"] += batch[0].mean(0)


class DecayByAKeptValue(pl.Callback):
    """Once, when the second epoch begins."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            trainer.optimizers[0].param_groups[0]["weight_decay"] = pl_module.last


class RateByAClassAttribute(pl.Callback):
    seen = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        type(self).seen = float(outputs["loss"])

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self.seen is not None:
            set_rate(trainer, self.seen)


class ReplacesTheOptimizer(pl.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.optimizers = [torch.optim.SGD(pl_module.parameters(), float(outputs["loss"]))]


class CannotBeRepeated(RateByTheLoss):
    """Holds something that cannot be copied."""

    def __init__(self, folder: Path) -> None:
        self.file = (folder / "log.txt").open("w")


def rate_by_lambda(folder: Path) -> pl.Callback:
    def by_the_loss(trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        set_rate(trainer, float(outputs["loss"]))

    return LambdaCallback(on_train_batch_end=by_the_loss)


CALLBACKS = [
    lambda _: RateByTheLoss(),
    lambda _: RateByABranch(),
    lambda _: RateByALoggedValue(),
    lambda _: RateAtTheEpochsEnd(),
    lambda _: WeightsBehindTheVersion(),
    lambda _: GoesBackAfterALargeLoss(),
    lambda _: WritesMomentum(),
    lambda _: DecayByAKeptValue(),
    lambda _: RateByAClassAttribute(),
    lambda _: ReplacesTheOptimizer(),
    CannotBeRepeated,
    rate_by_lambda,
]


@pytest.mark.parametrize("number", range(len(CALLBACKS)))
def test_a_callback_does_not_write_what_records_decide(number: int, tmp_path: Path) -> None:
    callback = CALLBACKS[number](tmp_path)
    own = dict(vars(callback))
    saved = [OnExceptionCheckpoint(tmp_path), ModelCheckpoint(tmp_path, every_n_train_steps=1, save_last=True)]
    trainer = make_trainer(tmp_path, make_private(), callback, *saved, max_epochs=2, enable_checkpointing=True)
    model = Momentum()
    errors = PrivacyViolationError, MisconfigurationException  # at the start, if the callback is given batches
    with pytest.raises(errors, match=r"takes up (private )?records|was written to|was replaced|of earlier") as refusal:
        trainer.fit(model, make_loader())
    assert trainer.global_step <= 7
    assert set(vars(callback)) - {"log", "log_dict"} == set(own), "the callback is as it was, but for Lightning's log"
    assert "lr_scheduler_step" not in vars(model)
    began = refusal.type is PrivacyViolationError
    assert not began or not list(tmp_path.glob("on_exception*")), "what the model holds now is raw"
    assert began or trainer.global_step == 0


class KeepsTheLoss(Classifier):
    last = 1.0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.last = float(loss.detach())
        return loss


class ScheduleByTheLoss(KeepsTheLoss):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.05)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: self.last)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class StepsItsScheduleByTheLoss(KeepsTheLoss):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.05)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))]

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step(int(1000 * self.last))


class SavesALoggedValue(Momentum):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["loss"] = self.trainer.callback_metrics.get("train_loss")


class SavesARecord(Classifier):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["example"] = next(iter(self.trainer.train_dataloader))


class WakesUpUnits(Classifier):
    """Resets units that no record of an epoch made large, by a threshold that no small number passes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = torch.zeros(8)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        hidden = self.network[1](self.network[0](batch[0]))
        self.largest = torch.maximum(self.largest, hidden.detach().abs().amax(0))
        return torch.nn.functional.cross_entropy(self.network[2](hidden), batch[1])

    def on_train_epoch_end(self) -> None:
        with torch.no_grad():
            self.network[0].weight[self.largest < 0.99] = 0.0
        self.largest = torch.zeros(8)


class StopsByARecord(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.trainer.should_stop = bool((batch[1] == 2).any())
        return loss


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (ScheduleByTheLoss, "optimizer"),
        (StepsItsScheduleByTheLoss, "optimizer"),
        (SavesALoggedValue, "'loss'"),
        (SavesARecord, "'example'"),
        (StopsByARecord, "'trainer.should_stop'"),
    ],
)
def test_a_model_does_not_decide_by_records(kind: type[Classifier], what: str, tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=f"The state .*{what}.* takes up private records"):
        make_trainer(tmp_path, make_private()).fit(kind(), make_loader())


def test_units_are_not_reset_by_what_records_made_of_them(tmp_path: Path) -> None:
    loader = make_loader()
    assert "network.0.weight" in check_loss(WakesUpUnits(), loader).state
    with pytest.raises(MisconfigurationException, match="depends on the records of earlier batches"):
        make_trainer(tmp_path, make_private()).fit(WakesUpUnits(), loader)


class Scaled(Classifier):
    """Weighs a batch by what hooks have made of the loss of an earlier one."""

    last, scale = torch.ones(()), 1.0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.last = loss.detach()
        return loss * self.scale

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Nothing, unless overridden."""

    def use(self, *_: Any) -> None:
        self.scale = float(self.last)


def where(hook: str) -> type[Classifier]:
    return type(hook, (Scaled,), {hook: Scaled.use})


@pytest.mark.parametrize(
    "hook",
    ["optimizer_zero_grad", "on_validation_model_eval", "on_validation_model_train", "on_validation_batch_start",
     "validation_step", "on_validation_batch_end"],
)  # fmt: skip
def test_no_hook_carries_a_loss_to_the_next_batch(hook: str, tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="depends on the records of earlier batches"):
        make_trainer(tmp_path, make_private()).fit(where(hook)(), make_loader(), make_loader(shuffle=False))


class Counting(pl.LightningDataModule):
    """Keeps the mean of the inputs that pass by, or the number of batches, in its state or its hyperparameters."""

    def __init__(self, of_records: bool, in_state: bool) -> None:
        super().__init__()
        self.of_records, self.in_state, self.total = of_records, in_state, torch.zeros(())

    def train_dataloader(self) -> Any:
        return make_loader()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.total = self.total + (batch[0].mean() if self.of_records else 1)
        if not self.in_state:
            self.hparams["total"] = float(self.total)
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total} if self.in_state else {}


@pytest.mark.parametrize("in_state", [True, False])
def test_the_state_of_a_datamodule_takes_up_no_records(in_state: bool, tmp_path: Path) -> None:
    with pytest.raises(
        MisconfigurationException, match=r"The state 'state of Counting' of .* takes up private records"
    ):
        make_trainer(tmp_path, make_private()).fit(Classifier(), datamodule=Counting(True, in_state))
    data = Counting(False, in_state)
    make_trainer(tmp_path, make_private()).fit(Classifier(), datamodule=data)
    assert data.total == 6, "the check leaves the original alone"


def test_what_cannot_be_read_of_a_trainer_is_named(tmp_path: Path) -> None:
    class SavesFromItsData(Classifier):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["size"] = len(self.trainer.datamodule.train_dataloader())

    with pytest.warns(UserWarning, match="on_save_checkpoint of SavesFromItsData could not be run on synthetic"):
        make_trainer(tmp_path, make_private()).fit(SavesFromItsData(), make_loader())


class RateBelowAThreshold(pl.Callback):
    """Which every loss of this file is below."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if outputs["loss"] < 50:
            set_rate(trainer, 0.01)


class RateAfterSome(pl.Callback):
    """By a count that each loss of this file adds to."""

    small = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.small += int(outputs["loss"].numpy() < 50)
        if self.small > 2:
            set_rate(trainer, 0.01)


class RateByTheMedian(RateAtTheEpochsEnd):
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if sorted(self.losses)[len(self.losses) // 2] < 50:
            set_rate(trainer, 0.01)


@pytest.mark.parametrize("kind", [RateBelowAThreshold, RateAfterSome, RateByTheMedian])
def test_a_threshold_that_all_losses_are_below_is_found(kind: type[pl.Callback], tmp_path: Path) -> None:
    with pytest.raises(PrivacyViolationError, match="'settings of the optimizer' takes up records"):
        make_trainer(tmp_path, make_private(), kind(), max_epochs=2).fit(Classifier(), make_loader())


class ScheduleBelowAThreshold(KeepsTheLoss):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.05)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.1 if self.last < 50 else 1.0)]


class WeighsByAnEarlierLoss(KeepsTheLoss):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        weight = 2.0 if self.last < 50 else 1.0
        return weight * super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("kind", "what"), [(ScheduleBelowAThreshold, "takes up private"), (WeighsByAnEarlierLoss, "of earlier batches")]
)
def test_a_model_does_not_hold_what_it_kept_against_a_threshold(kind: Any, what: str, tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=what):
        make_trainer(tmp_path, make_private()).fit(kind(), make_loader())


class TellsTheLoss(pl.Callback):
    """Keeps losses and shows them, and follows a schedule."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(math.exp(outputs["loss"].item()))
        f"{outputs['loss']:.3f}, {bool(outputs['loss'] > 1)}"
        set_rate(trainer, 0.1 / (1 + trainer.global_step))


def test_losses_that_are_kept_and_shown_pass_beside_a_schedule(tmp_path: Path) -> None:
    make_trainer(tmp_path, make_private(), TellsTheLoss()).fit(Momentum(), make_loader())


class SavesAndCannotBeCopied(CannotBeRepeated):
    def on_train_batch_end(self, *args: Any) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}


def test_a_callback_that_cannot_be_copied_is_named_and_on_the_card(tmp_path: Path) -> None:
    private = make_private()
    with pytest.warns(UserWarning, match="SavesAndCannotBeCopied, which cannot be copied, could not be run on synth"):
        make_trainer(tmp_path, private, SavesAndCannotBeCopied(tmp_path)).fit(Classifier(), make_loader())
    assert "SavesAndCannotBeCopied" in (tmp_path / "privacy_card.md").read_text()


class WarmsUp(pl.Callback):
    """An ordinary schedule by the number of the step, and one reset by that of the epoch."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        set_rate(trainer, 0.01 * min(trainer.global_step + 1, 4))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        for state in trainer.optimizers[0].state.values():
            state["momentum_buffer"].zero_()


class SwapsForValidation(pl.Callback):
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.kept = [parameter.detach().clone() for parameter in pl_module.parameters()]
        with torch.no_grad():
            for parameter in pl_module.parameters():
                parameter.mul_(0.9)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        with torch.no_grad():
            for parameter, kept in zip(pl_module.parameters(), self.kept, strict=True):
                parameter.copy_(kept)


class OneCycle(Momentum):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=18)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", Classifier.training_step(self, batch, batch_idx))


class StepsByEpoch(OneCycle):
    """As schedules of timm are stepped."""

    def configure_optimizers(self) -> Any:
        optimizer = Momentum.configure_optimizers(self)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: self.learning_rate / (1 + epoch))
        return [optimizer], [schedule]

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step(epoch=self.current_epoch)


class Unscheduled(OneCycle):
    def configure_optimizers(self) -> Any:
        return Momentum.configure_optimizers(self)


KINDS = [OneCycle, StepsByEpoch, Unscheduled]
PUBLIC: list[list[Any]] = [
    [SwapsForValidation],
    [EMAWeightAveraging],
    [lambda: StochasticWeightAveraging(0.01, swa_epoch_start=1)],
    [WarmsUp],
    [LearningRateMonitor, ModelCheckpoint],
]


@pytest.mark.parametrize(
    ("callbacks", "kind"),
    mostly_slow(itertools.product(PUBLIC, KINDS), *zip(PUBLIC, [StepsByEpoch, Unscheduled], strict=False)),
)
def test_public_schedules_averages_and_swaps_pass(
    kind: type[Classifier], callbacks: Any, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    private, made = make_private(), [make() for make in callbacks]
    options = {"enable_checkpointing": True, "logger": CSVLogger(tmp_path), "log_every_n_steps": 1}
    make_trainer(tmp_path, private, *made, max_epochs=3, **options).fit(kind(), make_loader(), make_loader())
    assert private.account is not None
    assert private.account.num_steps == 18
    assert not [warning for warning in recwarn if "was written to" in str(warning.message)]


class Shifted(Classifier):
    shift = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step((batch[0] + self.shift, batch[1]), batch_idx)


class HandsOn(pl.Callback):
    """Keeps means after the step, of which one enters a batch some batches later."""

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self.means: list[float] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if len(self.means) >= self.lag:
            batch[0].add_(self.means[-self.lag])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.means.append(float(batch[0].mean()))


class ShiftsAfter(pl.Callback):
    """Shifts the model after the batch with that number in a pass, by the batch's mean or by the number."""

    def __init__(self, number: int | None) -> None:
        self.number = number

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.number is None:
            pl_module.shift = 0.01 * batch_idx
        elif batch_idx == self.number:
            pl_module.shift = float(batch[0].mean())


@pytest.mark.parametrize("callback", [HandsOn(2), HandsOn(4), ShiftsAfter(3), ShiftsAfter(5)])
def test_what_is_kept_after_a_step_does_not_enter_a_later_one(callback: pl.Callback, tmp_path: Path) -> None:
    with pytest.raises((MisconfigurationException, PrivacyViolationError), match="depends on the records of earlier"):
        make_trainer(tmp_path, make_private(), callback, max_epochs=2).fit(Shifted(), make_loader())


def test_what_is_kept_of_a_number_may(tmp_path: Path) -> None:
    make_trainer(tmp_path, make_private(), ShiftsAfter(None)).fit(Shifted(), make_loader())
