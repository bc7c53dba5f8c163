"""Secure draws against their distributions, published cipher vectors, and what an attacker would do with a leak.

Draws are not seeded here: each statistical check has a false-alarm rate of at most 1e-6.
"""

import copy
import math
import os
import pickle
import threading
import time

import numpy as np
import pytest
import torch
from prepared import Child, forget_package
from scipy import stats

from lightning_pac.randomness import (
    SecureGenerator,
    chacha20,
    finite_precision,
    missing_tail,
    release_grid,
    round_to_grid,
    secure_generator,
)

FALSE_ALARM = 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_filled_normals_follow_the_normal_distribution(dtype: torch.dtype) -> None:
    values = secure_generator().fill_normal_(torch.empty(300_001, dtype=dtype)).double().numpy()
    assert stats.kstest(values, "norm").pvalue > FALSE_ALARM
    # Both members of a pair come from one radius: their squares must be uncorrelated, too.
    half = (len(values) + 1) // 2
    first, second = values[: len(values) - half], values[half:]
    for one, other in [(first, second), (first**2, second**2), (values[:-1], values[1:])]:
        assert stats.pearsonr(one, other).pvalue > FALSE_ALARM
    beyond = int((np.abs(values) > 3.5).sum())
    assert stats.binomtest(beyond, len(values), 2 * stats.norm.sf(3.5)).pvalue > FALSE_ALARM


def test_a_wrong_deviation_is_noticed() -> None:
    # The largest distance is 0.0118, which is 6.5 / sqrt(n): missed with chance below 1e-12.
    values = secure_generator().fill_normal_(torch.empty(300_000)).mul_(1.05).double().numpy()
    assert stats.kstest(values, "norm").pvalue < FALSE_ALARM


def test_array_normals_and_uniforms() -> None:
    generator = SecureGenerator()
    assert stats.kstest(generator.normal(100_001), "norm").pvalue > FALSE_ALARM
    uniforms = generator.uniform((300, 400))
    assert uniforms.shape == (300, 400)
    assert stats.kstest(uniforms.ravel(), "uniform").pvalue > FALSE_ALARM
    assert 0.0 < uniforms.min() < uniforms.max() < 1.0
    # Small ones have all their bits: the sixteenth part next to zero is not of multiples of 2**-57, or coarser ones.
    small = uniforms[uniforms < 2.0**-4]
    assert np.any((small * 2.0**57) % 1 != 0)
    zeros = SecureGenerator()
    zeros.fill_words = lambda words: words.fill(0)
    ones = SecureGenerator()
    ones.fill_words = lambda words: words.fill(-1)
    assert 0.0 < float(zeros.uniform()) < 2.0**-64 < float(ones.uniform()) < 1.0


def test_extreme_words_reach_the_stated_tail() -> None:
    class Extreme(SecureGenerator):
        def fill_words(self, words: np.ndarray) -> None:
            words[:] = self.word

    generator = Extreme()
    for word, radius in [(0, math.sqrt(2 * 127 * math.log(2))), (-(2**63), 0.0), (2**63 - 1, 0.0)]:
        generator.word = word
        for dtype in (torch.float32, torch.float64):
            pair = generator.fill_normal_(torch.empty(2, dtype=dtype)).double()
            assert math.isclose(float(pair.norm()), radius, rel_tol=1e-6, abs_tol=1e-6)
        assert math.isclose(float(np.linalg.norm(generator.normal(2))), radius, rel_tol=1e-6, abs_tol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (0,)])
def test_any_shape_dtype_and_layout_is_filled(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.full(shape, 1000.0, dtype=dtype)
    assert SecureGenerator().fill_normal_(tensor) is tensor
    assert bool((tensor.abs() < 10).all())
    strided = torch.full((6, 4), 1000.0, dtype=dtype).t()
    SecureGenerator().fill_normal_(strided)
    assert bool((strided.abs() < 10).all())


def test_integers_are_unbiased() -> None:
    generator = SecureGenerator()
    counts = np.bincount(generator.integers(7, 70_000), minlength=7)
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    # A plain remainder would make the lower half of this range twice as likely as the upper.
    large = generator.integers(3 * 2**61, 20_000)
    assert stats.kstest(large / (3 * 2**61), "uniform").pvalue > FALSE_ALARM
    assert generator.integers(1) == 0
    assert isinstance(generator.integers(5), int)
    assert generator.integers(2**63, (2, 2)).shape == (2, 2)


def test_choice_and_bernoulli() -> None:
    generator = SecureGenerator()
    weights = [0.5, 0.0, 0.2, 0.3, 0.0]
    counts = np.bincount([generator.choice(weights) for _ in range(20_000)], minlength=5)
    assert counts[1] == counts[4] == 0
    assert stats.chisquare(counts[[0, 2, 3]], [10_000, 4_000, 6_000]).pvalue > FALSE_ALARM
    hits = int(generator.bernoulli(0.01, 100_000).sum())
    assert stats.binomtest(hits, 100_000, 0.01).pvalue > FALSE_ALARM
    assert not generator.bernoulli(0.0, 100).any()
    assert generator.bernoulli(1.0, 100).all()


def test_a_forked_child_does_not_repeat_its_parent() -> None:
    generator = SecureGenerator()
    generator.bytes(8)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, generator.bytes(32))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 32) != generator.bytes(32)


def test_threads_of_a_forked_child_are_keyed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = SecureGenerator()
    keyed: list[int] = []
    rekey = generator._rekey

    def slowly() -> None:
        keyed.append(0)
        time.sleep(0.05)
        rekey()

    monkeypatch.setattr(generator, "_rekey", slowly)
    generator._generation = -1  # as a child finds it
    threads = [threading.Thread(target=generator.bytes, args=(8,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keyed) == 1


def test_copies_and_pickles_are_fresh() -> None:
    generator = SecureGenerator()
    for other in (copy.deepcopy(generator), copy.copy(generator), pickle.loads(pickle.dumps(generator))):
        assert other.bytes(32) != generator.bytes(32)
    with pytest.warns(UserWarning, match="for tests only"):
        seeded = SecureGenerator(3)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        pickle.dumps(seeded)


def test_a_seed_repeats_and_warns() -> None:
    draws = []
    for _ in range(2):
        with pytest.warns(UserWarning, match="protect nothing"):
            generator = SecureGenerator(11)
        assert generator.seeded
        draws.append((generator.normal(5).tolist(), generator.fill_normal_(torch.empty(5)).tolist()))
    assert draws[0] == draws[1]
    assert not secure_generator().seeded
    assert secure_generator() is secure_generator()


def test_threads_share_a_generator_without_repeating() -> None:
    generator, found = SecureGenerator(), []

    def draw() -> None:
        found.extend(generator.bytes(16) for _ in range(500))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 2000


def test_grid_of_a_release() -> None:
    for sigma in (1e-9, 0.3, 1.0, 1.999, 2.0, 7e5):
        step = release_grid(sigma)
        assert math.frexp(step)[0] == 0.5
        assert step <= 2.0**-10 * sigma < 2 * step
    assert round_to_grid(0.3, 0.25) == 0.25
    assert round_to_grid(np.array([0.3, -0.9]), 0.25).tolist() == [0.25, -1.0]
    for dtype in (torch.float32, torch.float64):
        values = torch.randn(10_000, dtype=dtype) * torch.logspace(-6, 12, 10_000, dtype=dtype)
        rounded = round_to_grid(values, 2.0**-8)
        assert bool((rounded.double() % 2.0**-8 == 0).all())
        assert bool(((rounded - values).abs() <= 2.0**-9).all())
        # A release that is cast to a shorter dtype stays on the grid.
        assert bool((rounded.bfloat16().double() % 2.0**-8 == 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("deviation", [0.02, 1.0, 300.0])
def test_a_release_is_value_plus_noise_on_the_grid(dtype: torch.dtype, deviation: float) -> None:
    value = torch.linspace(-50, 50, 200_001, dtype=dtype) * deviation
    released = SecureGenerator().release_(value.clone(), deviation)
    assert bool((released.double() % release_grid(deviation) == 0).all())
    noise = (released.double() - value.double()).numpy() / deviation
    assert stats.kstest(noise, "norm").pvalue > FALSE_ALARM


def test_rounding_the_draw_instead_of_the_release_publishes_the_value() -> None:
    """Two neighbouring sums are told apart from one release by their residue modulo the grid."""
    step = release_grid(1.0)
    generator = SecureGenerator()
    for value in (0.0, step / 3):
        draw = round_to_grid(generator.fill_normal_(torch.empty(100, dtype=torch.float64)), step)
        leaking = value + draw
        residue = torch.remainder(leaking, step)
        assert torch.allclose(residue, torch.full_like(residue, value), atol=1e-12)
        sound = generator.release_(torch.full((100,), value, dtype=torch.float64), 1.0, step)
        assert bool((torch.remainder(sound, step) == 0).all())


def test_missing_tail_covers_the_pairs_beyond_the_largest_radius() -> None:
    assert missing_tail(0) == 0.0
    assert missing_tail(1e40) == 1.0
    # A pair exceeds radius t with probability exp(-t**2 / 2), 127 bits reach t = sqrt(254 ln 2).
    assert missing_tail(2) >= math.exp(-127 * math.log(2))
    # What the two coordinates miss, taken alone, is less than what the pair does.
    reach = math.sqrt(180 * math.log(2))
    assert 2 * 2 * stats.norm.sf(reach) < math.exp(-(reach**2) / 2) <= missing_tail(2)


def run_kernel_interpreted() -> None:
    forget_package()
    os.environ["TRITON_INTERPRET"] = "1"
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    from lightning_pac.randomness.chacha20 import ChaCha20Keystream

    words = torch.zeros(16, dtype=torch.int32)
    nonce = bytes.fromhex("000000090000004a00000000")
    ChaCha20Keystream("cpu", bytes(range(32)), nonce, counter=1).fill_(words)
    assert words.numpy().tobytes().hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    key, start = bytes(range(1, 33)), 2**31 - 5
    keystream = ChaCha20Keystream("cpu", key, nonce, start)
    first, second = torch.zeros(16 * 300 + 7, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    keystream.fill_(first)
    keystream.fill_(second)
    cipher = Cipher(algorithms.ChaCha20(key, start.to_bytes(4, "little") + nonce), None).encryptor()
    expected = cipher.update(bytes(64 * 303))
    assert first.numpy().tobytes() == expected[: 4 * 4807]
    assert second.numpy().tobytes() == expected[64 * 301 :]
    print("equal")


def test_device_keystream_is_chacha20_of_the_standard() -> None:
    """RFC 8439, section 2.3.2, and a library's cipher, by the kernel's own source run by Triton's interpreter."""
    if not chacha20.is_available():
        with pytest.raises(RuntimeError, match="needs Triton"):
            chacha20.ChaCha20Keystream("cpu")
        return
    assert Child(run_kernel_interpreted).finish().decode() == "equal\n"


@pytest.mark.gpu
def test_noise_on_a_gpu_is_chacha20_and_normal() -> None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    key, nonce = bytes(range(32)), bytes(12)
    words = torch.zeros(16 * 1000 + 3, dtype=torch.int32, device="cuda")
    chacha20.ChaCha20Keystream("cuda", key, nonce).fill_(words)
    expected = Cipher(algorithms.ChaCha20(key, bytes(4) + nonce), None).encryptor().update(bytes(64 * 1001))
    assert words.cpu().numpy().tobytes() == expected[: 4 * words.numel()]
    generator = SecureGenerator()
    values = generator.fill_normal_(torch.empty(300_001, device="cuda")).cpu().double().numpy()
    assert stats.kstest(values, "norm").pvalue > FALSE_ALARM
    released = generator.release_(torch.zeros(1000, device="cuda"), 3.0)
    assert bool((released % release_grid(3.0) == 0).all())
    assert len(set(generator.fill_normal_(torch.empty(1000, device="cuda")).tolist())) > 990


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda g: SecureGenerator("7"), "seed is .7., but must be an integer"),
        (lambda g: g.bytes(-1), "count is -1, but must lie between 0 and"),
        (lambda g: g.integers(0), "high must be from 1"),
        (lambda g: g.choice([0.5, 0.4]), "sum 1"),
        (lambda g: g.choice([1.5, -0.5]), "non-negative"),
        (lambda g: g.bernoulli(1.5, 3), "rate is 1.5, but must lie in"),
        (lambda g: g.fill_normal_(torch.empty(3, dtype=torch.int64)), "floating-point tensor"),
        (lambda g: g.release_(torch.zeros(3, dtype=torch.bfloat16), 1.0), "float32 or float64"),
        (lambda g: g.release_(torch.zeros(3), 0.0), "positive and finite"),
        (lambda g: g.release_(torch.zeros(3), 1.0, 0.3), "power of two"),
        (lambda g: round_to_grid(1.0, 0.3), "power of two"),
        (lambda g: release_grid(math.inf), "positive and finite"),
        (lambda g: missing_tail(-1), "must not be negative"),
        (lambda g: finite_precision(-1), "must not be negative"),
        (lambda g: finite_precision(1, order=1.0), "order is 1.0, but must be above 1"),
    ],
)
def test_bad_arguments(call: object, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        call(SecureGenerator())
