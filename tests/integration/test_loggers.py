"""Every logger gets the same metrics under the same names, read back from what each has written to the disk."""

import csv
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from tiny_fits import Classifier, make_loader, make_private, make_trainer

from lightning_pac import SRPPSGD, Poisson
from lightning_pac.callbacks import PACResponses
from lightning_pac.callbacks.shared import in_float32
from lightning_pac.mechanisms import PACResponder
from lightning_pac.modules import SubsetEnsemble
from lightning_pac.scenarios import BalancedSubsets

OFFLINE = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
}


class Loggers:
    """All of them on one Trainer, and what each has kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all = [
            TensorBoardLogger(folder, "tensorboard", 0),
            CSVLogger(folder, "csv", 0),
            WandbLogger(save_dir=folder, offline=True),
            MLFlowLogger(save_dir=str(folder / "mlruns")),
        ]

    def kept(self) -> dict[str, dict[str, list[float]]]:
        import wandb  # here, since every process of the suite reads this file and one runs it

        for logger in self.all:
            logger.finalize("success")
        wandb.finish()
        wandb.teardown()  # its file is complete when the process that writes it has ended
        return {
            "tensorboard": self._tensorboard(),
            "csv": self._csv(),
            "wandb": self._wandb(),
            "mlflow": self._mlflow(),
        }

    def _tensorboard(self) -> dict[str, list[float]]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(self.folder / "tensorboard" / "version_0")).Reload()
        return {tag: [scalar.value for scalar in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    def _csv(self) -> dict[str, list[float]]:
        with (self.folder / "csv" / "version_0" / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        return {name: [float(row[name]) for row in rows if row[name]] for name in rows[0] if name != "step"}

    def _wandb(self) -> dict[str, list[float]]:
        from wandb.proto.wandb_internal_pb2 import Record

        (path,) = self.folder.glob("wandb/offline-run-*/run-*.wandb")
        kept: dict[str, list[float]] = {}
        for content in wandb_records(path.read_bytes()):
            for item in Record.FromString(content).history.item:
                kept.setdefault("/".join(item.nested_key) or item.key, []).append(float(json.loads(item.value_json)))
        return kept

    def _mlflow(self) -> dict[str, list[float]]:
        (folder,) = self.folder.glob("mlruns/*/*/metrics")
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {
            path.relative_to(folder).as_posix(): [float(line.split()[1]) for line in path.read_text().splitlines()]
            for path in files
        }


def wandb_records(content: bytes) -> Iterator[bytes]:
    """Records of an offline run: LevelDB's log format (blocks of 32 KiB, each record in one part or several)."""
    place, parts = 7, b""  # behind the file's own header
    while place + 7 <= len(content):
        if 2**15 - place % 2**15 < 7:
            place += 2**15 - place % 2**15  # no record begins so close to the end of a block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # complete, or the last part
            yield parts
            parts = b""


@pytest.fixture
def loggers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loggers:
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    return Loggers(tmp_path)


def check_same(kept: dict[str, dict[str, list[float]]]) -> set[str]:
    private = {
        logger: {name: series for name, series in one.items() if name.startswith("privacy/")}
        for logger, one in kept.items()
    }
    table = private["csv"]
    for logger, found in private.items():
        assert set(found) == set(table), logger
        for name, series in table.items():
            # TensorBoard keeps single precision.
            assert found[name] == pytest.approx(series, rel=1e-6), f"{name} of {logger}"
    return set(table)


@pytest.mark.slow  # the same loggers take the figures of answers, and one of them those of every step
def test_a_private_fit(tmp_path: Path, loggers: Loggers) -> None:
    trainer = make_trainer(tmp_path, make_private(), logger=loggers.all, log_every_n_steps=1, max_epochs=2)
    trainer.fit(Classifier(), make_loader())
    names = check_same(loggers.kept())
    assert {"privacy/rpp_epsilon", "privacy/world_success_bound", "privacy/noise_multiplier"} <= names


class Validated(Classifier):
    """Logs in a validation, within an epoch."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("public_loss", 1.0)


class Figures(pl.Callback):
    """What is logged at every step, as it is handed out, and what it should be."""

    def __init__(self, private: SRPPSGD) -> None:
        self._private = private
        self.seen: list[torch.Tensor] = []
        self.due: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        self.seen.append(trainer.callback_metrics["privacy/rpp_epsilon"])
        self.due.append(in_float32(self._private.account.epsilon))


def test_every_step_of_every_epoch_has_its_own_figures(tmp_path: Path) -> None:
    private = make_private(sampling=Poisson(0.2))
    figures = Figures(private)
    trainer = make_trainer(
        tmp_path, private, figures, logger=CSVLogger(tmp_path, "csv", 0), log_every_n_steps=1, max_epochs=3,
        val_check_interval=2,
    )  # fmt: skip
    trainer.fit(Validated(), make_loader(), make_loader(shuffle=False))
    assert [float(value) for value in figures.seen] == figures.due
    assert len(set(figures.due)) == 15
    with (tmp_path / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["privacy/rpp_epsilon"]]
    assert [float(row["privacy/rpp_epsilon"]) for row in rows] == figures.due
    # Figures that stay as they are have their place in every row all the same.
    assert {row["privacy/noise_multiplier"] for row in rows} == {"1.0"}


def test_private_answers(tmp_path: Path, loggers: Loggers) -> None:
    pool = BalancedSubsets(num_records=60, num_subsets=8)
    ensemble = SubsetEnsemble(lambda: torch.nn.Linear(6, 3), pool)
    secret = pool.draw_secret(tmp_path / "secret.key")
    with PACResponder(ensemble, secret, 2**-20, tmp_path / "responses.db") as responder:
        trainer = make_trainer(tmp_path, PACResponses(responder), logger=loggers.all)
        trainer.predict(ensemble, make_loader(shuffle=False))
    assert check_same(loggers.kept())


def test_a_name_that_one_logger_lacks_is_noticed() -> None:
    kept = {logger: {"privacy/a": [1.0]} for logger in ("tensorboard", "csv", "wandb", "mlflow")}
    assert check_same(kept) == {"privacy/a"}
    for logger in kept:
        for other in ({"privacy/b": [1.0]}, {"privacy/a": [1.0, 2.0]}, {"privacy/a": [1.1]}, {}):
            with pytest.raises(AssertionError):
                check_same({**kept, logger: other})
