"""One-sided noise for differential privacy against a linear program, an independent FFT and hand-made attacks."""

import itertools
import math
import os
import subprocess
import sys
import time
import warnings
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from slow_cases import slow

from lightning_pac.accountants.noised_counts import ShiftComposition, hybrid_rdp, hybrid_rdp_epsilon, shift_hockey_stick
from lightning_pac.mechanisms.one_sided import (
    ComposedRelease,
    DiscreteNoise,
    PositiveNoise,
    biased_laplace,
    linear_program_release,
    optimal_release,
    stretch,
    theorem_1_release,
)
from lightning_pac.randomness import SecureGenerator

_GRID = [(e, d) for e in (0.1, 0.25, 0.5, 1.0, 2.0, 4.0) for d in (1e-2, 1e-3, 1e-4, 1e-6, 1e-8)]


def _moment(p):
    return float(p @ np.arange(p.size, dtype=float) ** 2)


@lru_cache
def design(epsilon, delta, compositions, accounting="exact"):
    """A design that takes seconds, made once."""
    return PositiveNoise.for_dp(epsilon, delta, compositions, accounting=accounting)


def _composed_delta(p, epsilon, ups, downs, step):
    """Hockey stick of a release that goes up `ups` times and down `downs` times, by our own FFT.

    Each loss is split between the two grid points around it such that both its probabilities stay what they are: that
    only ever raises the divergence, and keeps the mean of hundreds of thousands of releases in place. With what may lie
    outside the window of the circular convolution (Chernoff) added, the result is an upper bound. Nothing is shared
    with the code under test.
    """
    parts = []
    for count, here, there, lost in ((ups, p[1:], p[:-1], p[0]), (downs, p[:-1], p[1:], p[-1])):
        if count == 0:
            continue
        losses = np.log(here / there)
        below = np.floor(losses / step).astype(int)
        upward = here * np.expm1(below * step - losses) / np.expm1(-step)
        grid = np.arange(below.min(), below.max() + 2)
        pmf = np.bincount(below - grid[0], here - upward, grid.size) + np.bincount(
            below + 1 - grid[0], upward, grid.size
        )
        parts.append((count, pmf, grid, lost))
    mean = sum(count * float(pmf @ grid) for count, pmf, grid, _ in parts)
    deviation = math.sqrt(sum(count * float(pmf @ (grid - pmf @ grid) ** 2) for count, pmf, grid, _ in parts))
    size = 2 ** math.ceil(math.log2(max(40.0 * deviation, 2.0 * epsilon / step) + 4096))
    spectrum, lower, infinite = np.ones(size // 2 + 1, dtype=complex), 0, 1.0
    for count, pmf, grid, lost in parts:
        spectrum *= np.fft.rfft(np.bincount(np.arange(grid.size) % size, pmf, size)) ** count
        lower += count * int(grid[0])
        infinite *= (1.0 - lost) ** count
    mass = np.fft.irfft(spectrum, size)
    start = int(mean) - size // 2
    losses = (start + (lower + np.arange(size) - start) % size) * step
    above = losses > epsilon
    outside = sum(_beyond(parts, sign, sign * mean + size / 2 - 1, deviation) for sign in (1, -1))
    return 1.0 - infinite + outside + float(mass[above] @ -np.expm1(epsilon - losses[above]))


def _beyond(parts, sign, end, deviation):
    """Chernoff's bound on the chance that a sum of grid losses, times `sign`, is above `end`."""
    exponents = []
    for tilt in np.geomspace(0.01, 100.0, 60) / deviation:
        tilted = ((count, np.log(pmf[pmf > 0]) + sign * tilt * grid[pmf > 0]) for count, pmf, grid, _ in parts)
        exponents.append(sum(count * float(np.logaddexp.reduce(terms)) for count, terms in tilted) - tilt * end)
    return math.exp(min(0.0, *exponents))


def test_a_single_release_equals_the_linear_program():
    for epsilon, delta in _GRID:
        p = optimal_release(epsilon, delta)
        program = linear_program_release(epsilon, delta, max_value=p.size + 2)
        assert _moment(p) == pytest.approx(_moment(program), rel=1e-9)
        assert shift_hockey_stick(p, epsilon) <= delta * (1 + 1e-7)
        # One value less is infeasible: the support is the least there is.
        with pytest.raises(ValueError, match="No noise on"):
            linear_program_release(epsilon, delta * (1 - 1e-6), max_value=p.size - 2)


def test_the_papers_closed_form_is_close_but_not_optimal():
    excess = [_moment(theorem_1_release(e, d)) / _moment(optimal_release(e, d)) - 1 for e, d in _GRID]
    assert min(excess) > -1e-12
    assert max(excess) > 0.01
    assert _moment(theorem_1_release(1.0, 1e-4)) == pytest.approx(75.385, abs=5e-4)


def test_single_release_figures_of_other_hands():
    moments = {(1.0, 1e-4): 75.377, (4.0, 1e-4): 7.556, (8.0, 1e-4): 3.106, (1.0, 1e-6): 172.66}
    for (epsilon, delta), moment in moments.items():
        assert PositiveNoise.for_dp(epsilon, delta).second_moment == pytest.approx(moment, abs=6e-3)


@pytest.mark.parametrize(
    ("epsilon", "delta", "compositions", "accounting"),
    [
        *((1.0, 1e-5, 500, "exact"), (3.0, 1e-4, 7, "exact")),
        *((0.5, 1e-6, 40, "hybrid_rdp"), (1.0, 1e-5, 2, "hybrid_rdp"), (3.0, 1e-4, 7, "hybrid_rdp")),
        *slow((0.5, 1e-6, 40, "exact"), (1.0, 1e-5, 2, "exact"), (1.0, 1e-5, 500, "hybrid_rdp")),
    ],
)
def test_every_design_is_private_under_any_mixture_of_directions(epsilon, delta, compositions, accounting):
    noise = design(epsilon, delta, compositions, accounting)
    p = noise.probabilities[noise.probabilities > 0]
    for ups in {0, compositions // 3, compositions // 2, compositions}:
        assert _composed_delta(p, epsilon, ups, compositions - ups, step=1e-4) <= delta


def test_the_independent_check_notices_noise_that_is_too_small():
    for tested, epsilon in ((design(1.0, 1e-5, 500), 0.85), (design(3.0, 1e-5, 500), 2.5)):
        assert _composed_delta(tested.probabilities, epsilon, 500, 0, step=1e-4) > 2e-5


def test_the_independent_check_equals_enumeration():
    p = np.array([0.001, 0.2, 0.5, 0.25, 0.049])
    pairs = {True: (np.append(p, 0.0), np.append(0.0, p)), False: (np.append(0.0, p), np.append(p, 0.0))}
    for downs in range(4):
        upper, lower = np.ones(1), np.ones(1)
        for release in range(3):
            # The probabilities of the run whose losses are counted, and of its neighbour.
            here, there = pairs[release >= downs]
            upper, lower = np.outer(upper, here).ravel(), np.outer(lower, there).ravel()
        for epsilon in (0.5, 2.0):
            truth = float(np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum())
            assert truth <= _composed_delta(p, epsilon, 3 - downs, downs, step=1e-3) * (1 + 1e-12)
            assert truth == pytest.approx(_composed_delta(p, epsilon, 3 - downs, downs, step=1e-3), rel=1e-5)


def test_optimised_noise_is_many_times_smaller():
    for epsilon in (1.0, 3.0):
        laplace = _moment(biased_laplace(epsilon, 1e-5, 500))
        hybrid = design(epsilon, 1e-5, 500, "hybrid_rdp").second_moment
        exact = design(epsilon, 1e-5, 500).second_moment
        assert laplace / hybrid > 20.0
        assert hybrid / exact > 1.5


def test_the_account_of_a_design_covers_every_fixed_sequence_and_hardly_more():
    for epsilon, delta, compositions in ((1.0, 1e-5, 500), (0.5, 1e-6, 40)):
        p = design(epsilon, delta, compositions).probabilities
        bound = ShiftComposition(p, compositions).delta(epsilon)
        counts = (0, compositions // 4, compositions // 2, compositions)
        fixed = [_composed_delta(p, epsilon, ups, compositions - ups, step=1e-4) for ups in counts]
        # One pair that dominates both directions would be above the worst of these threefold.
        assert max(fixed) <= bound <= delta
        assert 0.9 * delta < bound < 2.0 * max(fixed)


def test_the_convex_program_meets_its_optimality_conditions():
    # Along every direction that keeps the sum, the moment cannot fall without epsilon rising: compare with many
    # feasible neighbours, found by mixing with other private noises.
    noise = PositiveNoise.for_dp(1.0, 1e-5, 50, 300, accounting="hybrid_rdp")
    p = noise.probabilities
    other = ComposedRelease(1e-5, 50, 300, "hybrid_rdp").minimize_moment(1.3)
    order = min(np.linspace(5, 60, 221), key=lambda a: hybrid_rdp(p, a).epsilon(1e-5, 50))
    epsilon = hybrid_rdp(p, order).epsilon(1e-5, 50)
    assert epsilon == pytest.approx(1.0, abs=1e-3)
    rng = np.random.default_rng(0)
    values = np.arange(p.size, dtype=float)
    for _ in range(200):
        bump = np.exp(-0.5 * ((values - rng.uniform(0, 300)) / rng.uniform(2, 60)) ** 2)
        direction = bump / bump.sum() if rng.random() < 0.5 else other
        moved = np.maximum(p + 10 ** rng.uniform(-4, -1) * rng.choice([-1, 1]) * (direction - p), 1e-300)
        moved /= moved.sum()
        if hybrid_rdp(moved, order).epsilon(1e-5, 50) <= epsilon:
            assert _moment(moved) >= noise.second_moment * (1 - 1e-3)


@pytest.mark.slow
def test_least_epsilon_for_a_moment_budget_is_the_inverse():
    for compositions in (1, 30):
        noise = PositiveNoise.for_dp(0.8, 1e-5, compositions)
        back = PositiveNoise.for_dp(None, 1e-5, compositions, second_moment=noise.second_moment * 1.0001)
        assert back.guarantee.epsilon == pytest.approx(0.8, rel=5e-3)
        assert back.second_moment <= noise.second_moment * 1.0001


@pytest.mark.slow
def test_mixed_directions_can_be_worse_than_either_alone():
    # The two directions of a pair are not two alternatives but may come in one sequence: for this noise, up then down
    # is worse than twice up and twice down, and the accountant must cover it.
    worst = 0.0
    rng = np.random.default_rng(1)
    for _ in range(60):
        p = rng.dirichlet(np.ones(4))
        for epsilon in (0.3, 1.0, 2.0):
            q, r = np.append(p, 0.0), np.append(0.0, p)
            pairs = {"up": (q, r), "down": (r, q)}

            def divergence(first, second, epsilon=epsilon, pairs=pairs):
                upper = np.outer(pairs[first][0], pairs[second][0])
                lower = np.outer(pairs[first][1], pairs[second][1])
                return float(np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum())

            mixed = divergence("up", "down")
            pure = max(divergence("up", "up"), divergence("down", "down"))
            worst = max(worst, mixed - pure)
            bound = ShiftComposition(p, 2, discretization=1e-3).delta(epsilon)
            assert bound >= max(mixed, pure) - 1e-9
    assert worst > 0.01


def test_exact_composition_agrees_with_enumeration_and_hybrid_is_looser():
    p = optimal_release(0.7, 1e-2)
    pairs = (np.append(p, 0.0), np.append(0.0, p))
    upper, lower = pairs
    for _ in range(2):
        upper, lower = np.outer(upper, pairs[0]).ravel(), np.outer(lower, pairs[1]).ravel()
    truth = float(np.maximum(upper - math.exp(1.5) * lower, 0.0).sum())
    assert ShiftComposition(p, 3, discretization=1e-4).delta(1.5) == pytest.approx(truth, rel=2e-2)
    assert ShiftComposition(p, 3, discretization=1e-4).delta(1.5) >= truth
    assert hybrid_rdp_epsilon(p, 4e-2, 3) > ShiftComposition(p, 3).epsilon(4e-2)


def test_hybrid_rdp_pairs_each_direction_with_its_own_tail():
    p = np.array([1e-4, 0.3, 0.5, 0.1999, 0.0])
    p[4] = 1.0 - p.sum()
    p[4] = 1e-7
    p /= p.sum()
    price = hybrid_rdp(p, 3.0)
    assert price.divergence_up == pytest.approx(math.log(np.sum(p[1:] ** 3 / p[:-1] ** 2)) / 2, rel=1e-12)
    assert price.divergence_down == pytest.approx(math.log(np.sum(p[:-1] ** 3 / p[1:] ** 2)) / 2, rel=1e-12)
    assert (price.tail_up, price.tail_down) == pytest.approx((p[0], p[-1]), rel=1e-14)
    reversed_price = hybrid_rdp(p[::-1], 3.0)
    assert reversed_price.epsilon(1e-2, 4) == pytest.approx(price.epsilon(1e-2, 4), rel=1e-12)
    assert price.epsilon(3e-4, 4) == math.inf


@pytest.mark.parametrize("sensitivity", [2, 3, 5])
def test_stretched_noise_is_private_at_every_shift(sensitivity):
    epsilon, delta = 1.0, 1e-3
    noise = PositiveNoise.for_dp(epsilon, delta, sensitivity=sensitivity)
    for shift in range(1, sensitivity + 1):
        assert shift_hockey_stick(noise.probabilities, epsilon, shift) <= delta * (1 + 1e-9)
    assert shift_hockey_stick(noise.probabilities, epsilon, sensitivity + 1) > delta
    # The half-line bound alone would put everything on multiples of s, which a move by one gives away.
    spaced = np.zeros(sensitivity * optimal_release(epsilon, delta).size)
    spaced[::sensitivity] = optimal_release(epsilon, delta)
    assert shift_hockey_stick(spaced, epsilon, sensitivity) <= delta * (1 + 1e-9)
    assert shift_hockey_stick(spaced, epsilon, 1) == pytest.approx(1.0)


def test_stretched_noise_against_the_linear_program_and_group_privacy():
    p = stretch(optimal_release(1.0, 1e-3), 2)
    best = _moment(linear_program_release(1.0, 1e-3, max_value=p.size + 3, sensitivity=2))
    group = _moment(optimal_release(0.5, 1e-3 / (1 + math.exp(0.5))))
    assert best <= _moment(p) <= 1.12 * best
    assert _moment(p) < group


def test_samples_follow_the_probabilities():
    noise = PositiveNoise.for_dp(1.0, 1e-2)
    draws = noise.sample(200_000)
    observed = np.bincount(draws, minlength=noise.probabilities.size)
    expected = noise.probabilities * draws.size
    # A chi-square of 8 degrees of freedom passes 50 with probability 4e-8.
    assert noise.max_value == 8
    assert float(((observed - expected) ** 2 / expected).sum()) < 50.0
    assert np.exp(noise.log_prob(np.arange(9))) == pytest.approx(noise.probabilities)
    assert noise.log_prob([-1, 9, 2.5]).tolist() == [-math.inf] * 3
    assert noise.mean == pytest.approx(float(noise.probabilities @ np.arange(9)))
    assert noise.variance == pytest.approx(noise.second_moment - noise.mean**2)


def test_noise_comes_from_the_secure_generator():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = (DiscreteNoise([0.5, 0.5], SecureGenerator(seed=3)).sample(64).tolist() for _ in range(2))
    assert first == second
    third, fourth = (DiscreteNoise([0.5, 0.5]).sample(64).tolist() for _ in range(2))
    # Two secure draws of 64 fair bits agree with probability 2^-64.
    assert third != fourth


def test_probabilities_are_exact_multiples_of_what_is_drawn():
    p = PositiveNoise.for_dp(1.0, 1e-8).probabilities * 2.0**62
    assert (p == np.rint(p)).all()
    assert p.sum() == 2.0**62


@pytest.mark.parametrize("accounting", [pytest.param("exact", marks=pytest.mark.slow), "hybrid_rdp"])
def test_an_infeasible_range_names_the_least_that_works(accounting):
    for compositions, sensitivity, too_small in ((1, 1, 10), (20, 1, 30), (1, 3, 20)):
        with pytest.raises(ValueError, match=r"max_value is .*the least that works is") as error:
            PositiveNoise.for_dp(1.0, 1e-4, compositions, too_small, sensitivity=sensitivity, accounting=accounting)
        least = int(str(error.value).rsplit(" ", 1)[1].rstrip("."))
        assert (
            PositiveNoise.for_dp(
                1.0, 1e-4, compositions, least, sensitivity=sensitivity, accounting=accounting
            ).max_value
            <= least
        )
        with pytest.raises(ValueError, match=f"works is {least}"):
            PositiveNoise.for_dp(1.0, 1e-4, compositions, least - 1, sensitivity=sensitivity, accounting=accounting)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 1.0, "delta": 0.0}, "delta = 0 is impossible"),
        ({"epsilon": 1.0, "delta": 1.0}, r"delta must lie in \(0, 1\)"),
        ({"epsilon": 0.0}, "epsilon is 0.0, but must be positive"),
        ({"epsilon": 1.0, "compositions": 0}, "compositions is 0, but must be at least 1"),
        ({"epsilon": 1.0, "max_value": -4}, "max_value is -4, but must not be negative"),
        ({"epsilon": 1.0, "sensitivity": 0}, "sensitivity is 0, but must be at least 1"),
        ({"epsilon": 1.0, "accounting": "moments"}, "accounting is 'moments', but must be exact or hybrid_rdp"),
        ({}, "epsilon or second_moment must be given"),
        ({"epsilon": 1.0, "second_moment": 3.0}, "epsilon or second_moment must be given, and not both"),
        ({"second_moment": 0.5}, "second_moment is 0.5, but no such"),
    ],
)
def test_bad_input_is_one_clear_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        PositiveNoise.for_dp(**arguments)


@pytest.mark.parametrize("p", [[0.5, 0.6], [-0.1, 1.1], [], [[0.5, 0.5]], [math.nan, 1.0]])
def test_noise_must_be_a_distribution_from_zero_up(p):
    with pytest.raises(ValueError, match="probabilities must be one row of non-negative numbers with sum 1"):
        DiscreteNoise(p)


_VUVUZELA = """
import math, sys, time
import numpy as np
from lightning_pac.mechanisms.one_sided import PositiveNoise
start = time.process_time()
noise = PositiveNoise.for_dp(math.log(2), 1e-4, 250_000, 30_000)
seconds = time.process_time() - start
np.save(sys.argv[1], noise.probabilities)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, int(peak.split()[1]) / 2**20)
"""


@pytest.mark.slow
def test_the_vuvuzela_setting(tmp_path):
    # In a process of its own, whose memory is none of the other tests'; its ru_maxrss would begin with theirs.
    command = [sys.executable, "-c", _VUVUZELA, str(tmp_path / "noise.npy")]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True
    )
    seconds, gibibytes = (float(figure) for figure in done.stdout.split())
    assert gibibytes < 2.0
    probabilities = np.load(tmp_path / "noise.npy")
    print(f"mean {probabilities @ np.arange(probabilities.size):.0f}, {seconds:.0f} s, {gibibytes:.2f} GiB")
    assert probabilities @ np.arange(probabilities.size) <= 14_500
    p = probabilities[probabilities > 0]
    for ups in (0, 125_000, 250_000):
        assert _composed_delta(p, math.log(2), ups, 250_000 - ups, step=1e-5) <= 1e-4
    # The bound is tight enough to tell: half of epsilon is more than this noise can promise.
    assert _composed_delta(p, math.log(2) / 2, 250_000, 0, step=1e-5) > 1e-4


def _exact_delta(noise, epsilon):
    """The delta of what is drawn, in rational arithmetic."""
    ends = [0, *(int(end) for end in noise._cumulative)]
    units = [high - low for low, high in itertools.pairwise(ends)]
    factor, here, there = Fraction(math.exp(epsilon)), [*units, 0], [0, *units]
    sides = ((here, there), (there, here))
    return max(sum(max(Fraction(0), a - factor * b) for a, b in zip(*side, strict=True)) for side in sides) / ends[-1]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 1e-12), (0.3, 1e-13), (1.0, 1e-4), (3.0, 1e-13), (8.0, 1e-6)])
def test_what_is_drawn_keeps_delta_after_its_probabilities_are_rounded(epsilon, delta):
    assert _exact_delta(PositiveNoise.for_dp(epsilon, delta), epsilon) <= Fraction(delta)
    # The optimum itself, rounded, does not: the comparison sees a part in 10^13.
    rounded = DiscreteNoise(optimal_release(epsilon, delta))
    assert abs(_exact_delta(rounded, epsilon) / Fraction(delta) - 1) > 1e-14


def test_a_delta_that_rounding_would_spoil_is_refused():
    assert _exact_delta(DiscreteNoise(optimal_release(0.01, 1e-18)), 0.01) > 100 * Fraction(1e-18)
    with pytest.raises(ValueError, match=r"rounded to 2\*\*-50: .* it must be at least"):
        PositiveNoise.for_dp(0.01, 1e-18)


def test_a_range_that_would_take_minutes_is_refused():
    with pytest.raises(ValueError, match="epsilon is 1e-08 at delta 1e-12, where noise reaches about 2e"):
        optimal_release(1e-8, 1e-12)


@pytest.mark.parametrize(
    ("compositions", "epsilon", "max_value", "accounting", "least"),
    [
        (2, 1.0, 1, "hybrid_rdp", 54),
        (2, 1.0, 3, "hybrid_rdp", 54),
        (20, 4.0, 5, "hybrid_rdp", None),
        (2, 1.0, 1, "exact", 44),
        (5, 1.0, 1, "exact", 78),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_maximum_that_is_far_too_small_is_refused_in_words(compositions, epsilon, max_value, accounting, least):
    """The program was singular there, and the search for what works began with the slowest of what does not."""
    began = time.process_time()
    with pytest.raises(
        ValueError, match=f"max_value is {max_value}, but no noise .* the least that works is"
    ) as refused:
        PositiveNoise.for_dp(epsilon, 1e-5, compositions, max_value, accounting=accounting)
    assert time.process_time() - began < 12
    found = int(str(refused.value).rstrip(".").split()[-1])
    assert found > optimal_release(epsilon, 1e-5).size - 1  # no two releases need less than one
    assert least is None or found == least
    assert PositiveNoise.for_dp(epsilon, 1e-5, compositions, found, accounting=accounting).max_value <= found
