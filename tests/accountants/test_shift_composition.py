"""Adaptive composition of one-sided noise against enumeration, exact fractions, simulation and dp-accounting."""

import itertools
import math
import time
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import pld_pmf

from lightning_pac.accountants import (
    ShiftComposition,
    hybrid_rdp,
    hybrid_rdp_epsilon,
    loss_induction,
    shift_composition,
    shift_hockey_stick,
)

EPSILONS = (0.0, 0.3, 1.0, 2.5)


def worst_strategy(noises, moves):
    """The largest divergence at each of EPSILONS over all strategies, one by one: a move for every past."""
    # What the neighbour's release is worth on the outputs of the run that is made; elsewhere nothing counts.
    seen = [{1: np.append(0.0, p[:-1]), -1: np.append(p[1:], 0.0), 0: p} for p in noises]
    num_pasts = [len(noises[0]) ** t for t in range(len(noises))]
    best = np.zeros(len(EPSILONS))
    for strategy in itertools.product(moves, repeat=sum(num_pasts)):
        upper, lower, first = np.ones(1), np.ones(1), 0
        for count, p, releases in zip(num_pasts, noises, seen, strict=True):
            rows = np.array([releases[move] for move in strategy[first : first + count]])
            upper, lower, first = np.outer(upper, p).ravel(), (lower[:, None] * rows).ravel(), first + count
        reached = [np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum() for epsilon in EPSILONS]
        best = np.maximum(best, reached)
    return best


class Lattice:
    """The game for noise whose probabilities are powers of two over a common sum: losses are multiples of ln 2.

    Values are exact fractions (of e^epsilon = a power of two), by plain recursion over the number of doublings.
    """

    def __init__(self, weights, log2_growth):
        self.weights, self.growth = weights, log2_growth
        total = sum(Fraction(2) ** w for w in weights)
        self.masses = [Fraction(2) ** w / total for w in weights]

    def outcomes(self, move):
        """(mass, loss in doublings) of each value; None for what the neighbour cannot produce."""
        for value, mass in enumerate(self.masses):
            other = value - move
            inside = 0 <= other < len(self.masses)
            yield mass, self.weights[value] - self.weights[other] if inside else None

    def values(self, moves):
        """The function of (releases left, loss so far in doublings) that the best choice among the moves reaches."""

        @cache
        def value(left, loss):
            if left == 0:
                return max(Fraction(0), 1 - Fraction(2) ** (self.growth - loss))
            return max(
                sum(mass * (1 if step is None else value(left - 1, loss + step)) for mass, step in self.outcomes(move))
                for move in moves
            )

        return value


def one_pair(p, compositions, step):
    """The bound by one pair that dominates both directions in each release, composed by dp-accounting."""
    finite = np.abs(np.diff(np.log(p)))
    reach = math.ceil(float(finite.max()) / step) + 1
    deltas = np.minimum.accumulate(np.clip(shift_hockey_stick(p, np.arange(-reach, reach + 1) * step), 0.0, 1.0))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(step, np.arange(-reach, reach + 1), deltas)
    return pmf.to_dense_pmf().self_compose(compositions, 1e-15)


def bell(size, scale, skewness=0.0):
    values = (np.arange(size) - 0.4 * size) / scale
    p = np.exp(-0.5 * values**2 + skewness * np.tanh(values))
    return p / p.sum()


@pytest.mark.parametrize(
    ("size", "compositions", "moves"), [(2, 3, (1, -1, 0)), (5, 2, (1, -1, 0)), (3, 3, (1, -1)), (6, 1, (1, -1, 0))]
)
def test_it_is_what_the_worst_of_all_strategies_reaches(size, compositions, moves):
    rng = np.random.default_rng(size)
    for _ in range(3 if size**compositions < 20 else 1):
        p = rng.dirichlet(np.full(size, 3.0))
        truth = worst_strategy([p] * compositions, moves)
        composition = ShiftComposition(p, compositions, discretization=1e-4)
        bounds = np.array([composition.delta(epsilon) for epsilon in EPSILONS])
        assert (bounds >= truth).all()
        assert bounds == pytest.approx(truth, rel=1e-5)


def test_a_version_that_follows_one_direction_only_is_caught(monkeypatch):
    game = Lattice((0, 5, 6, 6, 4, 3, 1, 0), 3)
    truth = float(game.values((1, -1))(4, 0))
    p, epsilon = np.array([float(mass) for mass in game.masses]), 3 * math.log(2.0)
    assert ShiftComposition(p, 4).delta(epsilon) >= truth
    induction = shift_composition.backward_induction
    for direction in (0, 1):

        def follow_one(releases, count, step, direction=direction):
            return induction([releases[direction]], count, step)

        monkeypatch.setattr(shift_composition, "backward_induction", follow_one)
        assert ShiftComposition(p, 4).delta(epsilon) < 0.995 * truth


@pytest.mark.parametrize("weights", [(0, 3, 5, 6, 5, 2), (0, 2, 1, 3, 0), (0, 5, 6, 6, 4, 3, 1, 0)])
@pytest.mark.parametrize("fast", [False, True])
def test_many_releases_equal_the_game_in_exact_fractions(monkeypatch, weights, fast):
    if fast:
        monkeypatch.setattr(loss_induction, "_DIRECT_OPERATIONS", 0.0)
    for growth in (0, 3, 11):
        game = Lattice(weights, growth)
        truth = float(game.values((1, -1))(16, 0))
        fixed = max(float(game.values((move,))(16, 0)) for move in (1, -1))
        p = np.array([float(mass) for mass in game.masses])
        bound = ShiftComposition(p, 16, discretization=2.0**-9).delta(growth * math.log(2.0))
        assert fixed <= truth <= bound <= truth * (1 + 1e-4) + 1e-9
        assert float(game.values((1, -1, 0))(16, 0)) == truth


def test_choosing_by_what_was_seen_is_worse_than_any_fixed_sequence():
    # Otherwise the composition of fixed sequences would do.
    game = Lattice((0, 2, 1, 3, 0), 3)
    truth = game.values((1, -1))(4, 0)
    for sequence in itertools.product((1, -1), repeat=4):
        losses = {0: Fraction(1)}
        infinite = Fraction(0)
        for move in sequence:
            infinite += sum(losses.values()) * sum(mass for mass, step in game.outcomes(move) if step is None)
            following = {}
            for (loss, before), (mass, step) in itertools.product(losses.items(), list(game.outcomes(move))):
                if step is not None:
                    following[loss + step] = following.get(loss + step, 0) + before * mass
            losses = following
        reached = infinite + sum(mass * max(Fraction(0), 1 - Fraction(2) ** (3 - k)) for k, mass in losses.items())
        assert reached < truth


def test_two_noises_in_turns_can_break_what_each_of_them_keeps():
    # Why a ledger holds the releases of one noise only.
    p, q = np.array([0.114, 0.804, 0.082]), np.array([0.603, 0.281, 0.116])
    alone = np.maximum(worst_strategy([p, p], (1, -1)), worst_strategy([q, q], (1, -1)))
    assert (worst_strategy([p, q], (1, -1)) > 1.05 * alone).any()


def test_a_simulated_neighbour_reaches_the_value_and_no_more():
    game = Lattice((0, 3, 5, 6, 5, 2), 5)
    value = game.values((1, -1))
    p = np.array([float(mass) for mass in game.masses])
    rng = np.random.default_rng(0)
    loss, infinite = np.zeros(200_000, dtype=int), np.zeros(200_000, dtype=bool)
    draws = rng.choice(p.size, (12, loss.size), p=p)
    outcomes = {move: list(game.outcomes(move)) for move in (1, -1)}
    for left, drawn in zip(range(12, 0, -1), draws, strict=True):
        lowest, highest = loss.min(), loss.max()
        choice = np.array([best_move(value, outcomes, left, k) for k in range(lowest, highest + 1)])[loss - lowest]
        for move in (1, -1):
            steps = np.array([0 if step is None else step for _, step in outcomes[move]])
            gone = np.array([step is None for _, step in outcomes[move]])
            loss = np.where(choice == move, loss + steps[drawn], loss)
            infinite |= (choice == move) & gone[drawn]
    samples = np.where(infinite, 1.0, np.maximum(1.0 - 2.0 ** (5.0 - loss), 0.0))
    bound = ShiftComposition(p, 12).delta(5 * math.log(2.0))
    # Five standard errors on each side: false alarms below 6e-7.
    assert samples.mean() == pytest.approx(bound, abs=5 * samples.std() / math.sqrt(samples.size))


def best_move(value, outcomes, left, loss):
    def future(move):
        return sum(mass * (1 if step is None else value(left - 1, loss + step)) for mass, step in outcomes[move])

    return max((1, -1), key=future)


def test_transforms_are_charged_for_their_errors(monkeypatch):
    p = bell(200, 22.0, skewness=0.6)
    monkeypatch.setattr(loss_induction, "_DIRECT_OPERATIONS", 1e12)
    direct = ShiftComposition(p, 150)
    monkeypatch.setattr(loss_induction, "_DIRECT_OPERATIONS", 0.0)
    fast = ShiftComposition(p, 150)
    for epsilon in np.linspace(0.0, 6.0, 25):
        # The two clip rare losses alike and share the grid; what is left is rounding, and it is upwards.
        assert fast.delta(epsilon) >= direct.delta(epsilon) * (1 - 1e-9)
        assert fast.delta(epsilon) <= direct.delta(epsilon) * (1 + 2e-4)


def test_blocks_lie_between_the_value_and_one_pair_per_release(monkeypatch):
    p = bell(240, 25.0, skewness=0.8)
    exact = ShiftComposition(p, 256)
    dominated = one_pair(p, 256, 1e-4)
    for epsilon in (0.5, 1.0, 2.0):
        previous = dominated.get_delta_for_epsilon(epsilon)
        assert previous > 1.02 * exact.delta(epsilon)
        for length in (4, 32, 128):
            monkeypatch.setattr(shift_composition, "_MAX_BLOCK", length)
            bound = ShiftComposition(p, 256).delta(epsilon)
            assert exact.delta(epsilon) < bound < previous
            previous = bound
        monkeypatch.undo()


def test_blocks_of_blocks_are_above_the_value(monkeypatch):
    p = bell(120, 14.0)
    exact = ShiftComposition(p, 60).delta(1.0)
    monkeypatch.setattr(shift_composition, "_MAX_BLOCK", 4)
    assert exact <= ShiftComposition(p, 60).delta(1.0) <= 1.5 * exact


def test_for_symmetric_noise_there_is_nothing_to_choose():
    p = np.exp(-0.5 * ((np.arange(301) - 150) / 30.0) ** 2)
    p /= p.sum()
    composition = ShiftComposition(p, 100)
    for epsilon in (0.5, 1.0, 2.0):
        assert composition.delta(epsilon) == pytest.approx(
            one_pair(p, 100, 2e-4).get_delta_for_epsilon(epsilon), rel=5e-3
        )


def test_epsilon_and_delta_are_inverse_and_both_orders_agree():
    composition = ShiftComposition(bell(200, 20.0), 50)
    for delta in (1e-3, 1e-2, 0.1):
        assert composition.delta(composition.epsilon(delta)) == pytest.approx(delta, rel=1e-9)
    assert composition.epsilon(1e-30) == math.inf
    assert composition.epsilon(0.99999) == 0.0
    # E_{-eps}(P, Q) = 1 - e^-eps + e^-eps E_eps(Q, P).
    assert composition.delta(-0.7) == pytest.approx(1 - math.exp(-0.7) * (1 - composition.delta(0.7)), rel=1e-12)
    assert composition.delta(math.inf) >= 1 - (1 - bell(200, 20.0)[0]) ** 50


@pytest.mark.parametrize(("compositions", "size"), [(500, 1100), (1000, 2400)])
def test_hundreds_of_releases_take_well_under_a_second(compositions, size):
    p = bell(size, size / 8.0, skewness=0.3)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        ShiftComposition(p, compositions)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 1.0


@pytest.mark.parametrize("p", [[0.5, 0.6], [-0.1, 1.1], [[0.5, 0.5]], [math.nan, 1.0]])
def test_what_is_no_distribution_is_refused(p):
    with pytest.raises(ValueError, match="probabilities "):
        ShiftComposition(p)


def test_a_sum_that_misses_one_a_little_makes_no_bound_smaller():
    p = np.exp(-0.5 * (np.arange(-2000, 2001) / 250.0) ** 2)
    p /= p.sum()
    epsilons = [hybrid_rdp_epsilon(p * factor, 1e-5, 10**6) for factor in (1.0, 1 - 9e-10, 1 + 9e-10)]
    assert epsilons[1:] == pytest.approx(epsilons[:1] * 2, rel=1e-9)
    p = bell(41, 5.0)
    deltas = [ShiftComposition(p * factor, 1000).delta(5.0) for factor in (1.0, 1 - 9e-10)]
    assert deltas[1] == pytest.approx(deltas[0], rel=1e-10)


def test_at_least_one_release():
    with pytest.raises(ValueError, match="compositions must be at least 1, got 0"):
        ShiftComposition([0.5, 0.5], 0)


def test_noise_that_gives_the_neighbour_away_is_worth_nothing():
    assert ShiftComposition([1.0], 3).delta(1.0) == 1.0
    assert ShiftComposition([0.5, 0.0, 0.5], 1).delta(4.0) == 1.0


@pytest.mark.parametrize("count", [1, 3, 7, 10**6])
@pytest.mark.parametrize("order", [1 + 1e-9, 1.05, 2.0, 1000.0])
def test_hybrid_epsilon_is_not_below_the_truth_where_tails_take_nearly_all_of_delta(order: float, count: int) -> None:
    generator = np.random.default_rng(3)
    for size in (2, 5, 30):
        p = 10.0 ** -generator.uniform(0, 11, size)
        p[0] = p[-1] = p.min() * generator.uniform(0.1, 1.0)
        p /= p.sum()
        tail = count * float(p[0])
        for delta in (tail, np.nextafter(tail, 1.0), tail * (1 + 2**-50), tail * (1 + 1e-9), 3 * tail):
            if not 0 < delta < 1:
                continue
            with mpmath.workdps(60):
                exact = [mpmath.mpf(float(value)) / mpmath.fsum(map(float, p)) for value in p]
                ends = []
                for upper, lower in ((exact[1:], exact[:-1]), (exact[:-1], exact[1:])):
                    terms = [u**order * v ** (1 - mpmath.mpf(order)) for u, v in zip(upper, lower, strict=True)]
                    room = mpmath.mpf(float(delta)) - count * exact[0]
                    excess = mpmath.mpf(order) - 1
                    price = count * mpmath.log(mpmath.fsum(terms)) - mpmath.log(room) if room > 0 else mpmath.inf
                    ends.append(price / excess)
                assert hybrid_rdp_epsilon(p, float(delta), count, order) >= max(0, *ends)


@pytest.mark.parametrize(("delta", "count"), [(0.0, 1), (2.0, 1), (0.5, 0), (0.5, -3)])
def test_hybrid_epsilon_refuses_what_is_no_promise(delta: float, count: int) -> None:
    with pytest.raises(ValueError, match=r"^(delta|compositions) must"):
        hybrid_rdp([0.1, 0.8, 0.1], 2.0).epsilon(delta, count)
