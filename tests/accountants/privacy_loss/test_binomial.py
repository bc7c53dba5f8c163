"""Binomial probabilities and the bound on their errors, against forty digits."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from lightning_pac.accountants import PoissonSteps, privacy_curve
from lightning_pac.accountants.privacy_loss.binomial import log_binomial, log_binomial_error
from lightning_pac.accountants.privacy_loss.mixtures import MixturePair


def exact_log(number: int, successes: int, rate: float) -> mpmath.mpf:
    q, ways = mpmath.mpf(rate), mpmath.loggamma(number + 1)
    ways -= mpmath.loggamma(successes + 1) + mpmath.loggamma(number - successes + 1)
    return ways + successes * mpmath.log(q) + (number - successes) * mpmath.log(1 - q)


@pytest.mark.parametrize("number", [1, 2, 17, 100, 1000, 100_000])
@pytest.mark.parametrize("rate", [5e-324, 1e-17, 1e-6, 0.01, 0.3, 0.5, 0.9999, 1 - 2.0**-53])
def test_no_error_exceeds_the_bound(number: int, rate: float) -> None:
    logs = log_binomial(number, rate)
    likely = np.flatnonzero(logs > -60)
    picked = {0, number, *np.linspace(0, number, 15).astype(int), *likely[:: max(1, len(likely) // 30)]}
    with mpmath.workdps(40):
        for k in map(int, picked):
            bound = log_binomial_error(number, rate, np.array([float(k)]), logs[k : k + 1])
            assert abs(mpmath.mpf(float(logs[k])) - exact_log(number, k, rate)) <= bound
    assert np.exp(logs).sum() == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize(("number", "rate"), [(10, 0.01), (1000, 0.01), (10_000, 0.3), (100_000, 0.01)])
def test_the_weights_of_a_mixture_are_as_exact_as_it_says(number: int, rate: float) -> None:
    pair = MixturePair(100.0, rate, number, 0, 1e-26)
    counts, logs, _ = pair.first
    with mpmath.workdps(40):
        for place in range(0, len(counts), max(1, len(counts) // 40)):
            error = mpmath.mpf(float(logs[place])) - exact_log(number, int(counts[place]), rate)
            assert abs(error) <= pair.weight_error
    assert pair.weight_error < 1e-12


def test_many_steps_on_many_records_add_no_error_up() -> None:
    # Every weight was 3e-10 too small: after a million steps of both worlds 5e-5 of the probability was missing, and
    # 0.99997 was stated.
    records, steps, rate = 100_000, 1_000_000, 0.01
    noise = 2 * math.sqrt(steps) * records * rate / 10
    # The sign of the sum of all steps names the world. The draws of the records spread its mean by 3e-5 of itself.
    mean, spread = steps * records * rate, math.sqrt(steps * records * rate * (1 - rate))
    success = stats.norm.cdf(mean / math.hypot(math.sqrt(steps) * noise, spread))
    assert success > 0.999999
    curve = privacy_curve([PoissonSteps(noise, rate, steps, records, "replace")])
    assert curve.success_bound() >= success
    assert curve.delta(0.0) >= 2 * success - 1
