"""What is written to a model, or saved with it, after its last step, of what earlier batches left behind."""

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from slow_cases import slow
from tiny_fits import Classifier, make_data, make_loader, make_private, make_trainer
from torch import Tensor, nn

from lightning_pac.exceptions import PrivacyViolationError

pytestmark = [pytest.mark.checks_each_fit, pytest.mark.filterwarnings("ignore:.*num_workers")]


class Scores(Classifier):
    """Keeps the score of each record, and has a threshold that is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("threshold", torch.zeros(()))
        self.scores: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.scores.append(batch[0].mean(1))
        return super().training_step(batch, batch_idx)

    def calibrate(self) -> None:
        self.threshold.copy_(torch.cat(self.scores).median())


class AtTheEnd(Scores):
    def on_train_end(self) -> None:
        self.calibrate()
        self.scores.clear()


class AtTheEndOfTheFit(Scores):
    def on_fit_end(self) -> None:
        self.calibrate()


class InTheLastEpoch(Scores):
    def on_train_epoch_end(self) -> None:
        if self.current_epoch == self.trainer.max_epochs - 1:  # type: ignore[operator]
            self.calibrate()


class Saved(Scores):
    """Sets an attribute, which checkpoints hold."""

    cut = 0.0

    def on_train_end(self) -> None:
        self.cut = float(torch.cat(self.scores).median())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["cut"] = self.cut


class Hyperparameters(Scores):
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()

    def on_fit_end(self) -> None:
        self.hparams["cut"] = float(torch.cat(self.scores).median())


class Extra(Scores):
    """Saves it with its weights."""

    cut = 0.0

    def on_train_end(self) -> None:
        self.cut = float(torch.cat(self.scores).median())

    def get_extra_state(self) -> float:
        return self.cut

    def set_extra_state(self, state: float) -> None:
        self.cut = state


class Collects(pl.Callback):
    def __init__(self) -> None:
        self.scores: list[Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.scores.append(batch[0].mean(1))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.threshold = torch.cat(self.scores).median()


class Keeps(Collects):
    """Writes nothing to the model; a checkpoint holds what it found."""

    cut = 0.0

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.cut = float(torch.cat(self.scores).median())

    def state_dict(self) -> dict[str, Any]:
        return {"cut": self.cut}


class Best(Classifier):
    """Leaves the weights under which a batch had the lowest loss."""

    lowest, best = math.inf, dict[str, Tensor]()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if outputs["loss"] < self.lowest:
            self.lowest = float(outputs["loss"])
            self.best = {name: value.clone() for name, value in self.state_dict().items()}

    def on_train_end(self) -> None:
        self.load_state_dict(self.best)


KINDS = [Best, AtTheEnd, Saved, Collects, *slow(AtTheEndOfTheFit, InTheLastEpoch, Hyperparameters, Extra, Keeps)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_record_decides_what_is_written_at_the_end(kind: Any, tmp_path: Path) -> None:
    model = kind() if issubclass(kind, Classifier) else Scores()
    trainer = make_trainer(tmp_path, make_private(), *([kind()] if issubclass(kind, Collects) else []), max_epochs=2)
    state = "(threshold|cut|hyper_parameters|_extra_state|Keeps|network.2.bias)"
    with pytest.raises(PrivacyViolationError, match=f"(At the end of|During) the run, the state '{state}' takes up"):
        trainer.fit(model, make_loader())
    with pytest.raises(PrivacyViolationError, match="not saved"):
        trainer.save_checkpoint(tmp_path / "saved.ckpt")


class Averages(pl.Callback):
    """Trains one network and leaves the average of its weights."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.average = torch.optim.swa_utils.AveragedModel(pl_module.network)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.average.update_parameters(pl_module.network)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.network.load_state_dict(self.average.module.state_dict())


class OfOthers(Scores):
    """Takes its threshold from records that are held out."""

    held_out = make_data(20).tensors[0]

    def on_train_end(self) -> None:
        self.threshold.copy_(self.network(self.held_out).detach().median())
        self.eval()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["version"] = 1


class Inference(Scores):
    """Comes out of training as it is to be used."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.last = float(loss)
        return loss

    def on_train_end(self) -> None:
        self.network[2] = nn.Linear(8, 5)
        self.network.append(nn.Softmax(1))
        self.freeze()
        self.hparams["steps"] = self.global_step


def test_what_released_weights_and_public_data_decide_may_be_written(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    for model, callbacks in ((OfOthers(), []), (Scores(), [Averages()]), (Inference(), [])):
        trainer = make_trainer(tmp_path, make_private(), *callbacks)
        trainer.fit(model, make_loader())
        trainer.save_checkpoint(tmp_path / "saved.ckpt")
    told = [text for text in (str(warning.message) for warning in recwarn) if "make sure" in text]
    # That what it adds was not read off the records beforehand, no step can show.
    assert [text.startswith("Checkpoints hold what on_save_checkpoint of OfOthers adds") for text in told] == [True]


def test_what_cannot_be_repeated_at_the_end_is_told(tmp_path: Path) -> None:
    weights = nn.Linear(6, 8).state_dict()

    def load(trainer: pl.Trainer, pl_module: Any) -> None:
        assert trainer.fit_loop  # which copies do not have
        pl_module.network[0].load_state_dict(weights)

    with pytest.warns(UserWarning, match=r"network.0.bias, network.0.weight was written to at the end of the run"):
        make_trainer(tmp_path, make_private(), LambdaCallback(on_train_end=load)).fit(Scores(), make_loader())
