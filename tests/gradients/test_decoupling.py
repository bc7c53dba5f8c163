"""Losses and layouts that couple records show; those that do not stay at the rounding of float32."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_pac.gradients import coupling_error, flat_sum, make_engine

X, Y = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 0, 2, 2, 1])


def contrastive(output: Tensor) -> Tensor:
    return functional.cross_entropy(output @ output.t(), torch.arange(output.shape[0]))


def neighbours(output: Tensor, labels: Tensor) -> Tensor:
    """Each pair of records shares half of its scores."""
    if len(output) % 2 == 0:
        output = output + 0.5 * output.view(-1, 2, 3).flip(1).flatten(0, 1)
    return functional.cross_entropy(output, labels)


@pytest.mark.parametrize("name", ["one_backward", "opacus"])
def test_coupled_losses_show(name: str) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    engine = make_engine(name)
    engine.attach(model)
    weights = torch.tensor([1.0, 5.0, 0.2])
    losses = {
        "mean": lambda rows: functional.cross_entropy(model(X[rows]), Y[rows]),
        "weighted": lambda rows: functional.cross_entropy(model(X[rows]), Y[rows], weight=weights),
        "contrastive": lambda rows: contrastive(model(X[rows])),
        "neighbours": lambda rows: neighbours(model(X[rows]), Y[rows]),
        "sum": lambda rows: functional.cross_entropy(model(X[rows]), Y[rows], reduction="sum"),
    }
    errors = {kind: coupling_error(engine, loss, 8) for kind, loss in losses.items()}
    engine.detach()
    assert errors.pop("mean") < 1e-5
    assert min(errors.values()) > 1e-2


def test_positions_in_the_first_dimension_are_not_records() -> None:
    model = nn.Linear(5, 2)
    engine = make_engine()
    engine.attach(model)
    sequences = torch.randn(8, 6, 5)
    with pytest.raises(ValueError, match="saw 6 examples in a batch of 8 records"):
        coupling_error(engine, lambda rows: model(sequences[rows].transpose(0, 1)).square().mean(), 8)
    with pytest.raises(ValueError, match="even and at least 2"):
        coupling_error(engine, lambda rows: model(X[rows]).mean(), 7)


def test_flat_sum_copies_only_what_is_apart() -> None:
    buffer = torch.arange(10.0)
    together = flat_sum([buffer[1:4], buffer[4:8].view(2, 2)])
    assert together.data_ptr() == buffer[1:].data_ptr()
    assert together.tolist() == [1, 2, 3, 4, 5, 6, 7]
    apart = flat_sum([buffer[4:8], buffer[1:4]])
    assert apart.tolist() == [4, 5, 6, 7, 1, 2, 3]
    assert flat_sum([torch.zeros(2), torch.ones(3)]).tolist() == [0, 0, 1, 1, 1]
