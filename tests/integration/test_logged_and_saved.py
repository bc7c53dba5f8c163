"""What a private fit tells of values and statistics that leave it without noise, by whatever way."""

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from slow_cases import slow
from tiny_fits import Classifier, make_data, make_loader, make_private, make_trainer
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import DPSGD, Poisson

pytestmark = pytest.mark.checks_each_fit


class Prefixed(Classifier):
    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        super().log(f"train_{name}", value, *args, **options)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("error", loss)
        return loss


class Kept(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.log_epoch = functools.partial(self.log, on_step=False, on_epoch=True)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log_epoch("train_error", loss)
        return loss


class Unbound(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        pl.LightningModule.log(self, "train_error", loss)
        return loss


@pytest.mark.parametrize("kind", [Unbound, *slow(Prefixed, Kept)])
def test_a_raw_value_is_named_whatever_way_it_is_logged(kind: type[Classifier], tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, make_private())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(kind(), make_loader())
    told = [str(warning.message) for warning in caught]
    named = [text.split("alone: ")[1].split(".")[0] for text in told if "leave this run without noise" in text]
    assert named == ["train_error"]
    assert not any("could not" in text for text in told)
    assert "privacy/noise_multiplier" in trainer.callback_metrics


class Fitted(pl.LightningDataModule):
    """Reads the mean of its records before training."""

    def __init__(self, saves: bool = True) -> None:
        super().__init__()
        self.saves = saves

    def setup(self, stage: str) -> None:
        self.loader = make_loader()
        self.mean = self.loader.dataset[:][0].mean(0)

    def train_dataloader(self) -> Any:
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean} if self.saves else {}


class Saves(Classifier):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["labels"] = [1, 2]


@pytest.mark.parametrize(
    ("kind", "saves", "names"),
    [
        (Classifier, True, "state_dict of Fitted"),
        (Saves, False, "on_save_checkpoint of Saves"),
        *slow((Saves, True, "on_save_checkpoint of Saves and state_dict of Fitted")),
        (Classifier, False, None),
    ],
)
def test_what_is_fitted_before_training_and_saved_is_told(
    kind: type[Classifier], saves: bool, names: str | None, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(tmp_path, make_private()).fit(kind(), datamodule=Fitted(saves))
    told = [str(warning.message) for warning in caught if "Checkpoints hold" in str(warning.message)]
    (card,) = tmp_path.rglob("privacy_card.json")
    conditions = [text for text in json.loads(card.read_text())["conditions"] if "Checkpoints hold" in text]
    start = f"Checkpoints hold what {names} adds to them, without noise"
    assert [text.split(":")[0] for text in (*told, *conditions)] == [start] * 2 * (names is not None)


class Counted(Classifier):
    """Fills buffers before training: numbers of records by class, and others that say nothing."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("scale", torch.tensor([0.1, 0.2]))
        self.register_buffer("counts", torch.zeros(3, dtype=torch.long))

    def setup(self, stage: str) -> None:
        labels = make_data().tensors[1]
        counts = torch.bincount(labels, minlength=3)
        if self.kind == "changed":
            self.counts += counts
        elif self.kind == "new":
            self.register_buffer("class_weights", counts / counts.sum())
        elif self.kind == "loss":
            self.criterion = torch.nn.CrossEntropyLoss(weight=1.0 / counts)
            self.counts = counts.double()
        elif self.kind == "public":
            for name, value in {"ones": torch.ones(3), "sevens": torch.full((2, 2), 7.0), "number": counts[:1] / 7,
                                "order": torch.arange(4)[None], "large": torch.rand(1025), "which": counts > 20,
                                "position_table": torch.rand(4)}.items():  # fmt: skip
                self.register_buffer(name, value)
            self.register_buffer("passing", counts.float(), persistent=False)
            self.norm = torch.nn.BatchNorm1d(4).eval().requires_grad_(False)
            self.norm.running_mean = torch.rand(4)
            self.scale = self.scale.clone()


def told_of(trainer: pl.Trainer, model: Classifier, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, make_loader(), **options)
    return [str(warning.message) for warning in caught if "setup()" in str(warning.message)]


@pytest.mark.parametrize(
    ("kind", "names"),
    [("changed", "counts"), ("new", "class_weights"), ("loss", "counts and criterion.weight"), ("public", None)],
)
@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_buffers_that_setup_fills_are_told(kind: str, names: str | None, precision: Any, tmp_path: Path) -> None:
    told = told_of(make_trainer(tmp_path, make_private(), max_steps=1, precision=precision), Counted(kind))
    (card,) = tmp_path.rglob("privacy_card.json")
    conditions = [text for text in json.loads(card.read_text())["conditions"] if "setup() set" in text]
    if names is None:
        assert told == conditions == []
        return
    (sentence,), (condition,) = told, conditions
    assert sentence.startswith(f"SRPPSGD: setup() set {names} of Counted: where this is made of private records")
    assert condition.startswith(f"Checkpoints hold {names} of Counted, which setup() set, without noise")


def test_a_resumed_run_tells_on_the_card_alone_what_setup_had_set(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, make_private())
    assert len(told_of(trainer, Counted("new"))) == 1
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    again = make_trainer(tmp_path / "again", make_private(), max_epochs=2)
    resumed = {"ckpt_path": tmp_path / "first.ckpt", "weights_only": False}
    assert told_of(again, Counted("new"), **resumed) == []
    (card,) = (tmp_path / "again").rglob("privacy_card.json")
    assert "Checkpoints hold class_weights of Counted, which setup() set" in card.read_text()


@pytest.mark.parametrize("weights_only", [False, True])
def test_checkpoints_say_nothing_of_how_many_records_are_held_out(weights_only: bool, tmp_path: Path) -> None:
    """One record more may begin a batch of a validation, and Lightning saves how many there were."""

    class Validated(Classifier):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.training_step(batch, batch_idx)

    def saved(num_records: int) -> dict[str, Any]:
        held_out = DataLoader(TensorDataset(torch.randn(num_records, 6), torch.zeros(num_records).long()), batch_size=5)
        private = DPSGD(3.0, 1e-5, Poisson(rate=0.1, batch_size=4))
        trainer = make_trainer(tmp_path, private, max_epochs=2, use_distributed_sampler=False)
        model = Validated()
        trainer.fit(model, make_loader(), held_out)
        trainer.validate(model, held_out, verbose=False)
        trainer.save_checkpoint(tmp_path / "model.ckpt", weights_only)
        loops: dict[str, Any] = torch.load(tmp_path / "model.ckpt", weights_only=False)["loops"]
        return loops

    few, more = saved(20), saved(21)
    assert few["validate_loop"] == more["validate_loop"]
    assert few["fit_loop"] == more["fit_loop"]
