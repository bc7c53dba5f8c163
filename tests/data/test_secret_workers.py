"""Workers whose records are not those of the main process, where they were checked."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from lightning_pac.data import hide_worker_seeds

SCALE = [1.0]


class Rows(Dataset[Any]):
    def __init__(self) -> None:
        self.values = torch.randn(16, 3)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return self.values[index] + 0 * torch.rand(3)


class NextInWorkers(Rows):
    def __getitem__(self, index: int) -> Any:
        return self.values[index if get_worker_info() is None else (index + 1) % 16]


def centre(worker_id: int) -> None:
    dataset: Any = get_worker_info().dataset  # type: ignore[union-attr]
    dataset.values -= dataset.values.mean(0)


def rescale(worker_id: int) -> None:
    SCALE[0] = 2.0


def scaled(records: list[Any]) -> Any:
    return torch.stack(records) * SCALE[0]


class RepeatsInWorkers(Rows):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in (indices if get_worker_info() is None else [indices[0], *indices[:-1]])]


def repeating(records: list[Any]) -> Any:
    return torch.stack(records if get_worker_info() is None else [records[0], *records[:-1]])


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(RepeatsInWorkers(), batch_size=4, num_workers=1),
        DataLoader(Rows(), batch_size=4, num_workers=1, collate_fn=repeating),
        DataLoader(Rows(), num_workers=1, worker_init_fn=centre),
        DataLoader(Rows(), num_workers=1, worker_init_fn=rescale, collate_fn=scaled),
        DataLoader(NextInWorkers(), num_workers=1, persistent_workers=True, prefetch_factor=1),
    ],
)
def test_workers_do_not_give_other_records(loader: DataLoader[Any]) -> None:
    undo = hide_worker_seeds(loader)
    with pytest.raises(ValueError, match="give other records of"):
        next(iter(loader))
    undo()


def test_workers_that_only_draw_pass() -> None:
    loader = DataLoader(Rows(), batch_size=16, num_workers=1, worker_init_fn=torch.manual_seed)
    hide_worker_seeds(loader)
    assert torch.equal(next(iter(loader)), loader.dataset.values)  # type: ignore[attr-defined]
