"""Several ranks that draw together: every record once, none padded, and nothing that repeats."""

import os
from itertools import chain

import pytest
import torch

from lightning_pac.data import EpochShuffle, FixedSize, Poisson, RankShare, Sequential, WithReplacement, private_loader
from lightning_pac.randomness import SecureGenerator

# None of them is a multiple of the batch of 8, of 2 or 3 ranks and of 4 microbatches at once.
SIZES = (1, 2, 7, 13, 24, 37, 50)


def loaders(records, sampling, num_ranks, num_microbatches=1):
    key = os.urandom(32)
    return [
        private_loader(range(records), sampling, num_microbatches, RankShare(rank, num_ranks, key))
        for rank in range(num_ranks)
    ]


def deliver(loader):
    """Records of each microbatch, without the placeholder of an empty one, and the checksum of the whole."""
    return [(batch.tolist() if loader.num_drawn else [], loader.fingerprint) for batch in loader]


@pytest.mark.parametrize("num_microbatches", [1, 4])
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("records", SIZES)
def test_no_record_comes_twice_or_never_in_a_pass(records, num_ranks, num_microbatches):
    parts = loaders(records, EpochShuffle(8), num_ranks, num_microbatches)
    for _ in range(2):
        passes = [deliver(part) for part in parts]
        assert len({len(batches) for batches in passes}) == 1
        assert sorted(chain.from_iterable(batch for batches in passes for batch, _ in batches)) == list(range(records))


@pytest.mark.parametrize("sampling", [EpochShuffle(8), Poisson(0.1), FixedSize(7), WithReplacement(7), Sequential(8)])
def test_ranks_divide_one_draw_evenly_and_draw_afresh_in_each_pass(sampling):
    parts = loaders(40, sampling, 3, 2)
    orders = []
    for _ in range(2):
        passes = [deliver(part) for part in parts]
        for microbatch in zip(*passes, strict=True):
            sizes = [len(records) for records, _ in microbatch]
            assert max(sizes) - min(sizes) <= 1
            assert len({fingerprint for _, fingerprint in microbatch}) == 1
        orders.append([records for records, _ in chain(*passes)])
    assert (orders[0] != orders[1]) == sampling.random_draws


def test_ranks_with_different_keys_are_told_apart():
    first, second = (private_loader(range(40), Poisson(0.3), share=RankShare(0, 2, os.urandom(32))) for _ in range(2))
    assert [fingerprint for _, fingerprint in deliver(first)] != [fingerprint for _, fingerprint in deliver(second)]


def test_a_rank_that_fetched_ahead_and_stopped_stays_with_the_others():
    # As after a pass that limit_train_batches cut short, with workers on one rank only.
    parts = loaders(40, Poisson(0.2), 2)
    workers = private_loader(
        range(40), Poisson(0.2), share=RankShare(0, 2, parts[0]._microbatches._share.key), num_workers=1
    )
    for batches in (iter(parts[1]), iter(workers)):
        next(batches)
    assert [fingerprint for _, fingerprint in deliver(parts[1])] == [seen for _, seen in deliver(workers)]


def test_a_pass_goes_on_with_another_number_of_ranks():
    before = loaders(50, EpochShuffle(8), 3, 2)
    iterators = [iter(part) for part in before]
    seen = [next(iterator).tolist() for _ in range(5) for iterator in iterators]
    after = loaders(50, EpochShuffle(8), 2, 2)
    for part in after:
        part.load_state_dict(before[0].state_dict())
    seen += [records for part in after for records, _ in deliver(part)]
    assert sorted(chain(*seen)) == list(range(50))


def test_the_key_is_neither_shown_nor_saved():
    share = RankShare(0, 2, os.urandom(32))
    loader = private_loader(range(40), EpochShuffle(8), share=share)
    next(iter(loader))
    assert share.key.hex() not in repr(share) + str(loader.state_dict())
    assert repr(share.key) not in repr(share)


def test_generators_of_one_key_draw_the_same_and_of_two_keys_do_not():
    key = os.urandom(32)
    first, second, other = (SecureGenerator.from_key(k) for k in (key, key, os.urandom(32)))
    assert not first.seeded
    assert first.uniform(5).tolist() == second.uniform(5).tolist() != other.uniform(5).tolist()
    assert torch.equal(*(generator.fill_normal_(torch.empty(9)) for generator in (first, second)))
    with pytest.raises(ValueError, match="key has 4 bytes, but must have at least 32"):
        SecureGenerator.from_key(b"1234")
