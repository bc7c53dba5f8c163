"""The noised release of one step: its law, its grid, its sensitivity."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats
from torch import nn

from lightning_pac.callbacks.srpp_sgd.step.clipping_blocks import BlockNoise, ClippingBlocks
from lightning_pac.callbacks.srpp_sgd.step.noisy_sum import CLIP_CHANNEL, NoisySum
from lightning_pac.gradients import ROUNDING, make_engine
from lightning_pac.randomness import SecureGenerator, round_to_grid
from lightning_pac.strategies import Ranks

# Noise is never seeded: each statistical threshold fails a correct release less than once in 1e6 runs.
THRESHOLD = 1e-6


class Doubling(Ranks):
    """Two ranks with the same sum."""

    def release(self, total: torch.Tensor, make_public: Callable[[torch.Tensor, int], torch.Tensor]) -> torch.Tensor:
        return make_public(total * 2, 0)


def make_sum(max_grad_norm: float | str = 1.5, noise_multiplier: float = 2.0, size: int = 4000) -> NoisySum:
    return NoisySum(*make_blocks(nn.ParameterList([torch.zeros(size)]), max_grad_norm), noise_multiplier)


def make_blocks(
    module: nn.Module, max_grad_norm: float | str | dict[str, float], noise: BlockNoise = "optimal"
) -> tuple[dict[str, nn.Parameter], ClippingBlocks]:
    return dict(module.named_parameters()), ClippingBlocks.of(module, max_grad_norm, noise)


def test_the_noise_has_the_stated_deviation_on_all_coordinates() -> None:
    noisy = make_sum()
    deviation = 2.0 * 1.5 * math.sqrt(1 + 0.1**2) * (1 + ROUNDING)
    assert (noisy.deviations, noisy.channel_deviation) == (pytest.approx((deviation,)), pytest.approx(deviation))
    releases = torch.stack([noisy.release() for _ in range(5)])
    assert stats.kstest(releases[:, :-1].flatten().numpy(), stats.norm(scale=deviation).cdf).pvalue > THRESHOLD
    channel = [float(make_sum(size=1).release()[-1]) for _ in range(3000)]
    assert stats.kstest(channel, stats.norm(scale=deviation).cdf).pvalue > THRESHOLD
    assert stats.kstest(channel, stats.norm(scale=1.5 * deviation).cdf).pvalue < THRESHOLD


def test_half_the_noise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SecureGenerator.release_
    monkeypatch.setattr(SecureGenerator, "release_", lambda self, total, sigma: original(self, total, 0.5 * sigma))
    noisy = make_sum()
    release = noisy.release()
    assert stats.kstest(release[:-1].numpy(), stats.norm(scale=noisy.deviations[0]).cdf).pvalue < THRESHOLD


def test_the_release_is_on_the_grid_and_rounding_the_draw_would_leak() -> None:
    noisy, generator = make_sum(), SecureGenerator()
    noisy.add([torch.rand(4000)], torch.zeros(3, 1))
    secret = noisy._sum.clone()
    release = noisy.release()
    (grid,), (deviation,) = noisy.grids, noisy.deviations
    assert torch.all(torch.remainder(release, grid) == 0)
    assert torch.all(torch.remainder(release.float(), grid) == 0)
    draw = round_to_grid(generator.fill_normal_(torch.empty_like(secret)) * deviation, grid)
    leaked = torch.remainder(secret + draw, grid)
    assert torch.equal(leaked, torch.remainder(secret, grid))


def test_the_sum_is_reduced_before_the_noise_and_then_forgotten() -> None:
    noisy = make_sum(noise_multiplier=1e-6, size=3)
    noisy.add([torch.tensor([1.0, 2.0, 3.0])], torch.tensor([[3.0], [0.6]]))
    noisy.add([torch.tensor([1.0, 0.0, 0.0])], torch.tensor([[0.0]]))
    release = noisy.release(Doubling())
    assert release.tolist() == pytest.approx([4.0, 4.0, 6.0, 2 * CLIP_CHANNEL * 1.5], abs=1e-4)
    assert float(noisy.clipped_fraction(release, batch_size=8.0)) == pytest.approx(2 / 8, abs=1e-4)
    assert noisy.release().abs().max() < 1e-4


def test_the_clipped_fraction_states_its_own_deviation() -> None:
    noisy = make_sum(size=1)
    fractions = [float(noisy.clipped_fraction(noisy.release(), 20.0)) for _ in range(2000)]
    stated = noisy.clipped_fraction_deviation(20.0)
    assert stats.kstest(fractions, stats.norm(scale=stated).cdf).pvalue > THRESHOLD
    assert stated == pytest.approx(2.0 * math.sqrt(1.01) * (1 + ROUNDING) / (0.1 * 20))


def test_the_clipped_fraction_does_not_jump() -> None:
    """Records that are all at their clipping norm, and the next floats below and above it."""
    sums = []
    for step in (-1.0, 0.0, 1.0):
        noisy = make_sum(size=1)
        noisy.add([torch.zeros(1)], torch.full((10_000, 1), 1.5).nextafter(torch.tensor(step * 9.0)))
        sums.append(float(noisy._sum[-1]) / (CLIP_CHANNEL * 1.5))
    assert sums == pytest.approx([5000.0] * 3, abs=2e-3)
    for norms, fraction in (([[0.7]], 0.0), ([[1.5]], 0.5), ([[2.25]], 1.0), ([[1e38]], 1.0), ([[0.0]], 0.0)):
        noisy = make_sum(size=1)
        noisy.add([torch.zeros(1)], torch.tensor(norms))
        assert float(noisy._sum[-1]) / (CLIP_CHANNEL * 1.5) == pytest.approx(fraction)


class Network(nn.Module):
    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        layers = {
            "linear": [nn.Flatten(), nn.Linear(32, width)],
            "deep": [nn.Flatten(), nn.Linear(32, width), nn.Tanh(), nn.Linear(width, 2)],
            "convolution": [nn.Conv2d(2, width, 3), nn.GroupNorm(1, width), nn.Flatten(), nn.Linear(width * 4, 2)],
        }
        self.layers = nn.Sequential(*layers[kind])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["linear", "deep", "convolution"]),
    width=st.integers(1, 6),
    records=st.integers(1, 9),
    size=st.sampled_from([1e-3, 1.0, 1e3]),
    norm=st.sampled_from([0.01, 1.0, 50.0]),
    seed=st.integers(0, 10**6),
)
def test_no_record_moves_the_sum_by_more_than_its_norm(
    kind: str, width: int, records: int, size: float, norm: float, seed: int
) -> None:
    torch.manual_seed(seed)
    network, inputs = Network(kind, width), torch.randn(records, 2, 4, 4) * size
    engine, sums = make_engine(), []
    engine.attach(network)
    for batch in (inputs, *inputs.split(1)):
        network(batch).square().sum(1).mean().backward()
        noisy = NoisySum(*make_blocks(network, norm), 1.0)
        noisy.add(*engine.clipped_sum(norm))
        sums.append(noisy._sum.clone())
    engine.detach()
    for alone in sums[1:]:
        assert float(alone[:-1].norm()) <= norm * (1 + 1e-6)
        assert float(alone.norm()) <= norm * math.sqrt(1 + CLIP_CHANNEL**2) * (1 + 1e-6)
    scale = norm * records
    assert np.allclose(sums[0].numpy(), torch.stack(sums[1:]).sum(0).numpy(), atol=2e-4 * scale)


class TwoBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(30, 40), nn.Linear(40, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(inputs).tanh())


@pytest.mark.parametrize("noise", ["optimal", "isotropic"])
def test_each_block_gets_its_own_noise_and_grid(noise: BlockNoise) -> None:
    module, norms = TwoBlocks(), {"head": 2.0, "backbone": 0.5}
    noisy = NoisySum(*make_blocks(module, norms, noise), noise_multiplier=3.0)
    backbone = sum(parameter.numel() for parameter in module.backbone.parameters())
    releases = torch.stack([noisy.release() for _ in range(40)])
    head, back = noisy.deviations
    parts = {back: releases[:, :backbone], head: releases[:, backbone:-1]}
    for deviation, part in parts.items() if noise == "optimal" else [(head, releases)]:
        assert stats.kstest(part.flatten().numpy(), stats.norm(scale=deviation).cdf).pvalue > THRESHOLD
        assert stats.kstest(part.flatten().numpy(), stats.norm(scale=1.2 * deviation).cdf).pvalue < THRESHOLD
    assert torch.all(torch.remainder(releases[:, :backbone], noisy.grids[1]) == 0)
    # The largest delta^T Sigma^-1 delta over the product of the balls, the clipped records' coordinate included.
    worst = (2.0 / head) ** 2 + (0.5 / back) ** 2 + (CLIP_CHANNEL * math.hypot(2.0, 0.5) / noisy.channel_deviation) ** 2
    assert worst * (1 + ROUNDING) ** 2 == pytest.approx(1 / 3.0**2)


@settings(max_examples=50, deadline=None)
@given(
    norms=st.lists(st.floats(0.05, 20.0), min_size=2, max_size=4),
    sizes=st.lists(st.integers(1, 10_000), min_size=4, max_size=4),
    seed=st.integers(0, 10**6),
)
def test_no_other_share_of_the_noise_has_less_power(norms: list[float], sizes: list[int], seed: int) -> None:
    sizes = sizes[: len(norms)]
    names = {str(index): () for index in range(len(norms))}
    blocks = ClippingBlocks(names, tuple(sizes), tuple(norms), "optimal")
    deviations = np.array(blocks.deviations(1.0))
    assert np.sum((np.array(norms) / deviations) ** 2) == pytest.approx(1.0)
    other = deviations * np.exp(np.random.default_rng(seed).normal(0, 0.3, len(norms)))
    other *= np.sqrt(np.sum((np.array(norms) / other) ** 2))
    assert blocks.power(1.0) <= np.sum(np.array(sizes) * other**2) * (1 + 1e-12)
    assert blocks.power(1.0) <= ClippingBlocks(names, tuple(sizes), tuple(norms), "isotropic").power(1.0) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("norms", "sentence"),
    [
        ({"backbone": 1.0}, "'head.weight' is in no block"),
        ({"backbone": 1.0, "head": 1.0, "head.bias": 1.0}, "'head.bias' is in the blocks head and head.bias"),
        ({"backbone": 1.0, "head": 1.0, "tail": 1.0}, "names 'tail', but the model has no trainable parameter there"),
    ],
)
def test_blocks_that_are_no_partition_are_refused(norms: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ClippingBlocks.of(TwoBlocks(), norms)


def test_normalised_gradients_have_no_coordinate_for_clipped_records_and_pay_none() -> None:
    noisy = make_sum("auto")
    deviation = 2.0 * (1 + ROUNDING)
    assert noisy.deviations == pytest.approx((deviation,))
    release = torch.cat([noisy.release() for _ in range(5)])
    assert len(release) == 5 * 4000
    assert stats.kstest(release.numpy(), stats.norm(scale=deviation).cdf).pvalue > THRESHOLD
    assert noisy.clipped_fraction(release, 8.0) is None
