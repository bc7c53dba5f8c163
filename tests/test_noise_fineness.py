"""The law of released noise as implemented, enumerated over the words that radius and angle are made of.

A generator that hands out chosen words lets the release itself say at which word a coordinate leaves a cell. Bisection
over all words gives the probability of cells exactly, which is held against the Gaussian in multiple precision: nothing
is drawn, and there is no tolerance for chance.
"""

import math
from collections.abc import Callable, Sequence

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from lightning_pac.randomness import SecureGenerator, finite_precision, missing_tail, release_grid

DEVIATION = 2047.0  # in cells; the grid of a release makes it 1024 to 2048
HALF_TURN = 2**63
RADII = 2**127  # 63 bits, and 64 more for the words that need them
DISTANCES = [0.1, 1.0, 2.0, 7.0, 40.0, *(DEVIATION * t for t in (0.1, 0.5, 1.0, 2.0, 4.0, 5.5, 6.0, 9.0, 11.0))]
WITHIN = 5  # cells around zero
# Parameters, steps, deviation in clipping norms; one record moves the sum by one norm in every step.
SETTINGS = [(2**20, 200, 127.9), (270_000, 3_906, 63.9), (10_000_000, 200, 127.9)]


class Chosen(SecureGenerator):
    """Hands out given words: radii, angles, and on a second request what extends the short radii."""

    def __init__(self, radii: Sequence[int], angles: Sequence[int]) -> None:
        super().__init__()
        whole = [(radius + 2**63) >> 64 for radius in radii]
        rest = [radius - (k << 64) for radius, k in zip(radii, whole, strict=True) if k < 2**39]
        self.queue = [np.array([-k for k in whole] + list(angles), np.int64), np.array(rest, np.int64)]

    def fill_words(self, words: np.ndarray) -> None:
        words[:] = self.queue.pop(0)

    def words_for(self, device: torch.device, most: int) -> Callable[[int], torch.Tensor]:
        return lambda count: torch.from_numpy(self.queue.pop(0)).to(device)


def cells_of(
    radii: Sequence[int],
    angles: Sequence[int],
    value: float = 0.0,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> np.ndarray:
    """Cells to which a value, in cells, is released in both coordinates under chosen words, shape (2, k)."""
    total = torch.full((2 * len(radii),), value, dtype=dtype, device=device)
    return Chosen(radii, angles).release_(total, DEVIATION, 1.0).cpu().double().numpy().reshape(2, -1)


def count(holds: Callable[[list[int]], np.ndarray], size: int, top: int) -> list[int]:
    """How many words from 0 below `top` satisfy each of `size` conditions, which hold up to some word."""
    low, high = [0] * size, [top] * size
    while low != high:
        middle = [(a + b) // 2 for a, b in zip(low, high, strict=True)]
        for i, inside in enumerate(holds([min(m, top - 1) for m in middle])):
            if low[i] == high[i]:
                continue
            if inside:
                low[i] = middle[i] + 1
            else:
                high[i] = middle[i]
    return low


def tolerance(distance: float) -> float:
    """Cells by which a draw at a distance from zero may miss its place: what `finite_precision` presumes."""
    survival = math.exp(-((distance / DEVIATION) ** 2) / 2)
    last_bit = 2.0 ** (-64 if survival > 2.0**-24.1 else -127) / survival * DEVIATION**2 / distance
    return 2.0**-50 * distance + 2.0**-53 * DEVIATION**2 / distance + last_bit


@pytest.mark.parametrize(
    ("value", "dtype", "device"),
    [
        (0.0, torch.float64, "cpu"),
        (0.4375, torch.float64, "cpu"),
        (0.4375, torch.float32, "cpu"),
        pytest.param(0.4375, torch.float64, "cuda", marks=pytest.mark.gpu),
    ],
)
def test_radii_are_fine_from_zero_to_the_far_tail(value: float, dtype: torch.dtype, device: str) -> None:
    """Along a ray, each cell begins at the radius, in cells, that as many words exceed as the Gaussian says."""
    mpmath.mp.prec = 200
    cases = []
    for angle in [0, 1, 2**40, 2**60 + 3, 2**61, 3**39, -(2**61), 2**63 - 2**30, -(2**63), 3 * 2**61 + 7, -(7**22)]:
        cosine = mpmath.cos(mpmath.pi * angle / HALF_TURN)
        for distance in DISTANCES:
            cell = math.ceil(float(abs(cosine)) * distance) * (1 if cosine > 0 else -1)
            edge = (cell - 0.5 * (1 if cell > 0 else -1) - value) / cosine if cell else 0
            if 0 < edge < 13 * DEVIATION:
                cases.append((angle, cell, float(edge), edge))
    angles, cells = [case[0] for case in cases], np.array([case[1] for case in cases])
    beyond = count(
        lambda radii: cells_of(radii, angles, value, dtype, device)[0] * np.sign(cells) >= abs(cells),
        len(cases),
        RADII,
    )
    assert len(cases) > 100
    for words, (angle, _, near, edge) in zip(beyond, cases, strict=True):
        radius = DEVIATION * mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(words) / RADII))
        assert abs(radius - edge) < tolerance(near), f"{float(radius)} instead of {near} cells at angle {angle}"


def test_angles_are_fine_beside_the_axes_and_between() -> None:
    """On a circle, each cell of either coordinate begins at the angle at which the circle leaves it."""
    mpmath.mp.prec = 200
    cases = []
    for word in [2**127 - 2**90, 2**127 - 2**110 + 5, 2**126 + 3**40, 5**50, 2**100, 2**70, 12345]:
        radius = DEVIATION * mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(_as_drawn(word)) / RADII))
        for share in (1e-9, 1e-3, 0.1, 0.5, 0.7, 0.9, 0.9999):
            cell = math.ceil(float(radius) * share)
            if cell - 0.5 < radius:
                cases.append((word, cell, radius))
    words, cells = [case[0] for case in cases], np.array([case[1] for case in cases])
    outside = count(lambda angles: cells_of(words, angles)[0] >= cells, len(cases), HALF_TURN // 2)
    inside = count(lambda angles: cells_of(words, angles)[1] < cells, len(cases), HALF_TURN // 2)
    assert len(cases) > 40
    for first, second, (_, cell, radius) in zip(outside, inside, cases, strict=True):
        for place in (mpmath.cos(mpmath.pi * first / HALF_TURN), mpmath.sin(mpmath.pi * second / HALF_TURN)):
            # A circle that ends within this cell never leaves it.
            assert abs(radius * place - (cell - 0.5)) < tolerance(float(radius))


def test_arrays_and_tensors_are_drawn_alike() -> None:
    radii, angles = [2**127 - 2**100, 2**126, 2**103 + 5**40, 2**90, 12345], [3**39, -(2**62), 2**40, 7**22, 2**61]
    expected = Chosen(radii, angles).normal(10)
    lengths = [math.sqrt(-2 * math.log(radius / RADII)) for radius in radii]
    assert np.linalg.norm(expected.reshape(2, -1), axis=0) == pytest.approx(lengths, rel=1e-7)
    for dtype, closeness in ((torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)):
        filled = Chosen(radii, angles).fill_normal_(torch.empty(10, dtype=dtype))
        assert filled.double().numpy() == pytest.approx(expected, rel=closeness, abs=closeness)


def _as_drawn(word: int) -> int:
    """The radius word without the bits that are not drawn."""
    whole = (word + 2**63) >> 64
    return word if whole < 2**39 else whole << 64


def _near_zero(value: float, rays: int = 64) -> dict[tuple[int, int], float]:
    """By how much the probability of each pair of cells near zero misses the Gaussian's, as the radii take their words.

    Along each of some rays the probability is counted in words and computed; what differs is averaged.
    """
    angles = [(2 * i + 1) * HALF_TURN // rays - HALF_TURN for i in range(rays)]
    start = round(value)
    directions = [(math.cos(a * math.pi / HALF_TURN), math.sin(a * math.pi / HALF_TURN)) for a in angles]
    steps = [(ray, axis, j) for ray in range(rays) for axis in (0, 1) for j in range(1, WITHIN + 2)]
    signs = np.array([1 if directions[ray][axis] > 0 else -1 for ray, axis, _ in steps])
    cells = np.array([start + sign * j for sign, (_, _, j) in zip(signs, steps, strict=True)])
    axes = np.array([axis for _, axis, _ in steps])
    words = count(
        lambda radii: (
            cells_of(radii, [angles[ray] for ray, _, _ in steps], value)[axes, np.arange(len(steps))] * signs
            >= cells * signs
        ),
        len(steps),
        RADII,
    )
    # Words that do not reach the cell, counted and as they should be.
    counted = {key: (RADII - n) / RADII for key, n in zip(steps, words, strict=True)}
    exact = {
        (ray, axis, j): -math.expm1(-(((cell - 0.5 * sign - value) / directions[ray][axis] / DEVIATION) ** 2) / 2)
        for (ray, axis, j), cell, sign in zip(steps, cells, signs, strict=True)
    }
    missed: dict[tuple[int, int], float] = {}
    for table, weight in ((counted, 1.0), (exact, -1.0)):
        for ray in range(rays):
            edges = [[0.0, *(table[ray, axis, j] for j in range(1, WITHIN + 2))] for axis in (0, 1)]
            for i in range(WITHIN + 1):
                for j in range(WITHIN + 1):
                    mass = min(edges[0][i + 1], edges[1][j + 1]) - max(edges[0][i], edges[1][j])
                    if mass > 0:
                        right, up = (1 if d > 0 else -1 for d in directions[ray])
                        cell = start + right * i, start + up * j
                        missed[cell] = missed.get(cell, 0.0) + weight * mass / rays
    return missed


def _gaussian(cell: tuple[int, int], value: float) -> float:
    """Probability of a pair of cells: the mean of the density over the cell, to second order."""
    squares = sum((n - value) ** 2 + 1 / 12 for n in cell)
    return math.exp(-squares / 2 / DEVIATION**2) / (2 * math.pi * DEVIATION**2)


@pytest.mark.parametrize(("parameters", "steps", "deviation"), SETTINGS)
def test_pairs_near_zero_do_not_tell_two_candidate_sums_apart(parameters: int, steps: int, deviation: float) -> None:
    """An attacker who knows both sums, which lie half a cell off the grid, and looks at all pairs within five cells.

    His likelihood ratio is added up over all pairs and steps to what the account promises for the Gaussian.
    """
    apart = 1.0 / release_grid(deviation) / math.sqrt(parameters)  # cells per coordinate: one clipping norm in all
    values = 0.5 - apart / 2, 0.5 + apart / 2
    missed = [_near_zero(value) for value in values]
    cells = sorted(set(missed[0]) | set(missed[1]))
    claimed = [np.array([_gaussian(cell, value) for cell in cells]) for value in values]
    real = [law + [miss.get(cell, 0.0) for cell in cells] for law, miss in zip(claimed, missed, strict=True)]
    assert all(float(np.max(abs(law / ideal - 1))) < 2.0**-27 for law, ideal in zip(real, claimed, strict=True))
    pairs = parameters / 2
    promised_per_pair = apart**2 / DEVIATION**2
    for order in (1, 2, 16):
        excess = _price(real[0], real[1], order) - _price(claimed[0], claimed[1], order)
        assert excess < 0.01 * order * promised_per_pair, f"{excess / order / promised_per_pair:.3g} times the price"
    distance = math.sqrt(steps) / deviation
    promise = stats.norm.cdf(distance / 2)
    nats = distance**2 / 2 + pairs * steps * (_price(real[0], real[1], 1) - _price(claimed[0], claimed[1], 1))
    assert stats.norm.cdf(math.sqrt(2 * nats) / 2) < promise + 1e-3


def _price(p: np.ndarray, q: np.ndarray, order: int) -> float:
    """What a few outcomes add to a Rényi divergence, of order one to the Kullback-Leibler divergence; at least 0."""
    log_ratio = np.log(np.maximum(p, 1e-300) / np.maximum(q, 1e-300))
    if order == 1:
        return float(np.sum(p * log_ratio - p + q))
    return float(np.sum(q * (np.exp(order * log_ratio) - 1 - order * np.expm1(log_ratio)))) / (order - 1)


@pytest.mark.parametrize(("parameters", "steps", "deviation"), [*SETTINGS, (10_000_000, 3_906, 127.9)])
def test_what_is_charged_covers_the_distance_from_the_gaussian(parameters: int, steps: int, deviation: float) -> None:
    """The law of a pair of cells at every radius: each edge of a cell may be off by the tolerance proven above."""
    radii = DEVIATION * np.geomspace(1e-7, math.sqrt(180 * math.log(2)), 200_001)
    mass = np.diff(-np.expm1(-((radii / DEVIATION) ** 2) / 2))
    shares = np.array([4 * tolerance(radius) for radius in radii[1:]])
    share = math.sqrt(float(np.sum(mass * np.minimum(shares, 1.0) ** 2)))
    # One record moves each pair by this many deviations; both worlds' laws are off, hence twice the share.
    apart = math.sqrt(2) / deviation / math.sqrt(parameters)
    for order in (1.0, 2.0, 16.0):
        price, claimed = order * (apart + 2 * share) ** 2 / 2, order * apart**2 / 2
        assert price < 1.0001 * claimed
    draws = parameters * steps
    chance = 100 * math.log(2)
    surplus = share * math.sqrt(draws * chance) + draws * share**2 / 4 + 2.0**-27 * chance / 3
    assert 3 * surplus < finite_precision(draws) < 2e-4
    # What lies beyond those radii, and the chance above, in both worlds.
    assert (1 + math.exp(16)) * (draws / 2 * 2.0**-90 + math.exp(-chance)) < missing_tail(draws) < 1e-8
