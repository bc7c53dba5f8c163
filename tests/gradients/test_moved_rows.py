"""Rows that move along the batch are followed, or refused where they cannot be."""

import pytest
import torch
from moved_rows import WAYS, Moved
from per_example_loop import assert_same, clipped_sum_by_loop
from torch import Tensor, nn

from lightning_pac.gradients import make_engine

# Records that meet in a sum (a product with a matrix of zeros and ones, differences of sums), parts of a tensor that is
# written to through a view, another order of rows within records, and what `torch.vmap` hides.
REFUSED = [
    "product", "einsum", "linear_across", "repeated_outside", "mapped", "copied_into", "cumulated", "unfolded",
    "first_state_of_others",
]  # fmt: skip


def mean_loss(module: nn.Module, batch: list[Tensor]) -> Tensor:
    output = module(*batch)
    return (torch.sin(3 * output) * torch.linspace(0.5, 1.5, 2, dtype=output.dtype)).sum(1).mean()


@pytest.mark.parametrize("way", WAYS)
def test_moved_rows_equal_the_loop_or_are_refused(way: str) -> None:
    torch.manual_seed(0)
    module, batch = Moved(WAYS[way]), torch.randn(5, 4)
    for size in (5, 4) if way in REFUSED else (5, 4, 1):
        engine = make_engine()
        engine.attach(module)
        expected = clipped_sum_by_loop(module, [batch[:size]], mean_loss, 1.0)
        loss = mean_loss(module, [batch[:size]])
        if way in REFUSED:
            with pytest.raises(RuntimeError, match="cannot be told apart into"):
                loss.backward()
        else:
            loss.backward()
            assert_same(*engine.clipped_sum(1.0), expected, 2e-5)
        engine.detach()


def test_a_row_of_constants_is_of_no_record() -> None:
    """What a row without a record gives may not be left out of the sum in silence."""

    class WithConstantRows(nn.Module):
        def __init__(self, used: bool) -> None:
            super().__init__()
            self.layer, self.used = nn.Linear(3, 3), used

        def forward(self, x: Tensor) -> Tensor:
            rows = torch.ones(len(x) + 1, 3)
            rows[1:] = x
            h = torch.tanh(self.layer(rows))
            return h[1:] + h[:1] if self.used else h[1:]

    for used in (False, True):
        torch.manual_seed(0)
        module, engine, x = WithConstantRows(used), make_engine(), torch.randn(4, 3)
        engine.attach(module)
        if used:
            with pytest.raises(RuntimeError, match="cannot be told apart"):
                module(x).square().sum(1).mean().backward()
        else:
            module(x).square().sum(1).mean().backward()
            sums, norms = engine.clipped_sum(1e9)
            module_alone = nn.Sequential(module.layer, nn.Tanh())
            engine.detach()
            expected = clipped_sum_by_loop(module_alone, [x], lambda m, b: m(b[0]).square().sum(1).mean(), 1e9)
            assert_same(sums, norms, expected, 2e-5)
        engine.detach()
