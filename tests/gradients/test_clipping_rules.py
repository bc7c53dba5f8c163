"""Every rule keeps a record strictly below C in floating point, and does what it says in real arithmetic."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from lightning_pac.gradients import ROUNDING, flat_sum, make_engine
from lightning_pac.gradients.clipping import NORMLESS_RULES, ClippingRule, clip, clip_factors, normalise


def too_long(norms: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """A rule that passes its bound by a rounding, as C / norm does in float32."""
    return (bounds / norms).clamp(max=1.0) * (1 + 1e-5)


@pytest.mark.parametrize("rule", [clip, *NORMLESS_RULES.values(), too_long])
@pytest.mark.parametrize("bound", [1.0, 0.3, 7e4, 1e-7, 1e-15])
def test_no_factor_takes_a_norm_up_to_the_bound(rule: ClippingRule, bound: float) -> None:
    generator = np.random.default_rng(0)
    # All magnitudes of float32, subnormal numbers included.
    values = np.concatenate([10.0 ** generator.uniform(-44, 38, 20_000), [0.0, 1e-45, 3.4e38, bound]])
    norms = torch.from_numpy(values.astype(np.float32))[:, None]
    factors, _ = clip_factors(norms, bound, rule)
    assert factors.isfinite().all()
    assert float((factors.double() * norms.double()).max()) < bound
    assert (factors.numpy() * norms.numpy()).max() < np.float32(bound)


def test_the_slack_is_what_keeps_the_bound() -> None:
    norms = torch.linspace(1.0, 2.0, 20_000)[:, None]
    assert float((too_long(norms, torch.ones(1)).double() * norms.double()).max()) > 1.0


def test_normalised_sums_are_those_of_single_records() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3))
    inputs, labels = torch.randn(9, 2, 8) * torch.logspace(-4, 2, 9)[:, None, None], torch.randint(3, (9,))
    wanted = 0.0
    for row in range(9):
        network.zero_grad()
        nn.functional.cross_entropy(network(inputs[row : row + 1]), labels[row : row + 1]).backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in network.parameters()]).double()
        wanted = wanted + gradient / (gradient.norm() + 0.01)
    network.zero_grad()
    engine = make_engine()
    engine.attach(network)
    nn.functional.cross_entropy(network(inputs), labels).backward()
    found, _ = engine.clipped_sum(1.0, rule=normalise)
    engine.detach()
    torch.testing.assert_close(flat_sum(found).double(), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_normalised_record_moves_the_sum_by_less_than_its_bound(dtype: torch.dtype) -> None:
    """Records made alike, so that their roundings go the same way: the whole sum stays below n C (1 + eta)."""
    torch.manual_seed(1)
    layer, engine = nn.Linear(300, 40, dtype=dtype), make_engine()
    inputs = torch.rand(1, 300).expand(64, 300).to(dtype) * 1e3
    engine.attach(layer)
    layer(inputs).float().sum(dim=1).mean().backward()
    (weight, bias), _ = engine.clipped_sum(1.0, rule=normalise)
    engine.detach()
    length = float(torch.cat([weight.flatten(), bias]).double().norm())
    assert 0.99 * 64 < length < 64 * (1 + ROUNDING)


@pytest.mark.parametrize("bound", [1e-4, 1e-6, 1e-7, 1e-15])
def test_small_bounds_hold_beside_the_largest_gradients(bound: float) -> None:
    """A factor below the smallest normal float is rounded by up to its own size."""
    layer, engine = nn.Linear(1, 1, bias=False), make_engine()
    engine.attach(layer)
    for exponent in np.linspace(math.log10(bound) + 25, 37.9, 60):
        inputs, outer = torch.tensor([[1e19], [0.0]]), torch.tensor([[2 * 10 ** (exponent - 19)], [0.0]])
        (layer(inputs) * outer).sum(1).mean().backward()
        (total,), _ = engine.clipped_sum(bound)
        assert abs(total.item()) < bound
    engine.detach()
