"""Padded batches in live private runs."""

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader, TensorDataset, default_collate

from lightning_pac import SRPPSGD, EpochShuffle, Poisson, PrivacyLedger, TwoWorldScenario
from lightning_pac.callbacks import DummyPadding
from lightning_pac.gradients import make_engine
from lightning_pac.mechanisms.one_sided import DiscreteNoise, DPGuarantee, DPNoise, PositiveNoise
from lightning_pac.randomness import SecureGenerator


class _Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.sizes = []

    def training_step(self, batch, batch_idx):
        features, targets = batch
        self.sizes.append(len(features))
        return (self.layer(features)[:, 0] - targets).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def _data(records=60):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(records, 3, generator=generator)
    return TensorDataset(features, features.sum(1))


def _fit(tmp_path, noise, sampling=None, ledger=None, scenario=None, steps=6, workers=0, **options):
    sampling = sampling or Poisson(rate=0.2)
    scenario = scenario or TwoWorldScenario(num_differing=1)
    private = SRPPSGD(scenario, sampling=sampling, noise_multiplier=1.0, ledger=tmp_path / "run.db")
    padding = DummyPadding(noise, ledger)
    model = _Model()
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[padding, private],
        default_root_dir=tmp_path,
        **options,
    )
    model.train_dataloader = lambda: DataLoader(_data(), batch_size=12, num_workers=workers)
    trainer.fit(model)
    return model, trainer, padding


def _constant(value, compositions=100):
    """Noise that is always `value`, to be told from the drawn records."""
    p = [0.0] * value + [1.0]
    return DPNoise(p, DPGuarantee(1.0, 0.1, compositions, 1, "exact"))


@pytest.mark.parametrize("name", ["one_backward", "opacus"])
def test_rows_after_the_records_have_a_gradient_of_exactly_zero(name):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    engine = make_engine(name)
    engine.attach(module)
    records, dummies = torch.randn(5, 3), torch.full((7, 3), 1e3)
    module(records).square().mean().backward()
    expected, _ = engine.clipped_sum(1.0)
    module(torch.cat([records, dummies])).square().mean().backward()
    padded, norms = engine.clipped_sum(1.0, num_records=5)
    module(torch.cat([records, dummies])).square().mean().backward()
    unmasked, _ = engine.clipped_sum(1.0)
    engine.detach()
    for first, second in zip(expected, padded, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)
    assert norms.shape == (12, 1)
    assert (norms[5:] == 0).all()
    assert any((first - second).abs().max() > 1e-3 for first, second in zip(expected, unmasked, strict=True))


def test_batches_are_padded_charged_and_the_loader_is_left_as_it_was(tmp_path):
    model, trainer, padding = _fit(tmp_path, _constant(50), ledger=tmp_path / "sizes.db")
    assert trainer.global_step == 6
    # A bare batch holds more than 49 of 60 records at rate 0.2 with probability below 1e-25.
    assert min(model.sizes) >= 50
    assert padding.num_observations == 6
    with PrivacyLedger.read_only(tmp_path / "sizes.db") as ledger:
        assert [(a.currency, a.spent) for a in ledger.accounts()] == [("batch_size_releases", 6.0)]
        assert [account.card for account in ledger.accounts()] == [padding.card()]
    assert padding.card().details["num_observations"] == 6


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_that_are_made_anew_are_padded_from_their_first_batch(tmp_path, workers):
    model, _, _ = _fit(tmp_path, _constant(50), steps=20, workers=workers, reload_dataloaders_every_n_epochs=1)
    assert len(model.sizes) == 20
    assert min(model.sizes) >= 50


def test_dummies_do_not_move_the_model(tmp_path, monkeypatch):
    # Without records nothing but noise may move it: with the noise removed, and every draw empty, it stays.
    monkeypatch.setattr(SecureGenerator, "bernoulli", lambda self, rate, size: np.zeros(size, dtype=bool))
    monkeypatch.setattr(SecureGenerator, "release_", lambda self, tensor, deviation: tensor)
    torch.manual_seed(1)
    before = torch.nn.Linear(3, 1).state_dict()
    torch.manual_seed(1)
    model, _, _ = _fit(tmp_path, _constant(20))
    assert min(model.sizes) >= 20
    for name, value in before.items():
        torch.testing.assert_close(model.layer.state_dict()[name], value, rtol=0, atol=0)


def test_training_stops_when_the_releases_are_spent(tmp_path):
    _, trainer, padding = _fit(tmp_path, _constant(1, compositions=3))
    assert trainer.global_step == 3
    assert padding.num_observations == 3


class _PaidFirst(DPNoise):
    """Noise that notes how many draws were on record when each was made."""

    def __init__(self, ledger, compositions):
        super().__init__([0.0] * 50 + [1.0], DPGuarantee(1.0, 0.1, compositions, 1, "exact"))
        self.ledger, self.paid = ledger, []

    def sample(self, size=()):
        with PrivacyLedger.read_only(self.ledger) as ledger:
            self.paid.append(ledger.spent("batch_size_releases"))
        return super().sample(size)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_paid_before_any_of_it_is_loaded_and_all_that_is_paid_is_used(tmp_path, workers):
    noise = _PaidFirst(tmp_path / "sizes.db", compositions=8)
    model, trainer, padding = _fit(tmp_path, noise, ledger=tmp_path / "sizes.db", workers=workers, steps=100)
    assert noise.paid == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert trainer.global_step == padding.num_observations == 8
    assert min(model.sizes) >= 50


def test_a_second_run_does_not_start_when_all_releases_are_spent(tmp_path):
    noise = _constant(1, compositions=2)
    assert _fit(tmp_path / "first", noise, ledger=tmp_path / "sizes.db")[1].global_step == 2
    assert _fit(tmp_path / "second", noise, ledger=tmp_path / "sizes.db")[1].global_step == 0


def test_what_cannot_be_padded_soundly_is_refused(tmp_path):
    with pytest.raises(MisconfigurationException, match="hides the sizes of Poisson batches"):
        _fit(tmp_path, _constant(1), sampling=EpochShuffle(12))
    scenario = TwoWorldScenario(num_differing=4, adjacency="add_remove")
    with pytest.raises(MisconfigurationException, match="differ by up to 4, and the noise was designed for 1"):
        _fit(tmp_path / "second", _constant(1), scenario=scenario, sampling=Poisson(rate=0.2, batch_size=12))
    with pytest.raises(TypeError, match=r"noise is an object of type DiscreteNoise, but must be a DPNoise"):
        DummyPadding(DiscreteNoise([1.0]))


def test_designed_noise_pads_by_what_it_draws(tmp_path):
    model, _, padding = _fit(tmp_path, PositiveNoise.for_dp(2.0, 1e-2, compositions=6))
    assert padding.num_observations == 6
    assert max(model.sizes) <= 60 + padding.noise.max_value


@pytest.mark.checks_each_fit
def test_batches_that_are_sorted_are_refused(tmp_path):
    """Dummies, copies of one record, would count in place of the records that are sorted behind them."""

    def collate(records):
        return default_collate(sorted(records, key=lambda record: float(record[0][0])))

    model = _Model()
    model.train_dataloader = lambda: DataLoader(_data(), batch_size=12, collate_fn=collate)
    private = SRPPSGD(TwoWorldScenario(num_differing=1), sampling=Poisson(rate=0.2), noise_multiplier=1.0)
    trainer = pl.Trainer(
        max_steps=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[DummyPadding(_constant(3)), private],
        default_root_dir=tmp_path,
    )
    with pytest.raises(MisconfigurationException, match="the layers see is in another order"):
        trainer.fit(model)
