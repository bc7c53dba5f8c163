"""Windows of one series that overlap are found, whatever lies around them, and nothing else is taken for them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from lightning_pac.data.records import are_overlapping_windows


def series(length: int = 400, *shape: int) -> Tensor:
    return torch.randn(length, *shape, generator=torch.Generator().manual_seed(length))


def windows(step: int, *shape: int, length: int = 24) -> list[tuple[Tensor, int]]:
    values = series(400, *shape)
    return [(values[start : start + length], start % 2) for start in range(0, 400 - length, step)]


class Loaded(Dataset[Any]):
    """Cuts a window when it is asked for, as most data sets of series do."""

    def __init__(self, step: int) -> None:
        self.values, self.step, self.loaded = series(), step, 0

    def __len__(self) -> int:
        return (400 - 24) // self.step

    def __getitem__(self, index: int) -> Any:
        self.loaded += 1
        start = index * self.step
        return {"past": self.values[start : start + 24].numpy(), "next": self.values[start + 24]}


@pytest.mark.parametrize("step", [1, 6, 12])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_windows_that_share_half_are_found(step: int, shape: tuple[int, ...]) -> None:
    cut = windows(step, *shape)
    assert are_overlapping_windows(cut)
    assert are_overlapping_windows(cut[::-1])
    mixed = torch.randperm(len(cut), generator=torch.Generator().manual_seed(0)).tolist()
    assert are_overlapping_windows(Subset(Subset(cut, mixed), range(10)))  # type: ignore[arg-type]


def test_they_are_found_as_data_sets_give_them() -> None:
    dataset = Loaded(4)
    assert are_overlapping_windows(dataset)
    assert dataset.loaded == 0, "a copy was asked"
    channels_first = TensorDataset(series(400, 3).T.unfold(1, 24, 2).movedim(1, 0))
    assert are_overlapping_windows(channels_first)
    assert are_overlapping_windows(TensorDataset(series().bfloat16().unfold(0, 24, 2)))
    of_many = [window for length in (60, 70, 80, 90) for window in series(length).unfold(0, 24, 3)]
    assert are_overlapping_windows(of_many), "of which one pair may be of two series"


@pytest.mark.parametrize(
    "dataset",
    [
        windows(24),
        windows(20),
        windows(1, length=6),
        TensorDataset(series(60, 24)),
        TensorDataset(torch.zeros(60, 24)),
        TensorDataset(torch.arange(24).expand(60, 24)),
        TensorDataset((series(60, 24) > 1).float() * (torch.arange(24) < 6)),
        [(f"text {number}", number) for number in range(60)],
        [(series(60 + number), 1) for number in range(60)],
        [(np.array(["a"] * 24), 1) for number in range(60)],
        TensorDataset(series(1, 24)),
    ],
)
def test_nothing_else_is_taken_for_them(dataset: Any) -> None:
    assert not are_overlapping_windows(dataset)
