"""A decoder and its noise beside the user's own training."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac.callbacks import PrivateOutput, SRPACDecoder
from lightning_pac.modules import FullGaussian, MixtureDecoder

GENERATOR = torch.Generator().manual_seed(0)
RECORDS = torch.randn(60, 4, generator=GENERATOR)
LABELS = (RECORDS[:, 0] > 0).long()


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def training_step(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def predict_step(self, batch: Any) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05, weight_decay=0.1)


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(RECORDS, LABELS), batch_size=20)


def decoder(**kwargs: Any) -> SRPACDecoder:
    return SRPACDecoder(MixtureDecoder(2, 4, num_components=2), FullGaussian(2), budget=1.0, warmup_steps=2, **kwargs)


def fit(tmp_path: Path, *callbacks: pl.Callback, max_epochs: int = 3, **kwargs: Any) -> tuple[Classifier, pl.Trainer]:
    torch.manual_seed(0)
    model = Classifier()
    options: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = pl.Trainer(
        max_epochs=max_epochs,
        callbacks=list(callbacks),
        default_root_dir=tmp_path,
        enable_model_summary=False,
        log_every_n_steps=1,
        **{**options, **kwargs},
    )
    trainer.fit(model, loader())
    return model, trainer


def test_the_model_trains_as_it_would_alone(tmp_path: Path) -> None:
    callback = decoder()
    before = [parameter.clone() for parameter in callback.game.play.parameters()]
    alone, _ = fit(tmp_path)
    beside, trainer = fit(tmp_path, callback)
    for name, value in alone.state_dict().items():
        assert torch.equal(value, beside.state_dict()[name]), name
    assert set(alone.state_dict()) == set(beside.state_dict())
    after = list(callback.game.play.parameters())
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert len(trainer.optimizers) == 1


def test_what_it_logs(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    fit(tmp_path, decoder(), logger=logger)
    header = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"srpac/decoder_cross_entropy", "srpac/noise_power", "srpac/leakage_lower_bound"} <= set(header)


def test_the_trained_noise_is_certified_and_releases_predictions(tmp_path: Path) -> None:
    callback = decoder()
    model, _ = fit(tmp_path, callback)
    released = callback.certify(model, loader(), num_draws=2**14)
    assert released.mutual_information <= 1.0
    private = PrivateOutput(released, ledger=tmp_path / "study.db")
    trainer = pl.Trainer(callbacks=[private], logger=False, enable_progress_bar=False, accelerator="cpu")
    assert torch.cat(trainer.predict(model, loader())).shape == (60, 2)
    with pytest.raises(ValueError, match="either the records"):
        callback.certify(model)


def test_its_state_travels_in_the_checkpoint(tmp_path: Path) -> None:
    first = decoder()
    _, trainer = fit(tmp_path, first)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    second = decoder()
    resumed = pl.Trainer(
        max_epochs=4, callbacks=[second], logger=False, enable_progress_bar=False, accelerator="cpu",
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    states: list[dict[str, Tensor]] = []
    original = second.on_train_start

    def spy(*args: Any) -> None:
        original(*args)
        states.append({name: value.clone() for name, value in second.game.play.state_dict().items()})

    second.on_train_start = spy  # type: ignore[method-assign]
    resumed.fit(Classifier(), loader(), ckpt_path=tmp_path / "model.ckpt")
    assert all(torch.equal(value, states[0][name]) for name, value in first.game.play.state_dict().items())
    assert second.game.num_steps == 12
