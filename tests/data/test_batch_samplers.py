"""What each sampler draws, against the law it is named after."""

import math
from collections.abc import Iterable
from itertools import chain

import numpy as np
import pytest
import torch
from scipy import stats

from lightning_pac.data import (
    FixedSizeBatchSampler,
    PoissonBatchSampler,
    ShuffledBatchSampler,
    WithReplacementBatchSampler,
)

# The draws are secret, hence unseeded: every statistical threshold below fails a correct sampler less than once in 1e6.
THRESHOLD = 1e-6


def flat(batches: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def test_poisson_batch_sizes_are_binomial_and_records_independent() -> None:
    records, rate, batches = 60, 0.15, 4000
    drawn = np.zeros((batches, records), dtype=bool)
    for row, batch in enumerate(PoissonBatchSampler(records, rate, num_batches=batches)):
        assert len(set(batch)) == len(batch)
        drawn[row, batch] = True
    sizes = drawn.sum(1)
    edges = np.arange(5, 14)
    observed = [np.sum(sizes < edges[0]), *(np.sum(sizes == edge) for edge in edges[:-1]), np.sum(sizes >= edges[-1])]
    law = stats.binom(records, rate)
    expected = [law.cdf(edges[0] - 1), *(law.pmf(edge) for edge in edges[:-1]), law.sf(edges[-1] - 1)]
    assert stats.chisquare(observed, np.array(expected) * batches).pvalue > THRESHOLD
    covariance = np.cov(drawn[:, 0], drawn[:, 1])[0, 1]
    assert abs(covariance) < 6 * rate * (1 - rate) / math.sqrt(batches)


def test_poisson_draws_do_not_follow_the_global_seeds() -> None:
    def draw() -> list[list[int]]:
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        return list(PoissonBatchSampler(200, 0.2))

    assert draw() != draw()


def test_fixed_size_batches_are_distinct_and_uniform() -> None:
    records, size, batches = 20, 6, 5000
    counts = np.zeros(records)
    for batch in FixedSizeBatchSampler(records, size, num_batches=batches):
        assert len(set(batch)) == size
        counts[batch] += 1
    # Counts of one batch are negatively correlated, so the statistic is smaller than chi-squared by (N - B)/(N - 1).
    share = (records - size) / (records - 1)
    statistic = ((counts - batches * size / records) ** 2 / (batches * size / records)).sum() / share
    assert stats.chi2(records - 1).sf(statistic) > THRESHOLD


def test_batches_with_replacement_repeat_records() -> None:
    batches = list(WithReplacementBatchSampler(num_records=5, batch_size=40, num_batches=50))
    assert all(len(batch) == 40 for batch in batches)
    counts = np.bincount(np.concatenate(batches), minlength=5)
    assert stats.chisquare(counts).pvalue > THRESHOLD


def test_each_pass_is_a_fresh_permutation() -> None:
    sampler = ShuffledBatchSampler(num_records=50, batch_size=8)
    first, second = (flat(sampler) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert flat(ShuffledBatchSampler(50, 8, shuffle=False)) == list(range(50))
    assert [len(batch) for batch in ShuffledBatchSampler(50, 8, drop_last=True)] == [8] * 6


@pytest.mark.parametrize("done", [0, 1, 4, 6])
def test_a_pass_continues_where_it_stopped(done: int) -> None:
    sampler = ShuffledBatchSampler(num_records=50, batch_size=8)
    iterator = iter(sampler)
    before = [next(iterator) for _ in range(max(done, 1))][:done]
    state = sampler.state_dict(done)
    resumed = ShuffledBatchSampler(num_records=50, batch_size=8)
    resumed.load_state_dict(state)
    rest = list(resumed)
    assert sorted(flat(before + rest)) == list(range(50))
    assert sorted(flat(resumed)) == list(range(50))


def test_a_complete_pass_is_followed_by_a_new_one() -> None:
    sampler = ShuffledBatchSampler(num_records=10, batch_size=4)
    order = flat(sampler)
    sampler.load_state_dict(sampler.state_dict(3))
    assert flat(sampler) != order or flat(sampler) != order or flat(sampler) != order


def test_a_state_of_another_dataset_is_refused() -> None:
    sampler = ShuffledBatchSampler(num_records=10, batch_size=4)
    list(sampler)
    for arguments in ((11, 4), (10, 5), (10, 4, True)):
        with pytest.raises(ValueError, match="The saved pass does not fit"):
            ShuffledBatchSampler(*arguments).load_state_dict(sampler.state_dict(1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoissonBatchSampler(10, 0.0), r"rate is 0.0, but a sampling rate lies in \(0, 1\]"),
        (lambda: PoissonBatchSampler(0, 0.5), "num_records is 0"),
        (lambda: PoissonBatchSampler(10, 0.5, num_batches=0), "num_batches is 0"),
        (lambda: FixedSizeBatchSampler(10, 11), "batch_size is 11, but there are only 10 records"),
        (lambda: WithReplacementBatchSampler(10, 0), "batch_size is 0"),
        (lambda: ShuffledBatchSampler(10, 20, drop_last=True), "batch_size is 20, but there are only 10 records"),
    ],
)
def test_bad_sizes_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
