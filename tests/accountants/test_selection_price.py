"""Prices of private selection against the selection itself, computed term by term."""

import json
import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from lightning_pac.accountants import (
    GaussianCurve,
    GaussianRelease,
    NumberOfRuns,
    PoissonSteps,
    PrivacyCurve,
    SelectionCurve,
    SelectionPrice,
    ledger_total,
    renyi_divergence,
)
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios import TwoWorldScenario

ORDERS = (1.05, 1.5, 2.0, 4.0, 16.0, 64.0)
ETAS = (-0.2, 0.0, 0.5, 1.0, 3.0)


def hockey_stick(first, second, epsilon):
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


def renyi(first, second, order):
    order = np.asarray(order)[..., None]
    return special.logsumexp(order * np.log(first) + (1 - order) * np.log(second), axis=-1) / (order[..., 0] - 1)


class FiniteCurve(PrivacyCurve):
    """Two laws on finitely many outcomes."""

    def __init__(self, first, second):
        self.laws = [(first, second), (second, first)]

    def delta(self, epsilon):
        return max(hockey_stick(*laws, epsilon) for laws in self.laws)

    def epsilon(self, delta):
        if self.delta(0.0) <= delta:
            return 0.0
        if self.delta(100.0) > delta:
            return math.inf
        return optimize.brentq(lambda epsilon: self.delta(epsilon) - delta, 0.0, 100.0) + 1e-10

    def error_bounds(self, false_positive_rate):
        raise NotImplementedError


def masses(gamma, eta, length=1 << 13):
    """The law of the number of runs from its definition, one factor after the other."""
    k = np.arange(1, length)
    factors = (k - 1 + eta) / k
    product = 1 / k if eta == 0 else np.cumprod(factors)
    return (1 - gamma) ** k * product / (math.log(1 / gamma) if eta == 0 else gamma**-eta - 1)


def best_of(law, scores, number):
    """The law of the outcome with the largest score among k independent ones, ties broken blindly, over all k."""
    selected = np.zeros_like(law)
    exponents = np.arange(1, len(number) + 1)
    for score in np.unique(scores):
        worse, tied = law[scores < score].sum(), law[scores == score].sum()
        chance = float(number @ (np.minimum(worse + tied, 1.0) ** exponents - worse**exponents))
        selected[scores == score] = chance * law[scores == score] / tied
    return selected


def random_mechanism(random):
    size = int(random.integers(2, 8))
    first = random.dirichlet(np.full(size, random.choice([0.3, 1.0, 5.0]))) + 1e-6
    second = first * np.exp(random.choice([0.1, 1.0, 3.0]) * random.standard_normal(size))
    scores = random.integers(0, size, size) if random.random() < 0.5 else random.permutation(size)
    return first / first.sum(), second / second.sum(), scores


def test_never_below_the_selection_itself():
    random = np.random.default_rng(0)
    tightest, forward_alone = math.inf, 0
    for trial in range(200):
        first, second, scores = random_mechanism(random)
        runs = NumberOfRuns.expecting(float(random.choice([1.5, 5.0, 20.0])), ETAS[trial % len(ETAS)])
        number = masses(runs.gamma, runs.eta)
        shown = best_of(first, scores, number), best_of(second, scores, number)
        curve = SelectionCurve(FiniteCurve(first, second), runs)
        # The published price (Papernot and Steinke 2022, theorem 2), at many second orders.
        orders = np.geomspace(1.001, 500.0, 60)
        forward, backward = renyi(first, second, orders), renyi(second, first, orders)
        alone, published = (
            (1 + runs.eta) * np.min((1 - 1 / orders) * prices + math.log(1 / runs.gamma) / orders)
            for prices in (forward, np.maximum(forward, backward))
        )
        for order in ORDERS:
            one_run = max(renyi(first, second, order), renyi(second, first, order))
            price = curve.renyi(one_run, order)
            truth = max(renyi(*shown, order), renyi(*shown[::-1], order))
            assert truth <= price + 1e-9
            assert price <= one_run + published + math.log(runs.mean) / (order - 1) + 1e-6
            tightest = min(tightest, price - truth)
            of_one_way = renyi(first, second, order) + alone + math.log(runs.mean) / (order - 1)
            forward_alone += renyi(*shown, order) > of_one_way + 1e-9
        for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0):
            told = max(hockey_stick(*shown, epsilon), hockey_stick(*shown[::-1], epsilon))
            assert told <= curve.delta(epsilon) + 1e-12
            if 1e-9 < told < 1:
                assert curve.epsilon(told) >= epsilon - 1e-6
        for rate in (0.01, 0.1, 0.5):
            # The best test at a rate of false alarms is linear between those that threshold the ratio.
            by_ratio = np.argsort(shown[0] / shown[1])
            alarms, missed = np.cumsum(shown[0][by_ratio]), 1 - np.cumsum(shown[1][by_ratio])
            least = np.interp(rate, [0.0, *alarms], [1.0, *missed])
            assert max(curve.error_bounds(rate)) <= least + 1e-9
    assert 0 <= tightest < 0.05  # and not much above it somewhere
    assert forward_alone > 0  # one direction of the pair proves nothing


@pytest.mark.parametrize(("eta", "most"), [(1.0, 12.2), (0.0, 10.8)])
def test_twenty_runs_of_eight_nats(eta, most):
    runs = NumberOfRuns.expecting(20, eta)
    assert SelectionPrice([GaussianRelease(1.0)], runs).renyi(16.0) <= most
    training = PoissonSteps(6.42, 0.01, 3906, 10, "add_remove")
    one_run = renyi_divergence([training], 16.0)
    assert 7.9 < one_run < 8
    assert SelectionPrice([training, GaussianRelease((8 - one_run) / 8)], runs).renyi(16.0) <= most


def test_a_best_gaussian_is_close_to_its_price():
    # The best of K values of N(0, 1) against N(1, 1), by its density on a grid: A = P f'(chance to be worse).
    runs = NumberOfRuns.expecting(20, 1.0)
    price = SelectionPrice([GaussianRelease(1.0)], runs)
    y = np.linspace(-12, 14, 26_001)

    def log_density(mean):
        above = runs.gamma + (1 - runs.gamma) * stats.norm.sf(y - mean)
        return stats.norm.logpdf(y - mean) + math.log(runs.mean * runs.gamma**2) - 2 * np.log(above)

    first, second = log_density(0.0), log_density(1.0)
    for order in (2.0, 16.0):
        for low, high in ((first, second), (second, first)):
            moment = np.logaddexp.reduce(order * low + (1 - order) * high) + math.log(y[1] - y[0])
            assert moment / (order - 1) <= price.renyi(order)
    for epsilon in (0.0, 1.0, 4.0):
        told = (np.exp(second) - np.exp(first + epsilon)).clip(0).sum() * (y[1] - y[0])
        assert told <= price.curve.delta(epsilon)


@pytest.mark.parametrize("eta", ETAS)
def test_numbers_follow_their_law(eta):
    runs = NumberOfRuns.expecting(12.0, eta)
    law = masses(runs.gamma, eta)
    assert law @ np.arange(1, len(law) + 1) == pytest.approx(12.0, rel=1e-6)
    assert runs.mean == pytest.approx(12.0, rel=1e-12)
    np.testing.assert_allclose([runs.probability(k) for k in range(1, 100)], law[:99], rtol=1e-9)
    assert sum(runs.probability(k) for k in range(1, runs.most + 1)) == pytest.approx(1.0, abs=1e-12)


def test_drawn_numbers_follow_their_law():
    runs = NumberOfRuns.expecting(5.0, 0.0)
    with pytest.warns(UserWarning, match="tests only"):
        generator = SecureGenerator(seed=3)
    drawn = np.array([runs.draw(generator) for _ in range(20_000)])
    expected = 20_000 * np.array([*(runs.probability(k) for k in range(1, 21)), 0])
    expected[-1] = 20_000 - expected.sum()
    counts = np.bincount(np.minimum(drawn, 21), minlength=22)[1:]
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_finite_bits_count_in_every_run():
    runs = NumberOfRuns.expecting(20)
    exact, blurred = (SelectionPrice([GaussianRelease(0.1)], runs, draws) for draws in (0, 1e9))
    assert blurred.renyi(8.0) > exact.renyi(8.0)
    assert blurred.curve.epsilon(1e-5) > exact.curve.epsilon(1e-5)
    assert exact.tail == 0
    assert blurred.tail == pytest.approx(20e9 * 2.0**-64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((1.0, 0.0), "gamma"), ((1e-5, 0.0), "expect fewer"), ((0.1, -1.0), "above -1"), ((0.1, 21.0), "at most 20")],
)
def test_refuses_numbers_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        NumberOfRuns(*arguments)
    for mean in (1.0, 1e9, math.nan):
        with pytest.raises(ValueError, match=r"^mean"):
            NumberOfRuns.expecting(mean)
    with pytest.raises(ValueError, match=r"^epsilon"):
        SelectionCurve(GaussianCurve(1.0), NumberOfRuns(0.1)).delta(-1.0)


def test_a_ledger_totals_a_selection(tmp_path):
    price = SelectionPrice([GaussianRelease(0.01)], NumberOfRuns.expecting(20), 1e6)
    assert SelectionPrice.from_dict(json.loads(json.dumps(price.to_dict()))) == price
    coupling = {"scenario": TwoWorldScenario(1).coupling(), "renyi_order": 8.0}
    with PrivacyLedger(tmp_path / "study.db", budget={"rpp": 3.0}) as ledger:
        account = ledger.account("selection", "rpp", {"coupling": coupling, "selection": price.to_dict()})
        account.charge(price.renyi(8.0), {"release": "selection", "draws": 20_000_000})
        alone = ledger_total(ledger, delta=1e-6)
        assert (alone.basis, alone.renyi_epsilon) == ("run", price.renyi(8.0))
        assert alone.epsilon_at_delta == pytest.approx(price.curve.epsilon(1e-6 - price.tail))
        metric = ledger.account("metrics", "rpp", {"coupling": coupling, "epsilon_of_each": 0.1})
        metric.charge(0.1)
        both = ledger_total(ledger)
        assert (both.basis, both.renyi_epsilon) == ("cap", 3.0)
        assert "no plan was declared" in both.reason
