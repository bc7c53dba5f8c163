"""The draw that the account assumes, against batches counted from the loader itself."""

from collections import Counter
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from lightning_pac import EpochShuffle, Poisson, Sequential, WithReplacement
from lightning_pac.callbacks.srpp_sgd.step_sampling import declared_sampling
from lightning_pac.data import private_loader
from lightning_pac.data.batch_samplers import FixedSizeBatchSampler

RECORDS = 24


def loader(**kwargs):
    return DataLoader(TensorDataset(torch.arange(RECORDS)), **{"batch_size": 4, "shuffle": True, **kwargs})


def trainer(dataloader, accumulate=1, batches=None):
    return SimpleNamespace(accumulate_grad_batches=accumulate, num_training_batches=batches or len(dataloader))


def most_in_a_step(dataloader, accumulate, passes=20):
    """The most that one record comes in a step, and in a pass, as counted."""
    in_step = in_pass = 0
    for _ in range(passes):
        batches = [batch[0].tolist() for batch in dataloader]
        steps = [list(chain(*batches[i : i + accumulate])) for i in range(0, len(batches), accumulate)]
        in_step = max(in_step, *(max(Counter(step).values()) for step in steps))
        in_pass = max(in_pass, *Counter(chain(*batches)).values())
    return in_step, in_pass


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_microbatches_of_a_shuffled_pass_add_up_to_a_larger_batch(accumulate):
    stock = loader()
    assert declared_sampling(trainer(stock, accumulate), stock) == EpochShuffle(4 * accumulate)
    assert most_in_a_step(stock, accumulate) == (1, 1)


def test_a_sequential_pass_stays_one():
    stock = loader(shuffle=False)
    assert declared_sampling(trainer(stock, 2), stock) == Sequential(8)


def test_a_cut_pass_is_declared_with_its_steps():
    stock = loader()
    declared = declared_sampling(trainer(stock, batches=3), stock)
    assert declared == EpochShuffle(4, steps_per_pass=3)
    # With one differing record a pass of three steps costs what a whole pass costs, and comes twice as often.
    whole = EpochShuffle(4).worst_case_square_sum(1, RECORDS, 6)
    assert declared.worst_case_square_sum(1, RECORDS, 6) == 2 * whole == 2


def test_draws_with_replacement_add_up_to_more_of_them():
    drawn = loader(sampler=RandomSampler(range(RECORDS), replacement=True), shuffle=None)
    assert most_in_a_step(drawn, 2)[0] > 1
    assert declared_sampling(trainer(drawn, 2), drawn) == WithReplacement(8)


def test_batches_of_distinct_records_that_may_share_one_do_not_add_up():
    drawn = loader(batch_sampler=FixedSizeBatchSampler(RECORDS, 4), batch_size=1, shuffle=None)
    assert most_in_a_step(drawn, 1)[0] == 1 < most_in_a_step(drawn, 2)[0]
    with pytest.raises(MisconfigurationException, match="give the draw of a whole step"):
        declared_sampling(trainer(drawn, 2), drawn)


def test_our_own_loader_already_draws_whole_steps():
    ours = private_loader(loader().dataset, Poisson(0.25), 2)
    assert declared_sampling(trainer(ours, 2), ours) == Poisson(0.25)


def test_an_average_over_the_order_needs_a_hidden_one():
    with pytest.raises(MisconfigurationException, match="this one is public"):
        declared_sampling(trainer(loader(shuffle=False)), loader(shuffle=False), needs_hidden_order=True)
