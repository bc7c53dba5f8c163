"""What must not pass by a callback without a word: loops over Fabric, searches, and several callbacks at once."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import BatchSizeFinder, ThroughputMonitor
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import BalancedSubsets, SubsetEnsemble, TwoWorldScenario
from lightning_pac.callbacks import (
    SRPPSGD,
    DummyPadding,
    PACResponses,
    PositiveDelay,
    PrivateMetrics,
    PrivateOutput,
    SRPACDecoder,
)
from lightning_pac.mechanisms import FiniteOutputs, MixtureNoise, certify_mechanism
from lightning_pac.mechanisms.one_sided import PositiveNoise
from lightning_pac.modules import FullGaussian, MixtureDecoder

SCENARIO = TwoWorldScenario(num_differing=1)
INPUTS = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def delay(folder: Path) -> PositiveDelay:
    return PositiveDelay(PositiveNoise.for_dp(1.0, 0.01), unit=0.001, max_duration=0.1)


def responses(folder: Path) -> PACResponses:
    return PACResponses(secret=folder / "secret.key", ledger=folder / "answers.db")


def output(folder: Path) -> PrivateOutput:
    law = FiniteOutputs(np.eye(2))
    released = certify_mechanism(MixtureNoise.gaussian(np.eye(2)), law, 0.5, secret="Each record.", num_draws=4_000)
    return PrivateOutput(released, folder / "outputs.db")


CALLBACKS = {
    "SRPPSGD": lambda folder: SRPPSGD(SCENARIO, noise_multiplier=1.0),
    "DummyPadding": lambda folder: DummyPadding(PositiveNoise.for_dp(1.0, 0.01)),
    "PACResponses": responses,
    "PositiveDelay": delay,
    "PrivateMetrics": lambda folder: PrivateMetrics(
        ["a"], SCENARIO, epsilon=1.0, renyi_order=16, ledger=folder / "metrics.db"
    ),
    "PrivateOutput": output,
    "SRPACDecoder": lambda folder: SRPACDecoder(MixtureDecoder(2, 4), FullGaussian(2)),
}


class Model(pl.LightningModule):
    batch_size = 2

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Any) -> Any:
        return self.layer(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0]).square().mean()

    def predict_step(self, batch: Any, *args: Any) -> Any:
        return self.layer(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def loader(**kwargs: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(INPUTS), batch_size=2)


def trainer(folder: Path, *callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=list(callbacks),
        enable_model_summary=False,
        **{**quiet, **options},
    )


@pytest.mark.parametrize("name", sorted(CALLBACKS))
def test_a_loop_over_fabric_is_refused(name: str, tmp_path: Path) -> None:
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[CALLBACKS[name](tmp_path)])
    model = Model()
    with pytest.raises(MisconfigurationException, match=f"{name} works through the hooks of a Trainer"):
        fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))


@pytest.mark.parametrize("make", [responses, output, delay])
def test_a_search_for_the_batch_size_of_predictions_is_refused(make: Any, tmp_path: Path) -> None:
    model = Model()
    model.predict_dataloader = model.train_dataloader = loader  # type: ignore[method-assign]
    with pytest.raises(MisconfigurationException, match=r"BatchSizeFinder removes .* and all other callbacks"):
        trainer(tmp_path, make(tmp_path), BatchSizeFinder()).predict(model)


@pytest.mark.parametrize("makes", [(responses, output), (responses, responses)])
def test_predictions_are_not_made_private_twice(makes: Any, tmp_path: Path) -> None:
    ensemble = SubsetEnsemble(lambda: nn.Linear(4, 2), BalancedSubsets(8, 4))
    paths = [tmp_path / str(number) for number in range(len(makes))]
    for path in paths:
        path.mkdir()
    with pytest.raises(MisconfigurationException, match=r"made private twice.*keep one of PACResponses"):
        trainer(tmp_path, *(make(path) for make, path in zip(makes, paths, strict=True))).predict(ensemble, loader())
    assert "predict_step" not in vars(ensemble)


@pytest.mark.parametrize(
    ("options", "callbacks", "name"),
    [({"profiler": "simple"}, [], "SimpleProfiler"), ({}, [ThroughputMonitor(len)], "ThroughputMonitor")],
)
def test_clocks_beside_padded_steps_are_refused(options: Any, callbacks: Any, name: str, tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=f"{name} writes down how long steps really take"):
        trainer(tmp_path, *callbacks, delay(tmp_path), max_epochs=1, **options).fit(Model(), loader())


def test_a_compiled_model_trains_in_private_as_it_was_written(tmp_path: Path) -> None:
    model, graphs = Model(), []
    before = [parameter.detach().clone() for parameter in model.parameters()]
    compiled: Any = torch.compile(model, backend=lambda graph, inputs: graphs.append(graph) or graph.forward)
    trainer(tmp_path, CALLBACKS["SRPPSGD"](tmp_path), max_epochs=1).fit(compiled, loader())
    assert not graphs
    assert not any(map(torch.equal, before, model.parameters()))


class Skipping(pl.Callback):
    """Changes the list that Lightning goes through, so that the next callback is left out."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        trainer.callbacks.remove(self)


class Adding(pl.Callback):
    """Adds a callback when it is too late for its checks."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.callbacks.append(CALLBACKS["SRPPSGD"](Path(trainer.default_root_dir)))


@pytest.mark.parametrize("how", ["skipped", "added"])
def test_private_training_without_its_checks_is_refused(how: str, tmp_path: Path) -> None:
    callbacks = [Skipping(), CALLBACKS["SRPPSGD"](tmp_path)] if how == "skipped" else [Adding()]
    model = Model()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(MisconfigurationException, match=r"its checks were left out.*give it to the Trainer"):
        trainer(tmp_path, *callbacks, max_epochs=1).fit(model, loader())
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("first", ["SRPPSGD", "SRPACDecoder"])
def test_a_decoder_beside_private_training_is_refused(first: str, tmp_path: Path) -> None:
    both = [CALLBACKS[name](tmp_path) for name in sorted(["SRPPSGD", "SRPACDecoder"], key=lambda name: name != first)]
    with pytest.raises(MisconfigurationException, match="SRPACDecoder learns from private records without noise"):
        trainer(tmp_path, *both, max_epochs=1).fit(Model(), loader())


def test_a_decoder_refuses_outputs_that_it_cannot_read(tmp_path: Path) -> None:
    decoder = CALLBACKS["SRPACDecoder"](tmp_path)
    with pytest.raises(MisconfigurationException, match=r"precision='64-true'.*use '32-true' or 'bf16-mixed'"):
        trainer(tmp_path, decoder, max_epochs=1, precision="64-true").fit(Model(), loader())
