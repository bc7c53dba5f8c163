"""Predictions that are private answers, in a real Trainer."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac.callbacks import PACResponses
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import PACResponder
from lightning_pac.modules import SubsetEnsemble
from lightning_pac.report import find_runs
from lightning_pac.scenarios import BalancedSubsets

POOL = BalancedSubsets(num_records=60, num_subsets=8, seed=0)
QUERIES = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
BUDGET = 2.0**-8


@pytest.fixture
def ensemble() -> SubsetEnsemble:
    """Members that differ, so that some queries are unanimous and some are not."""
    module = SubsetEnsemble(lambda: nn.Linear(4, 3), POOL)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return module


def loader(batch_size: int = 10) -> DataLoader[Any]:
    return DataLoader(TensorDataset(QUERIES), batch_size)


def trainer(tmp_path: Path, *callbacks: pl.Callback, **kwargs: Any) -> pl.Trainer:
    options: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    return pl.Trainer(callbacks=list(callbacks), default_root_dir=tmp_path, **{**options, **kwargs})


def responder(tmp_path: Path, model: Any, **kwargs: Any) -> PACResponder:
    secret = POOL.draw_secret(tmp_path / "secret.key")
    return PACResponder(model, secret, BUDGET, tmp_path / "responses.db", **kwargs)


def test_predictions_are_the_recorded_private_labels(tmp_path: Path, ensemble: SubsetEnsemble) -> None:
    class Writer(BasePredictionWriter):
        seen: list[Any] = []

        def write_on_batch_end(self, trainer: Any, pl_module: Any, prediction: Any, *args: Any) -> None:
            self.seen.append(prediction)

    votes = ensemble.eval().votes(QUERIES)
    unanimous = (votes == votes[:, :1]).all(1)
    assert 0 < unanimous.sum() < len(QUERIES)
    own_step = ensemble.predict_step
    with responder(tmp_path, ensemble) as asked:
        writer = Writer("batch")
        labels = trainer(tmp_path, writer, PACResponses(asked)).predict(ensemble, loader())
        assert ensemble.predict_step == own_step
        joined = torch.cat(labels)
        assert joined.shape == (40,)
        assert torch.equal(joined[unanimous], votes[unanimous, 0])
        assert torch.equal(torch.cat(writer.seen), joined)
        recorded = np.concatenate([answers.labels for answers in asked.recorded_answers()])
        assert np.array_equal(recorded, joined.numpy())
        assert asked.spent == pytest.approx(BUDGET * int((~unanimous).sum()))
    # Without the callback the votes come back, which is what the shape says.
    assert torch.cat(trainer(tmp_path).predict(ensemble, loader())).shape == (40, 8)


def test_metrics_are_logged_after_each_batch(tmp_path: Path, ensemble: SubsetEnsemble) -> None:
    logger = CSVLogger(tmp_path)
    with responder(tmp_path, ensemble) as asked:
        callback = PACResponses(asked)
        trainer(tmp_path, callback, logger=logger).predict(ensemble, loader())
        metrics = callback.metrics()
        assert metrics["privacy/mutual_information"] == asked.spent
        assert metrics["privacy/responses"] == 40
        assert metrics["privacy/membership_success_bound"] == asked.membership_success_bound > 0.5
    votes = ensemble.votes(QUERIES)
    assert metrics["privacy/unanimous_fraction"] == (votes == votes[:, :1]).all(1).double().mean().item()
    logger.save()
    lines = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert len(lines) == 5
    assert "privacy/mutual_information" in lines[0]
    (run,) = find_runs(logger.log_dir)
    assert run.card is not None
    assert run.card.guarantees[0].value == metrics["privacy/membership_success_bound"]


def test_predicting_stops_before_the_budget_would_be_passed(tmp_path: Path, ensemble: SubsetEnsemble) -> None:
    votes = ensemble.votes(QUERIES)
    hard = (~(votes == votes[:, :1]).all(1)).view(4, 10).sum(1)
    budget = BUDGET * (int(hard[:2].sum()) + 0.5)
    assert hard[2] > 0
    with responder(tmp_path, ensemble, budget=budget) as asked:
        run = trainer(tmp_path, PACResponses(asked))
        with pytest.warns(UserWarning, match=r"Predicting stopped after 20 private answers: .*budget"):
            labels = run.predict(ensemble, loader())
        assert len(torch.cat(labels)) == 20
        assert asked.num_responses == 20
        assert asked.spent <= budget
    assert "predict_step" not in vars(ensemble)


def test_the_module_is_restored_after_an_error(tmp_path: Path, ensemble: SubsetEnsemble) -> None:
    with responder(tmp_path, ensemble) as asked:
        wrong = DataLoader(TensorDataset(torch.zeros(4, 7)), 2)
        with pytest.raises(RuntimeError):
            trainer(tmp_path, PACResponses(asked)).predict(ensemble, wrong)
        assert asked.num_responses == 0
    assert "predict_step" not in vars(ensemble)


def test_a_responder_is_opened_from_the_secret_file_and_continues(tmp_path: Path, ensemble: SubsetEnsemble) -> None:
    paths = {"secret": tmp_path / "secret.key", "ledger": tmp_path / "responses.db"}
    spent = []
    for _ in range(2):
        callback = PACResponses(**paths, budget_per_response=BUDGET)
        assert torch.cat(trainer(tmp_path, callback).predict(ensemble, loader())).shape == (40,)
        assert callback.responder is None  # closed, so that another process may open the ledger
        with PrivacyLedger.read_only(paths["ledger"]) as ledger:
            spent.append(ledger.spent("mutual_information"))
    assert spent[1] == pytest.approx(2 * spent[0])
    assert paths["secret"].stat().st_mode & 0o777 == 0o600


def test_another_module_and_other_pools_are_refused(tmp_path: Path, ensemble: SubsetEnsemble) -> None:
    other = SubsetEnsemble(lambda: nn.Linear(4, 3), POOL)
    with (
        responder(tmp_path, ensemble) as asked,
        pytest.raises(MisconfigurationException, match="is not the module that"),
    ):
        trainer(tmp_path, PACResponses(asked)).predict(other, loader())
    callback = PACResponses(secret=tmp_path / "other.key", ledger=tmp_path / "other.db")
    plain = pl.LightningModule()
    plain.predict_step = lambda batch: batch  # type: ignore[method-assign,assignment]
    with pytest.raises(MisconfigurationException, match="has no pool to draw a secret from"):
        trainer(tmp_path, callback).predict(plain, loader())


def test_a_responder_is_refused_on_several_ranks(tmp_path: Path, ensemble: SubsetEnsemble) -> None:
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    ranks: Any = SimpleNamespace(world_size=2, global_rank=0, strategy=strategy)
    with responder(tmp_path, ensemble) as asked:
        with pytest.raises(MisconfigurationException, match="give PACResponses secret= and ledger= instead"):
            PACResponses(asked).on_predict_start(ranks, ensemble)
        assert "predict_step" not in vars(ensemble)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "responder or secret must be given, and not both"),
        ({"secret": "secret.key"}, "ledger is None, but private answers"),
    ],
)
def test_incomplete_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PACResponses(**arguments)


def test_a_responders_own_settings_are_not_given_twice(tmp_path: Path, ensemble: SubsetEnsemble) -> None:
    with responder(tmp_path, ensemble) as asked, pytest.raises(ValueError, match="give them to PACResponder"):
        PACResponses(asked, ledger=tmp_path / "responses.db")
