"""Loaders that deliver what the descriptor promises, in microbatches, with workers, and across a restart."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

from lightning_pac.data import (
    EpochShuffle,
    FixedSize,
    Poisson,
    PoissonBatchSampler,
    ResumableDataLoader,
    Sequential,
    WithReplacement,
    private_loader,
    rebuild_loader,
)


class Indices(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


def delivered(loader: Any) -> list[tuple[int | None, list[int]]]:
    return [(loader.num_drawn, batch.tolist()) for batch in loader]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_empty_poisson_batch_is_delivered_as_a_placeholder(num_workers: int) -> None:
    # 60 batches of rate 1/60 over 40 records: each is empty with probability 0.51, none at all is with 1e-19.
    batches = delivered(private_loader(Indices(), Poisson(rate=1 / 60), num_workers=num_workers))
    assert len(batches) == 60
    assert all(len(batch) == max(drawn or 0, 1) for drawn, batch in batches)
    assert any(drawn == 0 and batch == [0] for drawn, batch in batches)


@pytest.mark.parametrize(
    "sampling", [EpochShuffle(8), Sequential(8), FixedSize(8), WithReplacement(8), Poisson(rate=0.2)]
)
def test_microbatches_of_a_step_make_up_its_batch(sampling: Any) -> None:
    loader = private_loader(Indices(), sampling, num_microbatches=3)
    assert len(loader) == 15
    parts = []
    for batch in loader:
        parts.append((loader.microbatch, [] if loader.num_drawn == 0 else batch.tolist()))
    assert [number for number, _ in parts] == [0, 1, 2] * 5
    steps = [list(chain(*(part for _, part in parts[start : start + 3]))) for start in range(0, 15, 3)]
    if isinstance(sampling, EpochShuffle | Sequential):
        assert sorted(chain(*steps)) == list(range(40))
    if not isinstance(sampling, Poisson):
        assert all(len(step) == 8 for step in steps)
    if not isinstance(sampling, WithReplacement):
        assert all(len(set(step)) == len(step) for step in steps)


def test_poisson_microbatches_do_not_depend_on_the_other_records() -> None:
    # Were the batch cut into equal parts, two drawn records would be apart more often than independent ones.
    together = np.array(
        [
            [0 in part and 1 in part for part in (first.tolist(), second.tolist())]
            for first, second in _pairs(private_loader(Indices(), Poisson(rate=1.0), num_microbatches=2), 4000)
        ]
    ).any(1)
    assert abs(together.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(together))  # fails a correct loader once in 1.7e6


def _pairs(loader: Any, count: int) -> Any:
    for _ in range(count):
        first, second = loader
        yield first, second


def test_a_run_resumed_within_a_step_does_not_mix_two_draws() -> None:
    loader = private_loader(Indices(), Poisson(rate=0.5), num_microbatches=3)
    loader.skip_microbatches(2)
    assert [loader.microbatch for _ in loader] == [2, 0, 1, 2]
    assert [loader.microbatch for _ in loader] == [0, 1, 2] * 2


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("stop", "num_microbatches"), [(3, 1), (0, 1), (4, 2), (5, 2), (10, 2), (1, 3)])
def test_a_resumed_pass_gives_every_record_once(num_workers: int, stop: int, num_microbatches: int) -> None:
    def make() -> ResumableDataLoader:
        loader = private_loader(Indices(), EpochShuffle(8), num_microbatches, num_workers=num_workers)
        assert isinstance(loader, ResumableDataLoader)
        return loader

    loader, seen = make(), []
    iterator = iter(loader)
    for _ in range(stop):
        seen += next(iterator).tolist()
    state = loader.state_dict()
    del iterator
    assert all(isinstance(value, int | str) for value in state.values())
    resumed = make()
    resumed.load_state_dict(state)
    assert resumed.within_pass == (0 < stop < 5 * num_microbatches)
    rest = [index for batch in resumed for index in batch.tolist()]
    if 0 < stop < 5 * num_microbatches:
        assert sorted(seen + rest) == list(range(40))
    else:
        assert sorted(rest) == list(range(40))
    assert not resumed.within_pass
    assert sorted(index for batch in resumed for index in batch.tolist()) == list(range(40))


def test_loaders_without_passes_have_no_state() -> None:
    for sampling in (Poisson(0.5), FixedSize(4), WithReplacement(4)):
        assert not hasattr(private_loader(Indices(), sampling), "state_dict")


def test_rebuilding_keeps_the_rest_of_the_loader() -> None:
    def collate(records: list[int]) -> torch.Tensor:
        return -torch.tensor(records)

    stock = DataLoader(Indices(), batch_size=4, shuffle=True, num_workers=1, collate_fn=collate, prefetch_factor=3)
    loader = rebuild_loader(stock, FixedSize(6))
    assert (loader.num_workers, loader.prefetch_factor, loader.collate_fn) == (1, 3, collate)
    assert all((batch <= 0).all() and len(batch) == 6 for batch in loader)
    again = rebuild_loader(loader, Poisson(rate=0.5), num_microbatches=2)
    assert again.dataset is stock.dataset
    assert len(again) == 4


def test_a_loader_with_our_poisson_sampler_can_be_rebuilt() -> None:
    stock = DataLoader(Indices(), batch_sampler=PoissonBatchSampler(40, 0.01))
    with pytest.raises(IndexError):  # the default collate function fails on an empty batch
        list(stock)
    assert len(list(rebuild_loader(stock, Poisson(0.01)))) == 100


@pytest.mark.parametrize(
    ("loader", "error", "message"),
    [
        (DataLoader(Stream(), batch_size=2), TypeError, "dataset is of type Stream"),
        (
            DataLoader(Indices(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 40, 40)),
            ValueError,
            r"has a sampler of its own \(WeightedRandomSampler\), which sampling=FixedSize would silently replace",
        ),
        (DataLoader(Indices(), batch_size=None), ValueError, r"no automatic batching \(batch_size=None\)"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(loader: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        rebuild_loader(loader, FixedSize(4))


def test_public_poisson_draws_are_refused() -> None:
    with pytest.raises(ValueError, match="leave secret_draws=False out"):
        private_loader(Indices(), Poisson(0.1, secret_draws=False))
    with pytest.raises(ValueError, match="num_microbatches is 0"):
        private_loader(Indices(), Poisson(0.1), num_microbatches=0)


def test_batches_in_any_order_are_refused() -> None:
    with pytest.raises(ValueError, match="known by the order of the batches"):
        private_loader(Indices(), Poisson(0.1), num_workers=2, in_order=False)


def test_datasets_that_fetch_many_records_at_once_work() -> None:
    class Fast(TensorDataset):
        def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, ...]]:
            return [self[index] for index in indices]

    batches = list(private_loader(Subset(Fast(torch.arange(10.0)), range(8)), Poisson(0.05)))
    assert len(batches) == 20
    assert all(len(batch[0]) >= 1 for batch in batches)
