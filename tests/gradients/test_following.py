"""Parameters are followed to where they meet the batch; per-record gradients equal those of one record at a time."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from followed_models import MODELS
from followed_sequences import SEQUENCES
from per_example_loop import assert_same, clipped_sum_by_loop
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_pac.gradients import make_engine

CASES: dict[str, Any] = {**MODELS, **SEQUENCES}


def losses(module: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    output = module(*batch)
    output = output[0] if isinstance(output, tuple) else output
    ramp = torch.linspace(0.5, 1.5, output[0].numel(), dtype=output.dtype).view(output.shape[1:])
    return (torch.sin(output) * ramp).flatten(1).sum(1)


def mean_loss(module: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    return losses(module, batch).mean()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("case", CASES)
def test_network_equals_the_loop(case: str) -> None:
    """With five records, as many as positions in some of them, with four, and with one."""
    torch.manual_seed(0)
    make, draw = CASES[case]
    module, batch = make(), draw()
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.dim() == 1:
            nn.init.normal_(parameter)
    engine = make_engine()
    for size in (5, 4, 1):
        part = [tensor[:size] for tensor in batch]
        expected = clipped_sum_by_loop(module, part, mean_loss, 1.0)
        engine.attach(module)
        for _ in range(2):
            mean_loss(module, part).backward()
            assert all(parameter.grad is None for parameter in module.parameters())
            assert_same(*engine.clipped_sum(1.0), expected, 2e-4 if "orthogonal" in case else 2e-5)
        engine.detach()


class Dropping(nn.Module):
    """Dropout and drop-path below a parameter of the module's own, over layers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.scale = nn.Parameter(torch.full((8,), 0.5))
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
        self.recurrent = nn.LSTM(8, 4, 2, batch_first=True, dropout=0.5, bidirectional=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(torch.cat([self.token.expand(len(x), -1, -1), x], 1), 0.2)
        kept = x.new_empty(len(x), 1, 1).bernoulli_(0.5)
        x = x + kept * self.scale * self.encoder(x)
        return self.head(self.recurrent(x)[0])


def test_random_layers_are_differentiated_under_the_masks_that_were_drawn() -> None:
    """The truth is the slope of each record's loss under the same masks, by differences in float64."""
    torch.manual_seed(0)
    module, batch, engine = Dropping().double(), [torch.randn(6, 4, 8).double()], make_engine()
    directions = [torch.randn_like(parameter) for parameter in module.parameters()]
    engine.attach(module)

    def under_the_masks() -> Tensor:
        torch.manual_seed(1)
        return losses(module, batch)

    under_the_masks().mean().backward()
    norms = engine.clipped_sum(1e6)[1]
    slopes = []
    for i in range(6):
        under_the_masks()[i].div(6).backward()
        sums, own = engine.clipped_sum(1e6)
        slopes.append(sum(float((total * way).sum()) for total, way in zip(sums, directions, strict=True)))
        assert torch.allclose(own[i], norms[i], rtol=1e-5)
        assert float(own.sum() - own[i]) == 0.0
    ends = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            for parameter, way in zip(module.parameters(), directions, strict=True):
                parameter += step * way
        ends.append(under_the_masks().detach())
    engine.detach()
    assert torch.allclose((ends[0] - ends[1]) / 2e-6, torch.tensor(slopes).double(), rtol=1e-4)
