"""What one start of a private fit can tell of a Trainer, a model and its optimizer is told by one error."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import LearningRateFinder
from tiny_fits import Classifier, make_loader, make_private, make_trainer
from torch import nn

from lightning_pac import fix_batch_norm


class Ordinary(Classifier):
    """A model as it was trained before: with batch normalization, class weights and an optimizer in closures."""

    def __init__(self, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
        layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)]
        super().__init__(network=nn.Sequential(*layers))
        self.optimizer = optimizer

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1], weight=torch.tensor([0.2, 1.0, 3.0]))

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters(), lr=0.1)  # type: ignore[call-arg]


def refusal(folder: Path, model: Classifier, *callbacks: pl.Callback, **options: Any) -> list[str]:
    """The lines in which a fit is refused."""
    with pytest.raises(MisconfigurationException) as refused:
        make_trainer(folder, make_private(), *callbacks, **options).fit(model, make_loader())
    return str(refused.value).splitlines()


CLIPPING = "SRPPSGD: gradient_clip_val=1.0 would rescale"
ANOMALIES = "SRPPSGD: detect_anomaly=True ends the run"
LAYER = "The layer 'network.1' (BatchNorm1d) normalizes over the batch"  # the second one needs the same
CLOSURES = "LBFGS evaluates the gradient several times"


@pytest.mark.parametrize(
    ("model", "options", "starts"),
    [
        (lambda: Ordinary(torch.optim.LBFGS), {"gradient_clip_val": 1.0, "detect_anomaly": True},
         [CLIPPING, ANOMALIES, LAYER, CLOSURES]),
        (lambda: Ordinary(torch.optim.LBFGS), {}, [LAYER, CLOSURES]),
        (Ordinary, {"gradient_clip_val": 1.0}, [CLIPPING, LAYER]),
        (Ordinary, {}, [LAYER]),
        (Classifier, {"gradient_clip_val": 1.0}, [CLIPPING]),
    ],
)  # fmt: skip
def test_all_that_one_start_can_tell_is_told_by_it(
    model: Any, options: dict[str, Any], starts: list[str], tmp_path: Path
) -> None:
    lines = refusal(tmp_path, model(), **options)
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts
    assert all(line.endswith(".") for line in lines)


@pytest.mark.checks_each_fit
def test_the_loss_is_checked_once_the_rest_is_in_order(tmp_path: Path) -> None:
    model = Ordinary()
    fix_batch_norm(model)
    (line,) = refusal(tmp_path, model)
    assert line.startswith("The loss of Ordinary couples the records of a batch")


class Mended(Ordinary):
    def setup(self, stage: str) -> None:
        fix_batch_norm(self)


def test_a_layer_that_the_model_replaces_in_its_setup_is_not_told(tmp_path: Path) -> None:
    (line,) = refusal(tmp_path, Mended(), gradient_clip_val=1.0)
    assert line.startswith(CLIPPING)


class Frozen(Ordinary):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def on_fit_start(self) -> None:
        for layer in self.network[1::2]:  # type: ignore[index, union-attr]
            layer.eval().requires_grad_(False)


def test_a_model_may_put_its_layers_right_until_training_starts(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, make_private())
    trainer.fit(Frozen(), make_loader())
    assert trainer.global_step == 6


class Untouched(Classifier):
    """Counts its steps, of which a refused fit takes none."""

    steps = 0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.steps += 1

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.steps += 1
        return super().training_step(batch, batch_idx)

    def val_dataloader(self) -> Any:
        return make_loader(shuffle=False)


def test_what_trains_before_the_fit_starts_is_refused_before_that(tmp_path: Path) -> None:
    model = Untouched()
    lines = refusal(tmp_path, model, LearningRateFinder(), gradient_clip_val=1.0)
    assert [line.split()[1] for line in lines] == ["LearningRateFinder", "gradient_clip_val=1.0"]
    refusal(tmp_path, model, gradient_clip_val=1.0)
    assert model.steps == 0


class Late(pl.Callback):
    """Changes the Trainer once the options have been looked at."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.gradient_clip_val = 1.0


def test_an_option_that_comes_later_is_refused_still(tmp_path: Path) -> None:
    (line,) = refusal(tmp_path, Classifier(), Late())
    assert line.startswith(CLIPPING)
