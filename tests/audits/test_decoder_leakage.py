"""The decoder's lower bound, against information known by quadrature."""

import math

import numpy as np
import pytest

from lightning_pac.audits import decoder_leakage
from lightning_pac.mechanisms.certified.certificate import two_point_information

TRUTH = two_point_information(2.0, 0.5)
PRIOR = np.array([0.5, 0.5])


def scores(size, slope, seed):
    """Log-posteriors of a logistic decoder of one bit sent as -1 or 1 with standard noise; slope 2 is the best."""
    rng = np.random.default_rng(seed)
    secrets = rng.integers(0, 2, size)
    release = 2.0 * secrets - 1 + rng.standard_normal(size)
    return -np.logaddexp(0, -slope * release * (2 * secrets - 1)), secrets


@pytest.mark.parametrize("slope", [2.0, 0.5, 0.0, -1.0])
def test_no_decoder_finds_more_than_there_is(slope):
    found = [decoder_leakage(*scores(5_000, slope, seed), PRIOR) for seed in range(100)]
    misses = sum(result.lower_bound > TRUTH for result in found)
    # Binomial(100, 0.01): nine or more with probability 7e-7, if the confidence were only just met.
    assert misses <= 8
    assert np.mean([result.estimate for result in found]) <= TRUTH + 0.01


def test_the_best_decoder_finds_nearly_all():
    result = decoder_leakage(*scores(200_000, 2.0, 0), PRIOR)
    assert 0.95 * TRUTH < result.lower_bound < result.estimate
    assert result.to_estimate().interval == (result.lower_bound, math.inf)


def test_cutting_the_score_off_would_overstate_leakage():
    """An overconfident decoder: truncated at 1 nat it seems to find more than there is, smoothed it does not."""
    log_posteriors, secrets = scores(20_000, 12.0, 1)
    truncated = math.log(2) - np.minimum(-log_posteriors, 1.0).mean()
    assert truncated > TRUTH
    assert decoder_leakage(log_posteriors, secrets, PRIOR).estimate < TRUTH


def test_a_density_of_records_is_no_probability():
    with pytest.raises(ValueError, match="normalize it over the possible secrets"):
        decoder_leakage(np.full(10, 3.0), np.zeros(10, int), PRIOR)
    with pytest.raises(ValueError, match="one length"):
        decoder_leakage(np.zeros(10), np.zeros(9, int), PRIOR)
    with pytest.raises(ValueError, match="smoothing"):
        decoder_leakage(np.full(3, -1.0), np.zeros(3, int), PRIOR, smoothing=0.0)
