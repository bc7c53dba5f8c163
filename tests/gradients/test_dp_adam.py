"""The second moment without the noise, against simulation and a fit of noise alone."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import SRPPSGD, Banded, DPAdamBC, Sequential, TwoWorldScenario


def test_the_corrected_moment_is_that_of_the_gradient() -> None:
    """Of gradients with noise that changes, in coordinates of three sizes; Adam's own moment is that of the noise."""
    torch.manual_seed(0)
    true = torch.tensor([0.0, 0.5, 3.0]).repeat_interleave(4000)
    weight = nn.Parameter(torch.zeros(12_000))
    optimizer = DPAdamBC([weight], lr=0.0, betas=(0.9, 0.99))
    reference = torch.optim.Adam([weight], lr=0.0, betas=(0.9, 0.99))
    for step in range(400):
        deviation = 1.0 + (step % 3)
        weight.grad = true + deviation * torch.randn(12_000)
        optimizer.expect_noise({weight: deviation})
        optimizer.step()
        reference.step()
    state, unbias = optimizer.state[weight], 1 - 0.99**400
    torch.testing.assert_close(state["square"], reference.state[weight]["exp_avg_sq"])
    corrected = (state["square"] - state["noise_square"]) / unbias
    adams = (reference.state[weight]["exp_avg_sq"] / unbias).split(4000)
    for size, part, adam in zip((0.0, 0.5, 3.0), corrected.split(4000), adams, strict=True):
        error = float(part.std()) / 4000**0.5
        assert abs(float(part.mean()) - size**2) < 5 * error  # seeded, so no false alarms
        assert float(adam.mean()) > size**2 + 4.0


def test_without_a_floor_in_reach_it_is_adam_on_the_gradient_itself() -> None:
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    ours, adam = DPAdamBC([first], lr=0.1), torch.optim.Adam([second], lr=0.1, eps=0.0)
    for step in range(20):
        first.grad = second.grad = torch.tensor([1.0, -2.0, 0.5 + step])
        ours.expect_noise({first: 1e-6})
        ours.step()
        adam.step()
    torch.testing.assert_close(first, second)


def test_nobody_told_of_noise() -> None:
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    optimizer = DPAdamBC([weight])
    optimizer.expect_noise({weight: 1.0})
    optimizer.step()
    for silent in (optimizer, copy.deepcopy(optimizer)):
        silent.param_groups[0]["params"][0].grad = torch.ones(1)
        with pytest.raises(RuntimeError, match="nobody told it of any: add SRPPSGD"):
            silent.step()
    with pytest.raises(ValueError, match=r"^floor is 0"):
        DPAdamBC([weight], floor=0.0)


@pytest.mark.parametrize("noise", [None, Banded(3)])
def test_a_private_fit_tells_the_deviation_of_every_step(noise: Any, tmp_path: Path) -> None:
    """Gradients are noise alone, so its mean square over 2,000 coordinates is chi-squared; false alarms once in 1e6."""
    import lightning.pytorch as pl

    class Silent(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.ratios = nn.Linear(999, 2), list[float]()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.layer(batch[0]).mean() * 0.0

        def configure_optimizers(self) -> Any:
            return DPAdamBC(self.parameters(), lr=1e-3, betas=(0.0, 0.0))

        def on_train_batch_end(self, *_: Any) -> None:
            optimizer = self.optimizers().optimizer
            squares = torch.cat([optimizer.state[p]["square"].flatten() for p in self.parameters()])
            expected = {optimizer.state[p]["noise_square"] for p in self.parameters()}
            assert len(expected) == 1
            self.ratios.append(float(squares.mean()) / expected.pop())

    scenario, model = TwoWorldScenario(num_differing=1), Silent()
    private = SRPPSGD(scenario, noise_multiplier=2.0, sampling=Sequential(10), noise=noise)
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=7, max_epochs=-1, callbacks=[private], default_root_dir=tmp_path, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(TensorDataset(torch.ones(40, 999)), batch_size=10))
    assert len(model.ratios) == 7
    for ratio in model.ratios:
        assert 2 * min(stats.chi2(2000).cdf(ratio * 2000), stats.chi2(2000).sf(ratio * 2000)) > 1e-6 / 14
