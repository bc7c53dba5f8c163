"""Discretised losses and their sums bound the truth from above, and closely."""

import math

import mpmath
import numpy as np
import pytest
import sampled_worlds

from lightning_pac.accountants.privacy_loss import GaussianCurve, PoissonSteps, privacy_curve
from lightning_pac.accountants.privacy_loss.composition import SummedLosses
from lightning_pac.accountants.privacy_loss.convolution import LossSum
from lightning_pac.accountants.privacy_loss.curves import LatticeCurve
from lightning_pac.accountants.privacy_loss.discretization import LossAtoms, loss_atoms, on_lattice
from lightning_pac.accountants.privacy_loss.mixtures import MixturePair


def exact_delta(sigma: float, rate: float, pair: tuple[int, int], epsilon: float) -> mpmath.mpf:
    """Delta of one step in forty digits: the hockey stick begins where the loss passes epsilon."""
    with mpmath.workdps(40):
        q, s = mpmath.mpf(rate), mpmath.mpf(sigma)
        weights = [[mpmath.binomial(d, k) * q**k * (1 - q) ** (d - k) for k in range(d + 1)] for d in pair]

        def log_sum(side: int, x: mpmath.mpf) -> mpmath.mpf:
            terms = enumerate(weights[side])
            return mpmath.log(sum(w * mpmath.exp((k * x - mpmath.mpf(k) ** 2 / 2) / s**2) for k, w in terms))

        def loss(x: mpmath.mpf) -> mpmath.mpf:
            return log_sum(0, x) - log_sum(1, -x)

        low, high = mpmath.mpf(-60 * sigma), mpmath.mpf(60 * sigma)
        if loss(high) <= epsilon:
            return mpmath.mpf(0)
        for _ in range(150):
            middle = (low + high) / 2
            low, high = (middle, high) if loss(middle) < epsilon else (low, middle)
        first = sum(w * mpmath.ncdf((k - low) / s) for k, w in enumerate(weights[0]))
        second = sum(w * mpmath.ncdf((-k - low) / s) for k, w in enumerate(weights[1]))
        return first - mpmath.exp(epsilon) * second


CASES = [
    (1.0, 0.1, (1, 0)),
    (1.0, 0.1, (0, 1)),
    (2.0, 0.05, (3, 3)),
    (0.5, 1e-3, (1, 0)),
    (0.6, 0.01, (2, 1)),
    (20.0, 1e-4, (5, 0)),
]


@pytest.mark.parametrize(("sigma", "rate", "pair"), CASES)
def test_one_step_against_forty_digits(sigma: float, rate: float, pair: tuple[int, int]) -> None:
    total = LossSum([loss_atoms(MixturePair(sigma, rate, *pair, 1e-26))], [1])
    deviation = math.sqrt(total.tilted(0.0)[2])
    curve = SummedLosses(total)
    for epsilon in deviation * np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0]):
        exact = float(exact_delta(sigma, rate, pair, epsilon))
        assert exact <= curve.delta(epsilon) <= exact * (1 + 1e-3) + 1e-24


@pytest.mark.parametrize("steps", [1, 7, 4000])
def test_gaussians_are_composed_to_a_gaussian(steps: int) -> None:
    """At rate 1 the truth is known in closed form, down to a delta of 1e-17."""
    mu = 1.3
    total = LossSum([loss_atoms(MixturePair(math.sqrt(steps) / mu, 1.0, 1, 0))], [steps])
    exact = GaussianCurve(mu)
    for rarity in (0.0, 7.0, 14.0, 28.0):
        curve = total.curve(total.tilt_for_rarity(rarity))
        middle = max(0.0, total.tilted(total.tilt_for_rarity(rarity))[1])
        for epsilon in (0.9 * middle, middle, 1.1 * middle):
            truth = exact.delta(epsilon)  # itself up to 1e-11 above
            assert truth * (1 - 1e-11) <= curve.delta(epsilon) <= truth * 1.001


@pytest.mark.parametrize(
    ("sigma", "rate", "pair", "steps"),
    [
        (6.408, 0.01, (10, 0), 3906),
        (6.408, 0.01, (0, 10), 3906),
        (1.314, 0.01, (1, 0), 3906),
        (14.17, 0.1, (10, 10), 50),
        (0.7, 0.002, (2, 0), 500),
    ],
)
def test_runs_against_a_plain_transform_on_two_grids(
    sigma: float, rate: float, pair: tuple[int, int], steps: int
) -> None:
    total = LossSum([loss_atoms(MixturePair(sigma, rate, *pair, 1e-26))], [steps])
    epsilons = [0.0, 0.5, 1.5]
    lattice = total.curve(0.0).step / 2
    coarse, fine = (
        sampled_worlds.mean_preserving_deltas(sigma, rate, pair, steps, epsilons, step)
        for step in (2 * lattice, lattice)
    )
    curve = total.curve(0.0)
    for epsilon, first, second in zip(epsilons, coarse, fine, strict=True):
        truth, doubt = second + (second - first) / 3, abs(second - first) + 1e-9
        assert truth - doubt <= curve.delta(epsilon) <= truth * (1 + 1e-3) + doubt


def test_dividing_losses_keeps_both_worlds_masses() -> None:
    atoms = LossAtoms(np.array([-0.37, 0.01, 0.9]), np.array([0.2, 0.5, 0.3]), 0.0, 0.0)
    lattice = on_lattice(atoms, 0.25)
    losses = lattice.offset + 0.25 * (lattice.start + np.arange(len(lattice.masses)))
    assert lattice.masses.sum() == pytest.approx(1.0)
    assert lattice.masses @ np.exp(-losses) == pytest.approx(atoms.masses @ np.exp(-atoms.losses))


def test_atoms_never_lose_mass_of_the_first_world_nor_gain_any_of_the_second() -> None:
    for sigma, rate, pair in CASES:
        atoms = loss_atoms(MixturePair(sigma, rate, *pair, 1e-26))
        assert 1 <= atoms.masses.sum() + atoms.infinite < 1 + 1e-9
        assert atoms.masses @ np.exp(-atoms.losses) <= 1


def test_a_sum_against_every_combination() -> None:
    """Two unlike losses, three and two times, by enumeration."""
    parts = [
        LossAtoms(np.array([-0.5, 0.1, 0.8]), np.array([0.3, 0.4, 0.3]), 1e-3, 0.0),
        LossAtoms(np.array([-0.2, 0.45]), np.array([0.6, 0.4]), 0.0, 0.0),
    ]
    law = {0.0: 1.0}
    for part in (parts[0],) * 3 + (parts[1],) * 2:
        law_next: dict[float, float] = {}
        for loss, mass in law.items():
            for more, share in zip(part.losses, part.masses, strict=True):
                law_next[loss + more] = law_next.get(loss + more, 0.0) + mass * share
        law = law_next
    curve = LossSum(parts, [3, 2]).curve(0.0)
    for epsilon in (0.0, 0.3, 1.1, 2.9):
        exact = sum(mass * max(0.0, -math.expm1(epsilon - loss)) for loss, mass in law.items()) + 3e-3
        assert exact - 1e-12 <= curve.delta(epsilon) <= exact * (1 + 1e-3) + 1e-6


def test_a_tail_that_is_cut_off_is_an_infinite_loss() -> None:
    part = LossAtoms(np.array([0.0, 0.5]), np.array([0.49, 0.5]), 0.01, 0.0)
    assert LossSum([part], [10]).curve(0.0).delta(100.0) >= 0.1


def test_a_billion_steps_at_a_rate_of_a_billionth_are_a_bound_and_no_certainty() -> None:
    """Rounding then moves the losses by more than their spread, and the window begins above 0."""
    steps = PoissonSteps(1.0, rate=1e-9, num_steps=10**9, num_differing=1, adjacency="add_remove")
    limit = GaussianCurve(math.sqrt(10**9 * 1e-18 * math.expm1(1.0)))  # of so many steps, by the central limit theorem
    curve = privacy_curve([steps])
    for epsilon in (0.0, 1e-6, 1e-5, 1e-3):
        assert limit.delta(epsilon) <= curve.delta(epsilon) <= 2e-3
    assert curve.success_bound() <= 0.501


def test_left_of_the_first_point_delta_rises_by_no_more_than_the_other_worlds_mass() -> None:
    true = GaussianCurve(1.0)
    part = LatticeCurve(0.5, 0.1, np.array([true.delta(0.5 + 0.1 * point) for point in range(60)]))
    for epsilon in (0.0, 0.2, 0.499999, 0.5):
        assert true.delta(epsilon) <= part.delta(epsilon) <= true.delta(0.5) + math.exp(0.5) - math.exp(epsilon) + 1e-9
    assert LatticeCurve(1e4, 0.1, np.array([0.1])).delta(1.0) == 1.0
