import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from lightning_pac.accountants.privacy_loss import EpsilonDelta, GaussianCurve, SuccessBound
from lightning_pac.accountants.privacy_loss.gaussian import gaussian_log_delta

MUS = [1e-8, 1e-4, 0.01, 0.3, 0.999, 1.0, 2.0, 5.0, 60.0]
DEVIATIONS = [0.0, 0.5, 3.0, 7.0, 30.0]


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """Sixty-digit evaluation of the definition's closed form."""
    m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def test_delta_in_the_bulk_and_far_out() -> None:
    with mpmath.workdps(60):
        for mu, z in itertools.product(MUS, DEVIATIONS):
            for epsilon in {mu * z, mu**2 / 2 + mu * z, max(0.0, mu**2 / 2 - mu * z)}:
                exact = mpmath.log(exact_delta(mu, epsilon))
                assert abs(mpmath.expm1(gaussian_log_delta(mu, epsilon) - exact)) < 1e-12
                if exact > -700:
                    delta = mpmath.exp(exact)
                    assert delta * (1 - 1e-15) <= GaussianCurve(mu).delta(epsilon) <= delta * (1 + 1e-9)


def test_delta_by_quadrature() -> None:
    for mu, epsilon in [(0.5, 0.2), (1.0, 0.0), (2.0, 3.0)]:
        # Where the densities' ratio passes e^epsilon the hockey stick begins.
        start = epsilon / mu + mu / 2
        value, _ = integrate.quad(
            lambda x, m=mu, e=epsilon: stats.norm.pdf(x - m) - math.exp(e) * stats.norm.pdf(x),
            start,
            start + 40,
            epsabs=1e-15,
            epsrel=1e-13,
        )
        assert GaussianCurve(mu).delta(epsilon) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("mu", [1e-4, 0.05, 1.0, 8.0])
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-12, 1e-300])
def test_epsilon_inverts_delta_from_above(mu: float, delta: float) -> None:
    curve = GaussianCurve(mu)
    epsilon = curve.epsilon(delta)
    assert curve.delta(epsilon) <= delta
    if epsilon:
        with mpmath.workdps(60):
            truth = mpmath.findroot(lambda e: mpmath.log(exact_delta(mu, e)) - mpmath.log(delta), epsilon)
        assert 0 <= epsilon / truth - 1 < 1e-9


@pytest.mark.parametrize("prior", [0.5, 0.1, 0.999])
@pytest.mark.parametrize("mu", [0.01, 0.7, 3.0])
def test_success_is_the_best_test_of_weighted_worlds(mu: float, prior: float) -> None:
    offset = math.log(prior / (1 - prior)) / mu
    exact = prior * stats.norm.cdf(mu / 2 + offset) + (1 - prior) * stats.norm.cdf(mu / 2 - offset)
    assert GaussianCurve(mu).success_bound(prior) == pytest.approx(exact, rel=1e-9)
    assert GaussianCurve(mu).success_bound(prior) == pytest.approx(
        GaussianCurve(mu).success_bound(1 - prior), rel=1e-12
    )


def test_trade_off_is_the_threshold_test() -> None:
    with mpmath.workdps(40):
        for mu, rate in itertools.product([0.1, 1.0, 4.0], [1e-12, 1e-3, 0.01, 0.5, 0.99]):
            threshold = -mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(rate) - 1)
            exact = mpmath.ncdf(threshold - mu)
            assert 0 <= 1 - GaussianCurve(mu).trade_off(rate) / exact < 1e-9


def test_promises_are_inverted_from_below() -> None:
    for promise in (EpsilonDelta(1e-3, 1e-12), EpsilonDelta(3.0, 1e-5), EpsilonDelta(500.0, 1e-5), SuccessBound(0.6)):
        mu = promise.largest_mu
        assert promise.figure(GaussianCurve(mu)) == pytest.approx(promise.limit, rel=1e-9)
        assert promise.is_kept_by(GaussianCurve(mu * (1 - 1e-9)))
        assert not promise.is_kept_by(GaussianCurve(mu * (1 + 1e-8)))
    assert SuccessBound(0.6).largest_mu == pytest.approx(2 * stats.norm.ppf(0.6), rel=1e-10)


def test_figures_err_upwards_at_extremes() -> None:
    """Where `eps/mu - mu/2` cancels, delta is below the smallest float, or the sum with a prior is rounded."""
    with mpmath.workdps(60):
        for mu in (1e-6, 0.5, 1.0, 10.0, 1e4, 1e6):
            curve = GaussianCurve(mu)
            for epsilon in (1e-3, 50.0, 700.0, mu**2 / 2 + 3 * mu, mu**2 / 2 + 10 * mu):
                assert mpmath.mpf(curve.delta(epsilon)) >= min(mpmath.mpf(5e-324), exact_delta(mu, epsilon))
                assert curve.delta(epsilon) >= exact_delta(mu, epsilon) or curve.delta(epsilon) == 5e-324
            for delta in (1e-300, 1e-100, 1e-9, 0.1):
                assert exact_delta(mu, curve.epsilon(delta)) <= mpmath.mpf(delta)
            prior = mpmath.mpf(0.5) + exact_delta(mu, 0) / 2
            assert mpmath.mpf(curve.success_bound()) >= prior or curve.success_bound() == 1.0
        for epsilon in (1e-12, 1e-6, 1.0, 8.0, 700.0):
            for delta in (1e-100, 1e-9, 0.1):
                assert exact_delta(EpsilonDelta(epsilon, delta).largest_mu, epsilon) <= mpmath.mpf(delta)
    with mpmath.workdps(400):
        for deviations in np.linspace(37.6, 38.6, 101):  # where delta has few bits left, or none
            assert mpmath.mpf(GaussianCurve(1e-3).delta(1e-3 * deviations)) >= exact_delta(1e-3, 1e-3 * deviations)


def test_nothing_released_tells_nothing() -> None:
    nothing = GaussianCurve(0.0)
    assert (nothing.delta(0.0), nothing.epsilon(1e-5), nothing.success_bound(0.2)) == (0.0, 0.0, 0.8)
    assert nothing.trade_off(0.3) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GaussianCurve(math.nan), "mu is nan, but must be a number"),
        (lambda: GaussianCurve(math.inf), "mu is inf, but a distance is finite"),
        (lambda: GaussianCurve(1.0).delta(-1.0), "epsilon is -1.0, but"),
        (lambda: GaussianCurve(1.0).epsilon(0.0), "delta is 0.0, but"),
        (lambda: GaussianCurve(1.0).success_bound(1.0), "prior is 1.0, but"),
        (lambda: GaussianCurve(1.0).trade_off(1.5), "false_positive_rate is 1.5, but"),
    ],
)
def test_bad_arguments(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_monotone() -> None:
    deltas = [GaussianCurve(1.3).delta(epsilon) for epsilon in np.linspace(0, 12, 200)]
    assert deltas == sorted(deltas, reverse=True)
    bounds = [GaussianCurve(mu).success_bound() for mu in np.geomspace(1e-3, 20, 60)]
    assert bounds == sorted(bounds)


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    exact = GaussianCurve.delta

    def counted(self: GaussianCurve, epsilon: float) -> float:
        nonlocal asked
        asked += 1
        assert asked < 1000, "the search raised epsilon by one part in 1e13 at a time, for hours"
        return exact(self, epsilon)

    monkeypatch.setattr(GaussianCurve, "delta", counted)


@pytest.mark.parametrize("delta", [5e-324, 1e-323, 1.5e-323, 1e-310, 1e-301])
@pytest.mark.parametrize("mu", [0.1, 1.0, 40.0])
@pytest.mark.usefixtures("few_steps")
def test_epsilon_at_a_delta_among_the_smallest_floats_is_found_in_few_steps(mu: float, delta: float) -> None:
    assert GaussianCurve(mu).delta(GaussianCurve(mu).epsilon(delta)) <= delta


@pytest.mark.parametrize("mu", [0.001, 0.01, 0.1, 0.3, 0.5067, 1.0, 3.0])
@pytest.mark.usefixtures("few_steps")
def test_epsilon_just_below_the_total_variation_is_found_in_few_steps(mu: float) -> None:
    # The curve is flat there against its rounding, so that raising epsilon by parts of itself did not end.
    for distance in (0.0, 1e-13, 1e-12, 5e-12, 1e-11, 1e-10, 1e-9):
        delta = float(mpmath.erf(mpmath.mpf(mu) / 2 / mpmath.sqrt(2))) * (1 - distance)
        epsilon = GaussianCurve(mu).epsilon(delta)
        assert exact_delta(mu, epsilon) <= delta
        assert epsilon * stats.norm.cdf(-mu / 2) <= delta * (1.1 * distance + 1e-10)  # the slope at 0


@pytest.mark.parametrize("mu", [1e7, 5.1e8, 1e9, 3e12, 1e16, 7e21, 1e24, 1e40, 1e100, 1e150])
@pytest.mark.parametrize("delta", [1e-300, 1e-50, 1e-5, 0.9])
def test_next_to_no_noise_has_an_epsilon(mu: float, delta: float) -> None:
    """The search ended in a math domain error, and with it a fit at noise multiplier 1e-9."""
    epsilon = GaussianCurve(mu).epsilon(delta)
    with mpmath.workdps(400):
        assert exact_delta(mu, epsilon) <= delta
    # mu^2 / 2 + mu z, where z is rounded to parts of mu.
    reach = stats.norm.isf(delta) if delta > 1e-100 else math.sqrt(-2 * math.log(delta))
    assert epsilon <= (mu**2 / 2 + mu * reach) * (1 + 1e-12) + 1e-6 * mu * (mu < 1e9)


def test_a_distance_whose_square_is_beyond_floats_has_no_epsilon() -> None:
    assert GaussianCurve(1e160).epsilon(1e-5) == math.inf
    assert GaussianCurve(1e160).delta(1.0) == GaussianCurve(1e160).success_bound() == 1.0
