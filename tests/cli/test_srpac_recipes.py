"""The recipes of SR-PAC as a user types them."""

import numpy as np
import pytest
import yaml

from lightning_pac import cli
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import BoundedOutputs, MixtureNoise, certify_mechanism

MODULE = """
import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TinyModel(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def predict_step(self, batch):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class TinyData(pl.LightningDataModule):
    def train_dataloader(self):
        records = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(records, (records[:, 0] > 0).long()), batch_size=10)

    predict_dataloader = train_dataloader
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's own model and data, in a folder of theirs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tiny_srpac_user.py").write_text(MODULE)
    config = {
        "model": {"class_path": "tiny_srpac_user.TinyModel"},
        "data": {"class_path": "tiny_srpac_user.TinyData"},
        "trainer": {
            "max_epochs": 1,
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": "out",
            "logger": {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "out"}},
        },
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def test_fit_with_a_decoder_beside_the_model(folder):
    words = ["fit", "--config", "mine.yaml", "--recipe", "srpac_decoder"]
    words += ["--trainer.callbacks.decoder.init_args.release_size=2"]
    words += ["--trainer.callbacks.decoder.init_args.secret_size=4"]
    words += ["--trainer.callbacks.perturbation.init_args.dimension=2"]
    assert cli.main(words) == 0
    metrics = next((folder / "out").rglob("metrics.csv")).read_text()
    assert "srpac/leakage_lower_bound" in metrics.splitlines()[0]


def test_predict_with_private_outputs(folder, capsys):
    noise = MixtureNoise.gaussian(np.eye(2))
    law = BoundedOutputs(np.zeros(2), 2.0)
    released = certify_mechanism(noise, law, 0.25, secret="Each input record.")
    released.save(folder / "released.npz")
    assert cli.main(["predict", "--config", "mine.yaml", "--recipe", "private_output"]) == 0
    with PrivacyLedger.read_only(folder / "outputs.db") as ledger:
        assert ledger.spent("mutual_information") == pytest.approx(40 * released.mutual_information)
