"""Ways in which records get past the noise, or count more than once: by loaders, optimizers and what a model keeps."""

import copy
import json
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pandas
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EMAWeightAveraging
from slow_cases import slow
from tiny_fits import Classifier, make_data, make_loader, make_private, make_trainer
from torch import nn
from torch.utils.data import DataLoader, Subset, default_collate

from lightning_pac.callbacks.srpp_sgd.loss_check import check
from lightning_pac.data import WithIndex
from lightning_pac.exceptions import PrivacyViolationError

pytestmark = pytest.mark.checks_each_fit


def fill_up(records: list[Any]) -> Any:
    """The first record once more for each that the last batch, of seven, lacks."""
    return default_collate(records + [records[0]] * (3 if len(records) == 7 else 0))


def drop(records: list[Any]) -> Any:
    return default_collate(records[: 7 if len(records) == 10 else None])


@pytest.mark.parametrize(("num_workers", "collate_fn"), [(0, fill_up), (1, drop), *slow((0, drop), (1, fill_up))])
def test_a_batch_has_the_records_that_its_place_in_the_pass_gives_it(
    collate_fn: Any, num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "compare_many", lambda *_: None)
    # Batches of ten and, at the end, of seven: both numbers of rows occur in a pass, but each in its place only.
    loader = make_loader(records=27, shuffle=False, collate_fn=collate_fn, num_workers=num_workers)
    with pytest.raises(PrivacyViolationError, match="saw more or fewer rows than the batch has records"):
        make_trainer(tmp_path, make_private()).fit(Classifier(), loader)


@pytest.mark.parametrize("collate_fn", [drop, *slow(fill_up)])
def test_batches_are_asked_for_in_the_sizes_of_a_pass(collate_fn: Any) -> None:
    found = check.check_loss(Classifier(), make_loader(records=27, shuffle=False, collate_fn=collate_fn))
    assert found.problem is not None
    assert found.problem.startswith("couples the records of a batch of ")


def test_a_record_that_is_hidden_by_wrappers_is_found(tmp_path: Path) -> None:
    loader = DataLoader(WithIndex(Subset(make_data(), [0] * 50)), batch_size=10)
    with pytest.raises(ValueError, match="Subset holds records twice"):
        make_trainer(tmp_path, make_private()).fit(Classifier(), loader)


def test_the_records_may_be_a_list(tmp_path: Path) -> None:
    private, records = make_private(), list(make_data())
    make_trainer(tmp_path, private).fit(Classifier(), DataLoader(records, batch_size=10, shuffle=True))
    assert private.account is not None
    assert private.account.num_steps == 6


class Polyak(torch.optim.SGD):
    """Step sizes from the loss."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure()
        for group in self.param_groups:
            group["lr"] = float(loss)
        super().step()
        return loss


class PolyakClassifier(Classifier):
    def configure_optimizers(self) -> Any:
        return Polyak(self.parameters(), 0.1)


class ReadsInHook(Classifier):
    """Reads the loss by a hook of the optimizer, around its closure."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)

        def around(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            closure = kwargs["closure"]
            return args, {"closure": lambda: closure() * 1.0}

        optimizer.register_step_pre_hook(around)
        return optimizer


class OwnStep(Classifier):
    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, optimizer_closure: Any = None) -> None:
        loss = optimizer_closure()
        optimizer.param_groups[0]["lr"] = 0.1 * loss.item()
        optimizer.step()


@pytest.mark.parametrize("kind", [PolyakClassifier, ReadsInHook, OwnStep])
def test_no_optimizer_is_given_the_loss(kind: type[Classifier], tmp_path: Path) -> None:
    model = kind()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(PrivacyViolationError, match="reads the loss that its closure returns"):
        make_trainer(tmp_path, make_private()).fit(model, make_loader())
    assert all(map(torch.equal, before, model.parameters()))
    assert "optimizer_step" not in vars(model)


class PreconditionsInClosure(Classifier):
    """As the preconditioners that are no optimizers say, in the closure of the optimizer."""

    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, optimizer_closure: Any = None) -> None:
        def closure() -> Any:
            loss = optimizer_closure()
            self.precondition()
            return loss

        optimizer.step(closure=closure)

    def precondition(self) -> None:
        for parameter in self.parameters():
            parameter.grad = parameter.grad @ torch.eye(parameter.shape[-1])  # type: ignore[operator]


class ScalesBeforeStep(PreconditionsInClosure):
    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()
        for parameter in self.parameters():
            parameter.grad.mul_(0.5)  # type: ignore[union-attr]
        optimizer.step()


@pytest.mark.parametrize("kind", [PreconditionsInClosure, ScalesBeforeStep])
def test_gradients_that_are_used_before_their_release_are_told_of(kind: type[Classifier], tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="as soon as the closure has computed them, where none is"):
        make_trainer(tmp_path, make_private()).fit(kind(), make_loader())


class LogsNorms(Classifier):
    def on_after_backward(self) -> None:
        self.log("norm", torch.stack([one.grad.norm() for one in self.parameters() if one.grad is not None]).norm())


class ScalesEach(Classifier):
    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            parameter.grad.mul_(0.5)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [LogsNorms, ScalesEach])
def test_gradients_that_are_used_after_the_backward_pass_are_told_of(kind: type[Classifier], tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=r"on_after_backward, .* use them in on_before_optimizer_step"):
        make_trainer(tmp_path, make_private()).fit(kind(), make_loader())


class WarmUp(Classifier):
    """Lightning's own pattern for a schedule of steps."""

    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.param_groups[0]["lr"] = 0.01 * (batch_idx + 1)
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)


class StepsByItself(Classifier):
    """Runs the closure, and lets the optimizer use what was released."""

    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()
        optimizer.step()


@pytest.mark.parametrize("kind", [WarmUp, StepsByItself])
def test_a_step_of_ones_own_is_private_all_the_same(kind: type[Classifier], tmp_path: Path) -> None:
    private, model = make_private(), kind()
    make_trainer(tmp_path, private).fit(model, make_loader())
    assert private.account is not None
    assert private.account.num_steps == 6


class Skips(Classifier):
    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()


def test_a_step_that_is_left_out_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(PrivacyViolationError, match="An optimizer step was left out"):
        make_trainer(tmp_path, make_private()).fit(Skips(), make_loader())


class TurnsManual(Classifier):
    """In the third step."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.automatic_optimization = batch_idx != 2


class StepsByHand(Classifier):
    """Calls the optimizer while gradients are raw."""

    def on_after_backward(self) -> None:
        self.optimizers().optimizer.step()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "message"),
    [(TurnsManual, "automatic_optimization was switched off"), (StepsByHand, "before its gradient was released")],
)
def test_a_step_that_a_model_takes_itself_ends_the_run(kind: type[Classifier], message: str, tmp_path: Path) -> None:
    with pytest.raises(PrivacyViolationError, match=message):
        make_trainer(tmp_path, make_private()).fit(kind(), make_loader())


def mean_into(target: torch.Tensor, batch: Any) -> None:
    with torch.no_grad():
        target.copy_(batch[0].mean(0)[: len(target)])


class FromEpochOne(Classifier):
    """Fills a buffer from the second epoch on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(6))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.current_epoch >= 1:
            mean_into(self.average, batch)
        return super().training_step(batch, batch_idx)


class AtThirdBatch(FromEpochOne):
    """By a hook, in a step that no check is due before."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return Classifier.training_step(self, batch, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_step >= 3:
            mean_into(self.average, batch)


class OverwritesWeights(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_step >= 3:
            mean_into(self.network[2].bias, batch)
        return super().training_step(batch, batch_idx)


class BehindTheVersion(Classifier):
    """`.data` has a version of its own."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.current_epoch >= 1:
            self.network[0].bias.data.copy_(batch[0].mean(0).repeat(2)[:8])
        return super().training_step(batch, batch_idx)


class KeepsInCheckpoint(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen = batch[0] if self.current_epoch >= 1 else None
        return super().training_step(batch, batch_idx)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["seen"] = self.seen


class KeepsInHyperparameters(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.hparams["seen"] = batch[0].mean()
        return super().training_step(batch, batch_idx)


class CentresLater(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, labels = batch
        if self.global_step >= 3:
            inputs = inputs - inputs.mean(0)
        return nn.functional.cross_entropy(self.network(inputs), labels)


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        (FromEpochOne, 6),
        (OverwritesWeights, 4),
        (BehindTheVersion, 6),
        (KeepsInHyperparameters, 0),
        (CentresLater, 7),
        *slow((AtThirdBatch, 4), (KeepsInCheckpoint, 6)),
    ],
)
def test_what_begins_after_the_check_at_the_start_is_found(kind: type[Classifier], steps: int, tmp_path: Path) -> None:
    private, trainer = make_private(), make_trainer(tmp_path, max_epochs=3)
    trainer.callbacks.append(private)  # type: ignore[attr-defined]
    with pytest.raises((PrivacyViolationError, MisconfigurationException), match=r"keeps|takes up|couples"):
        trainer.fit(kind(), make_loader())
    assert trainer.global_step <= steps


class KeepsInCallback(pl.Callback):
    last = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.last = batch[0]

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.last}


def test_a_callback_that_saves_a_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="KeepsInCallback"):
        make_trainer(tmp_path, make_private(), KeepsInCallback()).fit(Classifier(), make_loader())


class WeighsByTheLoss(pl.Callback):
    """By a hook on the loss."""

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        loss.register_hook(lambda gradient: gradient * loss.detach())


class CentresByTheLast(pl.Callback):
    """On what it kept of the batch before, after its step."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pl_module.network[0].last = batch[0].mean(0)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        batch[0].sub_(getattr(pl_module.network[0], "last", 0.0))


@pytest.mark.parametrize(("kind", "message"), [(WeighsByTheLoss, "couples"), (CentresByTheLast, "earlier batches")])
def test_a_callback_does_not_carry_records_to_others(kind: type[pl.Callback], message: str, tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        make_trainer(tmp_path, make_private(), kind()).fit(Classifier(), make_loader())


class Spectral(Classifier):
    """Power iterations, a cache by shape, a count and the time: written to in every step, and told by no record."""

    def __init__(self) -> None:
        super().__init__()
        fixed = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6).requires_grad_(False))
        self.network = nn.Sequential(fixed, nn.Tanh(), nn.Linear(6, 3))
        self.register_buffer("mask", torch.ones(1), persistent=False)
        self.register_buffer("count", torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if len(self.mask) != len(batch[0]):
            self.mask = torch.ones(len(batch[0]))
        self.count += 1
        return super().training_step(batch, batch_idx)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["time"] = time.perf_counter_ns()


class Averages(pl.Callback):
    """Swaps averaged weights in for each validation, in place."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        with torch.no_grad():
            for parameter in pl_module.parameters():
                parameter.mul_(0.5)


def test_state_that_no_record_decides_passes(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    private, model = make_private(), Spectral()
    make_trainer(tmp_path, private, max_epochs=3).fit(model, make_loader(shuffle=False))
    assert private.account is not None
    assert private.account.num_steps == 18
    assert not [warning for warning in recwarn if "was written to" in str(warning.message)]


def test_power_iterations_do_not_tell_against_the_layers_rows() -> None:
    torch.manual_seed(23)  # of 62 seeds, those of 7 gave weights whose iterations had not settled
    found = check.check_loss(Spectral(), make_loader(shuffle=False))
    assert (found.problem, found.unchecked) == (None, None)


@pytest.mark.slow  # test_writes_from_training_data has public swaps
def test_weights_that_a_callback_swaps_pass(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    private = make_private()
    make_trainer(tmp_path, private, Averages(), max_epochs=3).fit(Classifier(), make_loader())
    assert private.account is not None
    assert private.account.num_steps == 18
    assert not [warning for warning in recwarn if "was written to" in str(warning.message)]


def test_lightnings_own_averages_pass(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    private, averages = make_private(), EMAWeightAveraging()
    make_trainer(tmp_path, private, averages, max_epochs=2).fit(Classifier(), make_loader(), make_loader())
    assert not [warning for warning in recwarn if "was written to" in str(warning.message)]


class AveragesTogether(Classifier):
    """As timm's averages: all at once, from those of the second step on, before which both are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.average = copy.deepcopy(self.network).requires_grad_(False)

    @torch.no_grad()
    def on_train_batch_end(self, *_: Any) -> None:
        weight = 1.0 if self.global_step < 2 else 0.5
        both = (list(network.state_dict().values()) for network in (self.average, self.network))
        torch._foreach_lerp_(*both, weight=weight)


def test_averages_of_all_weights_at_once_pass(tmp_path: Path) -> None:
    """Versions of tensors that are written to in a list were not counted on copies."""
    make_trainer(tmp_path, make_private(), max_epochs=1).fit(AveragesTogether(), make_loader())


class ByTheLoss(Classifier):
    """Sets the learning rate by the loss of the last batch."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.trainer.optimizers[0].param_groups[0]["lr"] = outputs["loss"].item()


class ByAnAttribute(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.last = super().training_step(batch, batch_idx)
        return self.last

    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()
        optimizer.param_groups[0]["lr"] = float(self.last)
        optimizer.step()


@pytest.mark.parametrize("kind", [ByTheLoss, *slow(ByAnAttribute)])
def test_a_learning_rate_that_the_loss_decides_is_refused(kind: type[Classifier], tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="'settings of the optimizer'"):
        make_trainer(tmp_path, make_private()).fit(kind(), make_loader())


class KeepsData(Classifier):
    def __init__(self, data: Any) -> None:
        super().__init__()
        self.save_hyperparameters()


@pytest.mark.parametrize("data", [make_data(), torch.zeros(3), {"weights": [torch.zeros(1)]}, pandas.Series([1.0])])
def test_hyperparameters_that_hold_records_are_refused(data: Any, tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="'data' of KeepsData holds records or a tensor"):
        make_trainer(tmp_path, make_private()).fit(KeepsData(data), make_loader())


class CentresOnTheWay(Classifier):
    """In the one transfer hook that a Trainer also calls without an accelerator."""

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch[0] - batch[0].mean(0), batch[1]


class TakesItsRateFromTheLoss(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.seen = float(loss.detach())
        return loss

    def on_before_zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = self.seen


class TrainsABuffer(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(6, requires_grad=True))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step((batch[0] * self.scale, batch[1]), batch_idx)


class TrainsAnAttribute(TrainsABuffer):
    def __init__(self) -> None:
        Classifier.__init__(self)
        self.network.scale = self.scale = torch.ones(6, requires_grad=True)


class TrainsAModuleInAList(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(6, 6)]

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step((self.hidden[0](batch[0]), batch[1]), batch_idx)

    def on_train_batch_end(self, *_: Any) -> None:
        for parameter in self.hidden[0].parameters():
            parameter.data -= 0.1 * parameter.grad


class PenalizesSlopes(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs = batch[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.network(inputs).sum(), inputs, create_graph=True)
        return super().training_step(batch, batch_idx) + slope.square().sum(1).mean()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (PenalizesSlopes, "second derivatives are not supported, .* penalize the difference of outputs"),
        (TrainsAModuleInAList, "received a gradient, which is raw, and is not a parameter of TrainsAModuleInAList"),
        *slow((CentresOnTheWay, "couples the records of a batch")),
        (TakesItsRateFromTheLoss, "'settings of the optimizer' of TakesItsRateFromTheLoss takes up private records"),
        (TrainsABuffer, "The tensor 'scale' requires a gradient and is not a parameter"),
        (TrainsAnAttribute, r"The tensor '(network\.)?scale' requires a gradient and is not a parameter"),
    ],
)
def test_hooks_and_tensors_with_raw_values_are_refused(kind: type[Classifier], message: str, tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        make_trainer(tmp_path, make_private()).fit(kind(), make_loader())


class LeavesOut(Classifier):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch[0].abs().max() > 5 else None


class LeavesOutWhatSyntheticOnesPass(Classifier):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch[0].max() > 0.5 else None


class LeavesOutByTheLastLoss(Classifier):
    loss = 1.5

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.loss = loss.item()
        return loss

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if self.loss < 1.45 else None


@pytest.mark.parametrize("kind", [LeavesOut, LeavesOutWhatSyntheticOnesPass, *slow(LeavesOutByTheLastLoss)])
def test_a_batch_that_its_records_leave_out_ends_the_run(kind: type[Classifier], tmp_path: Path) -> None:
    data = make_data()
    data.tensors[0][25] = 8.0
    with pytest.raises(PrivacyViolationError, match="on_train_batch_start left out a batch of records"):
        make_trainer(tmp_path, make_private()).fit(kind(), DataLoader(data, batch_size=10))


class StopsByTheLoss(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == 2:
            self.trainer.should_stop = True
        return super().training_step(batch, batch_idx)


def test_an_early_end_is_not_silent(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="trainer.should_stop ended this run early"):
        make_trainer(tmp_path, make_private()).fit(StopsByTheLoss(), make_loader())
    make_trainer(tmp_path / "whole", make_private()).fit(Classifier(), make_loader())
    card, whole = (json.loads((path / "privacy_card.json").read_text()) for path in (tmp_path, tmp_path / "whole"))
    assert "stopped early" in "".join(card["conditions"])
    assert (card["details"]["num_steps"], card["details"]["planned_steps"]) == (3, 6)
    assert card["guarantees"] == whole["guarantees"], "what ended it may have been what it showed"


class IsKilled(Classifier):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        raise MemoryError


def test_a_run_that_is_killed_leaves_the_card_of_its_plan(tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        make_trainer(tmp_path, make_private()).fit(IsKilled(), make_loader())
    make_trainer(tmp_path / "whole", make_private()).fit(Classifier(), make_loader())
    card, whole = (json.loads((path / "privacy_card.json").read_text()) for path in (tmp_path, tmp_path / "whole"))
    assert card["guarantees"] == whole["guarantees"]
    assert (card["details"]["num_steps"], card["details"]["planned_steps"]) == (0, 6)


class ShortensTheRun(Classifier):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2 and float(batch[0].max()) > 0:
            self.trainer.fit_loop.epoch_loop.max_steps = self.trainer.global_step


class BreaksOff(Classifier):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2 and float(batch[0].max()) > 0:
            raise StopIteration


class SkipsTheRest(Classifier):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2 and float(batch[0].max()) > 0:
            self.trainer.fit_loop.max_batches = batch_idx + 1


class CallsItTheLast(Classifier):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2 and float(batch[0].max()) > 0:
            self.trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True


class SkipsAnEpoch(Classifier):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2 and float(batch[0].max()) > 0:
            self.trainer.fit_loop.epoch_progress.current.processed += 1


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (ShortensTheRun, "max_steps of the Trainer"),
        (BreaksOff, "StopIteration"),
        (SkipsTheRest, "num_training_batches of the Trainer"),
        (CallsItTheLast, "An epoch ended after 3 of"),
        (SkipsAnEpoch, "The number of epochs"),
    ],
)
def test_records_do_not_decide_when_a_run_ends(kind: type[Classifier], what: str, tmp_path: Path) -> None:
    with pytest.raises(PrivacyViolationError, match=what):
        make_trainer(tmp_path, make_private()).fit(kind(), make_loader())


class Shifted(Classifier):
    shift: Any = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, labels = batch
        return torch.nn.functional.cross_entropy(self.network(inputs - self.shift), labels)


class CentresABatch(pl.Callback):
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 4:
            batch[0].sub_(batch[0].mean(0))


class HandsOnAMean(pl.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pl_module.shift = batch[0].mean(0)


class TurnsDropoutOff(pl.Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 5:
            pl_module.network.train(bool(outputs["loss"] < -1))


@pytest.mark.parametrize("kind", [CentresABatch, HandsOnAMean, TurnsDropoutOff])
def test_a_callback_mixes_no_records_between_two_checks(kind: type[pl.Callback], tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3))
    with pytest.raises(PrivacyViolationError, match="During the run"):
        make_trainer(tmp_path, make_private(), kind()).fit(Shifted(network=network), make_loader())
