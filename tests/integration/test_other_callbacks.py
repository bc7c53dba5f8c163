"""Callbacks that exist elsewhere beside a private run: each works, or is refused in one sentence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BaseFinetuning,
    DeviceStatsMonitor,
    EarlyStopping,
    EMAWeightAveraging,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
    RichProgressBar,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.loggers import CSVLogger
from tiny_fits import Classifier, make_loader, make_private, make_trainer
from torch import nn


class Backbone(Classifier):
    """Two parts, and a validation on public data."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(6, 6)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step((self.backbone(batch[0]), batch[1]), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("public_loss", 1.0)  # never better, so that training stops

    def configure_optimizers(self) -> Any:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, 0.1)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)}


class Run:
    """One private fit beside many callbacks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.epochs: list[int] = []
        self.monitor, self.timer, self.averaging = LearningRateMonitor(), Timer(), EMAWeightAveraging(decay=0.5)
        self.every, self.last = (
            ModelCheckpoint(folder / "every", every_n_train_steps=2, save_top_k=-1),
            ModelCheckpoint(folder / "last", save_last=True, monitor="public_loss"),
        )
        self.stopping = EarlyStopping("public_loss", patience=1)
        self.bar = RichProgressBar()
        self.trainer = pl.Trainer(
            max_epochs=20, accelerator="cpu", devices=1, default_root_dir=folder, enable_model_summary=False,
            logger=CSVLogger(folder, flush_logs_every_n_steps=1), log_every_n_steps=1,
            callbacks=[make_private(), self.monitor, self.timer, self.averaging, self.every, self.last, self.stopping,
                       self.bar, DeviceStatsMonitor(cpu_stats=True)],
        )  # fmt: skip
        self.model = Backbone()
        self.trainer.fit(self.model, make_loader(30, batch_size=15), make_loader(30, batch_size=30, shuffle=False))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with pytest.warns(UserWarning, match="public_loss"):  # nobody can know that it is public
        yield Run(tmp_path_factory.mktemp("run"))


def test_early_stopping_on_public_data_stops_the_run(run: Run) -> None:
    assert run.trainer.current_epoch == run.stopping.stopped_epoch + 1 < 20


def test_learning_rate_monitor_records_the_schedule(run: Run) -> None:
    assert run.monitor.lrs["lr-SGD"][:2] == [0.1, 0.05]


def test_timer_measures_the_fit(run: Run) -> None:
    assert run.timer.time_elapsed("train") > 0


def test_checkpoints_by_steps_and_by_a_public_metric_are_written_with_the_account(run: Run) -> None:
    saved = list((run.folder / "every").glob("*.ckpt"))
    assert len(saved) == run.trainer.global_step // 2
    for path in [*saved, run.last.last_model_path]:
        checkpoint = torch.load(path, weights_only=True)
        assert any("SRPPSGD" in key for key in checkpoint["callbacks"])


def test_averaged_weights_are_those_at_the_end(run: Run) -> None:
    checkpoint = torch.load(run.last.last_model_path, weights_only=True)
    assert "averaging_state" in checkpoint


def test_the_progress_bar_shows_the_promise(run: Run) -> None:
    assert "guess" in run.bar.get_metrics(run.trainer, run.model)


def test_device_statistics_are_logged(run: Run) -> None:
    assert "cpu_percent" in (Path(run.trainer.logger.log_dir) / "metrics.csv").read_text()


def test_lambda_callbacks_are_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watching = LambdaCallback(on_train_epoch_start=lambda trainer, module: print("epoch begins"))
    make_trainer(tmp_path, make_private(), watching).fit(Backbone(), make_loader(20))
    assert "epoch begins" in capsys.readouterr().out


def test_stochastic_weight_averaging_averages_released_weights(tmp_path: Path) -> None:
    averaging = StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=1)
    model = Classifier()
    make_trainer(tmp_path, make_private(), averaging, max_epochs=3).fit(model, make_loader(20))
    assert int(averaging.n_averaged) >= 1


class Unfreezing(BaseFinetuning):
    """Thaws a part at its epoch, as finetuning-scheduler does phase by phase."""

    def freeze_before_training(self, pl_module: pl.LightningModule) -> None:
        self.freeze(pl_module.backbone)  # type: ignore[arg-type]

    def finetune_function(self, pl_module: pl.LightningModule, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer)  # type: ignore[arg-type]


@pytest.mark.parametrize("unfreezing", [BackboneFinetuning(1), Unfreezing()], ids=["lightning", "by phases"])
def test_unfreezing_during_a_fit_is_refused(unfreezing: pl.Callback, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, make_private(), unfreezing, max_epochs=2)
    with pytest.raises(MisconfigurationException, match=r"'backbone\.\w+' was unfrozen after training had started"):
        trainer.fit(Backbone(), make_loader(20))


def test_phases_are_fits_of_their_own(tmp_path: Path) -> None:
    """As the refusal advises: unfreeze, and fit again."""
    model = Backbone()
    model.backbone.requires_grad_(False)
    before = model.backbone.weight.detach().clone()
    make_trainer(tmp_path, make_private()).fit(model, make_loader(20))
    assert torch.equal(model.backbone.weight, before)
    model.backbone.requires_grad_(True)
    make_trainer(tmp_path, make_private()).fit(model, make_loader(20))
    assert not torch.equal(model.backbone.weight, before)


class OtherTrainer(pl.Callback):
    """Validates with a Trainer of its own, and may not hand the model back."""

    def __init__(self, hands_back: bool, folder: Path) -> None:
        self.hands_back, self.other = hands_back, make_trainer(folder)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.other.validate(pl_module, make_loader(20), verbose=False)
        if self.hands_back:
            pl_module.trainer = trainer


def test_a_model_that_another_trainer_holds_is_named(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, make_private(), OtherTrainer(False, tmp_path), max_epochs=2)
    with pytest.raises(MisconfigurationException, match=r"Another Trainer .* set model.trainer = trainer"):
        trainer.fit(Backbone(), make_loader())


@pytest.mark.slow
def test_a_model_that_another_trainer_hands_back_trains(tmp_path: Path) -> None:
    make_trainer(tmp_path, make_private(), OtherTrainer(True, tmp_path), max_epochs=2).fit(Backbone(), make_loader())
