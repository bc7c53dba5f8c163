"""Records of several rows: clipped as one, by every form that contributions have, as one record at a time says."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_pac.gradients import flat_sum, make_engine

RECORDS, ROWS = 6, 4


class Tied(nn.Module):
    """Look-ups and products with one table, a recurrent layer, and a parameter that joins by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 5)
        self.recurrent = nn.GRU(5, 5, batch_first=True)
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.linear(self.recurrent(self.table(tokens) * self.scale)[0], self.table.weight).mean(dim=1)


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    images, count = torch.randn(RECORDS * ROWS, 2, 6, 6), RECORDS * ROWS
    return {
        "linear": (nn.Sequential(nn.Linear(9, 20), nn.Tanh(), nn.Linear(20, 3)), torch.randn(count, 9)),
        "narrow": (nn.Linear(2, 3), torch.randn(count, 2)),
        "positions": (nn.Sequential(nn.Linear(9, 30), nn.Flatten(), nn.Linear(90, 3)), torch.randn(count, 3, 9)),
        "images": (
            nn.Sequential(
                nn.Conv2d(2, 32, 3), nn.GroupNorm(2, 32), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(128, 3)
            ),
            images,
        ),
        "tied": (Tied(), torch.randint(7, (count, 5))),
    }


def gradient_of(network: nn.Module, rows: Tensor, labels: Tensor) -> Tensor:
    network.zero_grad()
    functional.cross_entropy(network(rows), labels).backward()
    found = torch.cat([parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None])
    network.zero_grad()
    return found.double()


@pytest.mark.parametrize("name", networks())
@pytest.mark.parametrize("used", [ROWS, 3])
def test_rows_of_a_record_are_clipped_as_one(name: str, used: int) -> None:
    """Equal to the mean of as many forward passes of the record alone, clipped; unused rows count as zero."""
    network, rows = networks()[name]
    labels = torch.randint(3, (len(rows),), generator=torch.Generator().manual_seed(1))
    unused = torch.arange(len(rows)) % ROWS >= used
    if rows.is_floating_point():
        rows[unused] = torch.nan
    alone = []
    for start in range(0, len(rows), ROWS):
        each = [gradient_of(network, rows[i : i + 1], labels[i : i + 1]) for i in range(start, start + used)]
        alone.append(sum(each) / ROWS)
    norms = torch.stack([gradient.norm() for gradient in alone])
    bound = float(norms.median())
    wanted = sum(g * min(1.0, bound / float(g.norm())) for g in alone)

    engine = make_engine()
    engine.attach(network, rows_per_record=ROWS)
    functional.cross_entropy(network(rows), labels).backward()
    found, of_records = engine.clipped_sum(bound, unused_rows=unused if used < ROWS else None)
    engine.detach()
    torch.testing.assert_close(of_records[:, 0].double(), norms, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(flat_sum(found).double(), wanted, rtol=1e-4, atol=2e-5)


def test_both_engines_agree_on_rows_of_records() -> None:
    network, rows = networks()["positions"]
    labels = torch.randint(3, (len(rows),), generator=torch.Generator().manual_seed(1))
    unused = torch.arange(len(rows)) % ROWS == 3
    outcomes: list[Any] = []
    for name in ("one_backward", "opacus"):
        engine = make_engine(name)
        engine.attach(network, rows_per_record=ROWS)
        functional.cross_entropy(network(rows), labels).backward()
        outcomes.append(engine.clipped_sum(0.1, num_records=5, unused_rows=unused))
        engine.detach()
    torch.testing.assert_close(flat_sum(outcomes[0][0]), flat_sum(outcomes[1][0]), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(outcomes[0][1], outcomes[1][1], rtol=1e-4, atol=1e-6)


def test_rows_that_are_no_records_are_refused() -> None:
    network, engine = nn.Linear(2, 1), make_engine()
    engine.attach(network, rows_per_record=4)
    network(torch.ones(10, 2)).mean().backward()
    with pytest.raises(ValueError, match="A batch has 10 rows, which are no records of 4 rows each"):
        engine.clipped_sum(1.0)
    engine.detach()
