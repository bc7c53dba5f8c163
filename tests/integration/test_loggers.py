"""Every logger gets the same metrics under the same names.

Weights & Biases and MLflow are too heavy for the suite. They are Lightning loggers like the one that records here, and
MLflow's own rule for names is checked.
"""

import csv
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_fits import Classifier, make_loader, make_private, make_trainer

from lightning_pac.callbacks import PACResponses
from lightning_pac.mechanisms import PACResponder
from lightning_pac.modules import SubsetEnsemble
from lightning_pac.scenarios import BalancedSubsets

# mlflow.utils.validation: alphanumerics, underscores, dashes, periods, spaces, colons and slashes.
MLFLOW_NAME = re.compile(r"[/\w.\- :]+")


class RecordingLogger(Logger):
    """What Weights & Biases, MLflow and any other logger are handed."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: dict[str, list[float]] = {}

    @property
    def name(self) -> str:
        return "recording"

    @property
    def version(self) -> int:
        return 0

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        for name, value in metrics.items():
            self.metrics.setdefault(name, []).append(float(value))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


class Loggers:
    """All of them on one Trainer, and what each has kept."""

    def __init__(self, folder: Path) -> None:
        self.recording = RecordingLogger()
        self.all = [TensorBoardLogger(folder, "tensorboard", 0), CSVLogger(folder, "csv", 0), self.recording]
        self.folder = folder

    def kept(self) -> dict[str, dict[str, list[float]]]:
        for logger in self.all:
            logger.finalize("success")
        events = EventAccumulator(str(self.folder / "tensorboard" / "version_0")).Reload()
        board = {tag: [scalar.value for scalar in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        with (self.folder / "csv" / "version_0" / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        table = {name: [float(row[name]) for row in rows if row[name]] for name in rows[0] if name != "step"}
        return {"tensorboard": board, "csv": table, "recording": self.recording.metrics}


def check_same(kept: dict[str, dict[str, list[float]]]) -> set[str]:
    private = [{name: series for name, series in one.items() if name.startswith("privacy/")} for one in kept.values()]
    assert set(private[0]) == set(private[1]) == set(private[2])
    for name, series in private[2].items():
        assert MLFLOW_NAME.fullmatch(name), name
        assert private[0][name] == pytest.approx(series, rel=1e-6), name  # TensorBoard keeps single precision
        assert private[1][name] == pytest.approx(series, rel=1e-6), name
    return set(private[0])


def test_a_private_fit(tmp_path: Path) -> None:
    loggers = Loggers(tmp_path)
    trainer = make_trainer(tmp_path, make_private(), logger=loggers.all, log_every_n_steps=1, max_epochs=2)
    trainer.fit(Classifier(), make_loader())
    names = check_same(loggers.kept())
    assert {"privacy/rpp_epsilon", "privacy/world_success_bound", "privacy/noise_multiplier"} <= names


def test_private_answers(tmp_path: Path) -> None:
    loggers = Loggers(tmp_path)
    pool = BalancedSubsets(num_records=60, num_subsets=8)
    ensemble = SubsetEnsemble(lambda: torch.nn.Linear(6, 3), pool)
    secret = pool.draw_secret(tmp_path / "secret.key")
    with PACResponder(ensemble, secret, 2**-20, tmp_path / "responses.db") as responder:
        trainer = make_trainer(tmp_path, PACResponses(responder), logger=loggers.all)
        trainer.predict(ensemble, make_loader(shuffle=False))
    assert check_same(loggers.kept())


def test_a_name_that_one_logger_lacks_is_noticed(tmp_path: Path) -> None:
    kept = {"tensorboard": {"privacy/a": [1.0]}, "csv": {"privacy/a": [1.0]}, "recording": {"privacy/a": [1.0]}}
    assert check_same(kept) == {"privacy/a"}
    for logger in kept:
        with pytest.raises(AssertionError):
            check_same({**kept, logger: {"privacy/b": [1.0]}})
