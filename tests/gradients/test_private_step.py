"""The functional step against one record at a time, and against the law of its noise."""

import math
from typing import Any

import pytest
import torch
from per_example_loop import clipped_sum_by_loop
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_pac import Poisson, TwoWorldScenario, private_gradients
from lightning_pac.accountants import GaussianRelease, PoissonSteps
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.gradients import ROUNDING

REPLACE = TwoWorldScenario(num_differing=1, adjacency="replace")


class Scaled(nn.Module):
    """Its temperature is used by the loss, outside of any forward."""

    def __init__(self, width: int = 7) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, width), nn.Linear(width, 3)
        self.frozen, self.temperature = nn.Linear(5, 5).requires_grad_(False), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(self.frozen(x))))


def loss(module: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(module(batch[0]) * module.temperature.exp(), batch[1])


def draw(rows: int) -> list[Tensor]:
    return [torch.randn(rows, 5), torch.randint(3, (rows,))]


def test_without_noise_it_is_the_sum_of_one_record_at_a_time() -> None:
    module, batch = Scaled(), draw(9)
    expected = clipped_sum_by_loop(module, [tensor[:6] for tensor in batch], loss, 0.2)[0]
    gradients, _ = private_gradients(
        module, loss, batch, max_grad_norm=0.2, noise_multiplier=1e-7, batch_size=6.5, scenario=REPLACE, num_records=6
    )
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    assert list(gradients) == names
    assert all(parameter.grad is None for parameter in module.parameters())
    for name, want in zip(names, expected, strict=True):
        assert torch.allclose(gradients[name].double(), want / 6.5, rtol=1e-4, atol=1e-6)


def test_the_noise_has_its_law() -> None:
    """False alarms: 1e-6 each, of the deviation and of the shape."""
    module, batch = Scaled(4000), draw(4)
    arguments: dict[str, Any] = {"max_grad_norm": 0.5, "batch_size": 4.0, "scenario": REPLACE}
    clean = private_gradients(module, loss, batch, noise_multiplier=1e-9, **arguments)[0]
    noised = private_gradients(module, loss, batch, noise_multiplier=3.0, **arguments)[0]
    noise = torch.cat([(noised[name] - clean[name]).flatten() for name in clean]).double()
    noise /= (1 + ROUNDING) * 3.0 * 0.5 / 4.0
    quantiles = stats.chi2.ppf([5e-7, 1 - 5e-7], len(noise)) / len(noise)
    assert quantiles[0] < float(noise.square().mean()) < quantiles[1]
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-6


def test_the_event_is_what_a_step_costs() -> None:
    arguments: dict[str, Any] = {"max_grad_norm": 1.0, "noise_multiplier": 2.0, "batch_size": 4.0}
    event = private_gradients(Scaled(), loss, draw(4), scenario=REPLACE, **arguments)[1]
    assert event == GaussianRelease((2 / 2.0) ** 2)
    worlds = TwoWorldScenario(num_differing=3, adjacency="zero_out")
    event = private_gradients(Scaled(), loss, draw(4), scenario=worlds, sampling=Poisson(0.1), **arguments)[1]
    assert event == PoissonSteps.of(worlds, 0.1, 2.0, 1)
    assert math.isclose(event.mu_squared, (3 / 2.0) ** 2)


def test_an_empty_draw_is_noise_alone() -> None:
    module = Scaled()
    gradients, _ = private_gradients(
        module,
        loss,
        draw(5),
        max_grad_norm=1.0,
        noise_multiplier=1e-7,
        batch_size=2.0,
        scenario=TwoWorldScenario.differential_privacy(),
        sampling=Poisson(0.01),
        num_records=0,
    )
    assert all(float(gradient.abs().max()) < 1e-5 for gradient in gradients.values())


def test_what_it_refuses() -> None:
    arguments: dict[str, Any] = {"max_grad_norm": 1.0, "noise_multiplier": 2.0, "batch_size": 4.0}
    with pytest.raises(ValueError, match="num_records is missing"):
        private_gradients(Scaled(), loss, draw(4), scenario=TwoWorldScenario.differential_privacy(), **arguments)
    with pytest.raises(ValueError, match="leave it out"):
        private_gradients(
            Scaled(), loss, draw(4), scenario=REPLACE, sampling=Poisson(0.1, secret_draws=False), **arguments
        )
    with pytest.raises(ValueError, match="normalizes over the batch"):
        private_gradients(nn.Sequential(Scaled(), nn.BatchNorm1d(3)), loss, draw(4), scenario=REPLACE, **arguments)
    with pytest.raises(RuntimeError, match="comes after the mean over the batch"):  # its gradient would not be noised
        private_gradients(
            Scaled(),
            lambda module, batch: loss(module, batch) + float(batch[0].mean()) * module.last.weight.square().sum(),
            draw(4),
            scenario=REPLACE,
            **arguments,
        )
    hooked = Scaled()
    hooked.last.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * inputs[0].abs().max(),))
    with pytest.raises(ValueError, match="'last' has a backward hook"):
        private_gradients(hooked, loss, draw(4), scenario=REPLACE, **arguments)
    outside = nn.Linear(5, 5)
    batch = draw(4)
    computed_before = outside(batch[0]).sum()
    for wrong in (
        lambda module, batch: loss(module, [outside(batch[0]), batch[1]]),
        lambda module, batch: loss(module, batch) + computed_before,
    ):
        with pytest.raises(PrivacyViolationError, match="received a gradient, which is raw, and is not a parameter of"):
            private_gradients(Scaled(), wrong, batch, scenario=REPLACE, **arguments)
    assert outside.bias.grad is None
    module = Scaled()
    outside.requires_grad_(False)
    frozen = lambda module, batch: loss(module, [outside(batch[0]), batch[1]])  # noqa: E731
    private_gradients(module, frozen, draw(4), scenario=REPLACE, **arguments)
    loss(module, draw(4)).backward()  # nothing of the engine is left
    assert module.temperature.grad is not None
