"""Correlated noise as a process draws it: its law over steps, its blocks, its parts."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import linalg
from torch import nn

from lightning_pac.accountants import BandedMatrix, SGDWorkload, optimal_bands
from lightning_pac.callbacks.srpp_sgd.step.clipping_blocks import ClippingBlocks
from lightning_pac.callbacks.srpp_sgd.step.noise_memory import NoiseMemory
from lightning_pac.callbacks.srpp_sgd.step.noisy_sum import NoisySum
from lightning_pac.randomness import SecureGenerator
from lightning_pac.randomness.normal import release_with_
from lightning_pac.strategies import Ranks

SIZE = 8_000
MATRIX = optimal_bands(SGDWorkload(40, momentum=0.5), 5)


def whitened(noise: torch.Tensor, matrix: BandedMatrix = MATRIX) -> bool:
    """Whether C times the noise of all steps, shape (T, n), has independent steps: one false alarm in 1e6."""
    steps, size = noise.shape
    column = np.zeros(steps)
    column[: matrix.num_bands] = matrix.coefficients[:steps]
    drawn = linalg.toeplitz(column, np.zeros(steps)) @ noise.double().numpy()
    scale = np.sqrt((1 + np.eye(steps)) / size)
    return bool((np.abs(drawn @ drawn.T / size - np.eye(steps)) < 6 * scale).all())


def draws(memory: NoiseMemory, steps: int) -> torch.Tensor:
    return torch.stack([memory.draw(SIZE, torch.device("cpu")).clone() for _ in range(steps)])


@pytest.mark.parametrize("bands", [2, 3, 5, 18])
def test_the_noise_is_that_of_forward_substitution(bands: int, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, steps = optimal_bands(SGDWorkload(40, momentum=0.5), bands), 45
    column = np.pad(matrix.coefficients, (0, steps - bands))
    drawn = torch.randn(steps, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = iter(drawn)
    monkeypatch.setattr(SecureGenerator, "fill_normal_", lambda self, tensor: tensor.copy_(next(rows)))
    memory = NoiseMemory(matrix)
    found = torch.stack([memory.draw(7, torch.device("cpu")).clone() for _ in range(steps)])
    np.testing.assert_allclose(found, linalg.solve_toeplitz((column, np.zeros(steps)), drawn.numpy()), atol=1e-12)


def test_the_matrix_makes_the_noise_white() -> None:
    noise = draws(NoiseMemory(MATRIX), 17)
    assert whitened(noise)
    assert not whitened(noise.flip(0))
    assert not whitened(noise, BandedMatrix((1.0,)))


def test_a_block_begins_without_a_past() -> None:
    memory = NoiseMemory(MATRIX)
    first = draws(memory, 7)
    memory.begin()
    second = draws(memory, 7)
    assert whitened(first)
    assert whitened(second)
    across = (first @ second.T).abs() / first.norm(dim=1)[:, None] / second.norm(dim=1)
    assert float(across.max()) < 6 / SIZE**0.5


class OneOfTwo(Ranks):
    """This process, with the second half of the coordinates."""

    def release(self, total: torch.Tensor, make_public: Callable[[torch.Tensor, int], torch.Tensor]) -> torch.Tensor:
        half = len(total) // 2
        return make_public(total[half:].clone(), half)


@pytest.mark.parametrize("ranks", [Ranks(), OneOfTwo()])
def test_every_process_noises_its_part_with_each_block_s_deviation(ranks: Ranks) -> None:
    module = nn.ModuleDict({"a": nn.Linear(1, SIZE // 2), "b": nn.Linear(1, SIZE // 2)})
    blocks = ClippingBlocks.of(module, {"a": 0.5, "b": 2.0}, "optimal")
    noisy = NoisySum(dict(module.named_parameters()), blocks, 3.0, MATRIX)
    releases = torch.stack([noisy.release(ranks) for _ in range(9)])
    first = len(releases[0]) - 1 - SIZE  # parameters of the second block come last, but for the clip channel
    assert whitened(releases[:, first:-1] / noisy.deviations[1])
    if first:
        assert whitened(releases[:, :first] / noisy.deviations[0])
    assert bool((releases[:, first:-1] % noisy.grids[1] == 0).all())


@pytest.mark.slow
def test_the_stated_deviation_of_the_clipped_fraction_is_that_of_the_noise() -> None:
    module = nn.Linear(1, 1)
    blocks = ClippingBlocks.of(module, 1.0)
    fractions, stated = [], 0.0
    for _ in range(500):
        noisy = NoisySum(dict(module.named_parameters()), blocks, 2.0, MATRIX)
        released = [noisy.clipped_fraction(noisy.release(), 20.0) for _ in range(12)]
        fractions.append(float(torch.stack(released[4:]).mean()))
        stated = noisy.clipped_fraction_deviation(20.0, 8)
    assert np.std(fractions) == pytest.approx(stated, rel=6 / (2 * 500) ** 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_release_is_the_sum_rounded_once(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    total, noise = (torch.randn(5000, dtype=torch.float64, generator=generator) for _ in range(2))
    wanted = torch.round((total.to(dtype).double() + 3.0 * noise) * 256) / 256
    assert torch.equal(release_with_(total.to(dtype), noise, 3.0, 2.0**-8).double(), wanted)
