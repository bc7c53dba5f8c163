"""Float16 with a public loss scale: a record that overflows counts as zero, and nothing else depends on it."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from tiny_fits import Classifier, make_private, make_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac.strategies import FixedScalePrecision


class Gradients(pl.Callback):
    def __init__(self) -> None:
        self.used: list[torch.Tensor] = []

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        gradients = [parameter.grad for parameter in pl_module.parameters()]
        if gradients[0] is not None:
            self.used.append(torch.cat([gradient.flatten() for gradient in gradients]))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def run(inputs: torch.Tensor, folder: Path, **options: Any) -> tuple[list[torch.Tensor], int]:
    """Gradients of steps over 4 records each, at next to no noise, and the steps that were taken."""
    seen = Gradients()
    data = TensorDataset(inputs, torch.arange(len(inputs)) % 3)
    trainer = make_trainer(
        folder, make_private(noise_multiplier=1e-7, max_grad_norm=0.5), seen, max_epochs=2, **options
    )
    trainer.fit(Classifier(0.0, network()), DataLoader(data, batch_size=4))
    return seen.used, trainer.global_step


@pytest.mark.parametrize("scale", [1.0, 2.0**10])
def test_gradients_are_those_of_full_precision_but_for_a_record_that_overflows(scale: float, tmp_path: Path) -> None:
    inputs = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    inputs[5] *= 1e5  # beyond the largest number of float16
    others = inputs.clone()
    others[5] = torch.nan  # counts as zero as well
    precision = FixedScalePrecision(scale, "cpu")
    found, steps = run(inputs, tmp_path, plugins=precision)
    expected, _ = run(others, tmp_path)
    assert steps == 6, "a step was left out"
    assert precision.scale == scale
    for half, full in zip(found, expected, strict=True):
        assert torch.allclose(half, full, rtol=1e-2, atol=2e-3)
        assert float(full.norm()) > 0.05


@pytest.mark.parametrize("scale", [0.5, 1000.0, float("inf"), float("nan")])
def test_a_scale_that_rounds_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=r"scale (is (nan|inf), but )?must be"):
        FixedScalePrecision(scale, "cpu")
