"""Predictions through a certified mechanism, in a real Trainer."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac.callbacks import PrivateOutput
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import BoundedOutputs, FiniteOutputs, MixtureNoise, ReleasedMechanism, certify_mechanism
from lightning_pac.modules import FullGaussian

RECORDS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def predict_step(self, batch: Any, *args: Any) -> Tensor:
        return self.layer(batch[0])


@pytest.fixture
def model() -> Model:
    torch.manual_seed(1)
    return Model()


def released_for(model: Model, budget: float = 0.5) -> ReleasedMechanism:
    with torch.no_grad():
        outputs = model.layer(RECORDS).double().numpy()
    noise = MixtureNoise.gaussian(np.eye(2))
    return certify_mechanism(noise, FiniteOutputs(outputs), budget, secret="Each input record.", num_draws=4_000)


def loader(batch_size: int = 10, records: Tensor = RECORDS) -> DataLoader[Any]:
    return DataLoader(TensorDataset(records), batch_size)


def trainer(tmp_path: Path, *callbacks: pl.Callback, **kwargs: Any) -> pl.Trainer:
    options: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    return pl.Trainer(callbacks=list(callbacks), default_root_dir=tmp_path, **{**options, **kwargs})


def test_every_prediction_is_noised_and_charged_before_anyone_sees_it(tmp_path: Path, model: Model) -> None:
    class Writer(BasePredictionWriter):
        seen: list[Any] = []

        def write_on_batch_end(self, trainer: Any, pl_module: Any, prediction: Any, *args: Any) -> None:
            with PrivacyLedger.read_only(tmp_path / "a.db") as ledger:
                charged.append(ledger.spent("mutual_information"))
            self.seen.append(prediction)

    charged: list[float] = []
    released, writer = released_for(model), Writer("batch")
    logger = CSVLogger(tmp_path)
    own_step = model.predict_step
    # In other batches than those that the outputs were computed in, whose arithmetic differs in the last bits.
    private = trainer(tmp_path, writer, PrivateOutput(released, tmp_path / "a.db"), logger=logger).predict(
        model, loader(7)
    )
    assert model.predict_step == own_step
    shown = torch.cat(private)
    assert shown.shape == (40, 2)
    assert torch.equal(torch.cat(writer.seen), shown)
    costs = np.cumsum([7] * 5 + [5]) * released.mutual_information
    assert charged == pytest.approx(costs)
    exact = torch.cat(trainer(tmp_path).predict(model, loader()))
    residuals = (shown - exact).detach()
    spread = released.power**0.5
    # The mean squared residual of 40 draws in two dimensions leaves [0.2, 3] times the power with probability < 1e-9.
    assert 0.2 * spread**2 < (residuals**2).sum(dim=1).mean().item() < 3 * spread**2
    logger.save()
    header = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"privacy/mutual_information", "privacy/mutual_information_certified", "privacy/predictions"} <= set(header)


def test_predictions_lie_on_the_public_grid(tmp_path: Path, model: Model) -> None:
    noise = MixtureNoise.gaussian(np.eye(2))
    released = certify_mechanism(noise, BoundedOutputs(np.zeros(2), 1.0), 0.2, secret="Each input record.")
    shown = torch.cat(trainer(tmp_path, PrivateOutput(released, tmp_path / "a.db")).predict(model, loader()))
    step = 2.0 ** np.floor(np.log2(2.0**-10 * released.noise.smallest_deviation))
    assert bool((shown % step == 0).all())


def test_predicting_stops_before_the_budget_would_be_passed(tmp_path: Path, model: Model) -> None:
    released = released_for(model)
    callback = PrivateOutput(released, tmp_path / "a.db", budget=25 * released.mutual_information)
    with pytest.warns(UserWarning, match=r"Predicting stopped after 20 private predictions: .*budget"):
        private = trainer(tmp_path, callback).predict(model, loader())
    assert len(torch.cat(private)) == 20
    with PrivacyLedger.read_only(tmp_path / "a.db") as ledger:
        assert ledger.spent("mutual_information") == pytest.approx(20 * released.mutual_information)
    assert "predict_step" not in vars(model)


def test_records_from_outside_of_the_pool_are_refused_and_not_charged(tmp_path: Path, model: Model) -> None:
    released = released_for(model)
    with pytest.raises(PrivacyViolationError, match=r"^values has one that is not among the outputs"):
        trainer(tmp_path, PrivateOutput(released, tmp_path / "a.db")).predict(model, loader(records=RECORDS + 0.5))
    with PrivacyLedger.read_only(tmp_path / "a.db") as ledger:
        assert ledger.spent("mutual_information") == 0
    assert "predict_step" not in vars(model)


def test_only_certified_mechanisms_are_taken(tmp_path: Path, model: Model) -> None:
    for other in (FullGaussian(2), MixtureNoise.gaussian(np.eye(2)), None):
        with pytest.raises(TypeError, match=r"released is .*, but must be a ReleasedMechanism"):
            PrivateOutput(other, tmp_path / "a.db")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ledger is None"):
        PrivateOutput(released_for(model))


def test_a_saved_mechanism_and_an_open_ledger_are_taken(tmp_path: Path, model: Model) -> None:
    path = released_for(model).save(tmp_path / "released.npz")
    with PrivacyLedger(tmp_path / "a.db") as ledger:
        for _ in range(2):
            trainer(tmp_path, PrivateOutput(path, ledger)).predict(model, loader())
        account = ledger.account("predictions")
        assert account.num_charges == 8
        assert account.declaration["secret"] == "Each input record."


def test_outputs_that_are_not_rows_of_scores_are_refused(tmp_path: Path, model: Model) -> None:
    released = released_for(model)
    model.predict_step = lambda batch, *args: model.layer(batch[0]).argmax(dim=1)  # type: ignore[method-assign]
    with pytest.raises(MisconfigurationException, match="take the argmax of what predict returns"):
        trainer(tmp_path, PrivateOutput(released, tmp_path / "a.db")).predict(model, loader())


@pytest.mark.parametrize("budget", [1e-3, 3.0])
def test_noise_that_drowns_predictions_is_told_once(
    tmp_path: Path, model: Model, budget: float, recwarn: pytest.WarningsRecorder
) -> None:
    # The squared noise is some 1000 times that of the outputs, or a fortieth; the records come in four batches.
    released = released_for(model, budget)
    shown = trainer(tmp_path, PrivateOutput(released, tmp_path / "a.db")).predict(model, loader())
    told = [str(warning.message) for warning in recwarn if "drowns" in str(warning.message)]
    squares = float(shown[0].square().sum())
    # Seldom (1 in 100) the first ten draws at 1e-3 are so long that they look like outputs.
    assert len(told) == (squares < 2 * 10 * released.power)
    assert budget < 1 or not told
    if told:
        assert f"{(squares / 20) ** 0.5:.3g} in size" in told[0]
        assert "certify a larger budget" in told[0]
