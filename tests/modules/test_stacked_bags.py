"""Bags of embeddings in an ensemble, against each member alone."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_pac.modules.ensembles import StackedNetwork

MEMBERS, ROWS = 5, 12


class Bags(nn.Module):
    """The words of a record, of which each member may leave some out by draws of its own."""

    def __init__(self, mode: str, drops: bool = False, **kwargs: Any) -> None:
        super().__init__()
        self.bag, self.layer, self.drops = nn.EmbeddingBag(ROWS, 3, mode=mode, **kwargs), nn.Linear(3, 2), drops

    def forward(self, words: Tensor) -> Tensor:
        kept = torch.where(torch.rand(words.shape) < 0.5, words, 0) if self.drops else words
        return self.layer(self.bag(kept))


def words() -> Tensor:
    found = torch.randint(1, ROWS, (6, 4), generator=torch.Generator().manual_seed(0))
    found[0, 2:], found[1] = 0, 0  # shorter records, and one without a word
    return found


@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_stacked_members_are_those_of_each(mode: str, chunk_size: int | None, padding: int | None) -> None:
    torch.manual_seed(1)
    stack = StackedNetwork(Bags(mode, padding_idx=padding), MEMBERS, chunk_size).double()
    for parameter in stack.parameters():
        nn.init.normal_(parameter)
    inputs, labels, membership = words(), torch.arange(6) % 2, torch.rand(MEMBERS, 6) < 0.6
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's, where it has no batching rule
        outputs = stack(inputs)
        losses = stack.losses(inputs, labels, membership, F.cross_entropy)
    losses.sum().backward()
    gradients = {name: parameter.grad for name, parameter in stack.network.named_parameters()}
    for number in range(MEMBERS):
        alone = Bags(mode, padding_idx=padding).double()
        alone.load_state_dict(stack.copy_state(number))
        expected = alone(inputs)
        torch.testing.assert_close(outputs[number], expected)
        F.cross_entropy(expected[membership[number]], labels[membership[number]]).backward()
        for name, parameter in alone.named_parameters():
            torch.testing.assert_close(gradients[name][number], parameter.grad)


def test_members_that_leave_out_words_by_draws_of_their_own_differ() -> None:
    torch.manual_seed(1)
    stack = StackedNetwork(Bags("mean", drops=True, padding_idx=0), MEMBERS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs = stack(words())
    assert len({tuple(row.flatten().tolist()) for row in outputs}) == MEMBERS
    assert torch.equal(outputs[:, 1], outputs[:1, 1].expand(MEMBERS, 2))  # which has no word


@pytest.mark.parametrize("size", [2, 8])
def test_a_table_with_rows_of_bounded_norm_runs_as_before(size: int) -> None:
    stack = StackedNetwork(Bags("sum", max_norm=0.5), size).eval()
    found = stack(words())
    alone = Bags("sum", max_norm=0.5)
    alone.load_state_dict(stack.copy_state(0))
    torch.testing.assert_close(found[0], alone(words()))
