"""After a run that was refused or broke, its ledger is open to the next."""

from pathlib import Path

import pytest
import torch
from slow_cases import slow
from tiny_fits import Classifier, make_loader, make_private, make_trainer
from torchmetrics.classification import MulticlassAccuracy

from lightning_pac import TwoWorldScenario
from lightning_pac.callbacks import PositiveDelay, PrivateMetrics
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import PositiveNoise


class Validated(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.accuracy = MulticlassAccuracy(3, average="micro")

    def validation_step(self, batch, batch_idx):
        inputs, labels = batch
        self.accuracy(self.network(inputs), labels)
        self.log("val/accuracy", self.accuracy)


class Broken(Validated):
    def training_step(self, batch, batch_idx):
        raise KeyError("broken")


@pytest.mark.parametrize("model", [Broken, *slow(Validated)])
def test_a_refused_or_broken_fit_leaves_no_ledger_open(tmp_path: Path, model: type[Classifier]) -> None:
    path = tmp_path / "study.db"
    scenario = TwoWorldScenario(num_differing=2)
    # Unequal couplings of one currency are refused, after three callbacks have the ledger open.
    order = 8.0 if model is Validated else 4.0
    callbacks = [
        PositiveDelay(PositiveNoise.for_dp(1.0, 1e-6, compositions=10), ledger=path),
        PrivateMetrics(["val/accuracy"], scenario, epsilon=0.05, renyi_order=order, ledger=path),
        make_private(scenario=scenario, ledger=path),
    ]
    trainer = make_trainer(tmp_path, *callbacks, num_sanity_val_steps=1)
    with pytest.raises(Exception, match=r"coupling|broken"):
        trainer.fit(model(), make_loader(), make_loader(shuffle=False))
    with PrivacyLedger(path) as ledger:
        assert ledger.accounts()
    assert torch.is_grad_enabled()
