"""Correlated noise: its price by brute force over participations, its design by dense matrices."""

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import linalg, optimize, signal
from slow_cases import slow

from lightning_pac import (
    Banded,
    BlockedPoisson,
    CyclicShuffle,
    EpochShuffle,
    Poisson,
    Sequential,
    SRPPAccountant,
    TwoWorldScenario,
)
from lightning_pac.accountants import (
    BandedMatrix,
    GaussianRelease,
    PoissonSteps,
    SGDWorkload,
    best_bands,
    optimal_bands,
    privacy_curve,
    renyi_divergence,
)
from lightning_pac.scenarios import FixedSize

Array = npt.NDArray[np.float64]


def dense(matrix: BandedMatrix, num_steps: int) -> Array:
    column = np.zeros(num_steps)
    column[: matrix.num_bands] = matrix.coefficients[:num_steps]
    return linalg.toeplitz(column, np.zeros(num_steps))


def square_root(num_bands: int) -> BandedMatrix:
    """The square root of the matrix of prefix sums, cut to the bands."""
    column = linalg.sqrtm(np.tril(np.ones((num_bands, num_bands))))[:, 0].real
    return BandedMatrix.normalized(column.tolist())


def largest_shift(matrix: BandedMatrix, stretches: list[int], per_pass: int, positions: tuple[int, ...]) -> float:
    """The largest ||C D||^2 that records at these positions of a pass reach, over all signs of their gradients."""
    total = sum(stretches)
    blocks = linalg.block_diag(*(dense(matrix, steps) for steps in stretches))
    begins = np.repeat(np.cumsum([0, *stretches[:-1]]), stretches)
    place = (np.arange(total) - begins) % per_pass  # a stretch begins with a fresh pass
    entries = [step for position in positions for step in np.flatnonzero(place == position)]
    columns = blocks[:, entries]
    signs = np.array(list(itertools.product((1, -1), repeat=len(entries))))
    return float(((signs @ columns.T) ** 2).sum(axis=1).max())


@pytest.mark.parametrize("coefficients", [(1.0, 0.5, 0.4), (1.0, -0.7, 0.6), (0.5, 1.0), (1.0,)])
@pytest.mark.parametrize("stretches", [[6], [7], [2], [3, 4], [1, 1, 3]])
def test_no_placement_of_records_surpasses_the_price(coefficients: tuple[float, ...], stretches: list[int]) -> None:
    matrix, per_pass, records = BandedMatrix.normalized(coefficients), 3, 6
    tightest = 0.0
    for batch_size, differing in [(2, 1), (2, 2), (1, 2), (1, 3)]:
        sampling = CyclicShuffle(batch_size, steps_per_pass=per_pass)
        price = matrix.square_sum(sampling, differing, records, stretches)
        for positions in itertools.combinations_with_replacement(range(per_pass), differing):
            if max(positions.count(place) for place in positions) <= batch_size:
                reached = largest_shift(matrix, stretches, per_pass, positions)
                assert reached <= price * (1 + 1e-12)
                tightest = max(tightest, reached / price)
    if stretches == [6]:  # elsewhere the last column is cut off
        assert tightest > 0.999


def test_bands_that_reach_into_the_next_pass_would_surpass_the_price() -> None:
    matrix = BandedMatrix.normalized([1.0, 0.9, 0.8, 0.7])
    assert largest_shift(matrix, [6], 2, (0,)) > 1.5 * 3  # three participations, were they apart
    with pytest.raises(ValueError, match="noise has 4 bands, but a pass has 2 steps"):
        matrix.square_sum(CyclicShuffle(3), 1, 6, 6)


@pytest.mark.parametrize("sampling", [EpochShuffle(2), Poisson(0.5), FixedSize(2)])
def test_only_one_order_keeps_records_apart(sampling: EpochShuffle) -> None:
    with pytest.raises(ValueError, match="needs every pass in one order"):
        BandedMatrix.normalized([1.0, 0.5]).check_separation(sampling, 6)
    assert BandedMatrix.normalized([1.0, 0.5]).check_separation(Sequential(2), 6) == 3


def test_the_guarantee_is_that_of_independent_noise() -> None:
    scenario = TwoWorldScenario(num_differing=10, num_records=1000)
    matrix = optimal_bands(SGDWorkload(200), 16)
    independent = SRPPAccountant(scenario, EpochShuffle(50))
    correlated = SRPPAccountant(scenario, CyclicShuffle(50), correlation=matrix)
    for steps in (200, 7, [30, 55]):
        assert correlated.world_success_bound(30.0, steps) == independent.world_success_bound(30.0, steps)
        assert correlated.epsilon_at_delta(30.0, steps) == independent.epsilon_at_delta(30.0, steps)
    with pytest.raises(ValueError, match="no average over batches"):
        SRPPAccountant(scenario, CyclicShuffle(50), notion="ms-joint", correlation=matrix)


def hockey_sticks(mixture: Array, noise: float, epsilons: list[float], runs: int) -> Array:
    """Delta at each epsilon of a mixture of Gaussians against a centred one, both ways, and errors, by simulation.

    Args:
        mixture: Means with equal weights, (means, T).
    """
    rng = np.random.default_rng(1)

    def loss(points: Array) -> Array:
        exponents = points @ mixture.T / noise**2 - (mixture**2).sum(axis=1) / (2 * noise**2)
        return np.asarray(np.logaddexp.reduce(exponents, axis=1) - math.log(len(mixture)))

    drawn = rng.normal(size=(runs, mixture.shape[1])) * noise
    with_record = drawn + mixture[rng.integers(len(mixture), size=runs)]
    values = []
    for losses in (loss(with_record), -loss(drawn)):
        gains = np.maximum(0.0, -np.expm1(np.array(epsilons)[:, None] - losses))
        values.append([gains.mean(axis=1), gains.std(axis=1) / math.sqrt(runs)])
    return np.array(values)


@pytest.mark.parametrize("position", [0, *slow(1)])
def test_the_price_of_blocked_draws_covers_the_mechanism_itself(position: int) -> None:
    # One record, drawn with probability 1/2 at each turn of its block: all of its paths, against none.
    blocks, steps, noise = 2, 6, 1.2
    matrix = BandedMatrix.normalized([1.0, 0.8])
    turns = np.arange(position, steps, blocks)
    paths = np.zeros((2 ** len(turns), steps))
    paths[:, turns] = list(itertools.product((0, 1), repeat=len(turns)))
    scenario = TwoWorldScenario(num_differing=1, num_records=4, adjacency="zero_out")
    accountant = SRPPAccountant(scenario, BlockedPoisson(0.25, blocks), correlation=matrix)
    assert accountant.is_amplified
    epsilons = [0.0, 0.2, 0.5, 1.0, 2.0]
    found = hockey_sticks(paths @ dense(matrix, steps).T, noise, epsilons, 200_000)
    (event,) = accountant.events(noise, steps)
    priced = np.array([privacy_curve([event]).delta(epsilon) for epsilon in epsilons])
    assert (found[:, 0] <= priced + 4 * found[:, 1] + 1e-9).all()  # one false alarm in 3,000
    if position == 0:  # the other's last column is cut off
        assert (found[:, 0].max(axis=0)[:3] > 0.97 * priced[:3]).all()
    # Bands that reach into the block's next turn are not covered.
    wide = dense(BandedMatrix.normalized([1.0, 0.9, 0.9]), steps)
    beyond = hockey_sticks(paths @ wide.T, noise, epsilons, 200_000)
    assert (beyond[:, 0].max(axis=0) > priced + 4 * beyond[:, 1].max(axis=0))[1:3].all()


@pytest.mark.parametrize("positions", [(0, 1), *slow(((0, 0),))])
def test_several_records_in_blocks_are_covered_wherever_they_are(positions: tuple[int, int]) -> None:
    # Two records in one block, and in two whose columns overlap: all paths of both, with one gradient.
    blocks, steps, noise = 2, 4, 2.0
    matrix = BandedMatrix.normalized([1.0, 0.8])
    paths = np.zeros((1, steps))
    for position in positions:
        turns = np.arange(position, steps, blocks)
        own = np.zeros((2 ** len(turns), steps))
        own[:, turns] = list(itertools.product((0, 1), repeat=len(turns)))
        paths = (paths[:, None] + own).reshape(-1, steps)
    scenario = TwoWorldScenario(num_differing=2, num_records=4, adjacency="zero_out")
    accountant = SRPPAccountant(scenario, BlockedPoisson(0.25, blocks), correlation=matrix)
    epsilons = [0.0, 0.2, 0.5, 1.0, 2.0]
    found = hockey_sticks(paths @ dense(matrix, steps).T, noise, epsilons, 200_000)
    curve = privacy_curve(accountant.events(noise, steps))
    priced = np.array([curve.delta(epsilon) for epsilon in epsilons])
    assert (found[:, 0] <= priced + 4 * found[:, 1] + 1e-9).all()  # one false alarm in 3,000
    # Far below what known draws would cost, and close to the worst placement.
    known = privacy_curve([GaussianRelease(8 / noise**2)])
    assert priced[2] < 0.5 * known.delta(0.5)
    if positions == (0, 0):
        assert (found[:, 0].max(axis=0)[:3] > 0.8 * priced[:3]).all()


def test_several_records_in_blocks_cost_no_less_than_in_one_block() -> None:
    # All of them in one block is one of the placements, and its price is known.
    sampling = BlockedPoisson(0.02, 4)
    for scenario in (
        TwoWorldScenario(5, 1000, "zero_out"),
        TwoWorldScenario(5, 1000),
        TwoWorldScenario((2, 3), 1000, "zero_out"),
    ):
        accountant = SRPPAccountant(scenario, sampling)
        together = PoissonSteps.of(scenario, 0.08, 9.0, num_steps=100)
        (spread,) = accountant.events(9.0, [398, 2])
        assert (spread.num_steps, spread.num_differing) == (101, scenario.num_differing)
        chained, exact = accountant.epsilon_at_delta(9.0, 400)[0], privacy_curve([together]).epsilon(1e-5)
        assert exact <= chained <= 1.05 * exact
        for order in (1.5, 16.0):
            price = accountant.epsilon(9.0, 400, order)
            assert (
                renyi_divergence([together], order) <= price <= order / 2 * spread.mu_squared * 100 / 101 * (1 + 1e-9)
            )
    # Beside Gaussian releases the curve composes as any other.
    both = privacy_curve([spread, GaussianRelease(0.1)])
    assert both.epsilon(1e-5) > max(chained, privacy_curve([GaussianRelease(0.1)]).epsilon(1e-5))
    assert both.epsilon(1e-5) < privacy_curve([GaussianRelease(0.1 + spread.mu_squared)]).epsilon(1e-5)


@pytest.mark.parametrize("workload", [
    SGDWorkload(60),
    SGDWorkload(60, momentum=0.9),
    SGDWorkload(60, tuple(np.linspace(1.0, 0.1, 60)), momentum=0.5, weight_decay=0.02),
])  # fmt: skip
def test_the_error_is_that_of_the_optimizer_step_by_step(workload: SGDWorkload) -> None:
    matrix = BandedMatrix.normalized([1.0, 0.6, 0.2])
    steps, rates = workload.num_steps, workload.rates
    weights, velocity = np.zeros((steps, steps)), np.zeros(steps)
    noise, theta = linalg.inv(dense(matrix, steps)), np.zeros(steps)
    for step in range(steps):
        velocity = workload.momentum * velocity + noise[step]
        theta = (1 - rates.mean() * workload.weight_decay) * theta + rates[step] * velocity
        weights[step] = theta
    assert workload.error(matrix) == pytest.approx(math.sqrt((weights**2).sum() / steps), rel=1e-9)


def test_the_square_root_leaves_what_the_literature_says() -> None:
    workload = SGDWorkload(3906)
    alone = workload.error(BandedMatrix((1.0,)))
    assert alone == pytest.approx(math.sqrt(3907 / 2), rel=1e-12)
    for bands, share in [(4, 0.56), (16, 0.31), (98, 0.15)]:
        found = workload.error(square_root(bands)) / alone
        assert found == pytest.approx(share, rel=0.02)
        assert square_root(bands).noise_left(3906) == pytest.approx(found, rel=1e-9)
        assert workload.error(optimal_bands(workload, bands)) < 0.91 * found * alone


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_no_search_without_gradients_finds_better_bands(momentum: float) -> None:
    workload = SGDWorkload(80, momentum=momentum)

    def error(tail: Array) -> float:
        with np.errstate(all="ignore"):
            found = workload.error(BandedMatrix.normalized([1.0, *tail]))
        return found if math.isfinite(found) else 1e9

    best = optimize.minimize(error, [0.5, 0.4], method="Nelder-Mead", options={"maxiter": 400}).fun
    assert workload.error(optimal_bands(workload, 3)) < 1.01 * best


def test_more_bands_than_steps_correlate_what_there_is() -> None:
    workload = SGDWorkload(4)
    found, enough = (workload.error(optimal_bands(workload, bands)) for bands in (9, 4))
    assert found == pytest.approx(enough, rel=1e-3)


def test_the_deviation_of_a_mean_is_that_of_dense_matrices() -> None:
    matrix = square_root(4)
    inverse = linalg.inv(dense(matrix, 30))
    for last, count in [(30, 30), (20, 5), (1, 1)]:
        shares = np.ones(count) @ inverse[last - count : last] / count
        assert matrix.mean_deviation(last, count) == pytest.approx(float(np.linalg.norm(shares)), rel=1e-9)


@pytest.mark.parametrize("bands", [4, 32])
def test_float64_keeps_the_noise_within_its_precision(bands: int) -> None:
    # The recurrence in float64, against the same sums in extended precision.
    matrix, steps, width = optimal_bands(SGDWorkload(300), bands), 300, 200
    drawn = np.random.default_rng(0).normal(size=(steps, width))
    noise = np.zeros_like(drawn)
    for step in range(steps):
        reach = min(step, matrix.num_bands - 1)
        lagged = np.array(matrix.coefficients[1 : reach + 1]) @ noise[step - reach : step][::-1]
        noise[step] = (drawn[step] - lagged) / matrix.coefficients[0]
    exact = noise.astype(np.longdouble)
    moved = -drawn.astype(np.longdouble)
    for lag, coefficient in enumerate(matrix.coefficients):
        moved[lag:] += np.longdouble(coefficient) * exact[: steps - lag]
    allowed = 2.0**-50 * (math.sqrt(matrix.precision(steps)) - 1)
    assert 0 < math.sqrt(float((moved**2).mean())) < allowed


def least_left(bands: int, steps: int) -> float:
    """The least share of noise in prefix sums, over all coefficients, by dense matrices and a search of our own."""
    sums = np.tril(np.ones((steps, steps)))

    def left(tail: Array) -> float:
        column = np.zeros(steps)
        column[:bands] = [1.0, *tail]
        factor = linalg.toeplitz(column / np.linalg.norm(column), np.zeros(steps))
        return float(np.linalg.norm(sums @ linalg.inv(factor)) / np.linalg.norm(sums))

    first = [0.5 / (k + 1) ** 0.5 for k in range(bands - 1)]
    return left(np.array([])) if bands == 1 else float(optimize.minimize(left, first, method="BFGS").fun)


def least_noise_of_turns(epsilon: float, delta: float, rate: float, turns: int) -> float:
    """Noise at which steps of the subsampled Gaussian keep a promise: losses on a grid, convolved as they are."""
    step = 5e-3

    def excess(noise: float) -> float:
        x = np.linspace(-12 * noise, 1 + 12 * noise, 20_001)
        base = np.exp(-(x**2) / (2 * noise**2))
        ratio = np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2)))
        worst = 0.0
        for weights, losses in ((base * np.exp(ratio), ratio), (base, -ratio)):
            places = np.rint(losses / step).astype(int)
            masses = np.bincount(places - places.min(), weights / weights.sum())
            total = np.array([1.0])
            for _ in range(turns):
                total = signal.fftconvolve(total, masses)
            values = (np.arange(len(total)) + turns * places.min()) * step
            worst = max(worst, float(total @ np.maximum(0.0, -np.expm1(epsilon - values))))
        return worst - delta

    return float(optimize.brentq(excess, 0.5, 6.0, xtol=1e-3))


@pytest.mark.parametrize("epsilon", [4.0, *slow(1.0)])
def test_the_best_bands_are_those_of_an_enumeration(epsilon: float) -> None:
    steps, rate, delta = 12, 1 / 6, 1e-3
    scenario = TwoWorldScenario(num_differing=1, num_records=60, adjacency="zero_out")

    def promised(account: SRPPAccountant) -> float:
        return account.noise_multiplier(epsilon, steps, delta=delta)

    left = {bands: least_left(bands, steps) for bands in range(1, 7)}
    one_order = best_bands(SRPPAccountant(scenario, CyclicShuffle(10)), steps, promised)
    assert one_order.bands == min(left, key=left.__getitem__) == 6
    assert one_order.sampling == CyclicShuffle(10)
    drawn = {
        bands: least_noise_of_turns(epsilon, delta, rate * bands, steps // bands) * left[bands]
        for bands in (1, 2, 3, 4, 6)
    }
    found = best_bands(SRPPAccountant(scenario, Poisson(rate)), steps, promised)
    assert drawn[found.bands] == pytest.approx(min(drawn.values()), rel=0.01)
    for bands in drawn:
        if bands in found.errors:
            assert found.errors[bands] == pytest.approx(drawn[bands], rel=0.01)
    assert found.sampling == (Poisson(rate) if found.bands == 1 else BlockedPoisson(rate, found.bands))
    few = best_bands(SRPPAccountant(scenario, Poisson(rate)), steps, promised, at_most=4, fits=lambda b: b != 2)
    assert set(few.errors) == {1, 4}


def test_more_bands_than_help_are_not_taken() -> None:
    # Ten records in batches of one: the price of few bands grows by their overlap, as the account says.
    scenario = TwoWorldScenario(num_differing=10, num_records=40)
    terms = SRPPAccountant(scenario, CyclicShuffle(1))
    found = best_bands(terms, 40, lambda account: account.noise_multiplier(3.0, 40, delta=1e-5), at_most=2)
    assert found.bands == 1
    assert found.errors[2] > found.errors[1]


def test_bad_requests_are_refused_in_a_sentence() -> None:
    one = TwoWorldScenario(num_differing=1, num_records=60)
    by_absence = SRPPAccountant(TwoWorldScenario.differential_privacy(), Poisson(0.1, 6))
    for wrong, words in [
        (lambda: Banded(4, at_most=8), "at_most is 8, but bands is 4 already"),
        (lambda: Banded("best").matrix(SGDWorkload(3)), "decided at the promise of a run"),
        (lambda: best_bands(SRPPAccountant(one, EpochShuffle(10)), 6, lambda account: 1.0), "so no bands are best"),
        (lambda: best_bands(by_absence, 6, lambda account: 1.0), "more than one band does not hold"),
        (lambda: Banded(1), "bands is 1, which is independent noise"),
        (lambda: BandedMatrix(()), "the first must be there"),
        (lambda: BandedMatrix((-1.0, 0.1)), "the first must be there, and positive"),
        (lambda: BandedMatrix((0.9, 0.9)), "squares that add up to 1.62"),
        (lambda: BandedMatrix(np.array([50, 61], dtype=np.int8)), "squares that add up to 6221"),
        (lambda: SGDWorkload(3, (1.0, 0.5)), "learning_rates has 2 values for 3 steps"),
        (lambda: SGDWorkload(3, momentum=1.0), "momentum is 1.0"),
        (lambda: SGDWorkload(3, weight_decay=-1.0), "weight_decay is -1.0"),
    ]:
        with pytest.raises(ValueError, match=words):
            wrong()
